"""What the loaders did: engines and knobs, switches and failures, what was delivered by whom, and what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .markup import Html, el, join, section, table
from .words import clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..store import Snapshot
    from .subject import Subject

FAILURES = {
    "switch-failed": "switch failed",
    "switch-superseded": "switch superseded by a newer one",
    "switch-cancelled": "switch cancelled before it took effect",
    "sampler-restarted": "sampler restarted",
}


MOST = 200
"""Rows of a table at most, the newest."""


def loading(subject: Subject) -> Html | None:
    """Engines, deliveries, switches and skipped samples; None without a loader."""
    snapshot = subject.snapshot
    parts = [engines(snapshot), deliveries(snapshot), happened(subject), skipped(snapshot)]
    if not any(parts):
        return None
    return section("loading", "Data loading", None, *parts)


def engines(snapshot: Snapshot) -> Html | None:
    """Each loader's engine and knobs, and why other engines could not be used."""
    rows = []
    for state in snapshot.loaders:
        knobs = state.get("knobs") or {}
        parity = state.get("parity")
        rows.append(
            [
                str(state["name"]),
                str(state.get("backend", "-")),
                ", ".join(f"{name} {value}" for name, value in knobs.items() if value is not None) or "-",
                "; ".join(
                    f"{one['name']}: {one['reason']}" for one in state.get("backends", ()) if not one.get("available")
                )
                or "-",
                str(parity) if parity is not None else "not measured: loader.parity()",
            ]
        )
    if not rows:
        return None
    head = ["loader", "engine at the end", "set to", "engines that could not be used", "parity of the engines"]
    return join(el("h3", "Engines"), table(head, rows, numbers=range(0), label="Engines"))


def happened(subject: Subject) -> Html | None:
    """The switches, changed knobs and marks with their times, and what failed."""
    snapshot, where = subject.snapshot, subject.where
    names = _names(snapshot)
    rows = []
    for event in snapshot.events:
        loader = names.get(str(event.get("loader")), str(event.get("loader", "-")))
        when = clock(snapshot.schema.origin + float(event.get("first", event["time"])), where)
        if event["kind"] == "switch":
            took = f"{1000 * (float(event['first']) - float(event['asked'])):,.0f} ms" if "asked" in event else "-"
            what = f"{event['source']} → {event['target']}"
            rows.append([when, loader, what, *_place(event), took])
        elif event["kind"] == "knobs":
            rows.append([when, loader, _knobs(event), "-", "-", "-"])
        elif event["kind"] == "mark":
            rows.append([when, "-", f"mark: {event.get('label', '')}", "-", "-", "-"])
        elif event["kind"] in FAILURES:
            message = f": {event['message']}" if event.get("message") else ""
            rows.append([when, loader, FAILURES[event["kind"]] + message, "-", "-", "-"])
    if not rows:
        return None
    head = ["time", "loader", "what", "epoch", "batch", "request to first batch"]
    shown = table(head, rows[-MOST:], numbers=range(3, len(head)), label="Switches and marks")
    left = f"The newest {MOST} of {len(rows):,}." if len(rows) > MOST else None
    return join(el("h3", "Switches"), el("p", left, class_="note") if left else None, shown)


def deliveries(snapshot: Snapshot) -> Html | None:
    """What each loader delivered of each epoch's plan, and who decoded it."""
    rows = []
    for state in snapshot.loaders:
        if state.get("samples") is None:
            continue
        for epoch in (*state.get("epochs", ()), state):
            planned = epoch.get("planned")
            decoded = ", ".join(f"{count:,} by {name}" for name, count in (epoch.get("decoded") or {}).items() if count)
            rows.append(
                [
                    str(state["name"]),
                    _place(epoch)[0],
                    _count(epoch, "samples") + (f" of {planned:,}" if planned is not None else ""),
                    *(_count(epoch, name) for name in ("skipped", "replaced", "lost", "doubled")),
                    decoded or "-",
                ]
            )
    if not rows:
        return None
    head = ["loader", "epoch", "samples of the plan", "skipped", "replaced by synthetic", "lost", "doubled", "decoded"]
    shown = table(head, rows[-MOST:], numbers=range(1, 7), label="Delivered")
    left = f"The newest {MOST} of {len(rows):,} epochs." if len(rows) > MOST else None
    return join(el("h3", "Delivered"), el("p", left, class_="note") if left else None, shown)


def skipped(snapshot: Snapshot) -> Html | None:
    """The last samples that each loader left out of its newest epoch, and why."""
    rows = [
        [str(state["name"]), f"{skip['index']:,}", str(skip["path"]), str(skip["reason"])]
        for state in snapshot.loaders
        for skip in state.get("skips", ())
    ]
    if not rows:
        return None
    head = ["loader", "sample", "file", "why"]
    note = "Unreadable files, left out of the newest epoch; the last ones of each loader."
    shown = table(head, rows, numbers=range(1, 2), label="Skipped samples")
    return join(el("h3", "Skipped samples"), el("p", note, class_="note"), shown)


def _names(snapshot: Snapshot) -> dict[str, str]:
    names = {loader.id: loader.name for loader in snapshot.schema.loaders}
    return names | {str(state["id"]): str(state["name"]) for state in snapshot.loaders}


def _place(told: Mapping[str, Any]) -> list[str]:
    """Epoch, counted from 1 as on the dashboard, and batch; an early recording or a copy of one may not say them."""
    epoch, batch = told.get("epoch"), told.get("batch")
    return ["-" if epoch is None else str(epoch + 1), "-" if batch is None else str(batch)]


def _count(told: Mapping[str, Any], name: str) -> str:
    found = told.get(name)
    return "-" if found is None else f"{found:,}"


def _knobs(event: Mapping[str, Any]) -> str:
    set_to = [f"{name} {event[name]}" for name in ("workers", "prefetch", "threads") if event.get(name) is not None]
    return ", ".join(set_to) + (f": {event['message']}" if event.get("message") else "")
