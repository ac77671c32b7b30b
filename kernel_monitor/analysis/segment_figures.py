"""The figures of one segment: what was delivered, where the steps' time went, how machine and GPUs were used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..steps.measured_step import NO_GRADIENTS, ON_DEVICE, PHASES
from .counted_steps import counted
from .deliveries import per_second
from .results import Segment, Statistic
from .statistics import histogram, quantiles
from .switches import REPLAYS

if TYPE_CHECKING:
    from collections.abc import Collection

    from .frames import Floats, Frames, Places, Steps

METRICS = {
    "cpu": ("CPU busy, mean of the cores", "%"),
    "iowait": ("CPU waiting for I/O, mean of the cores", "%"),
    "steal": ("CPU given to others by the hypervisor, mean of the cores", "%"),
    "gpu": ("GPU utilisation, mean of the GPUs", "%"),
    "gpu_memory": ("GPU memory, mean of the GPUs", "%"),
    "memory": ("Host memory", "%"),
    "received": ("Network received", "B/s"),
    "sent": ("Network sent", "B/s"),
    "disk": ("Read from disks", "B/s"),
    "images": ("Images delivered in a second", "images/s"),
    "wait": ("Data wait per step", "ms"),
    "copy": ("Copy to the device per step", "ms"),
    "forward": ("Forward per step", "ms"),
    "backward": ("Backward per step", "ms"),
    "optimizer": ("Optimizer per step", "ms"),
    "other": ("Other per step", "ms"),
    "step": ("Whole step", "ms"),
}
"""Label and unit of a segment's statistics, in their order."""
RARE = {
    "memory": ("memory/percent", "memory"),
    "received": ("network/received", "network"),
    "sent": ("network/sent", "network"),
    "disk": ("disk/read", "disk"),
}
"""Series and group of what is read more rarely than rows are taken: each reading counts once."""


COUNTS = ("seconds", "steps", "left_out", "batches", "samples", "on_device", "evaluates")
"""What a `Segment` has of `Delivered` as it is."""


@dataclass(frozen=True)
class Part:
    """A segment before it is measured; the fields are those of `results.Segment`."""

    loader: str
    backend: str
    began_by: str
    start: float
    end: float = math.inf
    label: str | None = None
    knobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivered:
    """What a loader delivered in a segment: s, steps, batches and samples, and each step's times in ms."""

    seconds: float
    steps: int
    left_out: int
    batches: int
    samples: int
    times: dict[str, Floats]
    means: dict[str, float]
    on_device: bool = False
    evaluates: bool = False


def figures(
    frames: Frames, part: Part, name: str, *, key: str = "", metrics: Collection[str] = tuple(METRICS)
) -> Segment:
    """Measure a part of a session; `metrics` are the statistics that are wanted."""
    places = frames.of(part.loader, part.start, part.end)
    rows = frames.steps(part.loader, part.start, part.end)
    made = _from_steps(frames, part, places, rows) if len(rows) else _from_rows(frames, part, places)
    statistics = []
    for metric in filter(metrics.__contains__, METRICS):
        values = made.times[metric] if metric in made.times else _machine(frames, part, places, metric)
        if bool(np.isfinite(values).any()):
            statistics.append(Statistic(metric, *METRICS[metric], quantiles(values)))
    return Segment(
        key=key,
        name=name,
        **vars(part),
        **{count: getattr(made, count) for count in COUNTS},
        rate=made.samples / made.seconds if made.seconds > 0 else math.nan,
        wait=made.means.get("wait", math.nan),
        step=made.means.get("step", math.nan),
        phases={phase: made.means[phase] for phase in (*PHASES, "other") if phase in made.means},
        statistics=tuple(statistics),
        gpu_histogram=histogram(frames.utilisation[places]),
        cpu_seconds=_cpu_seconds(frames, places, made.seconds, "kernel", "workers"),
        synthetic=part.backend == REPLAYS,
        workers_cpu_seconds=_cpu_seconds(frames, places, made.seconds, "workers"),
        load=quantiles(frames.load[places]).p50,
    )


