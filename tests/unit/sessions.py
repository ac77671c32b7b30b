"""Constructed sessions: every number is known, none is measured.

`build` makes a `Snapshot` of cores, GPUs, processes, loaders with their steps, and events, at any interval. What varies
with time is a function of the rows' times (float64[n] → float64[n]); what does not is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.analysis import switch_strip
from kernel_monitor.analysis.live_verdict import live_verdict
from kernel_monitor.analysis.results import Segment
from kernel_monitor.diagnosis.trials import Trial, diagnosis
from kernel_monitor.steps.measured_step import PHASES, WARM_UP
from kernel_monitor.store import Rows, Snapshot, Store
from kernel_monitor.store.snapshot import STEP, StepTable

Floats = npt.NDArray[np.float64]
Value = float | Callable[[Floats], Any]
"""A number, or a function of times."""
ByStep = float | Callable[[int], float]
"""A number, or a function of the step's number in its run, from 0."""

ORIGIN = 1_790_000_000.0


@dataclass(frozen=True)
class Run:
    """Steps of one loader, one after the other, from `start` until no whole one fits before `end`.

    Attributes:
        start, end: session s.
        step, wait: s.
        images: in each batch.
        phases: s, of `copy`, `forward`, `backward`, `optimizer`; those left out are NaN.
        loader: the loader's id.
        epoch: of all its steps, unless `epoch_batches` says after how many a new one begins.
        warm_up: so many first steps are flagged.
        flags: of every step besides.
        steps: at most so many.
    """

    start: float
    end: float
    step: ByStep = 0.1
    wait: ByStep = 0.02
    images: int = 32
    phases: Mapping[str, ByStep] = field(default_factory=dict)
    loader: str = "loader-1"
    epoch: int = 0
    epoch_batches: int | None = None
    warm_up: int = 0
    flags: int = 0
    steps: int | None = None


