"""The loops of a session: which of them, and which of its segments, stands for the session, and its epochs.

A run that trains also evaluates, and its verdict is that of the training (`secondary`). A loader's advice is for the
segment of what is in use (`advised_segments`), and the session's for one of these (`representative`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..steps.measured_step import NO_GRADIENTS
from ..store import Snapshot
from ..store.snapshot import StepTable
from .frames import Steps, loader_names
from .results import EpochCount, Segment
from .segments import REPLAYS, Event, switches

TOGETHER_S = 0.5  # loops that have no more time in common followed each other: the times of steps are rounded
ENOUGH_STEPS = 30  # a segment with so many stands for its session; one that has just begun does not
LATE_S = 10.0  # a step that a GPU times may be known so much later than another loader's that ended after it
FEWEST_STEPS = 20
"""A segment of fewer is not advised from while there is a longer one of the same engine, knobs and loop."""


class Loop(NamedTuple):
    """One loader's steps: first start and last end (session s), their seconds; `evaluates`: most had no gradients."""

    loader: str
    start: float
    end: float
    seconds: float
    evaluates: bool


def secondary(loops: Iterable[Loop]) -> frozenset[str]:
    """Return ids of the loaders whose loops stand beside another one; never all of them.

    An evaluation stands beside any training. Of other loops that took turns (each began before the other ended) those
    stand beside that took less time: an evaluation whose gradients are turned off after its batch has come is such.
    """
    known = [loop for loop in loops if loop.seconds > 0]
    training = [loop for loop in known if not loop.evaluates] or known
    found = {loop.loader for loop in known if loop not in training}
    for loop in training:
        if any(
            other.seconds > loop.seconds and min(loop.end, other.end) - max(loop.start, other.start) > TOGETHER_S
            for other in training
        ):
            found.add(loop.loader)
    return frozenset(found)


def loops_of_segments(segments: Sequence[Segment]) -> list[Loop]:
    """Return the loops of a session."""
    own: dict[str, list[Segment]] = {}
    for segment in segments:
        if segment.steps and math.isfinite(segment.step):
            own.setdefault(segment.loader, []).append(segment)
    return [
        Loop(
            loader,
            start=min(segment.start for segment in found),
            end=max(segment.end for segment in found),
            seconds=sum(segment.steps * segment.step for segment in found) / 1e3,
            evaluates=all(segment.evaluates for segment in found),
        )
        for loader, found in own.items()
    ]


def loops_of_steps(steps: StepTable, start: float, end: float) -> list[Loop]:
    """Return the loops of a part of a session: of the steps that ended in `(start, end]`."""
    found = []
    for loader in steps.loaders:
        rows = steps.of(loader, start, end)
        if len(rows):
            began, ended = float(rows["end"][0] - rows["step"][0]), float(rows["end"][-1])
            evaluates = bool(2 * (rows["flags"] & NO_GRADIENTS != 0).sum() > len(rows))
            found.append(Loop(loader, began, ended, float(rows["step"].sum()), evaluates))
    return found


def secondary_loaders(steps: StepTable, segments: Sequence[Segment] = ()) -> frozenset[str]:
    """Return the ids of the loaders whose loops stand beside another, by all kept steps (without any by `segments`)."""
    return secondary(loops_of_steps(steps, -math.inf, math.inf) if len(steps) else loops_of_segments(segments))


class LoopTimes:
    """The loops of a session so far, updated with each new run of steps; older steps need not be kept."""

    def __init__(self) -> None:
        self.since = -math.inf  # steps that ended before it (session s) are not needed again
        self._ends: dict[str, float] = {}
        self._loops: dict[str, Loop] = {}
        self._without_gradients: dict[str, int] = {}  # steps, those with gradients subtracted

    def add(self, steps: StepTable) -> None:
        """Add those that ended since the last call; some of these may be among them again."""
        for loader in steps.loaders:
            rows = steps.of(loader, self._ends.get(loader, -math.inf))
            if not len(rows):
                continue
            began, ended = float(rows["end"][0] - rows["step"][0]), float(rows["end"][-1])
            none = int((rows["flags"] & NO_GRADIENTS != 0).sum())
            self._without_gradients[loader] = self._without_gradients.get(loader, 0) + 2 * none - len(rows)
            known = self._loops.get(loader)
            self._loops[loader] = Loop(
                loader,
                began if known is None else known.start,
                ended,
                float(rows["step"].sum()) + (0.0 if known is None else known.seconds),
                self._without_gradients[loader] > 0,
            )
            self._ends[loader] = ended
            self.since = max(self.since, ended - LATE_S)

    def secondary_ids(self) -> frozenset[str]:
        """Return ids of the loaders whose loops stand beside another one."""
        return secondary(self._loops.values())

    def main(self) -> str | None:
        """Return the id of the loader of the newest loop that stands beside no other; None before the first step."""
        secondary_ids = self.secondary_ids()
        own = [loop for loop in self._loops.values() if loop.loader not in secondary_ids]
        return max(own, key=lambda loop: loop.end).loader if own else None


