"""A session of a large machine with something of everything in it: what `make screenshots` shows of the report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kernel_monitor.steps.measured_step import ON_DEVICE, WARM_UP
from kernel_monitor.store import Snapshot
from kernel_monitor.store.schema import Series
from kernel_monitor.store.snapshot import STEP, StepTable
from tests.browser.scenes import machine, run
from tests.unit.analysis.test_compare_segments import TRAIN, state
from tests.unit.reports import DIAGNOSIS, profile

BATCH, EPOCH = 256, 1000
PHASES = ("copy", "forward", "backward", "optimizer")
BEFORE, AFTER = (0.071, 0.004, 0.006, 0.012, 0.002, 0.001), (0.002, 0.001, 0.0061, 0.0121, 0.002, 0.001)
"""Seconds of a step: the wait, the phases, and the rest."""


def reported(seconds: float = 600.0, seed: int = 3) -> Snapshot:
    """64 cores, eight GPUs: starved until a switch in the middle, marked, diagnosed, profiled, and priced."""
    snapshot = run(machine(cores=64, sockets=2, nodes=2, gpus=8, interval=0.5), seconds=seconds)
    middle = float(next(event["first"] for event in snapshot.events if event["kind"] == "switch"))
    steps = _steps(seconds, middle, np.random.default_rng(seed))
    mark = {"id": 21, "kind": "mark", "time": 0.25 * seconds, "label": "augment x12"}
    told: list[dict[str, Any]] = [
        mark,
        {"id": 22, "kind": "diagnosis", "time": 0.4 * seconds, "result": _diagnosis()},
        {"id": 23, **profile("torchvision", 0.4), "time": 0.3 * seconds},
        {"id": 24, **profile("dali-gpu", 0.6), "time": 0.8 * seconds},
    ]
    done = len(steps) // EPOCH
    counts = {"planned": EPOCH * BATCH, "lost": 0, "doubled": 0, "skipped": 0, "replaced": 0}
    epochs = [
        {"epoch": k, "batches": EPOCH, "samples": EPOCH * BATCH, **counts, "decoded": {"torchvision": EPOCH * BATCH}}
        for k in range(done)
    ]
    left = len(steps) - done * EPOCH
    newest = state(
        backend="dali-gpu", epoch=done, batch=left, batches=EPOCH, samples=left * BATCH, epochs=epochs,
        decoded={"dali-gpu": left * BATCH}, knobs={"workers": 16, "prefetch": 2, "threads": 8},
        **{key: value for key, value in counts.items() if key != "epochs"},
    )  # fmt: skip
    return replace(
        _with_phases(snapshot, middle),
        events=sorted([*snapshot.events, *told], key=lambda event: float(event["time"])),
        loaders=[newest],
        steps=StepTable((TRAIN,), steps),
        facts={**snapshot.facts, "price": 37.688, "currency": "$"},
    )


def _diagnosis() -> dict[str, Any]:
    """What Diagnose would have found in this loop."""
    runs = [
        {**run, "rate": rate, "rate_low": 0.97 * rate, "rate_high": 1.02 * rate, "samples": round(8 * rate),
         "steps": round(8 * rate / BATCH), "wait": wait, "step": step, "of_ceiling": share, "backend": backend,
         "gpu_p50": gpu, "problem": None}
        for run, rate, wait, step, share, backend, gpu in zip(
            DIAGNOSIS["runs"], (2660.0, 10550.0), (71.2, 2.0), (96.2, 24.3), (0.25, 0.98), ("torchvision", "dali-gpu"),
            (31.4, 83.4), strict=True,
        )
    ]  # fmt: skip
    gain = {"action": "dali-gpu", "low": 0.68, "high": 0.76, "measured": 0.747, "basis": ""}
    return {
        **DIAGNOSIS, "runs": runs, "predicted": [{**gain, "measured": None}], "measured": [gain], "best": "dali-gpu",
        "sentence": "dali-gpu delivers 10,550 images/s, 4.0 times as many as torchvision.", "cannot": [],
    }  # fmt: skip


def _steps(seconds: float, middle: float, rng: np.random.Generator) -> Any:
    """The steps one after the other, each part with noise of its own."""
    most = round(seconds / min(sum(BEFORE), sum(AFTER)) * 1.2)
    noise = rng.lognormal(0.0, 0.07, (most, 6))
    slow, fast = np.array(BEFORE) * noise, np.array(AFTER) * noise
    first = int(np.searchsorted(np.cumsum(slow.sum(axis=1)), middle))
    parts = np.concatenate([slow[:first], fast[first:]])
    ends = np.cumsum(parts.sum(axis=1))
    count = int(np.searchsorted(ends, seconds - 1.0))
    rows = np.zeros(count, dtype=STEP)
    rows["end"], rows["wait"], rows["step"] = ends[:count], parts[:count, 0], parts[:count].sum(axis=1)
    for k, name in enumerate(PHASES, start=1):
        rows[name] = parts[:count, k]
    numbers = np.arange(count)
    rows["epoch"], rows["batch"], rows["images"] = numbers // EPOCH, numbers % EPOCH, BATCH
    rows["flags"] = np.where(numbers < 3, WARM_UP | ON_DEVICE, ON_DEVICE)
    return rows


def _with_phases(snapshot: Snapshot, middle: float) -> Snapshot:
    """The phases as series over time."""
    late = snapshot.time > middle
    rng = np.random.default_rng(0)
    names, columns = [], []
    for k, name in enumerate((*PHASES, "other"), start=1):
        names.append(Series(f"loader/{TRAIN}/{name}", "ms"))
        columns.append(1e3 * np.where(late, AFTER[k], BEFORE[k]) * rng.lognormal(0.0, 0.05, len(late)))
    values = np.column_stack([snapshot.values, *columns]).astype(np.float32)
    schema = replace(snapshot.schema, series=(*snapshot.schema.series, *names))
    return replace(snapshot, schema=schema, values=values)