def build(
    seconds: float,
    interval: float = 0.1,
    cpus: int = 4,
    gpus: int = 0,
    *,
    busy: Value = 50.0,
    iowait: Value = 0.0,
    gpu: Value = 50.0,
    gpu_memory: Value = 40.0,
    memory: Value = 30.0,
    kernel: Value | None = 90.0,
    workers: Value | None = 150.0,
    series: Mapping[str, Value] | None = None,
    runs: Sequence[Run] = (),
    loaders: Mapping[str, str] | None = None,
    states: Sequence[Mapping[str, Any]] = (),
    events: Sequence[Mapping[str, Any]] = (),
    limits: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    steps: bool = True,
    gap: tuple[float, float] | None = None,
    first: float | None = None,
) -> Snapshot:
    """A session of `seconds`, a row every `interval` from `interval` on.

    Args:
        seconds, interval: s.
        cpus, gpus: how many.
        busy, iowait: %, of every core.
        gpu, gpu_memory: %, of every GPU.
        memory: %, of the host.
        kernel, workers: %, of one core: what their processes take (`process/<role>/cpu`); None: no such series.
        series: other series by name, or others' values instead (`cpu/2/busy`, `loader/loader-1/images`); a series of
            its own name is added.
        runs: what the loaders delivered.
        loaders: id to name; those of `runs`, called `train`, `second`, …, if left out.
        states: fields of the loaders' states in their order; backend `torchvision` and two workers if left out.
        events: each with `kind`, `time` and its fields; see `switch`.
        limits: `host["limits"]`.
        facts: of the session.
        steps: False leaves the table of steps empty, as in files of before it.
        gap: no rows between these times.
        first: when the first row comes, if not after an `interval`.
    """
    number = np.arange(round(seconds / interval), dtype=np.float64)
    time: Floats = (number + 1) * interval if first is None else first + number * interval
    if gap is not None:
        time = time[(time <= gap[0]) | (time >= gap[1])]
    host: dict[str, Value] = {}
    for core in range(cpus):
        host |= {f"cpu/{core}/busy": busy, f"cpu/{core}/iowait": iowait}
    host["memory/percent"] = memory
    for role, taken in (("kernel", kernel), ("workers", workers)):
        if taken is not None:
            host[f"process/{role}/cpu"] = taken
    for one in range(gpus):
        host |= {f"gpu/{one}/utilisation": gpu, f"gpu/{one}/memory": gpu_memory}
    host |= dict(series or {})
    table = _steps(runs)
    names = dict(loaders or dict(zip(_ids(runs), ("train", "second", "third"), strict=False)))
    store = Store(max(1, len(time)), interval=interval, origin=ORIGIN, most_bytes=1 << 30)
    store.set_host(
        {
            "interval": interval,
            "series": [{"name": name, "unit": _unit(name)} for name in host if not name.startswith("loader/")],
            "cpus": list(range(cpus)),
            "gpus": [{"index": one, "name": "NVIDIA H200", "memory_total": 150 * 10**9} for one in range(gpus)],
            "gpu_reason": None if gpus else "NVML Shared Library Not Found",
            "host": {
                "cpu_model": "Some CPU",
                "logical_cpus": cpus,
                "memory_total": 64 * 10**9,
                "platform": "Linux",
                **({} if limits is None else {"limits": dict(limits)}),
            },
        }
    )
    store.set_loaders([{"id": key, "name": name} for key, name in names.items()])
    for event in events:
        fields = {key: value for key, value in event.items() if key not in ("kind", "time", "id")}
        store.add_event(event["kind"], event["time"], **fields)
    given = list(states) + [{}] * (len(names) - len(states))
    told = [state(key, name, **fields) for (key, name), fields in zip(names.items(), given, strict=True)]
    empty = store.snapshot(told, facts or {})
    values = np.full((len(time), len(empty.schema.series)), np.nan, dtype=np.float32)
    delivered = {f"loader/{key}/{part}": column for key in names for part, column in _series(table, key, time).items()}
    for name, column in empty.schema.columns.items():
        value = host.get(name, delivered.get(name, math.nan))
        values[:, column] = value(time) if callable(value) else value
    return Snapshot(
        schema=empty.schema,
        seq=np.arange(1, len(time) + 1, dtype=np.int64),
        time=time,
        values=values,
        events=empty.events,
        loaders=empty.loaders,
        facts=dict(facts or {}),
        steps=table if steps else StepTable(),
    )


def rows_of(snapshot: Snapshot) -> Rows:
    """Its rows, as a running session has them."""
    return Rows(snapshot.schema, snapshot.seq, snapshot.time, snapshot.values)


def live(snapshot: Snapshot, last: dict[str, Any] | None = None, **more: Any) -> dict[str, Any] | None:
    """Return the verdict as a page had it at the session's end."""
    given = {"events": snapshot.events, "states": snapshot.loaders, **more}
    return live_verdict(rows_of(snapshot), snapshot.steps, given.pop("events"), given.pop("states"), last, **given)


def stripped(snapshot: Snapshot, **more: Any) -> dict[str, Any]:
    """Return the strip of figures that a switch has; of these events and states, if they are others."""
    found = switch_strip(snapshot, more.get("events", snapshot.events), more.get("states", snapshot.loaders))
    assert found is not None
    return dict(found)


def segment(key: str = "train/1", **fields: Any) -> Segment:
    """A minute of `train` on torchvision, 600 steps of 0.1 s of which 60 ms are waited."""
    known: dict[str, Any] = {
        "key": key, "loader": "loader-1", "name": "train", "backend": "torchvision", "began_by": "start", "label": None,
        "knobs": {"workers": 2, "prefetch": 2, "threads": 2}, "start": 0.0, "end": 60.0, "seconds": 60.0, "steps": 600,
        "left_out": 0, "batches": 600, "samples": 19200, "rate": 320.0, "wait": 60.0, "step": 100.0, "phases": {},
        "on_device": False, "statistics": (), **fields,
    }  # fmt: skip
    return Segment(**known)


