"""The figures of one stretch: what was delivered, where the steps' time went, how machine and GPUs were used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..steps.records import NO_GRADIENTS, ON_DEVICE, PHASES
from .frames import Floats, Frames, Places, Steps, counted
from .measured import per_second
from .model import Statistic, Stretch
from .statistics import histogram, quantiles
from .switches import REPLAYS

if TYPE_CHECKING:
    from collections.abc import Iterator

METRICS = (
    ("cpu", "CPU busy, mean of the cores", "%"),
    ("iowait", "CPU waiting for I/O, mean of the cores", "%"),
    ("steal", "CPU given to others by the hypervisor, mean of the cores", "%"),
    ("gpu", "GPU utilisation, mean of the GPUs", "%"),
    ("gpu_memory", "GPU memory, mean of the GPUs", "%"),
    ("memory", "Host memory", "%"),
    ("received", "Network received", "B/s"),
    ("sent", "Network sent", "B/s"),
    ("disk", "Read from disks", "B/s"),
    ("images", "Images delivered in a second", "images/s"),
    ("wait", "Data wait per step", "ms"),
    ("copy", "Copy to the device per step", "ms"),
    ("forward", "Forward per step", "ms"),
    ("backward", "Backward per step", "ms"),
    ("optimizer", "Optimizer per step", "ms"),
    ("other", "Other per step", "ms"),
    ("step", "Whole step", "ms"),
)
"""Metric, label and unit of a stretch's statistics, in their order."""

HELD = (
    ("memory", "memory/percent"),
    ("received", "network/received"),
    ("sent", "network/sent"),
    ("disk", "disk/read"),
)
"""What is read more rarely than rows are taken: each reading counts once."""
GROUPS = {"memory": "memory", "received": "network", "sent": "network", "disk": "disk"}


@dataclass(frozen=True)
class Part:
    """A stretch before it is measured."""

    loader: str
    backend: str
    began_by: str
    start: float
    end: float = math.inf
    label: str | None = None
    knobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivered:
    """What a loader delivered in a stretch: s, steps, batches and samples, and each step's times in ms."""

    seconds: float
    steps: int
    left_out: int
    batches: int
    samples: int
    times: dict[str, Floats]
    means: dict[str, float]
    on_device: bool = False
    evaluates: bool = False


def figures(frames: Frames, part: Part, name: str) -> Stretch:
    """Measure a part; the key is left empty."""
    places = frames.of(part.loader, part.start, part.end)
    rows = frames.steps(part.loader, part.start, part.end)
    made = _from_steps(frames, part, places, rows) if len(rows) else _from_rows(frames, part, places)
    spread = {**_machine(frames, part, places), **made.times}
    statistics = [
        Statistic(metric, label, unit, quantiles(spread[metric]))
        for metric, label, unit in METRICS
        if metric in spread and bool(np.isfinite(spread[metric]).any())
    ]
    return Stretch(
        key="",
        loader=part.loader,
        name=name,
        backend=part.backend,
        began_by=part.began_by,
        label=part.label,
        knobs=part.knobs,
        start=part.start,
        end=part.end,
        seconds=made.seconds,
        steps=made.steps,
        left_out=made.left_out,
        batches=made.batches,
        samples=made.samples,
        rate=made.samples / made.seconds if made.seconds > 0 else math.nan,
        wait=made.means.get("wait", math.nan),
        step=made.means.get("step", math.nan),
        phases={phase: made.means[phase] for phase in (*PHASES, "other") if phase in made.means},
        on_device=made.on_device,
        statistics=tuple(statistics),
        gpu_histogram=histogram(frames.utilisation[places]),
        cpu_seconds=_cpu_seconds(frames, places, made.seconds, "kernel", "workers"),
        synthetic=part.backend == REPLAYS,
        workers_cpu_seconds=_cpu_seconds(frames, places, made.seconds, "workers"),
        evaluates=made.evaluates,
        load=_median(frames.load[places]),
    )


def _median(values: Floats) -> float:
    present = values[np.isfinite(values)]
    return float(np.median(present)) if len(present) else math.nan


