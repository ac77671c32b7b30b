"""The GPU does little while the CPU, or the storage, does much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import advice
from ..model import Evidence, Point
from .base import Parameter, Rule, span, too_few

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..decision import Decision
    from ..frames import Floats
    from ..model import Advice, Finding, Stretch
    from .base import Asked, Session

    Advised = Callable[[Decision], Sequence[Advice]]

LEAST = Parameter(20, "samples that it takes")
SHARED = {
    "gpu": Parameter(10, "%: a GPU below it has nothing to do"),
    "share": Parameter(0.5, "of the samples with such a GPU: more than this share must be explained"),
    "low": Parameter(0.1, "of all samples: at least this share must have such a GPU"),
    "least": LEAST,
}
MENDED = (
    "Mended: the share is of the samples with a GPU below its threshold, as is said, and not of all; those must be a "
    "tenth of all, or three samples would do; {cores}; no GPU is no error."
)


def cpu(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """The GPU starves while the CPU is busy."""
    return _bottleneck(session, asked, stretch, session.frames.load, "CPU", asked["cpu"], _relief)


def io(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """The GPU starves while cores wait for the storage."""
    busy = session.frames.iowait * _loading(session, stretch)
    return _bottleneck(session, asked, stretch, busy, "I/O wait", asked["iowait"], _storage)


def _relief(decision: Decision) -> Sequence[Advice]:
    if decision.withheld is not None:
        return (advice.over(decision),)
    if not decision.waits:
        words = f"The CPU is full and the GPU idles, but not for data: the step is {decision.kind}."
        return (advice.say(decision, words), *advice.next_step(decision))
    seen = advice.say(decision, "The CPU prepares batches as fast as it can and the GPU waits for them.")
    return (seen, *advice.engines(decision), *([] if decision.engines else [advice.cores(decision)]))


def _storage(decision: Decision) -> Sequence[Advice]:
    if decision.withheld is not None:
        return (advice.over(decision),)
    words = "The loader waits for storage: copy the data to a local disk or to memory, or use fewer and larger files."
    found = [advice.say(decision, words, Point("storage", "faster", "for"))]
    number = decision.crowd()
    if number is not None and number.reason == "idle":
        raised = advice.crowd(decision, number)
        found += [] if raised is None else [raised]
    if decision.best is None and decision.engines:
        slow = [Point("engine", one.engine, "against") for one in decision.engines]
        found.append(advice.say(decision, "Another engine would read the same files as slowly.", *slow))
    return found


def _loading(session: Session, stretch: Stretch) -> float:
    """Cores for each process or thread that loads: only so many cores can wait for what these read."""
    cores = len(session.frames.cores)
    told = stretch.knobs.get("threads" if stretch.backend.startswith("dali") else "workers")
    return 1.0 if told is None or cores == 0 else cores / min(cores, max(1, told))


def _bottleneck(
    session: Session, asked: Asked, stretch: Stretch, values: Floats, name: str, high: float, advised: Advised
) -> Finding:
    missing = session.no_gpu()
    if missing is not None:
        return asked.abstained(missing, stretch=stretch)
    rows = session.rows(stretch)
    gpu, busy, time = session.frames.gpu[rows], values[rows], session.frames.time[rows]
    known = np.isfinite(gpu) & np.isfinite(busy)
    count = int(known.sum())
    if count < asked["least"]:
        return asked.abstained(too_few(f"samples of GPU and {name}", count, asked["least"]), stretch=stretch)
    low = known & (gpu < asked["gpu"])
    both = low & (busy > high)
    share = float(both.sum() / low.sum()) if low.any() else 0.0
    evidence = Evidence(
        text=(
            f"{name} above {high:g} % in {both.sum():,} of the {low.sum():,} samples with the GPU below "
            f"{asked['gpu']:g} %, which are {100 * low.sum() / count:.0f} % of all {count:,}"
        ),
        value=100 * share,
        threshold=100 * asked["share"],
        unit="%",
        share=share,
        **span(time[both]),
    )
    if low.sum() >= asked["low"] * count and share > asked["share"]:
        return asked.fired(
            advised(session.decision(stretch)), evidence, stretch=stretch, samples=count, times=int(both.sum())
        )
    return asked.quiet(evidence, stretch=stretch, samples=count)


RULES = (
    Rule(
        "cpu-bottleneck",
        "The CPU holds up the GPU",
        {"cpu": Parameter(90, "%: CPU above it, mean of the usable cores or of the quota, is busy"), **SHARED},
        "Fires when most of the samples in which the GPU had nothing to do had a busy CPU. Abstains without a GPU.",
        "SageMaker Debugger's CPUBottleneck (CPU > 90 %, GPU < 10 %, share > 50 %). "
        + MENDED.format(cores="it is the mean of the usable cores, and not any single busy one"),
        of_stretch=cpu,
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
        + MENDED.format(cores="the idle cores of a large machine do not hide that all of its workers wait"),
        of_stretch=io,
    ),
)
