"""The segments of a session: each loader between two switches, turned knobs or marks, with its figures.

`segments` finds where they begin and end; `figures` measures one: what was delivered, where the steps' time went, and
how the machine and the GPUs were used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ..steps.measured_step import NO_GRADIENTS, ON_DEVICE, PHASES
from ..store import Rows, Snapshot
from .frames import IDLE_S, Floats, Frames, Places, Steps, counted, loader_names
from .results import Segment, Statistic
from .step_times import histogram, quantiles, weighted_mean

# ---- The switches of a session: which took place, when, and from when on the incoming engine shows its speed.

WATCHED = "loader"  # the engine of an iterable that is only watched and cannot be switched
REPLAYS = "synthetic"  # the engine that replays batches: its figures are of the loop alone, not of loading
LONGEST_S = 60.0  # of each side of a change, at most this much is looked at for what it did to the training besides
_ROUNDING_S = 1e-6  # a step that ends so soon after the first batch came is of the engine before
IN_FLIGHT = 4  # batches that an engine has ready when it takes over, which do not show its speed
_LONGEST_CHANGE_OVER_S = 5.0  # after its first batch an engine is measured from here on, however long its steps are

Event = Mapping[str, Any]


def switches(events: Sequence[Event]) -> list[Event]:
    """Return the switches that took place, in the order of their first batches."""
    return sorted((event for event in events if event["kind"] == "switch"), key=change_time)


def request_time(event: Event) -> float:
    """Return when the switch was asked for: from then on the incoming engine's start disturbs the outgoing one."""
    return float(event["asked"] if "asked" in event else event["time"])


def change_time(event: Event) -> float:
    """Return when a change took place: of a switch, when the incoming engine's first batch was delivered."""
    return float(event["time"] if event.get("first") is None else event["first"])


def settle_time(switch: Event, ends: Floats, rows: Rows | None = None) -> float:
    """Return when the batches that the incoming engine had made in advance were used up, session s.

    `ends` are the ends of its loader's steps (session s, ascending); where none were kept, the means of `rows`.
    """
    begin = change_time(switch)
    latest = begin + _LONGEST_CHANGE_OVER_S
    if rows is None:
        made = ends[int(np.searchsorted(ends, begin + _ROUNDING_S, side="right")) :][:IN_FLIGHT]
        return min(float(made[-1]), latest) if len(made) == IN_FLIGHT else latest
    column = rows.schema.columns.get(f"loader/{switch['loader']}/step")
    low, high = np.searchsorted(rows.time, [begin, begin + 10.0], side="right")
    steps = rows.values[low:high, column] if column is not None else np.empty(0, dtype=np.float32)
    steps = steps[np.isfinite(steps)]
    step_s = float(np.median(steps)) / 1e3 if len(steps) else 0.25
    return min(begin + IN_FLIGHT * step_s, latest)


RAY = "ray"  # the engine that works on other machines
_ROUNDING = 1e-4  # share of a step: times are recorded in 32 bits
_NODE_BATCHES = re.compile(r"node/[^/]+/batches")
KNOBS = ("workers", "prefetch", "threads")
_KNOBS_OF = {
    "torchvision": ("workers", "prefetch"),
    "dali-cpu": ("prefetch", "threads"),
    "dali-gpu": ("prefetch", "threads"),
    "threads": ("prefetch", "threads"),
    "ray": ("workers", "prefetch"),
}
"""The knobs that an engine heeds; any other heeds none."""
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
"""The label and unit of each statistic of a segment, in their order."""
_RARE = {
    "memory": ("memory/percent", "memory"),
    "received": ("network/received", "network"),
    "sent": ("network/sent", "network"),
    "disk": ("disk/read", "disk"),
}
"""The series and group of metrics that are read more rarely than rows are taken: each reading counts once."""
_MEANS: dict[str, tuple[Literal["cpu", "gpu"], str]] = {
    "cpu": ("cpu", "busy"),
    "iowait": ("cpu", "iowait"),
    "steal": ("cpu", "steal"),
    "gpu": ("gpu", "utilisation"),
    "gpu_memory": ("gpu", "memory"),
}
"""The metrics that are a mean of cores or of GPUs, with the arguments of `Frames.mean`."""