def step_rows(count: int = 300, /, flags: float = 0, **parts: float) -> Any:
    """Rows of so many equal steps, in s; phases that are not named are NaN."""
    rows = np.zeros(count, dtype=STEP)
    for name in PHASES:
        rows[name] = parts.get(name, np.nan)
    rows["wait"], rows["step"], rows["flags"] = parts["wait"], parts["step"], flags
    rows["end"] = np.arange(1, count + 1) * parts["step"]
    return rows


def diagnosed(
    rates: Mapping[str, float],
    engine: str = "torchvision",
    *,
    spread: float = 0.02,
    spreads: Mapping[str, float] | None = None,
    problems: Mapping[str, str] | None = None,
    began: float = 10.0,
    at: float = 20.0,
    loader: str = "loader-1",
) -> dict[str, Any]:
    """The event of a *Diagnose* that began with `engine` and measured each engine for 8 s, in batches of 32.

    Args:
        rates: images/s.
        spread: how far the quartiles lie from a rate, as a share of it; `spreads`: of single engines.
        problems: of engines that could not be measured.
        began, at: session s.
    """
    trials = []
    for name in sorted(rates, key=lambda name: name != engine):
        rate, wide = rates[name], (spreads or {}).get(name, spread)
        steps = int(rate * 8 / 32)
        trials.append(Trial(
            name, start=began, end=at, seconds=8.0, steps=steps, batches=steps, samples=32 * steps, rate=rate,
            rate_low=rate * (1 - wide), rate_high=rate * (1 + wide), step=32e3 / rate, wait=16e3 / rate,
            problem=(problems or {}).get(name),
        ))  # fmt: skip
    result = diagnosis(loader, "train", trials, first=engine, back_to=engine)
    return {"kind": "diagnosis", "time": at, "loader": loader, "state": "done", "result": result}


def hello(*names: str, unit: str = "%", **fields: Any) -> dict[str, Any]:
    """A sampler's hello with these series."""
    series = [{"name": name, "unit": unit} for name in names]
    return {"interval": 0.1, "series": series, "cpus": [0], "gpus": [], "gpu_reason": None, "host": {}, **fields}


def calibrated(loading: float, error: float = 0.0) -> dict[str, Any]:
    """A field of a loader's state: loading a batch of 32 with `dali-cpu` took so much CPU time beside the loop, s.

    Args:
        loading: of the batch.
        error: half of the interval of that.
    """
    found = {"state": "done", "files": 32, "seconds": loading / 32, "error": error / 32, "reason": None}
    return {"calibration": {"dali-cpu": found}}


def switch(
    first: float, source: str, target: str, *, asked: float | None = None, loader: str = "loader-1"
) -> dict[str, Any]:
    """The event of a switch whose first batch came at `first`; asked for a second before, if not said."""
    begun = first - 1.0 if asked is None else asked
    fields = {"loader": loader, "source": source, "target": target, "epoch": 0, "batch": 100}
    return {"kind": "switch", "time": first, **fields, "asked": begun, "first": first, "waited": 1, "in_flight": 4}


def state(key: str = "loader-1", name: str = "train", **fields: Any) -> dict[str, Any]:
    """A `LoaderState` as a loader gives it."""
    backends = [
        {"name": "torchvision", "available": True, "reason": None, "confirm": None, "note": None},
        {"name": "dali-cpu", "available": True, "reason": None, "confirm": None, "note": None},
        {"name": "dali-gpu", "available": False, "reason": "no usable GPU", "confirm": None, "note": None},
        {"name": "synthetic", "available": True, "reason": None, "confirm": "Replay?", "note": None},
    ]
    return {
        "id": key, "name": name, "backend": "torchvision", "wanted": None, "status": "torchvision",
        "backends": backends, "epoch": 0, "batch": 100, "batches": 640, "samples": 3200, "planned": 20480, "lost": 0,
        "doubled": 0, "skipped": 0, "replaced": 0, "skips": [], "knobs": {"workers": 2, "prefetch": 2, "threads": 2},
        "decoded": {"torchvision": 3200}, "ended": False, **fields,
    }  # fmt: skip


