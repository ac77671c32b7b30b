"""The share of the step time that a change would save, or saved. See docs/verdict.md.

A measurement by *Diagnose* or a switch (`measured_gains`) is better than a prediction (`gains`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..store import Schema
from ..store.snapshot import StepTable
from .frames import Floats, counted, usable_cores
from .results import Gain, Segment
from .segments import REPLAYS, Part, parts, switches
from .step_times import BLOCK_STEPS, BLOCKS, Share, Timings, block_steps, shares, student_t

SATURATED = 0.85  # from this share of the usable cores on, loading and training take processor time from each other
_CALIBRATION_SPREAD = 0.09
"""The share by which an engine's processor time in the loop may differ from that on some files beside it."""
_STEP_SPREAD = 0.04
"""The share of the present step by which a predicted step may be off besides, either way, by noise and other causes."""
COMPUTES = 0.5  # of its time: a worker that takes less of the processor waits for files rather than compute
WAITS = 0.10  # share of the step: `verdict.THRESHOLDS` has the same for an input-bound loop
_FEW_STEPS = 10
_ANOTHER_LOOP = ("knobs", "mark")  # events after which the loop is not the one that was measured
FEWEST_STEPS = 20  # each side of a switch must have so many
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Resources:
    """The resources that a segment had, and those that it used per step."""

    cores: float  # that this process may use, a quota counted
    # kernel_s, workers_s: CPU s of the training process and of its workers, per step; NaN: not measured
    kernel_s: float
    workers_s: float
    busy: float  # share of the usable cores that was busy with anything, 0 to 1; NaN: not measured