@dataclass(frozen=True)
class Part:
    """A segment before it is measured; the fields are those of `Segment`."""

    loader: str
    backend: str
    began_by: str
    start: float
    end: float = math.inf
    label: str | None = None
    knobs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivered:
    """A loader's batches in a segment: fields of `Segment`, and each step's `times` with their `means`, in ms."""

    seconds: float
    steps: int
    left_out: int
    batches: int
    samples: int
    times: dict[str, Floats]
    means: dict[str, float]
    on_device: bool = False
    evaluates: bool = False


def segments(
    snapshot: Snapshot,
    frames: Frames | None = None,
    *,
    loaders: Collection[str] | None = None,
    metrics: Collection[str] = tuple(METRICS),
) -> tuple[Segment, ...]:
    """Return every loader's segments (or those of `loaders`, their ids), in the order of their beginnings.

    A segment ends where a switch is asked for, a knob of the engine in use is turned, or a mark is set. The
    change-over belongs to none: after a switch until `settle_time`, after a knob the batches that were under
    way. A mark belongs to every loader that delivers before its next change, or did not pause there, and to the only
    one. A segment without a step is left out unless a mark began it. `metrics` are the statistics that are wanted.
    Those that lie within a diagnosis or a tune are `tried`.
    """
    frames = Frames(snapshot) if frames is None else frames
    names = loader_names(snapshot)
    for loader in (*snapshot.steps.loaders, *(str(event["loader"]) for event in switches(snapshot.events))):
        names.setdefault(loader, loader)
    found = []
    for loader in names if loaders is None else (loader for loader in names if loader in loaders):
        delivered: Floats = frames.steps(loader)["end"].copy()
        rows = None
        if len(delivered) == 0:  # without a table of steps: the rows that had a delivery
            images, step = (frames.series(f"loader/{loader}/{part}") for part in ("images", "step"))
            delivered, rows = frames.time[(images > 0) | np.isfinite(step)], snapshot
        state = next((state for state in snapshot.loaders if str(state["id"]) == loader), {})
        several = len(snapshot.steps.loaders or names) > 1
        for part in parts(loader, snapshot.events, delivered, several=several, state=state, rows=rows):
            segment = figures(frames, _trimmed(frames, part, delivered), names[loader], metrics=metrics)
            if segment.steps or segment.left_out or part.began_by == "mark":
                found.append(segment)
    numbers: dict[str, int] = {}
    keyed = []
    for segment in sorted(found, key=lambda segment: (segment.start, segment.loader)):
        numbers[segment.name] = numbers.get(segment.name, 0) + 1
        tried = segment.began_by != "start" and in_run(segment.loader, segment.start, segment.end, snapshot.events)
        keyed.append(replace(segment, key=f"{segment.name}/{numbers[segment.name]}", tried=tried))
    return tuple(keyed)


def in_run(loader: str, begin: float, end: float, events: Sequence[Event]) -> bool:
    """Return whether a time (session s) lies within a diagnosis or a tune of a loader (its id) that has ended."""
    return any(
        event.get("kind") == "diagnosis"
        and str(event.get("loader")) == loader
        and ((event.get("result") or {}).get("began") or float(event["time"])) <= begin
        and end <= float(event["time"])
        for event in events
    )


def known_knobs(values: Mapping[str, Any]) -> dict[str, int]:
    """Return the knobs that a state or an event has values of."""
    return {name: int(values[name]) for name in KNOBS if values.get(name) is not None}