def _from_steps(frames: Frames, part: Part, places: Places, rows: Steps) -> Delivered:
    """Of the steps themselves. Where not all of them were kept, seconds and samples are those of the rows."""
    good = counted(rows)
    kept = rows[good]
    times = {name: 1e3 * kept[name].astype(np.float64) for name in ("wait", "step", *PHASES)}
    present = {name: times[name][np.isfinite(times[name])] for name in ("wait", "step")}
    means = {name: float(values.mean()) for name, values in present.items() if len(values)}
    phases = {name: times[name] for name in PHASES if bool(np.isfinite(times[name]).any())}
    if phases:
        # A phase that a step did not have (no backward in an evaluation) took no time of it.
        phased = np.any([np.isfinite(one) for one in phases.values()], axis=0)
        means |= {name: float(np.nan_to_num(one[phased]).mean()) for name, one in phases.items()}
        spent = np.sum([np.nan_to_num(one) for one in phases.values()], axis=0)
        other = np.where(phased, times["step"] - times["wait"] - spent, np.nan)
        # The GPU goes on with one step's work while the loop waits for the next batch: nothing is left over then.
        means["other"] = max(0.0, float(other[phased].mean()))
        times["other"] = np.maximum(other, 0.0)
    seconds, batches, samples = times["step"].sum() / 1e3, len(kept), int(kept["images"].sum())
    if frames.snapshot.steps.dropped and samples:
        told_seconds, told = _counted_rows(frames, part, places)
        if told_seconds > seconds:
            batches = round(batches * told / samples)
            seconds, samples = told_seconds, round(told)
    return Delivered(
        seconds=float(seconds),
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
    """Of the rows' means: a file of before steps were kept. How many steps there were is reckoned from their mean."""
    wait, step = (frames.series(f"loader/{part.loader}/{name}")[places] for name in ("wait", "step"))
    images = _images(frames, part, places)
    seconds, samples = _counted_rows(frames, part, places)
    means = {}
    for name, values in (("wait", wait), ("step", step)):
        present = np.isfinite(values)
        if present.any():
            weights = images[present] if images[present].sum() > 0 else np.ones(int(present.sum()))
            means[name] = float(np.average(values[present], weights=weights))
    steps = max(int(np.isfinite(step).sum()), int(1e3 * seconds / means["step"])) if means.get("step") else 0
    return Delivered(seconds, steps, 0, steps, round(samples), {"wait": wait, "step": step}, means)


def _images(frames: Frames, part: Part, places: Places) -> Floats:
    """Samples delivered in each of the rows."""
    rates = np.nan_to_num(frames.series(f"loader/{part.loader}/images")[places])
    found: Floats = rates * frames.window[places]
    return found


def _counted_rows(frames: Frames, part: Part, places: Places) -> tuple[float, float]:
    """s and samples of the rows."""
    return float(frames.window[places].sum()), float(_images(frames, part, places).sum())


def _machine(frames: Frames, part: Part, places: Places) -> dict[str, npt.NDArray[Any]]:
    """What the machine's metrics were in each of the rows."""
    found: dict[str, npt.NDArray[Any]] = {
        "cpu": frames.cpu[places],
        "iowait": frames.iowait[places],
        "gpu": frames.gpu[places],
        "gpu_memory": frames.held[places],
        "images": per_second(frames.time[places], _images(frames, part, places), frames.window[places]),
    }
    if bool((frames.steal[places] > 0).any()):  # a machine of one's own has none to speak of
        found["steal"] = frames.steal[places]
    found |= dict(_held(frames, places))
    return found


def _held(frames: Frames, places: Places) -> Iterator[tuple[str, Floats]]:
    for metric, series in HELD:
        values = frames.series(series)[places]
        new = values[frames.fresh(GROUPS[metric])[places]]
        yield metric, new if len(new) else values


def _cpu_seconds(frames: Frames, places: Places, seconds: float, *roles: str) -> float:
    """CPU seconds of the roles' processes: their mean load times the time; NaN where it was not measured of any."""
    loads = np.stack([frames.series(f"process/{role}/cpu")[places] for role in roles])
    known = np.isfinite(loads).any(axis=0)
    if not known.any():
        return math.nan
    # A role that nobody plays has no value.
    return float(np.nan_to_num(loads[:, known]).sum(axis=0).mean() / 100 * seconds)