class ExpectedGains(NamedTuple):
    """Gains, the most promising first, and a sentence for each engine of which none is known."""

    gains: tuple[Gain, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class _EngineStep:
    """The mean step (s) of an engine in the loop, its spread, and the number of steps.

    `low` and `high` are its 95 % interval on one side of a switch, or, of *Diagnose*, the time per sample (s) at the
    quartiles of the rate: only ratios of them are used.
    """

    backend: str
    step: float
    low: float
    high: float
    steps: int


@dataclass(frozen=True)
class SwitchPair:
    """Both sides of a switch of one loader: `requested` (session s) ends the first side, `first` begins the second."""

    loader: str
    requested: float
    first: float
    before: _EngineStep
    after: _EngineStep


def resources(segment: Segment, schema: Schema, steps: int) -> Resources:
    """Return a segment's resources, from its figures and the number of all `steps` that ended in it."""
    workers, both = segment.workers_cpu_seconds, segment.cpu_seconds
    none = math.isnan(workers) and segment.knobs.get("workers", -1) == 0
    each = max(1, steps)
    kernel = both if none else both - workers
    cores = usable_cores(schema) or 1.0
    return Resources(cores, kernel / each, (0.0 if none else workers) / each, segment.median("cpu") / 100)


def gains(
    segment: Segment, timings: Timings, used: Resources, state: Mapping[str, Any], known: Sequence[Gain] = ()
) -> ExpectedGains:
    """Return the gains to expect of changes of an input-bound segment that used these `resources`.

    `state` is the loader's: its `backends`, and in `calibration` what engines took of the processor for some of its
    files (`loaders.calibration.CalibrationState`). `known` was measured in the loop and stands in place of predictions.
    """
    if len(timings) < _FEW_STEPS or segment.synthetic:
        return ExpectedGains()
    wait = shares(timings, block_steps(segment)).wait
    found = [_no_wait(wait, timings, used)]
    unknown = []
    measured = {one.action: one for one in known}
    for backend in state.get("backends") or []:
        name = str(backend.get("name"))
        if name in (segment.backend, "synthetic") or not backend.get("available") or backend.get("confirm"):
            continue
        calibration = (state.get("calibration") or {}).get(name) or {}
        gain = measured.get(name) or _engine(name, calibration, segment, wait.value, timings, used)
        if isinstance(gain, Gain):
            found.append(gain)
        else:
            unknown.append(f"Diagnose, to measure {name} ({gain})")
    return ExpectedGains(tuple(sorted(found, key=lambda one: one.high + one.low, reverse=True)), tuple(unknown))


def _no_wait(wait: Share, timings: Timings, used: Resources) -> Gain:
    """Return the gain if nothing were waited for: the wait; on shared cores at most what loading took, too."""
    low, high, step = wait.low, wait.high, timings.mean
    basis = f"from the share of the step that is waiting for data, over {timings.steps:,} steps"
    if not timings.on_device and _saturated(used, step) and used.kernel_s < step:
        alone = 1 - used.kernel_s / step
        if alone > high:
            high = alone
            basis += "; at most, if loading took no processor time from training"
    return Gain("loader", low, high, basis=basis)


def _engine(
    name: str, calibration: Mapping[str, Any], segment: Segment, wait: float, timings: Timings, used: Resources
) -> Gain | str:
    """Return the gain of another engine, or the reason why it is not known."""
    if name == "dali-gpu":
        return "how much of this GPU decoding takes was not measured"
    if name == "threads":
        return "what its threads take of the processor was not measured"
    if name == "ray":
        return "the speed of the other machines was not measured"
    if segment.backend != "torchvision":
        return f"the processor time of {segment.backend} cannot be separated from the training's own"
    step = timings.mean
    if not math.isfinite(used.workers_s + used.kernel_s) or used.workers_s <= 0:
        return "the processor time of the workers was not measured"
    workers = max(1, segment.knobs.get("workers", 1))
    # Where the loop does not wait, workers wait for the loop.
    if wait >= WAITS and used.workers_s / (workers * step) < COMPUTES and not _saturated(used, step):
        return "the workers wait for files rather than compute"
    if calibration.get("state") == "running":
        return f"it is being tried on {calibration['files']} of your files"
    seconds, error = calibration.get("seconds") or math.nan, calibration.get("error") or 0.0
    if not (0 < seconds < math.inf and 0 <= error < math.inf and segment.batches):
        return calibration.get("reason") or "it was not tried on your files yet"
    loading = seconds * segment.samples / segment.batches
    spread = math.hypot(_CALIBRATION_SPREAD, error / seconds)
    threads = segment.knobs.get("threads") or workers
    own = used.kernel_s + used.workers_s
    # Work is conserved; what others take of the cores they go on taking.
    others = max(0.0, (used.busy if math.isfinite(used.busy) else 0.0) - own / (used.cores * step))
    cores = max(own / step, used.cores * (1 - others))
    alone = step * (1 - wait)
    shared = _saturated(used, step) and not timings.on_device
    least = min(alone, used.kernel_s) if shared else alone
    best = _bound(least, used, loading * (1 - spread), threads, cores)
    worst = _bound(alone, used, loading * (1 + spread), threads, min(cores, own / step))
    low, high = 1 - worst / step - _STEP_SPREAD, 1 - best / step + _STEP_SPREAD
    basis = (
        f"measured on {calibration['files']} of your files: {1e3 * loading:,.0f} ms of processor time a step with "
        f"{name}, where loading takes {1e3 * used.workers_s:,.0f} ms now and training {1e3 * used.kernel_s:,.0f} ms, "
        f"on {used.cores:g} cores"
    )
    return Gain(name, low, high, basis=basis)


def _bound(alone: float, used: Resources, loading: float, threads: float, cores: float) -> float:
    """Return the step time, s, if cores are never idle: the training alone, the loading alone, or both together."""
    return max(alone, loading / min(threads, cores), (used.kernel_s + loading) / cores)


def _saturated(used: Resources, step: float) -> bool:
    taken = (used.kernel_s + used.workers_s) / (used.cores * step)
    return max(taken, used.busy if math.isfinite(used.busy) else 0.0) >= SATURATED


def switch_pairs(steps: StepTable, events: Sequence[Event]) -> tuple[SwitchPair, ...]:
    """Return the switches of a session between real engines that have enough steps on both sides, in the order of time.

    The two sides are those of `segments.parts`, as everywhere; a replayed side, or one of few steps, has no pair.
    """
    found = []
    for loader in dict.fromkeys(str(event["loader"]) for event in switches(events)):
        own = steps.of(loader)
        ends = own["end"].copy()
        cut = parts(loader, events, ends, several=len(steps.loaders) > 1, state={})
        for before, after in pairwise(cut):
            if after.began_by == "switch" and REPLAYS not in (before.backend, after.backend):
                sides = [_engine_step(side, own, ends) for side in (before, after)]
                if sides[0] is not None and sides[1] is not None:
                    found.append(SwitchPair(loader, before.end, after.start, sides[0], sides[1]))
    return tuple(sorted(found, key=lambda one: one.first))


def _engine_step(part: Part, own: Any, ends: Floats) -> _EngineStep | None:
    low, high = np.searchsorted(ends, [part.start, part.end], side="right")
    rows = own[low:high]
    step = rows["step"][counted(rows)].astype(np.float64)
    if len(step) < FEWEST_STEPS:
        return None
    count = min(BLOCKS, len(step) // BLOCK_STEPS)
    mean = float(step.mean())
    means = [float(block.mean()) for block in np.array_split(step, count)]
    half = student_t(count) * float(np.std(means, ddof=1)) / math.sqrt(count)
    return _EngineStep(part.backend, mean, max(mean - half, 0.1 * mean), mean + half, len(step))


def measured_gains(
    events: Sequence[Event], segment: Segment, switched: Sequence[SwitchPair], until: float
) -> tuple[Gain, ...]:
    """Return the gains of other engines over this segment's, each by its newest measurement in this loop.

    `events` are in the order of time; what came after `until` (session s) is not known yet. There are no gains where
    the loop was changed since they were measured, or the segment's own engine was not. `low` and `high` are the
    quartiles' extremes (*Diagnose*) or the mean steps' 95 % intervals (a switch).
    """
    known = [
        event
        for event in events
        if event.get("loader") in (None, segment.loader) and float(event.get("time", math.inf)) <= until
    ]
    changed = max((float(event["time"]) for event in known if event.get("kind") in _ANOTHER_LOOP), default=-math.inf)
    newest = next((event for event in reversed(known) if _compares_engines(event)), None)
    found = {} if newest is None else _compared(_diagnosed(newest, changed), segment.backend, "Diagnose")
    diagnosed_at = -math.inf if newest is None else float(newest["time"])
    for pair in switched:
        if pair.loader != segment.loader or pair.requested <= changed or pair.first > until:
            continue
        sides = {side.backend: side for side in (pair.before, pair.after)}
        for name, gain in _compared(sides, segment.backend, "switch").items():
            if name not in found or pair.first > diagnosed_at:
                found[name] = gain
    return tuple(found.values())


def _compares_engines(event: Event) -> bool:
    """Return whether an event is a diagnosis. Those of tunes compare settings, whose knobs differ, too."""
    return event.get("kind") == "diagnosis" and (event.get("result") or {}).get("kind") != "tune"


def _diagnosed(event: Event, changed: float) -> dict[str, _EngineStep]:
    """Return the engines that a diagnosis measured; none where the loop was changed after it began."""
    result = event.get("result") or {}
    began = result.get("began")
    paces: dict[str, _EngineStep] = {}
    if changed > (float(event["time"]) if began is None else float(began)):
        return paces
    for run in result.get("runs") or ():
        step, low, high, steps = figures = [run.get(name) for name in ("step", "rate_low", "rate_high", "steps")]
        if run.get("problem") is None and all(isinstance(one, int | float) and one > 0 for one in figures):
            name = str(run.get("backend"))
            paces[name] = _EngineStep(name, step / 1e3, 1 / high, 1 / low, steps)
    return paces


def _compared(paces: Mapping[str, _EngineStep], engine: str, by: str) -> dict[str, Gain]:
    """Return the gain of each other engine over `engine`, as `by` (`Diagnose` or `switch`) measured it."""
    own, found = paces.get(engine), {}
    for name, other in paces.items():
        if own is None or name in (engine, REPLAYS):
            continue
        was, became = (f"{1e3 * pace.step:,.1f}" for pace in (own, other))
        basis = f"by Diagnose: {was} → {became} ms per step ({own.steps:,} → {other.steps:,} steps)"
        if by == "switch":
            basis = f"by a switch: {engine} {was} ms per step, {name} {became} ms "
            basis += f"({own.steps:,} and {other.steps:,} steps)"
        low, high, saved = 1 - other.high / own.low, 1 - other.low / own.high, 1 - other.step / own.step
        found[name] = Gain(name, low, high, measured=saved, basis=basis, by=by)
    return found