def parts(
    loader: str,
    events: Sequence[Mapping[str, Any]],
    delivered: Floats,
    *,
    several: bool,
    state: Mapping[str, Any],
    rows: Rows | None = None,
) -> list[Part]:
    """Return the parts between the changes of a loader.

    `delivered` are the ends of its steps (session s, ascending), or the times of the `rows` in which it delivered where
    no step was kept; `several`: there are other loaders.
    """
    if len(delivered) == 0:
        return []
    switched = [event for event in switches(events) if str(event["loader"]) == loader]
    turned = [event for event in events if event["kind"] == "knobs" and str(event.get("loader")) == loader]
    marks = [event for event in events if event["kind"] == "mark"]
    changes = sorted([*switched, *turned, *marks], key=change_time)
    backend = str(switched[0]["source"]) if switched else str(state.get("backend", WATCHED))
    part = Part(loader, backend, "start", -np.inf, knobs={} if turned else known_knobs(state.get("knobs") or {}))
    done = []
    for place, event in enumerate(changes):
        if event["kind"] == "switch":
            until, since = request_time(event), settle_time(event, delivered, rows)
            following = replace(part, backend=str(event["target"]), began_by="switch", label=None)
        elif event["kind"] == "knobs":
            knobs = known_knobs(event)
            if all(part.knobs.get(name) == knobs.get(name) for name in _KNOBS_OF.get(part.backend, ())):
                part = replace(part, knobs=knobs)
                continue
            until, since = change_time(event), _used_up(part, change_time(event), delivered)
            following = replace(part, knobs=knobs, began_by="knobs", label=None)
        else:
            until = since = change_time(event)
            later = float(changes[place + 1]["time"]) if place + 1 < len(changes) else np.inf
            if several and not _delivers(delivered, until, later):
                continue
            following = replace(part, began_by="mark", label=str(event.get("label", "")))
        done.append(replace(part, end=until))
        part = replace(following, start=max(since, part.start))
    return [part for part in [*done, part] if part.start < part.end]


def _used_up(part: Part, turned: float, delivered: Floats) -> float:
    """Return when the batches were used up that the engine had taken before its knobs were turned."""
    under_way = part.knobs.get("workers", 0) * part.knobs.get("prefetch", 0) if part.backend == "torchvision" else 0
    after = delivered[delivered > turned]
    return turned if len(after) == 0 else float(after[min(max(IN_FLIGHT, under_way), len(after)) - 1])


def _delivers(delivered: Floats, mark: float, later: float) -> bool:
    """Return whether a loader delivers between a mark and the next change, or did not pause there."""
    place = int(np.searchsorted(delivered, mark, side="right"))
    if place == len(delivered):
        return False
    before = float(delivered[place - 1]) if place else -np.inf
    return bool(delivered[place] <= later or delivered[place] - before <= IDLE_S)


def _trimmed(frames: Frames, part: Part, delivered: Floats) -> Part:
    """Return the same from the beginning of its first step (a mark's from the mark) to the end of its last."""
    low, high = np.searchsorted(delivered, [part.start, part.end], side="right")
    inside = delivered[low:high]
    last = max([0.0, *frames.time[-1:].tolist(), *delivered[-1:].tolist()])
    if len(inside) == 0:
        return replace(part, start=max(part.start, 0.0), end=min(part.end, max(last, part.start)))
    rows = frames.steps(part.loader, part.start, part.end)
    begun = float(rows["end"][0] - rows["step"][0]) if len(rows) else float(inside[0]) - frames.schema.interval
    start = part.start if part.began_by == "mark" else max(part.start, begun, 0.0)
    return replace(part, start=start, end=float(inside[-1]))


def figures(
    frames: Frames, part: Part, name: str, *, key: str = "", metrics: Collection[str] = tuple(METRICS)
) -> Segment:
    """Measure a part of a session; `metrics` are the statistics that are wanted."""
    places = frames.delivery_rows(part.loader, part.start, part.end)
    rows = frames.steps(part.loader, part.start, part.end)
    made = _from_steps(frames, part, places, rows) if len(rows) else _from_rows(frames, part, places)
    counts = dict(vars(made))
    times, means = counts.pop("times"), counts.pop("means")
    statistics = []
    for metric in filter(metrics.__contains__, METRICS):
        values = times[metric] if metric in times else _machine(frames, part, places, metric)
        if bool(np.isfinite(values).any()):
            statistics.append(Statistic(metric, *METRICS[metric], quantiles(values)))
    return Segment(
        key=key,
        name=name,
        **vars(part),
        **counts,
        rate=made.samples / made.seconds if made.seconds > 0 else math.nan,
        wait=means.get("wait", math.nan),
        step=means.get("step", math.nan),
        phases={phase: means[phase] for phase in (*PHASES, "other") if phase in means},
        statistics=tuple(statistics),
        gpu_histogram=histogram(frames.parts("gpu", "utilisation")[places]),
        cpu_seconds=_cpu_seconds(frames, places, made.seconds, "kernel", "workers"),
        synthetic=part.backend == REPLAYS,
        workers_cpu_seconds=_cpu_seconds(frames, places, made.seconds, "workers"),
        load=quantiles(frames.load[places]).p50,
        nodes=_nodes(frames, places) if part.backend == RAY else 0,
    )