def secondary_reason(main: str) -> str:
    """Return why nothing is advised on a loop that stands beside another, the `main` one (its loader's name)."""
    return f"This loop takes turns with that of {main}, which trains: advice is on that one."


def training_segments(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments of loops that stand beside no other."""
    secondary_ids = secondary(loops_of_segments(segments))
    return [segment for segment in segments if segment.loader not in secondary_ids]


def engines_in_use(events: Sequence[Event]) -> dict[str, str]:
    """Return, by loader that was switched, the real engine that delivers now, even before its first step."""
    return {str(event["loader"]): str(event["target"]) for event in switches(events) if event["target"] != REPLAYS}


def advised_segments(segments: Sequence[Segment], used: Mapping[str, str]) -> dict[str, Segment]:
    """Return, by loader, the segment that its advice is for: the newest of the engine in use, real batches first.

    Where that has few steps yet, it is an earlier one of the same engine and knobs, if nothing but switches lies
    between: an engine that was tried and left again (*Diagnose* does so) changes nothing. `segments` are in the order
    of time; `used` is from `engines_in_use`, for other loaders the newest segment's engine.
    """
    found: dict[str, Segment] = {}
    for segment in segments:
        known = found.get(segment.loader)
        if known is None or not segment.synthetic or known.synthetic:
            found[segment.loader] = segment
    for loader, last in list(found.items()):
        wanted = used.get(loader, last.backend), last.knobs
        for segment in reversed([segment for segment in segments if segment.loader == loader]):
            if (segment.backend, segment.knobs) == wanted and segment.steps >= FEWEST_STEPS:
                found[loader] = segment
                break
            if segment.began_by != "switch":
                break  # what lies before is another loop
    return found


def withheld_reason(segment: Segment, stands: Segment, used: str | None) -> str | None:
    """Return why nothing is advised on a segment, as a sentence; None where something is.

    `stands` is the segment that its loader's advice is for, `used` the engine in use (None: never switched).
    """
    if segment is stands and used in (None, segment.backend):
        return None
    if segment is stands or used not in (None, stands.backend):
        return f"{used} has only just taken over: let it run on."
    if stands.steps < FEWEST_STEPS:
        return f"{stands.key} ({stands.backend}) is in use now, with {stands.steps:,} steps yet: let it run on."
    return f"The advice is for what is in use now: {stands.key} ({stands.backend}, {stands.steps:,} steps)."


def representative(
    segments: Sequence[Segment], stands: Mapping[str, Segment], secondary_ids: Collection[str] = frozenset()
) -> Segment | None:
    """Return the segment that stands for a session; None where there is none.

    It is the newest segment of real batches with enough steps, else the one with the most. Loops of `secondary_ids` do
    not count. A segment of an engine that was left again gives way to the one that its loader's advice is for
    (`stands`).
    """
    own = [segment for segment in segments if segment.loader not in secondary_ids] or segments
    real = [segment for segment in own if not segment.synthetic] or own
    enough = [segment for segment in real if segment.steps >= ENOUGH_STEPS]
    if not enough:
        return max(real, key=lambda segment: segment.steps, default=None)
    last = enough[-1]
    advised = stands[last.loader]
    return advised if advised.steps >= (FEWEST_STEPS if advised.start <= last.start else ENOUGH_STEPS) else last


# ---- The counts of each epoch: without them its time must not be compared with another's.

UNKNOWN = "its plan is not known: only its steps are"
_LOST_BEGIN = 0.01
"""An epoch's time is not known when more than this share of it lies before the first of its steps that was kept."""
NOTHING = "delivered no sample"
MISSING = {"skipped": "skipped as unreadable", "replaced": "replaced by replayed ones", "lost": "lost"}


def epoch_counts(snapshot: Snapshot) -> tuple[EpochCount, ...]:
    """Return every epoch of every loader, loader by loader: by the loader's own counts, else by its steps."""
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
    """Return the seconds from the first batch's request to the last step's end; NaN if the beginning was not kept."""
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
