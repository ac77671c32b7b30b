"""How the GPUs are used: too little, in fits and starts, one more than another."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from .. import advice
from ..model import Evidence, Point
from ..statistics import distance, histogram
from .base import Parameter, Rule, plainly, too_few, windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..decision import Decision
    from ..frames import Floats
    from ..model import Advice, Finding, Stretch
    from .base import Asked, Session

LARGER = Point("batch", "larger", "for")
WINDOW = {
    "window": Parameter(500, "samples that are looked at together"),
    "least": Parameter(100, "samples that the last, shorter window must have"),
    "windows": Parameter(0.5, "of the windows: more than this share must be so"),
}


def low(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """Each GPU: little to do, or fits and starts."""
    missing = session.no_gpu()
    if missing is not None:
        return asked.abstained(missing, stretch=stretch)
    rows = session.rows(stretch)
    parts = windows(len(rows), asked["window"], asked["least"])
    if not parts:
        return asked.abstained(too_few("GPU samples", len(rows), asked["least"]), stretch=stretch)
    evidence, times, fired, seen = [], 0, False, 0
    for number, values in zip(session.frames.gpus, session.frames.utilisation[rows].T, strict=True):
        spreads = [np.percentile(part, (5, 95)) for part in _present(values, parts)]
        if not spreads:
            continue
        little = [one for one in spreads if one[1] < asked["p95"]]
        uneven = [one for one in spreads if one[1] >= asked["p95"] and one[0] < asked["p5"]]
        p5, p95 = np.median(spreads, axis=0)
        times += len(little) + len(uneven)
        seen += len(spreads)
        so = len(little) + len(uneven) > asked["windows"] * len(spreads)
        fired |= so
        words = "is low" if len(little) >= len(uneven) else "rises and falls"
        evidence.append(
            Evidence(
                text=(
                    f"GPU {number}: p95 {p95:.0f} %, p5 {p5:.0f} % (medians of {len(spreads)} windows; low in "
                    f"{len(little)}, fluctuating in {len(uneven)})" + (f": it {words}" if so else "")
                ),
                value=float(p95 if len(little) >= len(uneven) else p5),
                threshold=asked["p95"] if len(little) >= len(uneven) else asked["p5"],
                unit="%",
                share=(len(little) + len(uneven)) / len(spreads),
                start=stretch.start,
                end=stretch.end,
            )
        )
    if not seen:
        return asked.abstained("GPU utilisation: no window of it has values", stretch=stretch)
    if fired:
        return asked.fired(
            _headroom(session.decision(stretch)), *evidence, stretch=stretch, samples=len(rows), times=times
        )
    return asked.quiet(*evidence, stretch=stretch, samples=len(rows))


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


def _larger(decision: Decision) -> Sequence[Advice]:
    if decision.withheld is not None:
        return (advice.over(decision),)
    text = "Neither CPU, GPU nor GPU memory is full: a larger batch gives each step more to do for the same overhead."
    return (advice.say(decision, text, LARGER),)


def batch_size(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """Nothing is full: a larger batch would fit."""
    missing = session.no_gpu()
    frames = session.frames
    if missing is None and not np.isfinite(frames.gpu_memory).any():
        missing = "GPU memory: no value was measured"
    if missing is not None:
        return asked.abstained(missing, stretch=stretch)
    rows = session.rows(stretch)
    columns = {
        "CPU": frames.load[rows],
        "GPU": _highest(frames.utilisation[rows]),
        "GPU memory": _highest(frames.gpu_memory[rows]),
    }
    whole = np.all([np.isfinite(one) for one in columns.values()], axis=0)
    count = int(whole.sum())
    parts = windows(count, asked["window"], asked["least"])
    if not parts:
        return asked.abstained(too_few("samples", count, asked["least"]), stretch=stretch)
    spread = {name: [float(np.percentile(one[whole][part], 95)) for part in parts] for name, one in columns.items()}
    free = [max(p95) < asked["p95"] for p95 in zip(*spread.values(), strict=True)]
    share = stretch.wait / stretch.step if stretch.step > 0 else 0.0
    told = ", ".join(f"{name} {float(np.median(p95)):.0f} %" for name, p95 in spread.items())
    evidence = Evidence(
        text=f"p95 (medians of {len(parts)} windows): {told}; the fullest GPU counts",
        value=max(float(np.median(p95)) for p95 in spread.values()),
        threshold=asked["p95"],
        unit="%",
        share=sum(free) / len(free),
        start=stretch.start,
        end=stretch.end,
    )
    if sum(free) <= asked["windows"] * len(free):
        return asked.quiet(evidence, stretch=stretch, samples=count)
    if share > asked["wait"]:
        words = f"The loop waits {100 * share:.0f} % of its step for data"
        waits = Evidence(words, 100 * share, 100 * asked["wait"], "%")
        return asked.quiet(evidence, waits, stretch=stretch, samples=count)
    return asked.fired(_larger(session.decision(stretch)), evidence, stretch=stretch, samples=count, times=sum(free))


def balance(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """Several GPUs of which one has more to do than another."""
    missing = session.no_gpu()
    if missing is None and len(session.frames.gpus) < 2:
        missing = "a second GPU that this kernel uses"
    if missing is not None:
        return asked.abstained(missing, stretch=stretch)
    rows = session.rows(stretch)
    if len(rows) < asked["least"]:
        return asked.abstained(too_few("GPU samples", len(rows), asked["least"]), stretch=stretch)
    shapes = {
        number: histogram(values)
        for number, values in zip(session.frames.gpus, session.frames.utilisation[rows].T, strict=True)
    }
    pairs = [(distance(shapes[a], shapes[b]), a, b) for a, b in combinations(shapes, 2) if shapes[a] and shapes[b]]
    if not pairs:
        return asked.abstained("GPU utilisation of two GPUs", stretch=stretch)
    apart = [one for one in pairs if one[0] > asked["distance"]]
    most, a, b = max(pairs)
    evidence = Evidence(
        text=(
            f"The histograms of GPU {a} and GPU {b} lie {most:.2f} apart (0: equal, 1: nothing in common); "
            f"{len(apart)} of {len(pairs)} pairs are above {asked['distance']:g}"
        ),
        value=most,
        threshold=asked["distance"],
        share=len(apart) / len(pairs),
        start=stretch.start,
        end=stretch.end,
    )
    if apart:
        advised = plainly(
            "The GPUs do not share the work evenly: look for a model split unevenly over them, DataParallel's first "
            "GPU (DistributedDataParallel has none), or one rank with a slower loader.",
            stretch,
        )
        return asked.fired(advised, evidence, stretch=stretch, samples=len(rows), times=len(apart))
    return asked.quiet(evidence, stretch=stretch, samples=len(rows))


def _present(values: npt.NDArray[np.float32], parts: list[slice]) -> list[Floats]:
    """The windows' values, those left out that have none."""
    found = [values[part][np.isfinite(values[part])].astype(np.float64) for part in parts]
    return [one for one in found if len(one)]


def _highest(values: npt.NDArray[np.float32]) -> Floats:
    """Of the GPUs in each row; NaN where none is known."""
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
        of_stretch=low,
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
        of_stretch=batch_size,
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
        of_stretch=balance,
        replayed=True,
    ),
)