def _from_steps(frames: Frames, part: Part, places: Places, rows: Steps) -> Delivered:
    """Return the deliveries by the steps. Where not all steps were kept, the samples are those of the rows."""
    kept = rows[counted(rows)]
    times = {name: 1e3 * kept[name].astype(np.float64) for name in ("wait", "step", *PHASES)}
    means = _means(times["wait"], times["step"], np.ones(len(kept)))
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
            # So many samples take so long at the rate of the steps that were kept.
            batches, seconds = round(batches * delivered / samples), seconds * delivered / samples
            samples = round(delivered)
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


def _means(wait: Floats, step: Floats, weights: Floats) -> dict[str, float]:
    """Return the mean step and its wait: the waited share of the steps whose wait was measured, at most the step."""
    mean = weighted_mean(step, weights)
    if not mean > 0:
        return {}
    known = np.isfinite(wait) & np.isfinite(step)
    whole = weighted_mean(step[known], weights[known])
    share = weighted_mean(wait[known], weights[known]) / whole if whole > 0 else math.nan
    # A damaged recording may say anything.
    return {"step": mean} | ({"wait": min(max(share, 0.0), 1.0) * mean} if -_ROUNDING <= share <= 1 + _ROUNDING else {})


def _from_rows(frames: Frames, part: Part, places: Places) -> Delivered:
    """Return the deliveries by the rows' means, where no step was kept; the number of steps is computed."""
    times = {name: frames.series(f"loader/{part.loader}/{name}")[places] for name in ("wait", "step")}
    images = frames.samples(part.loader)[places]
    seconds, samples = _counted_rows(frames, part, places)
    means = _means(times["wait"], times["step"], images)
    step = means.get("step", 0.0)
    steps = max(int(np.isfinite(times["step"]).sum()), int(1e3 * seconds / step)) if step > 0 else 0
    return Delivered(seconds, steps, 0, steps, round(samples), times, means)


def _counted_rows(frames: Frames, part: Part, places: Places) -> tuple[float, float]:
    """Return the seconds and the samples of the rows."""
    return float(frames.window[places].sum()), float(frames.samples(part.loader)[places].sum())


def _machine(frames: Frames, part: Part, places: Places, metric: str) -> Floats:
    """Return a metric of the machine in each of the rows; all NaN where it was not measured."""
    if metric in _RARE:
        series, group = _RARE[metric]
        values = frames.series(series)[places]
        new = values[frames.fresh(group)[places]]
        return new if len(new) else values
    if metric == "images":
        return _per_second(frames.time[places], frames.samples(part.loader)[places], frames.window[places])
    values = frames.mean(*_MEANS[metric])[places] if metric in _MEANS else np.empty(0)
    # A machine of one's own has no steal to speak of.
    return values if metric != "steal" or bool((values > 0).any()) else np.empty(0)


def _nodes(frames: Frames, places: Places) -> int:
    """Return how many other machines delivered batches."""
    delivered = [frames.series(name)[places] for name in frames.schema.names if _NODE_BATCHES.fullmatch(name)]
    return sum(bool((values > 0).any()) for values in delivered)


def _cpu_seconds(frames: Frames, places: Places, seconds: float, *roles: str) -> float:
    """Return the CPU seconds of the roles' processes: their mean load times the time; NaN if none was measured."""
    loads = np.stack([frames.series(f"process/{role}/cpu")[places] for role in roles])
    known = np.isfinite(loads).any(axis=0)
    if not known.any():
        return math.nan
    # A role without a process has no value.
    return float(np.nan_to_num(loads[:, known]).sum(axis=0).mean() / 100 * seconds)


def _per_second(time: Floats, delivered: Floats, window: Floats) -> Floats:
    """Return samples per second in each whole second of which the rows (at `time`, of `window` s) cover nine tenths."""
    if len(time) == 0:
        return np.empty(0)
    seconds = np.floor(time).astype(np.int64)
    seconds -= seconds[0]
    covered = np.bincount(seconds, weights=window)
    sums = np.bincount(seconds, weights=delivered)
    whole = covered >= 0.9
    rates: Floats = sums[whole] / covered[whole]
    return rates
