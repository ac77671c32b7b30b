"""What a change would save of the step time, reckoned from what was measured before it. See docs/verdict.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .machine_limits import usable_cores
from .results import Gain
from .step_times import shares
from .verdict import block_steps

if TYPE_CHECKING:
    from ..store import Schema
    from .results import Segment
    from .step_times import Timings

SATURATED = 0.85  # from this share of the usable cores on, loading and training take processor time from each other
CALIBRATION_SPREAD = 0.09
"""How far the processor time of an engine in the loop may be from that on some files beside it, either way."""
STEP_SPREAD = 0.04
"""How far the step may be off besides, either way, as a share of the present one: what is not measured, and noise."""
COMPUTES = 0.5  # of its time: a worker that takes less of the processor waits for files rather than compute
FEW_STEPS = 10


@dataclass(frozen=True)
class Resources:
    """What a segment had and took, for one step."""

    cores: float  # that this process may use, a quota counted
    # kernel_s, workers_s: CPU s of the training process and of its workers, per step; NaN: not measured
    kernel_s: float
    workers_s: float
    busy: float  # share of the usable cores that was busy with anything, 0 to 1; NaN: not measured


@dataclass(frozen=True)
class Reckoned:
    """Gains, the most promising first, and a sentence for each engine of which none is known."""

    gains: tuple[Gain, ...] = ()
    unknown: tuple[str, ...] = field(default=())


def resources(segment: Segment, schema: Schema, steps: int) -> Resources:
    """From a segment's figures; `steps`: all that ended in its seconds."""
    workers, both = segment.workers_cpu_seconds, segment.cpu_seconds
    none = math.isnan(workers) and segment.knobs.get("workers", -1) == 0
    each = max(1, steps)
    kernel = both if none else both - workers
    busy = next((one.values.p50 for one in segment.statistics if one.metric == "cpu"), math.nan)
    cores = usable_cores(schema) or 1.0
    return Resources(cores, kernel / each, (0.0 if none else workers) / each, busy / 100)


def gains(
    segment: Segment, timings: Timings, given: Resources, state: Mapping[str, Any], tried: Sequence[Gain] = ()
) -> Reckoned:
    """What to expect of an input-bound segment.

    Args:
        segment: before the change.
        timings: its steps.
        given: what it had and took.
        state: the loader's state: its `backends`, and `calibration`: what engines took of the processor for some of
            its files (`loaders.calibration.CalibrationState`).
        tried: what was measured of engines in the loop: it stands in place of a prediction.
    """
    if len(timings) < FEW_STEPS or segment.synthetic:
        return Reckoned()
    found = [_no_wait(segment, timings, given)]
    unknown = []
    measured = {one.action: one for one in tried}
    for backend in state.get("backends") or []:
        name = str(backend.get("name"))
        if name in (segment.backend, "synthetic") or not backend.get("available"):
            continue
        calibration = (state.get("calibration") or {}).get(name) or {}
        gain = measured.get(name) or _engine(name, calibration, segment, timings, given)
        if isinstance(gain, Gain):
            found.append(gain)
        else:
            unknown.append(f"the gain of {name}: {gain}; Diagnose measures it")
    return Reckoned(tuple(sorted(found, key=lambda one: one.high + one.low, reverse=True)), tuple(unknown))


def _no_wait(segment: Segment, timings: Timings, given: Resources) -> Gain:
    """Nothing left to wait for: the wait at least; on shared cores, what loading took from training besides."""
    wait = shares(timings, block_steps(segment)).wait
    low, high = wait.low, wait.high
    step = _mean_step(timings)
    basis = f"the share of the step in which the loop waits, over {timings.steps:,} steps"
    if not timings.on_device and _saturated(given, step) and given.kernel_s < step:
        alone = 1 - given.kernel_s / step
        if alone > high:
            high = alone
            basis += "; at most, without the processor time that loading takes from training"
    return Gain("loader", low, high, basis=basis)


def _engine(
    name: str, calibration: Mapping[str, Any], segment: Segment, timings: Timings, given: Resources
) -> Gain | str:
    """The gain of another engine, or why it is not known."""
    if name == "dali-gpu":
        return "what decoding takes of this GPU has not been measured"
    if segment.backend != "torchvision":
        return f"the processor time of {segment.backend} cannot be separated from the training's own"
    step = _mean_step(timings)
    wait = shares(timings, block_steps(segment)).wait.value
    if not math.isfinite(given.workers_s + given.kernel_s) or given.workers_s <= 0:
        return "the processor time of the workers was not measured"
    workers = max(1, segment.knobs.get("workers", 1))
    if given.workers_s / (workers * step) < COMPUTES and not _saturated(given, step):
        return "the workers wait for files rather than compute"
    if calibration.get("state") == "running":
        return f"{calibration['files']} of your files are being measured"
    seconds, error = calibration.get("seconds") or math.nan, calibration.get("error") or 0.0
    if not (0 < seconds < math.inf and 0 <= error < math.inf and segment.batches):
        return calibration.get("reason") or "it has not been measured on files of yours"
    loading = seconds * segment.samples / segment.batches
    spread = math.hypot(CALIBRATION_SPREAD, error / seconds)
    threads = segment.knobs.get("threads") or workers
    own = given.kernel_s + given.workers_s
    # Work is conserved; what others take of the cores they go on taking.
    others = max(0.0, (given.busy if math.isfinite(given.busy) else 0.0) - own / (given.cores * step))
    cores = max(own / step, given.cores * (1 - others))
    alone = step * (1 - wait)
    shared = _saturated(given, step) and not timings.on_device
    least = min(alone, given.kernel_s) if shared else alone
    best = _bound(least, given, loading * (1 - spread), threads, cores)
    worst = _bound(alone, given, loading * (1 + spread), threads, min(cores, own / step))
    low, high = 1 - worst / step - STEP_SPREAD, 1 - best / step + STEP_SPREAD
    basis = (
        f"measured on {calibration['files']} of your files: {1e3 * loading:,.0f} ms of processor time a step with "
        f"{name}, where loading takes {1e3 * given.workers_s:,.0f} ms now and training {1e3 * given.kernel_s:,.0f} ms, "
        f"on {given.cores:g} cores"
    )
    return Gain(name, low, high, basis=basis)


def _bound(alone: float, given: Resources, loading: float, threads: float, cores: float) -> float:
    """The step time, s, if cores are never idle: the training alone, the loading alone, or both together."""
    return max(alone, loading / min(threads, cores), (given.kernel_s + loading) / cores)


def _saturated(given: Resources, step: float) -> bool:
    taken = (given.kernel_s + given.workers_s) / (given.cores * step)
    return max(taken, given.busy if math.isfinite(given.busy) else 0.0) >= SATURATED


def _mean_step(timings: Timings) -> float:
    return float((timings.step * timings.weights).sum() / timings.weights.sum())
