"""What a change would save of the step time, reckoned from what was measured before it. See docs/verdict.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .model import Gain
from .timings import shares
from .verdict import block_steps

if TYPE_CHECKING:
    from ..store import Schema
    from .model import Stretch
    from .timings import Timings

SATURATED = 0.85
"""From this share of the usable cores on, loading and training take processor time from each other."""
TABLE_SPREAD = 0.08
"""How far the table's ratio may be off, either way."""
STEP_SPREAD = 0.04
"""How far the step may be off besides, either way, as a share of the present one: what is in no table, and noise."""
COMPUTES = 0.5
"""Of its time: a worker that takes less of the processor waits for files rather than compute."""
FEW_STEPS = 10


@dataclass(frozen=True)
class Resources:
    """What a stretch had and took, for one step.

    Attributes:
        cores: that this process may use, a quota counted.
        kernel_s, workers_s: CPU s of the training process and of its workers, per step; NaN: not measured.
        busy: share of the usable cores that was busy with anything, 0 to 1; NaN: not measured.
        processor: its name.
    """

    cores: float
    kernel_s: float
    workers_s: float
    busy: float
    processor: str = ""


@dataclass(frozen=True)
class Reckoned:
    """Gains, the most promising first, and a sentence for each engine of which none can be told."""

    gains: tuple[Gain, ...] = ()
    unknown: tuple[str, ...] = field(default=())


def usable_cores(schema: Schema) -> float:
    """Cores that this process may use: those allowed, or the quota where that is less."""
    from .limits import allowed_cores

    cores = float(max(1, len(allowed_cores(schema))))
    quota = (schema.host.get("limits") or {}).get("cpu_quota")
    return min(cores, float(quota)) if quota else cores


def resources(stretch: Stretch, schema: Schema, steps: int) -> Resources:
    """From a stretch's figures; `steps`: all that ended in its seconds."""
    workers, both = stretch.workers_cpu_seconds, stretch.cpu_seconds
    none = math.isnan(workers) and stretch.knobs.get("workers", -1) == 0
    each = max(1, steps)
    kernel = both if none else both - workers
    busy = next((one.values.p50 for one in stretch.statistics if one.metric == "cpu"), math.nan)
    processor = str(schema.host.get("cpu_model") or "")
    return Resources(usable_cores(schema), kernel / each, (0.0 if none else workers) / each, busy / 100, processor)


def gains(
    stretch: Stretch, timings: Timings, given: Resources, state: Mapping[str, Any], tried: Sequence[Gain] = ()
) -> Reckoned:
    """What to expect of an input-bound stretch.

    Args:
        stretch: before the change.
        timings: its steps.
        given: what it had and took.
        state: the loader's state: its `backends`, and `expected`: CPU time of loading with an engine over that with
            `torchvision`, by the processor's maker, where it is known.
        tried: what was measured of engines: it stands in place of what would be reckoned.
    """
    if len(timings) < FEW_STEPS or stretch.synthetic:
        return Reckoned()
    found = [_no_wait(stretch, timings, given)]
    unknown = []
    measured = {one.action: one for one in tried}
    for backend in state.get("backends") or []:
        name = str(backend.get("name"))
        if name in (stretch.backend, "synthetic") or not backend.get("available"):
            continue
        ratios = _ratios((state.get("expected") or {}).get(name), given.processor)
        gain = measured.get(name) or _engine(name, ratios, stretch, timings, given)
        if isinstance(gain, Gain):
            found.append(gain)
        else:
            unknown.append(f"the gain of {name}: {gain}; Diagnose measures it")
    return Reckoned(tuple(sorted(found, key=lambda one: one.high + one.low, reverse=True)), tuple(unknown))


def _no_wait(stretch: Stretch, timings: Timings, given: Resources) -> Gain:
    """Nothing left to wait for: the wait at least; on shared cores, what loading took from training besides."""
    wait = shares(timings, block_steps(stretch)).wait
    low, high = wait.low, wait.high
    step = _mean_step(timings)
    basis = f"the share of the step in which the loop waits, over {timings.steps:,} steps"
    if not timings.on_device and _saturated(given, step) and given.kernel_s < step:
        alone = 1 - given.kernel_s / step
        if alone > high:
            high = alone
            basis += "; at most, without the processor time that loading takes from training"
    return Gain("loader", low, high, basis=basis)


def _ratios(told: object, processor: str) -> tuple[float, float] | None:
    """The ratio by the table of this processor's maker, twice; of any other processor, the tables' least and largest.

    None where there is no table.
    """
    tables = dict(told) if isinstance(told, Mapping) else {}
    own = [value for maker, value in tables.items() if maker.lower() in processor.lower()]
    usable = [
        float(value) for value in own or tables.values() if isinstance(value, int | float) and 0 < value < math.inf
    ]
    return (min(usable), max(usable)) if usable else None


def _engine(
    name: str, ratios: tuple[float, float] | None, stretch: Stretch, timings: Timings, given: Resources
) -> Gain | str:
    """The gain of another engine, or why it cannot be told."""
    if name == "dali-gpu":
        return "what decoding takes of this GPU has not been measured"
    if stretch.backend != "torchvision":
        return f"what {stretch.backend} takes of the processor is not told apart from the training's own"
    if ratios is None:
        return "there is no table of what these transforms cost"
    step = _mean_step(timings)
    wait = shares(timings, block_steps(stretch)).wait.value
    if not math.isfinite(given.workers_s + given.kernel_s) or given.workers_s <= 0:
        return "the processor time of the workers was not measured"
    workers = max(1, stretch.knobs.get("workers", 1))
    if given.workers_s / (workers * step) < COMPUTES and not _saturated(given, step):
        return "the workers wait for files rather than compute"
    threads = stretch.knobs.get("threads") or workers
    own = given.kernel_s + given.workers_s
    # Work is conserved; what others take of the cores they go on taking.
    others = max(0.0, (given.busy if math.isfinite(given.busy) else 0.0) - own / (given.cores * step))
    cores = max(own / step, given.cores * (1 - others))
    alone = step * (1 - wait)
    shared = _saturated(given, step) and not timings.on_device
    least = min(alone, given.kernel_s) if shared else alone
    best = _bound(least, given, ratios[0] * (1 - TABLE_SPREAD), threads, cores)
    worst = _bound(alone, given, ratios[1] * (1 + TABLE_SPREAD), threads, min(cores, own / step))
    low, high = 1 - worst / step - STEP_SPREAD, 1 - best / step + STEP_SPREAD
    times = f"{ratios[0]:.2f}" if ratios[0] == ratios[1] else f"{ratios[0]:.2f} to {ratios[1]:.2f}"
    basis = (
        f"processor time: {1e3 * given.kernel_s:,.0f} ms of training and {1e3 * given.workers_s:,.0f} ms of loading a "
        f"step, the latter times {times} with {name}, on {given.cores:g} cores"
    )
    return Gain(name, low, high, basis=basis)


def _bound(alone: float, given: Resources, ratio: float, threads: float, cores: float) -> float:
    """The step time, s, if cores are never idle: the training alone, the loading alone, or both together."""
    loading = given.workers_s * ratio
    return max(alone, loading / min(threads, cores), (given.kernel_s + loading) / cores)


def _saturated(given: Resources, step: float) -> bool:
    taken = (given.kernel_s + given.workers_s) / (given.cores * step)
    return max(taken, given.busy if math.isfinite(given.busy) else 0.0) >= SATURATED


def _mean_step(timings: Timings) -> float:
    return float((timings.step * timings.weights).sum() / timings.weights.sum())
