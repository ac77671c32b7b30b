"""What each epoch really delivered: an epoch's time may be compared only with its counts.

A published comparison took the mean of two epochs of which the second, of an iterator that was never reset, had very
probably delivered nothing. Whatever epoch delivered less than its plan, or than its loader's others, is flagged here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..store import Snapshot
from .frames import Steps, loader_names
from .results import EpochCount

UNKNOWN = "its plan is not known: only its steps are"
_LOST_BEGIN = 0.01
"""An epoch's time is not known when more than this share of it lies before the first of its steps that was kept."""
NOTHING = "delivered no sample"
MISSING = {"skipped": "skipped as unreadable", "replaced": "replaced by replayed ones", "lost": "lost"}


def epoch_counts(snapshot: Snapshot) -> tuple[EpochCount, ...]:
    """Every epoch of every loader, loader by loader: by the loader's own counts, else by its steps."""
    names = loader_names(snapshot)
    thinned = snapshot.steps.dropped > 0
    found = []
    for loader in dict.fromkeys([*names, *snapshot.steps.loaders]):
        steps = snapshot.steps.of(loader)
        reported: dict[int, Mapping[str, Any]] = {}
        state = next((state for state in snapshot.loaders if str(state["id"]) == loader), None)
        if state is not None:
            reported = {int(epoch["epoch"]): epoch for epoch in state.get("epochs", ())}
            if state.get("batch") or state.get("samples") or state.get("finished") or reported:
                reported[int(state["epoch"])] = {**state, "batches": state["batch"]}
        counts = []
        for number in sorted({*reported, *map(int, np.unique(steps["epoch"]))}):
            own = steps[steps["epoch"] == number]
            known = EpochCount(
                loader,
                names.get(loader, loader),
                number,
                batches=len(own),
                samples=int(own["images"].sum()),
                planned=None,
                seconds=_seconds(own, thinned=thinned),
                finished=False,
                problem="not all of its steps were kept" if thinned else UNKNOWN,
                passed=int(own["images"].sum()),
            )
            counts.append(_as_reported(known, reported[number]) if number in reported else known)
        found += _beside_others(counts)
    return tuple(found)


def _as_reported(known: EpochCount, reported: Mapping[str, Any]) -> EpochCount:
    samples = int(reported["samples"])
    planned = None if reported.get("planned") is None else int(reported["planned"])
    passed = samples + int(reported.get("skipped") or 0) + int(reported.get("replaced") or 0)
    if not planned:  # of a sampler without a length it is what was drawn so far
        is_past = "knobs" not in reported  # a state is of the newest epoch
        finished = bool(reported.get("finished", is_past))
    else:
        finished = passed >= planned
    parts = []
    if planned is not None and samples < planned:
        so_far = " so far" if not finished and reported.get("ended") is False else ""
        parts.append(f"delivered {samples:,} of {planned:,} samples{so_far}")
        parts += [f"{reported[key]:,} {words}" for key, words in MISSING.items() if reported.get(key)]
    elif planned is None and not finished:
        parts.append(f"delivered {samples:,} samples so far")
    if reported.get("doubled"):
        parts.append(f"{reported['doubled']:,} delivered twice")
    batches, ended = int(reported["batches"] or 0), bool(reported.get("finished"))
    if planned == 0 and batches == 0:
        parts.append(NOTHING if ended else f"{NOTHING} so far")
    return replace(
        known,
        batches=batches,
        samples=samples,
        planned=planned,
        finished=finished,
        problem=", ".join(parts) or None,
        ended=ended,
        passed=passed,
    )


def _seconds(steps: Steps, *, thinned: bool) -> float:
    """From the first batch asked for to the last step's end; NaN where the beginning was not kept."""
    if len(steps) == 0:
        return math.nan
    seconds = float(steps["end"][-1] - (steps["end"][0] - steps["step"][0]))
    missing = float(steps["batch"][0]) * float(np.mean(steps["step"])) if thinned else 0.0
    return math.nan if missing > _LOST_BEGIN * seconds else seconds


def _beside_others(counts: list[EpochCount]) -> list[EpochCount]:
    """Compare epochs without a plan with their loader's others: those that delivered most are whole.

    That is, as many as one of the others was to deliver, or as another one did; none delivered more.
    """
    plans = {epoch.planned for epoch in counts}
    fullest = max(counts, key=lambda epoch: epoch.samples, default=None)
    found = []
    for epoch in counts:
        as_many = epoch.samples in plans or sum(other.samples == epoch.samples for other in counts) > 1
        if epoch.planned is not None or epoch.problem not in (None, UNKNOWN) or fullest is None:
            found.append(epoch)
        elif epoch.samples < fullest.samples:
            problem = f"delivered {epoch.samples:,} samples; epoch {fullest.epoch + 1} delivered {fullest.samples:,}"
            found.append(replace(epoch, finished=False, problem=problem))
        elif epoch.ended and epoch.batches == 0:  # as did all of them
            found.append(replace(epoch, problem=NOTHING))
        else:
            known = epoch.problem is None or (as_many and epoch.samples > 0)
            found.append(replace(epoch, finished=True, problem=None) if known else epoch)
    return found
