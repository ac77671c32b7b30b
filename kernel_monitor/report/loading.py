"""What the templates show of the loaders: what was delivered, switched, set and left out, and by whom."""

from __future__ import annotations

from typing import Any

from .subject import Subject

HAPPENED = (
    "switch", "knobs", "mark", "switch-failed", "switch-superseded", "switch-cancelled", "fault",
    "sampler-restarted",
    "job-switch", "job-epoch",
)  # fmt: skip
"""Kinds of events that are listed."""
MOST = 200  # rows of a table at most, the newest; of epochs those with a problem always are in it


def epochs(subject: Subject) -> dict[str, Any] | None:
    """The epochs with what they really delivered; one that delivered too little is flagged."""
    found = subject.analysis.epochs
    if not found:
        return None
    shown = [epoch for k, epoch in enumerate(found) if epoch.problem or k >= len(found) - MOST]
    return {"epochs": found, "shown": shown, "wrong": [epoch for epoch in found if epoch.problem], "most": MOST}


def loading(subject: Subject) -> dict[str, Any] | None:
    """Engines, deliveries, switches and skipped samples; None without a loader."""
    snapshot = subject.snapshot
    loaders = snapshot.loaders
    delivered = [
        (state["name"], epoch)
        for state in loaders
        if state.get("samples") is not None
        for epoch in (*state.get("epochs", ()), state)
    ]
    skipped = [(state["name"], skip) for state in loaders for skip in state.get("skips", ())]
    happened = [event for event in snapshot.events if event["kind"] in HAPPENED]
    if not loaders and not happened:
        return None
    names = {loader.id: loader.name for loader in snapshot.schema.loaders}
    names |= {str(state["id"]): str(state["name"]) for state in loaders}
    return {
        "loaders": loaders,
        "names": names,
        "delivered": delivered,
        "happened": happened,
        "skipped": skipped,
        "most": MOST,
    }
