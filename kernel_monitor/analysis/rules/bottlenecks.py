"""Rules on a GPU that does little while the CPU, or the storage, does much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import advice
from ..results import Evidence, Point
from .rule import Parameter, Rule, require, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..decision import Decision
    from ..frames import Floats
    from ..results import Advice, Finding, Segment
    from .rule import Check, Session

    Advised = Callable[[Decision], Sequence[Advice]]

SHARED = {
    "gpu": Parameter(10, "%: a GPU below it has nothing to do"),
    "share": Parameter(0.5, "of the samples with such a GPU: more than this share must be explained"),
    "low": Parameter(0.1, "of all samples: at least this share must have such a GPU"),
    "least": Parameter(20, "samples that it takes"),
}
MENDED = (
    "Mended: the share is of the samples with a GPU below its threshold, as is said, and not of all; those must be a "
    "tenth of all, or three samples would do; {cores}; no GPU is no error."
)


def cpu(session: Session, check: Check, segment: Segment) -> Finding:
    return _bottleneck(session, check, segment, session.frames.load, "CPU", check["cpu"], _relief)


def io(session: Session, check: Check, segment: Segment) -> Finding:
    busy = session.frames.mean("cpu", "iowait") * _cores_per_reader(session, segment)
    return _bottleneck(session, check, segment, busy, "I/O wait", check["iowait"], _storage)


def _relief(decision: Decision) -> Sequence[Advice]:
    if not decision.waits:
        words = f"The CPU is full and the GPU idles, but not for data: the step is {decision.kind}."
        return (advice.say(decision, words), *advice.next_step(decision))
    seen = advice.say(decision, "The CPU prepares batches as fast as it can and the GPU waits for them.")
    return (seen, *advice.engines(decision), *([] if decision.engines else [advice.cores(decision)]))


def _storage(decision: Decision) -> Sequence[Advice]:
    words = "The loader waits for storage: copy the data to a local disk or to memory, or use fewer and larger files."
    found = [advice.say(decision, words, Point("storage", "faster", "for"))]
    found += advice.raise_crowd(decision)
    if decision.best is None and decision.engines:
        slow = [Point("engine", outlook.engine, "against") for outlook in decision.engines]
        found.append(advice.say(decision, "Another engine would read the same files as slowly.", *slow))
    return found


def _cores_per_reader(session: Session, segment: Segment) -> float:
    """Cores for each process or thread that loads: only so many cores can wait for what these read."""
    cores = len(session.frames.cores)
    readers = segment.knobs.get(segment.crowd)
    return 1.0 if readers is None or cores == 0 else cores / min(cores, max(1, readers))


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
    advices = (advice.over(decision),) if decision.withheld is not None else advised(decision)
    return check.finding(fires, advices, evidence, samples=count, times=int(both.sum()))


RULES = (
    Rule(
        "cpu-bottleneck",
        "The CPU holds up the GPU",
        {"cpu": Parameter(90, "%: CPU above it, mean of the usable cores or of the quota, is busy"), **SHARED},
        "Fires when most of the samples in which the GPU had nothing to do had a busy CPU. Abstains without a GPU.",
        "SageMaker Debugger's CPUBottleneck (CPU > 90 %, GPU < 10 %, share > 50 %). "
        + MENDED.format(cores="it is the mean of the usable cores, and not any single busy one"),
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
        + MENDED.format(cores="the idle cores of a large machine do not hide that all of its workers wait"),
        of_segment=io,
    ),
)
