"""What each epoch really delivered: no epoch's time is worth anything without its counts.

A published comparison took the mean of two epochs of which the second, of an iterator that was never reset, had very
probably delivered nothing. Whatever epoch delivered less than its plan, or than its loader's others, is flagged here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .model import EpochCount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..store import Snapshot
    from .frames import Steps

UNKNOWN = "its plan is not known: only its steps are"
LOST_BEGIN = 0.01
"""An epoch's time is not told when more than this share of it lies before the first of its steps that was kept."""


def epoch_counts(snapshot: Snapshot) -> tuple[EpochCount, ...]:
    """Every epoch of every loader, loader by loader: by the loader's own counts, else by its steps."""
    names = {info.id: info.name for info in snapshot.schema.loaders}
    names |= {str(state["id"]): str(state["name"]) for state in snapshot.loaders}
    found = []
    for loader in dict.fromkeys([*names, *snapshot.steps.loaders]):
        steps = snapshot.steps.of(loader)
        told: dict[int, Mapping[str, Any]] = {}
        state = next((one for one in snapshot.loaders if str(one["id"]) == loader), None)
        if state is not None:
            told = {int(one["epoch"]): one for one in state.get("epochs", ())}
            if state.get("batch") or state.get("samples") or told:
                told[int(state["epoch"])] = {**state, "batches": state["batch"]}
        numbers = sorted({*told, *(int(one) for one in np.unique(steps["epoch"]))})
        counts = [
            _count(
                loader, names.get(loader, loader), number, told.get(number), steps[steps["epoch"] == number], snapshot
            )
            for number in numbers
        ]
        found += _beside_others(counts)
    return tuple(found)


def _count(
    loader: str, name: str, number: int, told: Mapping[str, Any] | None, steps: Steps, snapshot: Snapshot
) -> EpochCount:
    seconds = _seconds(steps, thinned=snapshot.steps.dropped > 0)
    if told is None:
        batches, samples = len(steps), int(steps["images"].sum())
        problem = UNKNOWN if snapshot.steps.dropped == 0 else "not all of its steps were kept"
        return EpochCount(loader, name, number, batches, samples, None, seconds, finished=False, problem=problem)
    samples = int(told["samples"])
    planned = None if told.get("planned") is None else int(told["planned"])
    skipped, replaced = int(told.get("skipped") or 0), int(told.get("replaced") or 0)
    newest = "knobs" in told  # a state, not a past epoch's counts
    whole = not newest if planned is None else samples + skipped + replaced >= planned
    finished = bool(told.get("finished", whole)) if planned is None else whole
    return EpochCount(
        loader,
        name,
        number,
        int(told["batches"] or 0),
        samples,
        planned,
        seconds,
        finished=finished,
        problem=_problem(samples, planned, told, finished=finished),
    )


def _problem(samples: int, planned: int | None, told: Mapping[str, Any], *, finished: bool) -> str | None:
    parts = []
    if planned is not None and samples < planned:
        so_far = " so far" if not finished and told.get("ended") is False else ""
        parts.append(f"delivered {samples:,} of {planned:,} samples{so_far}")
        parts += [
            f"{told[key]:,} {words}"
            for key, words in (
                ("skipped", "skipped as unreadable"),
                ("replaced", "replaced by replayed ones"),
                ("lost", "lost"),
            )
            if told.get(key)
        ]
    elif planned is None and not finished:
        parts.append(f"delivered {samples:,} samples so far")
    if told.get("doubled"):
        parts.append(f"{told['doubled']:,} delivered twice")
    return ", ".join(parts) or None


def _seconds(steps: Steps, *, thinned: bool) -> float:
    """From the first batch asked for to the last step's end; NaN where the beginning was not kept."""
    if len(steps) == 0:
        return math.nan
    seconds = float(steps["end"][-1] - (steps["end"][0] - steps["step"][0]))
    missing = float(steps["batch"][0]) * float(np.mean(steps["step"])) if thinned else 0.0
    return math.nan if missing > LOST_BEGIN * seconds else seconds


def _beside_others(counts: list[EpochCount]) -> list[EpochCount]:
    """Hold what has no plan against its loader's other epochs: those are whole that delivered as many as one of them
    was to, or as another did, and none more."""
    plans = {one.planned for one in counts}
    fullest = max(counts, key=lambda one: one.samples, default=None)
    found = []
    for one in counts:
        as_many = one.samples in plans or sum(other.samples == one.samples for other in counts) > 1
        if one.planned is not None or one.problem not in (None, UNKNOWN) or fullest is None:
            found.append(one)
        elif one.samples < fullest.samples:
            problem = f"delivered {one.samples:,} samples; epoch {fullest.epoch + 1} delivered {fullest.samples:,}"
            found.append(replace(one, finished=False, problem=problem))
        else:
            known = one.problem is None or (as_many and one.samples > 0)
            found.append(replace(one, finished=True, problem=None) if known else one)
    return found
