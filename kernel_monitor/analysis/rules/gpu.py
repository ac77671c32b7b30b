"""Rules on how the GPUs are used: too little, in fits and starts, unevenly, or while CPU or storage do much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from .. import advice
from ..advice import WAITS, Decision
from ..frames import Floats
from ..results import Advice, Evidence, Finding, Point, Segment
from ..step_times import distance, finite, histogram
from .rule import Check, Parameter, Rule, Session, SignalMissing, plain_advice, require, span, windows

Advised = Callable[[Decision], Sequence[Advice]]

_LARGER = Point("batch", "larger", "for")
WINDOW = {
    "window": Parameter(500, "samples that are looked at together"),
    "least": Parameter(100, "samples that the last, shorter window must have"),
    "windows": Parameter(0.5, "of the windows: more than this share must meet the condition"),
}
SHARED = {
    "gpu": Parameter(10, "%: a GPU below it has nothing to do"),
    "share": Parameter(0.5, "of the samples with such a GPU: more than this share must be explained"),
    "low": Parameter(0.1, "of all samples: at least this share must have such a GPU"),
    "least": Parameter(20, "samples that it takes"),
}
_CHANGED = (
    "Changed: the share is of the samples with a GPU below its threshold, as stated, and not of all; those must be a "
    "tenth of all, or three samples would do; {cores}; a missing GPU is no error."
)


def cpu(session: Session, check: Check, segment: Segment) -> Finding:
    return _bottleneck(session, check, segment, session.frames.load, "CPU", check["cpu"], _relief)


def io(session: Session, check: Check, segment: Segment) -> Finding:
    cores, readers = len(session.frames.cores), segment.knobs.get(segment.worker_knob)
    busy = session.frames.mean("cpu", "iowait")
    if readers is not None and cores:
        # Only as many cores can wait for what these read as there are processes or threads that load.
        busy = busy * (cores / min(cores, max(1, readers)))
    return _bottleneck(session, check, segment, busy, "I/O wait", check["iowait"], _storage)


def _relief(decision: Decision) -> Sequence[Advice]:
    if not decision.waits:
        words = f"The CPU is full and the GPU idles for another reason than data: the step is {decision.kind}."
        return (advice.advise(decision, words), *advice.next_step(decision))
    seen = advice.advise(decision, "The CPU prepares batches as fast as it can and the GPU waits for them.")
    return (seen, *advice.engines(decision), *([] if decision.engines else [advice.cores(decision)]))


def _storage(decision: Decision) -> Sequence[Advice]:
    words = "The loader waits for storage: copy the data to a local disk or to memory, or use fewer and larger files."
    found = [advice.advise(decision, words, Point("storage", "faster", "for"))]
    found += advice.more_workers(decision)
    if decision.best is None and decision.engines:
        slow = [Point("engine", outlook.engine, "against") for outlook in decision.engines]
        found.append(advice.advise(decision, "Another engine would read the same files as slowly.", *slow))
    return found


def _bottleneck(
    session: Session, check: Check, segment: Segment, values: Floats, name: str, high: float, advised: Advised
) -> Finding:
    session.require_gpu()
    rows = session.rows(segment)
    gpu, busy, time = session.frames.mean("gpu", "utilisation")[rows], values[rows], session.frames.time[rows]
    known = np.isfinite(gpu) & np.isfinite(busy)
    count = int(known.sum())
    require(f"samples of GPU and {name}", count, check["least"])
    low = known & (gpu < check["gpu"])
    both = low & (busy > high)
    share = float(both.sum() / low.sum()) if low.any() else 0.0
    text = (
        f"{name} above {high:g} % in {both.sum():,} of the {low.sum():,} samples with the GPU below "
        f"{check['gpu']:g} %, which are {100 * low.sum() / count:.0f} % of all {count:,}"
    )
    evidence = Evidence(text, 100 * share, 100 * check["share"], "%", share, **span(time[both]))
    fires = bool(low.sum() >= check["low"] * count) and share > check["share"]
    decision = session.decision(segment)
    advices = (advice.withheld_advice(decision),) if decision.withheld is not None else advised(decision)
    return check.finding(fires, advices, evidence, samples=count, times=int(both.sum()))


def low(session: Session, check: Check, segment: Segment) -> Finding:
    session.require_gpu()
    rows = session.rows(segment)
    parts = windows("GPU samples", len(rows), check["window"], check["least"])
    evidence, times, fires = [], 0, False
    for number, values in zip(session.frames.gpus, session.frames.parts("gpu", "utilisation")[rows].T, strict=True):
        present = [finite(values[part]) for part in parts]
        spreads = [np.percentile(window, (5, 95)) for window in present if len(window)]
        if not spreads:
            continue
        little = sum(p95 < check["p95"] for _, p95 in spreads)
        uneven = sum(p95 >= check["p95"] and p5 < check["p5"] for p5, p95 in spreads)
        p5, p95 = np.median(spreads, axis=0)
        so = little + uneven > check["windows"] * len(spreads)
        fires |= so
        times += int(little + uneven)
        words = "is low" if little >= uneven else "rises and falls"
        text = (
            f"GPU {number}: p95 {p95:.0f} %, p5 {p5:.0f} % (medians of {len(spreads)} windows; low in "
            f"{little}, fluctuating in {uneven})" + (f": it {words}" if so else "")
        )
        value, threshold = (p95, check["p95"]) if little >= uneven else (p5, check["p5"])
        evidence.append(check.evidence(text, float(value), threshold, "%", (little + uneven) / len(spreads)))
    if not evidence:
        raise SignalMissing("GPU utilisation: no window of it has values")
    return check.finding(fires, _headroom(session.decision(segment)), *evidence, samples=len(rows), times=times)


def _headroom(decision: Decision) -> Sequence[Advice]:
    seen = advice.advise(decision, "The GPU has headroom.")
    if decision.withheld is not None:
        return (seen, advice.withheld_advice(decision))
    if decision.kind == "input-bound":
        return (seen, *advice.next_step(decision))
    if decision.kind == "undetermined":
        unsettled = "It is not clear yet whether it waits for data: the verdict says what to measure."
        return (seen, advice.advise(decision, unsettled))
    if not decision.wait > WAITS:
        text = "Larger batches, automatic mixed precision or fewer synchronisations fill it."
        return (seen, advice.advise(decision, text, _LARGER))
    return (seen, advice.advise(decision, "Automatic mixed precision or fewer synchronisations fill it."))


def batch_size(session: Session, check: Check, segment: Segment) -> Finding:
    session.require_gpu()
    session.require_gpu("memory")
    frames, rows = session.frames, session.rows(segment)
    columns = {
        "CPU": frames.load[rows],
        "GPU": _highest(frames.parts("gpu", "utilisation")[rows]),
        "GPU memory": _highest(frames.parts("gpu", "memory")[rows]),
    }
    whole = np.all([np.isfinite(values) for values in columns.values()], axis=0)
    count = int(whole.sum())
    parts = windows("samples", count, check["window"], check["least"])
    p95s = {name: [float(np.percentile(v[whole][part], 95)) for part in parts] for name, v in columns.items()}
    free = [max(p95) < check["p95"] for p95 in zip(*p95s.values(), strict=True)]
    medians = {name: float(np.median(p95)) for name, p95 in p95s.items()}
    listed = ", ".join(f"{name} {p95:.0f} %" for name, p95 in medians.items())
    text = f"p95 (medians of {len(parts)} windows): {listed}; the fullest GPU counts"
    evidence = [check.evidence(text, max(medians.values()), check["p95"], "%", sum(free) / len(free))]
    fires = sum(free) > check["windows"] * len(free)
    waits = segment.wait / segment.step if segment.step > 0 else 0.0
    if fires and waits > check["wait"]:
        fires = False
        words = f"The loop waits {100 * waits:.0f} % of its step for data"
        evidence.append(check.evidence(words, 100 * waits, 100 * check["wait"], "%"))
    decision = session.decision(segment)
    words = "Neither CPU, GPU nor GPU memory is full: a larger batch gives each step more to do for the same overhead."
    larger = advice.advise(decision, words, _LARGER) if decision.withheld is None else advice.withheld_advice(decision)
    return check.finding(fires, (larger,), *evidence, samples=count, times=sum(free))


def _balance(session: Session, check: Check, segment: Segment) -> Finding:
    session.require_gpu()
    if len(session.frames.gpus) < 2:
        raise SignalMissing("a second GPU that this kernel uses")
    rows = session.rows(segment)
    require("GPU samples", len(rows), check["least"])
    columns = zip(session.frames.gpus, session.frames.parts("gpu", "utilisation")[rows].T, strict=True)
    shapes = {number: histogram(values) for number, values in columns}
    pairs = [(distance(shapes[a], shapes[b]), a, b) for a, b in combinations(shapes, 2) if shapes[a] and shapes[b]]
    if not pairs:
        raise SignalMissing("GPU utilisation of two GPUs")
    apart = sum(found > check["distance"] for found, _, _ in pairs)
    most, a, b = max(pairs)
    text = (
        f"The histograms of GPU {a} and GPU {b} lie {most:.2f} apart (0: equal, 1: nothing in common); "
        f"{apart} of {len(pairs)} pairs are above {check['distance']:g}"
    )
    advised = plain_advice(
        "The GPUs do not share the work evenly: look for a model split unevenly over them, DataParallel's first "
        "GPU (DistributedDataParallel has none), or one rank with a slower loader.",
        segment,
    )
    evidence = check.evidence(text, most, check["distance"], share=apart / len(pairs))
    return check.finding(apart > 0, advised, evidence, samples=len(rows), times=apart)


def _highest(values: npt.NDArray[np.float32]) -> Floats:
    """Return the GPU with the highest value in each row; NaN where none is known."""
    found: Floats = np.fmax.reduce(values, axis=1).astype(np.float64)
    return found


RULES = (
    Rule(
        "cpu-bottleneck",
        "The CPU holds up the GPU",
        {"cpu": Parameter(90, "%: CPU above it, mean of the usable cores or of the quota, is busy"), **SHARED},
        "Fires when most of the samples in which the GPU had nothing to do had a busy CPU. Abstains without a GPU.",
        "SageMaker Debugger's CPUBottleneck (CPU > 90 %, GPU < 10 %, share > 50 %). "
        + _CHANGED.format(cores="it is the mean of the usable cores, and not any single busy one"),
        of_segment=cpu,
    ),
    Rule(
        "io-bottleneck",
        "Storage holds up the GPU",
        {
            "iowait": Parameter(50, "%: I/O wait above it, of as many cores as there are workers or threads, is much"),
            **SHARED,
        },
        "Fires when most of the samples in which the GPU had nothing to do had cores waiting for I/O. At most as many "
        "cores as there are processes that load can wait for what they read, so the share is of so many. Abstains "
        "without a GPU.",
        "SageMaker Debugger's IOBottleneck (I/O wait > 50 %, GPU < 10 %, share > 50 %). "
        + _CHANGED.format(cores="the idle cores of a large machine do not hide that all of its workers wait"),
        of_segment=io,
    ),
    Rule(
        "low-gpu-utilisation",
        "A GPU has little to do",
        {
            "p95": Parameter(70, "%: a window's 95th percentile below it is low"),
            "p5": Parameter(10, "%: where it is not, a 5th percentile below this is fluctuating"),
            **WINDOW,
        },
        "Fires for each GPU that this kernel uses when more than half of its windows are low or fluctuating. Abstains "
        "without a GPU and on less than 100 samples.",
        "SageMaker Debugger's LowGPUUtilization (p95 < 70 %; p95 > 70 % and p5 < 10 %; 500 samples). Changed: pauses "
        "of the loop, warm-up and the change-over of a switch do not count, and one window of many does not fire it.",
        of_segment=low,
    ),
    Rule(
        "batch-size",
        "The batch could be larger",
        {
            "p95": Parameter(70, "%: the 95th percentiles of CPU, GPU and GPU memory must all be below it"),
            "wait": Parameter(0.2, "of the step: larger batches are not advised to a loop that waits more for data"),
            **WINDOW,
        },
        "Fires when more than half of the windows have room in CPU, GPU and GPU memory; of several GPUs the fullest "
        "counts. Abstains without a GPU.",
        "SageMaker Debugger's BatchSize (all below 70 %, 500 samples). Changed: it is quiet while the loop waits for "
        "data, which a larger batch does not help.",
        of_segment=batch_size,
    ),
    Rule(
        "load-balancing",
        "The GPUs share the work unevenly",
        {
            "distance": Parameter(0.2, "of two GPUs' histograms, 0 to 1"),
            "least": Parameter(20, "samples that it takes"),
        },
        "Fires when the utilisation histograms (50 bins of 2 %) of two GPUs that this kernel uses lie further apart "
        "than that: half the sum of the absolute differences of the shares (total variation). Abstains with one GPU.",
        "SageMaker Debugger's LoadBalancing (0.2; 49 bins of width 2). Its distance is not documented; this one is.",
        of_segment=_balance,
        replayed=True,
    ),
)