def _ids(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.loader for run in runs)) or ["loader-1"]


def _steps(runs: Sequence[Run]) -> StepTable:
    ids = _ids(runs)
    parts = [_rows(run, ids.index(run.loader)) for run in runs]
    rows = np.concatenate([np.empty(0, dtype=STEP), *parts])
    return StepTable(loaders=tuple(ids), rows=rows[np.argsort(rows["end"], kind="stable")])


def _rows(run: Run, loader: int) -> npt.NDArray[Any]:
    if callable(run.step):
        lengths: list[float] = []
        left = run.end - run.start
        while len(lengths) != run.steps and (length := run.step(len(lengths))) <= left + 1e-9:
            lengths.append(length)
            left -= length
        count, step = len(lengths), np.array(lengths, dtype=float)
    else:
        count = math.floor((run.end - run.start) / run.step + 1e-9)
        count = count if run.steps is None else min(count, run.steps)
        step = np.full(count, run.step)
    number = np.arange(count)
    rows = np.zeros(count, dtype=STEP)
    rows["loader"], rows["images"], rows["step"] = loader, run.images, step
    rows["end"] = run.start + np.cumsum(step)
    rows["wait"] = _by_step(run.wait, count)
    each = run.epoch_batches or max(1, count)
    rows["epoch"], rows["batch"] = run.epoch + number // each, number % each
    for phase in PHASES:
        rows[phase] = _by_step(run.phases.get(phase, math.nan), count)
    rows["flags"] = run.flags
    rows["flags"][: run.warm_up] |= WARM_UP
    return rows


def _by_step(value: ByStep, count: int) -> Any:
    return [value(number) for number in range(count)] if callable(value) else value


def _series(table: StepTable, loader: str, time: Floats) -> dict[str, Floats]:
    """What the monitor makes of the steps in each row: images/s, and means in ms."""
    rows = table.of(loader)
    windows = np.diff(time, prepend=time[0] - (time[1] - time[0] if len(time) > 1 else time[0])) if len(time) else time
    got = np.searchsorted(time, rows["end"] - rows["step"] + rows["wait"])
    ended = np.searchsorted(time, rows["end"])
    size = len(time) + 1
    images = np.bincount(got, weights=rows["images"], minlength=size)[: len(time)] / np.maximum(windows, 1e-12)
    counts = np.bincount(ended, minlength=size)[: len(time)]
    parts = {"images": images}
    known = [rows[phase] for phase in PHASES]
    spent = sum((np.where(np.isfinite(one), one, 0.0) for one in known), start=np.zeros(len(rows)))
    phased = np.any([np.isfinite(one) for one in known], axis=0)
    other = np.where(phased, rows["step"] - rows["wait"] - spent, np.nan)
    for name, column in (*((part, rows[part]) for part in ("wait", "step", *PHASES)), ("other", other)):
        sums = np.bincount(ended, weights=np.where(np.isfinite(column), column, 0.0), minlength=size)[: len(time)]
        present = np.bincount(ended[np.isfinite(column)], minlength=size)[: len(time)]
        parts[name] = np.divide(1e3 * sums, counts, out=np.full(len(time), np.nan), where=present > 0)
    return parts


def _unit(name: str) -> str:
    part = name.rpartition("/")[2]
    if name.startswith("sample/"):
        return "s"
    if part in ("received", "sent", "read", "write"):
        return "B/s"
    if part == "count":
        return "1"
    if part in ("used", "memory_used", "process_memory") or (part == "memory" and name.startswith(("process", "cont"))):
        return "B"
    return "%"
