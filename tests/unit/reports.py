"""An analysis in which everything has something to say, made by hand: what the report shows of it is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kernel_monitor.analysis.results import (
    Advice,
    Analysis,
    Change,
    Cost,
    EpochCount,
    Evidence,
    Feeding,
    Finding,
    Gain,
    Quantiles,
    Segment,
    Statistic,
    Verdict,
)

METRICS = (
    ("cpu", "CPU, mean of the cores", "%", 96.0, 58.0),
    ("iowait", "CPU waiting for I/O", "%", 2.0, 1.0),
    ("gpu", "GPU utilisation", "%", 31.0, 88.0),
    ("gpu_memory", "GPU memory", "%", 44.0, 46.0),
    ("memory", "Host memory", "%", 40.0, 41.0),
    ("received", "Network received", "B/s", 312e3, 28.8e6),
    ("images", "Images in a second", "images/s", 320.0, 960.0),
    ("wait", "Data wait", "ms", 60.0, 5.0),
    ("forward", "Forward", "ms", 12.0, 11.0),
    ("step", "Whole step", "ms", 100.0, 33.3),
)
"""Metric, label, unit, median before and after."""


def quantiles(middle: float, count: int) -> Quantiles:
    return Quantiles(count, *(middle * share for share in (0.5, 1.0, 1.1, 1.2, 1.3, 1.4)))


def segment(number: int, backend: str, **fields: Any) -> Segment:
    """The first or the second segment of `train`."""
    known = {
        "key": f"train/{number}", "loader": "loader-1", "name": "train", "backend": backend,
        "began_by": "start" if number == 1 else "switch", "label": None,
        "knobs": {"workers": 2, "prefetch": 2}, "start": 0.0 if number == 1 else 22.1,
        "end": 20.0 if number == 1 else 42.0, "seconds": 20.0, "steps": 197 if number == 1 else 590, "left_out": 3,
        "batches": 200 if number == 1 else 600, "samples": 6400 if number == 1 else 19200,
        "rate": 320.0 if number == 1 else 960.0, "wait": 60.0 if number == 1 else 5.0,
        "step": 100.0 if number == 1 else 33.3,
        "phases": {"copy": 3.0, "forward": 12.0, "backward": 20.0, "optimizer": 4.0, "other": 1.0}
        if number == 1
        else {"copy": 1.0, "forward": 9.0, "backward": 15.0, "optimizer": 3.0, "other": 0.3},
        "on_device": True,
        "statistics": tuple(Statistic(*one[:3], quantiles(one[3] if number == 1 else one[4], 200)) for one in METRICS),
        "gpu_histogram": bump(31.0 if number == 1 else 88.0), "cpu_seconds": 38.0, **fields,
    }  # fmt: skip
    return Segment(**known)


def bump(middle: float, width: float = 9.0) -> tuple[float, ...]:
    """A histogram around a middle."""
    at = np.arange(1, 100, 2)
    shares = np.exp(-(((at - middle) / width) ** 2))
    return tuple((shares / shares.sum()).tolist())


def fired(**fields: Any) -> Finding:
    """A rule that fired."""
    known = {
        "rule": "cpu-bottleneck", "title": "The CPU is full and the GPU waits", "state": "fired",
        "severity": "critical", "segment": "train/1", "samples": 200, "times": 164,
        "evidence": (Evidence("CPU above 90 % and GPU below 40 %", 96.0, 90.0, "%", 0.82, 0.5, 19.5),),
        "advised": (Advice("Switch to dali-cpu, or raise the workers."),),
        "parameters": {"cpu": 90.0, "share": 0.5}, **fields,
    }  # fmt: skip
    return Finding(**known)


QUIET = Finding("batch-size", "The batch is small", "quiet", segment="train/2", samples=590, parameters={"p95": 70.0})
ABSTAINED = Finding("rank-imbalance", "The ranks differ", "abstained", missing=("a session of another rank",))
GAIN = Gain("dali-cpu", 0.55, 0.72, 0.667, "From CPU seconds per image and the cores that are shared.")
DIAGNOSIS: dict[str, Any] = {
    "loader": "loader-1", "name": "train", "began": 30.0, "ended": 60.0, "back_to": "torchvision", "synthetic": True,
    "message": "", "sentence": "dali-cpu delivers 960 images/s, 3.0 times as many as torchvision.",
    "best": "dali-cpu", "cannot": ["dali-gpu: no usable GPU"],
    "predicted": [{"action": "dali-cpu", "low": 0.55, "high": 0.72, "measured": None, "basis": ""}],
    "measured": [{"action": "dali-cpu", "low": 0.55, "high": 0.72, "measured": 0.667, "basis": ""}],
    "runs": [
        {"backend": "torchvision", "start": 30.0, "end": 38.0, "seconds": 8.0, "steps": 80, "batches": 80,
         "samples": 2560, "rate": 320.0, "rate_low": 310.0, "rate_high": 331.0, "step": 100.0, "wait": 60.0,
         "of_ceiling": 0.31, "cpu_p50": 96.0, "cpu_p95": 99.0, "gpu_p50": 31.0, "problem": None},
        {"backend": "dali-cpu", "start": 40.0, "end": 48.0, "seconds": 8.0, "steps": 240, "batches": 240,
         "samples": 7680, "rate": 960.0, "rate_low": 930.0, "rate_high": 985.0, "step": 33.3, "wait": 5.0,
         "of_ceiling": None, "cpu_p50": 58.0, "cpu_p95": 66.0, "gpu_p50": None, "problem": "too few steps"},
    ],
}  # fmt: skip


def profile(backend: str, conv: float) -> dict[str, Any]:
    """The event of a profile."""
    cpu = [{"name": "aten::convolution", "share": conv, "self_ms": 120.0, "count": 40},
           {"name": "aten::add_", "share": 0.1, "self_ms": 20.0, "count": 320}]  # fmt: skip
    gpu = [{"name": "sm90_gemm<bf16>", "share": 0.7, "ms": 88.0, "launches": 420}] if backend == "dali-cpu" else []
    result = {
        "loader": "loader-1", "name": "train", "backend": backend, "began": 5.0, "ended": 6.0, "steps": 10, "cpu": cpu,
        "gpu": gpu, "gpu_reason": None if gpu else "CUPTI is not there", "wall_ms": 1000.0, "trace": "trace.json.gz",
    }  # fmt: skip
    return {"kind": "profile", "time": 6.0, "result": result}


def verdict_of(key: str, kind: Any, wait: float, steps: int) -> Verdict:
    """A verdict with its shares."""
    shares = {"wait": wait, "copy": 0.03, "compute": 0.95 - wait, "other": 0.02}
    return Verdict(
        kind, key, f"{100 * wait:.0f} % of a step waits for data, over {steps} steps.",
        (Advice("Switch to dali-cpu."),), shares, steps,
    )  # fmt: skip


def analysis(**fields: Any) -> Analysis:
    """A session that switched from torchvision to dali-cpu, with something of everything."""
    before, after = segment(1, "torchvision"), segment(2, "dali-cpu")
    first, second = verdict_of("train/1", "input-bound", 0.6, 197), verdict_of("train/2", "compute-bound", 0.15, 590)
    second = replace(second, gains=(Gain("loader", 0.05, 0.05, math.nan, "What is left of the wait."),))
    known = {
        "segments": (before, after),
        "epochs": (
            EpochCount("loader-1", "train", 0, 640, 20480, 20480, 52.1, True, None),
            EpochCount("loader-1", "train", 1, 0, 0, 20480, 0.4, True, "delivered 0 of 20,480 samples"),
        ),
        "verdict": second, "verdicts": (first, second),
        "changes": (Change("train/1", "train/2", 3.0, 0.667, 0.94, GAIN, ("after: an epoch delivered too little",)),),
        "findings": (QUIET, fired(), ABSTAINED),
        "costs": (
            Cost("train/1", 37.688, "$", 0.00201, 1.29, 0.0327), Cost("train/2", 37.688, "$", 0.000349, 0.43, 0.0109),
        ),
        "feeding": Feeding("train/1", 0.0059, 5.7, 2.0, (Advice("Move decoding to DALI."),)),
        "diagnoses": ({"kind": "diagnosis", "time": 60.0, "result": DIAGNOSIS},),
        "profiles": (profile("torchvision", 0.4), profile("dali-cpu", 0.6)),
        "cannot": ("Rank imbalance: this session is of one rank.",), **fields,
    }  # fmt: skip
    return Analysis(**known)


def nothing(*cannot: str) -> Analysis:
    """The analysis of a session that says nothing."""
    undetermined = Verdict(
        "undetermined", None, "No step was measured.", (Advice("Train with a loader that is watched."),)
    )
    return Analysis((), (), undetermined, (), (), (), (), None, cannot=cannot)