def _from_steps(frames: Frames, part: Part, places: Places, rows: Steps) -> Delivered:
    """From the steps themselves. Where not all of them were kept, seconds and samples are those of the rows."""
    kept = rows[counted(rows)]
    times = {name: 1e3 * kept[name].astype(np.float64) for name in ("wait", "step", *PHASES)}
    present = {name: times[name][np.isfinite(times[name])] for name in ("wait", "step")}
    means = {name: float(values.mean()) for name, values in present.items() if len(values)}
    phases = {name: times[name] for name in PHASES if bool(np.isfinite(times[name]).any())}
    if phases:
        # A phase that a step did not have (no backward in an evaluation) took no time of it.
        phased = np.any([np.isfinite(phase) for phase in phases.values()], axis=0)
        means |= {name: float(np.nan_to_num(phase[phased]).mean()) for name, phase in phases.items()}
        spent = np.sum([np.nan_to_num(phase) for phase in phases.values()], axis=0)
        other = np.where(phased, times["step"] - times["wait"] - spent, np.nan)
        # The GPU goes on with one step's work while the loop waits for the next batch: nothing is left over then.
        means["other"] = max(0.0, float(other[phased].mean()))
        times["other"] = np.maximum(other, 0.0)
    seconds, batches, samples = float(times["step"].sum()) / 1e3, len(kept), int(kept["images"].sum())
    if frames.all_steps.dropped and samples:
        in_rows, delivered = _counted_rows(frames, part, places)
        if in_rows > seconds:
            batches = round(batches * delivered / samples)
            seconds, samples = in_rows, round(delivered)
    return Delivered(
        seconds=seconds,
        steps=len(kept),
        left_out=len(rows) - len(kept),
        batches=batches,
        samples=samples,
        times=times,
        means=means,
        on_device=bool(phases) and bool((kept["flags"] & ON_DEVICE).any()),
        evaluates=2 * int((kept["flags"] & NO_GRADIENTS != 0).sum()) > len(kept),
    )


def _from_rows(frames: Frames, part: Part, places: Places) -> Delivered:
    """From the rows' means, where no single step was kept. The number of steps is computed from their mean."""
    wait, step = (frames.series(f"loader/{part.loader}/{name}")[places] for name in ("wait", "step"))
    images = frames.samples(part.loader)[places]
    seconds, samples = _counted_rows(frames, part, places)
    means = {}
    for name, values in (("wait", wait), ("step", step)):
        present = np.isfinite(values)
        if present.any():
            weights = images[present] if images[present].sum() > 0 else None
            means[name] = float(np.average(values[present], weights=weights))
    steps = max(int(np.isfinite(step).sum()), int(1e3 * seconds / means["step"])) if means.get("step") else 0
    return Delivered(seconds, steps, 0, steps, round(samples), {"wait": wait, "step": step}, means)


def _counted_rows(frames: Frames, part: Part, places: Places) -> tuple[float, float]:
    """s and samples of the rows."""
    return float(frames.window[places].sum()), float(frames.samples(part.loader)[places].sum())


def _machine(frames: Frames, part: Part, places: Places, metric: str) -> Floats:
    """A metric of the machine in each of the rows; all NaN where it was not measured."""
    if metric in RARE:
        series, group = RARE[metric]
        values = frames.series(series)[places]
        new = values[frames.fresh(group)[places]]
        return new if len(new) else values
    if metric == "images":
        return per_second(frames.time[places], frames.samples(part.loader)[places], frames.window[places])
    columns = {"cpu": "cpu", "iowait": "iowait", "steal": "steal", "gpu": "gpu", "gpu_memory": "mean_gpu_memory"}
    values = getattr(frames, columns[metric])[places] if metric in columns else np.empty(0)
    # A machine of one's own has no steal to speak of.
    return values if metric != "steal" or bool((values > 0).any()) else np.empty(0)


def _cpu_seconds(frames: Frames, places: Places, seconds: float, *roles: str) -> float:
    """CPU seconds of the roles' processes: their mean load times the time; NaN where it was not measured of any."""
    loads = np.stack([frames.series(f"process/{role}/cpu")[places] for role in roles])
    known = np.isfinite(loads).any(axis=0)
    if not known.any():
        return math.nan
    # A role without a process has no value.
    return float(np.nan_to_num(loads[:, known]).sum(axis=0).mean() / 100 * seconds)
