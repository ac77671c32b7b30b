"""Rules on how the GPUs are used: too little, in fits and starts, one more than another."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from .. import advice
from ..results import Point
from ..statistics import distance, histogram
from .rule import Parameter, Rule, SignalMissing, plainly, require, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..decision import Decision
    from ..frames import Floats
    from ..results import Advice, Finding, Segment
    from .rule import Check, Session

LARGER = Point("batch", "larger", "for")
WINDOW = {
    "window": Parameter(500, "samples that are looked at together"),
    "least": Parameter(100, "samples that the last, shorter window must have"),
    "windows": Parameter(0.5, "of the windows: more than this share must be so"),
}


def low(session: Session, check: Check, segment: Segment) -> Finding:
    session.require_gpu()
    rows = session.rows(segment)
    parts = windows("GPU samples", len(rows), check["window"], check["least"])
    evidence, times, fires = [], 0, False
    for number, values in zip(session.frames.gpus, session.frames.parts("gpu", "utilisation")[rows].T, strict=True):
        present = [values[part][np.isfinite(values[part])].astype(np.float64) for part in parts]
        spreads = [np.percentile(window, (5, 95)) for window in present if len(window)]
        if not spreads:
            continue
        little = sum(p95 < check["p95"] for _, p95 in spreads)
        uneven = sum(p95 >= check["p95"] and p5 < check["p5"] for p5, p95 in spreads)
        p5, p95 = np.median(spreads, axis=0)
        so = little + uneven > check["windows"] * len(spreads)
        fires |= so
        times += little + uneven
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
    seen = advice.say(decision, "The GPU has headroom.")
    if decision.withheld is not None:
        return (seen, advice.over(decision))
    if decision.kind == "input-bound":
        return (seen, *advice.next_step(decision))
    if decision.kind == "undetermined":
        unsettled = "Whether it waits for data is not settled: the verdict says what that takes."
        return (seen, advice.say(decision, unsettled))
    if decision.larger_batch:
        text = "Larger batches, automatic mixed precision or fewer synchronisations fill it."
        return (seen, advice.say(decision, text, LARGER))
    return (seen, advice.say(decision, "Automatic mixed precision or fewer synchronisations fill it."))


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
    larger = advice.say(decision, words, LARGER) if decision.withheld is None else advice.over(decision)
    return check.finding(fires, (larger,), *evidence, samples=count, times=sum(free))


def balance(session: Session, check: Check, segment: Segment) -> Finding:
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
    advised = plainly(
        "The GPUs do not share the work evenly: look for a model split unevenly over them, DataParallel's first "
        "GPU (DistributedDataParallel has none), or one rank with a slower loader.",
        segment,
    )
    evidence = check.evidence(text, most, check["distance"], share=apart / len(pairs))
    return check.finding(apart > 0, advised, evidence, samples=len(rows), times=apart)


def _highest(values: npt.NDArray[np.float32]) -> Floats:
    """The GPU with the highest value in each row; NaN where none is known."""
    found: Floats = np.fmax.reduce(values, axis=1).astype(np.float64)
    return found


RULES = (
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
        "SageMaker Debugger's LowGPUUtilization (p95 < 70 %; p95 > 70 % and p5 < 10 %; 500 samples). Mended: pauses of "
        "the loop, warm-up and the change-over of a switch do not count, and one window of many does not fire it.",
        of_segment=low,
    ),
    Rule(
        "batch-size",
        "The batch could be larger",
        {
            "p95": Parameter(70, "%: the 95th percentiles of CPU, GPU and GPU memory must all be below it"),
            "wait": Parameter(0.2, "of the step: a loop that waits more for data is not told to take larger batches"),
            **WINDOW,
        },
        "Fires when more than half of the windows have room in CPU, GPU and GPU memory; of several GPUs the fullest "
        "counts. Abstains without a GPU.",
        "SageMaker Debugger's BatchSize (all below 70 %, 500 samples). Mended: it is quiet while the loop waits for "
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
        of_segment=balance,
        replayed=True,
    ),
)
