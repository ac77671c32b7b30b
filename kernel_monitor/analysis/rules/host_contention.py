"""The rule on a loader that takes the cores that the training itself computes on: its steps, without their waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...steps.measured_step import NO_GRADIENTS, ON_DEVICE
from .. import advice
from ..counted_steps import counted
from ..decision import CLEAR, Decision
from ..frames import Floats, Places, Steps
from ..machine_limits import usable_cores
from ..results import Advice, Finding, Point, Quantiles, Segment, faster
from ..statistics import finite, quantiles
from ..step_times import BLOCKS, block_steps, student
from ..switches import LONGEST_S
from .rule import Check, Parameter, Rule, Session, SignalMissing, require

GPU_IDLE = 10.0  # %, median utilisation: below it no GPU takes part in the steps
OTHERS = 0.25  # cores: other programs that take so much more than before may be what slows the steps


@dataclass(frozen=True)
class Mean:
    """The mean of a side's steps without their waits, s, and half of its 95 % interval."""

    value: float
    half: float


@dataclass(frozen=True)
class Side:
    """At most a minute of a segment beside the change that is looked at."""

    segment: Segment
    steps: Steps  # those that count, of batches of one size
    own: Floats  # s, of each step: without the wait for data and, where it was measured, the copy to the device
    rows: Places  # in which the loader was delivering

    @property
    def step(self) -> float:
        """The mean of the whole steps, s."""
        return float(self.steps["step"].mean(dtype=np.float64))


def contention(session: Session, check: Check, segment: Segment) -> Finding:
    before, after = sides_of(session, check, segment)
    _comparable(session, before, after)
    change = _longer(*(_mean(side.own, side.segment) for side in (before, after)))
    _steady(max(check["slower"], change[1] / 2), before, after)
    loads = [quantiles(session.frames.load[side.rows]) for side in (before, after)]
    require("samples of CPU", min(load.count for load in loads), check["samples"])
    longer, low, high = change
    samples = len(before.own) + len(after.own)
    slower, busy = check["slower"], loads[1].p95 >= check["cpu"]
    if busy and longer > slower >= low:
        raise SignalMissing(
            f"more steps: the training's own steps became {faster(-longer)}, {_range(low, high)}, which is "
            f"within the spread of {len(before.own):,} and {len(after.own):,} steps",
            samples=samples,
        )
    fires = busy and low > slower
    if fires:
        _not_explained(session, slower, low, before, after)
    told = check.evidence(_sentence(before, after, *change), 100 * longer, 100 * slower, "% longer")
    cpu = check.evidence(_cpu(loads), loads[1].p95, check["cpu"], "%")
    return check.finding(fires, _advised(session, before, after), told, cpu, samples=samples)


def sides_of(session: Session, check: Check, segment: Segment) -> tuple[Side, Side]:
    """What lies on both sides of the change that began a segment; abstains where there is too little."""
    earlier = [one for one in session.segments if one.loader == segment.loader and one.start < segment.start]
    if segment.began_by not in ("switch", "knobs") or not earlier:
        raise SignalMissing("a switch or a turned knob at its beginning")
    if not session.snapshot.steps:
        raise SignalMissing("steps: this session holds only their means")
    before = earlier[-1]
    if before.synthetic:
        raise SignalMissing("real batches before the change: they were replayed")
    spans = ((before, max(before.start, before.end - LONGEST_S), before.end),
             (segment, segment.start, min(segment.end, segment.start + LONGEST_S)))  # fmt: skip
    sides = []
    for part, start, end in spans:
        steps = session.frames.steps(part.loader, start, end)
        steps = steps[counted(steps) & np.isfinite(steps["wait"])]
        timed = steps["flags"] & ON_DEVICE != 0
        steps = steps[timed] if 2 * timed.sum() > len(steps) else steps[~timed]
        images, counts = np.unique(steps["images"], return_counts=True)
        if len(images):  # the last batch of an epoch may be smaller
            steps = steps[steps["images"] == images[counts.argmax()]]
        own = steps["step"].astype(np.float64) - steps["wait"].astype(np.float64)
        sides.append(Side(part, steps, own, session.frames.of(part.loader, start, end)))
    fewest = min(len(side.steps) for side in sides)
    require("steps on each side of the change", fewest, check["least"], samples=sum(len(side.steps) for side in sides))
    copied = [np.isfinite(side.steps["copy"]).any() for side in sides]
    if all(copied):
        sides = [Side(one.segment, one.steps, one.own - np.nan_to_num(one.steps["copy"]), one.rows) for one in sides]
    return sides[0], sides[1]


def _comparable(session: Session, before: Side, after: Side) -> None:
    """Abstain where something else than the loader differs between the sides."""
    sizes = [int(side.steps["images"][0]) for side in (before, after)]
    if sizes[0] != sizes[1]:
        raise SignalMissing(f"batches of one size: {sizes[0]:,} samples before the change, {sizes[1]:,} since")
    if any(2 * (side.steps["flags"] & NO_GRADIENTS != 0).sum() > len(side.steps) for side in (before, after)):
        raise SignalMissing("steps of a training: these are of an evaluation")
    if after.segment.backend == "dali-gpu":
        raise SignalMissing("the GPU's own load of dali-gpu: it decodes where the training computes, not on the host")
    for event in session.snapshot.events:
        if event.get("kind") not in ("switch", "knobs") or event.get("loader") in (None, before.segment.loader):
            continue
        if before.segment.start < float(event.get("time", math.nan)) < after.segment.end:
            raise SignalMissing("one change alone: another loader was changed meanwhile")
    on_device = [bool(side.steps["flags"][0] & ON_DEVICE) for side in (before, after)]
    # Where the loop queues work on a GPU, the host's times say nothing of how long that work takes.
    gpu = session.frames.mean("gpu", "utilisation") if session.frames.gpus else np.empty(0)
    works = len(gpu) > 0 and any(not quantiles(gpu[side.rows]).p50 < GPU_IDLE for side in (before, after))
    if on_device[0] != on_device[1] or (works and not all(on_device)):
        raise SignalMissing("the GPU's own times, which tell waiting from work: monitor.watch(model, optimizer)")


def _steady(most: float, *sides: Side) -> None:
    """Abstain where the training's own step changed by more than that within a side: then something else does it."""
    for side, word in zip(sides, ("before", "since"), strict=True):
        halves = np.array_split(side.own, 2)
        _, low, high = _longer(*(_mean(half, side.segment) for half in halves))
        if low > most or high < -most:
            first, last = (1e3 * float(half.mean()) for half in halves)
            raise SignalMissing(
                f"one training on each side: {word} the change its own step went from {first:,.1f} to {last:,.1f} ms"
            )


def _not_explained(session: Session, slower: float, low: float, before: Side, after: Side) -> None:
    """Abstain where the machine gave less time to everything here, or to other programs, than before the change."""
    frames = session.frames
    steal, busy = (
        [_average(frames.mean("cpu", part)[side.rows]) for side in (before, after)] for part in ("steal", "busy")
    )
    if math.isfinite(sum(steal)) and min(busy) > 0:
        # What was stolen is a share of what was wanted, which `busy` counts.
        given = [1 - min(0.99, taken / wanted) for taken, wanted in zip(steal, busy, strict=True)]
        if given[1] < given[0] and (1 + low) * given[1] / given[0] - 1 <= slower:
            raise SignalMissing(
                f"a processor to itself: the hypervisor gave {steal[0]:.0f} % of it to others before the change and "
                f"{steal[1]:.0f} % since"
            )
    cores = len(frames.cores)
    roles = [frames.series(f"process/{role}/cpu") for role in ("kernel", "workers", "others")]
    if not all(np.isfinite(roles[0][side.rows]).any() for side in (before, after)) or after.segment.backend == "ray":
        return
    own = np.sum([np.nan_to_num(role) for role in roles], axis=0) / 100
    taken = [_average(frames.cpu[side.rows]) / 100 * cores for side in (before, after)]
    ours = [_average(own[side.rows]) for side in (before, after)]
    more, more_ours = taken[1] - ours[1] - taken[0] + ours[0], ours[1] - ours[0]
    if more > OTHERS and more > more_ours:
        raise SignalMissing(f"a machine to itself: other programs took {more:.1f} cores more than before the change")


def _average(values: Floats) -> float:
    """Of the values that are known; NaN for none."""
    known = finite(values)
    return float(known.mean()) if len(known) else math.nan


def _mean(values: Floats, segment: Segment) -> Mean:
    """By runs of neighbouring steps, which vary alike; Student's t for 95 %."""
    count = max(2, min(BLOCKS, len(values) // block_steps(segment)))
    means = [float(part.mean()) for part in np.array_split(values, count)]
    return Mean(float(values.mean()), student(count) * float(np.std(means, ddof=1)) / math.sqrt(count))


def _longer(before: Mean, after: Mean) -> tuple[float, float, float]:
    """By what share of it a mean became longer, and the bounds of the 95 % interval of that.

    Source: the relative errors of a quotient of independent means add up as squares.
    """
    if not before.value > 0 or not after.value > 0:
        raise SignalMissing("steps that take time beside their wait for data")
    ratio = after.value / before.value
    half = ratio * math.hypot(before.half / before.value, after.half / after.value)
    return ratio - 1, ratio - half - 1, ratio + half - 1


def _change(before: Segment, after: Segment) -> str:
    if after.began_by == "switch":
        return f"The swap from {before.backend} to {after.backend}"
    turned = [
        f"{name} from {before.knobs[name]} to {value}"
        for name, value in after.knobs.items()
        if name in before.knobs and before.knobs[name] != value
    ]
    known = ", ".join(f"{name} {value}" for name, value in after.knobs.items())
    return f"Turning {' and '.join(turned)}" if turned else f"Turning the knobs ({known})"


def _sentence(before: Side, after: Side, longer: float, low: float, high: float) -> str:
    what = _change(before.segment, after.segment)
    counts = f"{len(before.own):,} and {len(after.own):,} steps"
    own = [1e3 * float(side.own.mean()) for side in (before, after)]
    figures = f"{own[0]:,.1f} → {own[1]:,.1f} ms without the wait for data, {counts}"
    if longer > 0:
        text = f"{what} made the training's own steps {faster(-longer)} ({_range(low, high)}: {figures})"
    else:
        text = f"{what} left the training's own steps as short as they were ({figures})"
    whole = [1e3 * side.step for side in (before, after)]
    saved = 1 - whole[1] / whole[0]
    steps = f"{whole[0]:,.1f} → {whole[1]:,.1f} ms"
    if abs(saved) < CLEAR:
        return f"{text}; as a whole the loop runs as fast as before ({steps})."
    yet = ", and could be faster still" if longer > 0 and saved > 0 else ""
    return f"{text}; as a whole the loop runs {faster(saved)} ({steps}){yet}."


def _cpu(loads: Sequence[Quantiles]) -> str:
    before, after = (f"p50 {load.p50:.0f} %, p95 {load.p95:.0f} %" for load in loads)
    return f"CPU {after} since the change; {before} before it"


def _advised(session: Session, before: Side, after: Side) -> Sequence[Advice]:
    decision = session.decision(after.segment)
    if decision.withheld is not None:
        return (advice.over(decision),)
    word, many = after.segment.crowd, after.segment.knobs.get(after.segment.crowd)
    if many is None or many <= 1:
        return (advice.say(decision, _alone(before, after, word)), *_faster(decision))
    fewer = _wanted(session, decision, before, after, many)
    text = f"Fewer {word}: loader.set({word}={fewer}) instead of {many}."
    if decision.kind == "input-bound":  # what the training gains, the loading loses
        text = f"Compare with fewer {word}, loader.set({word}={fewer}) instead of {many}; the loop also waits for data."
        return (advice.say(decision, text, Point(word, "fewer", "neutral")), *_faster(decision))
    return (advice.say(decision, text, Point(word, "fewer", "for")), *_faster(decision))


def _alone(before: Side, after: Side, word: str) -> str:
    if after.segment.knobs.get(word) == 1 and after.segment.began_by == "switch":
        one = word.removesuffix("s")
        return f"There is only one {one}: if the whole step became longer, go back to {before.segment.backend}."
    return "Let fewer processes or threads load."


def _faster(decision: Decision) -> tuple[Advice, ...]:
    return advice.engines(decision) if decision.best is not None else ()


def _wanted(session: Session, decision: Decision, before: Side, after: Side, many: int) -> int:
    """How many should load: those of before a knob was turned, else what the training leaves of the cores."""
    word, known = after.segment.crowd, decision.crowd()
    if known is not None and known.wanted < many:
        return known.wanted
    earlier = before.segment.knobs.get(word, many)
    if after.segment.began_by == "knobs" and earlier < many:
        return max(1, earlier)
    # Of torchvision the kernel's own load is the training's; DALI's threads are in it.
    training = finite(session.frames.series("process/kernel/cpu")[before.rows])
    cores = usable_cores(session.snapshot.schema)
    left = math.nan
    if len(training) and cores > 0 and before.segment.backend == "torchvision":
        left = cores - float(training.mean()) / 100
    return max(1, min(many - 1, math.floor(left) if math.isfinite(left) else many // 2))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _range(low: float, high: float) -> str:
    return f"{faster(-high, -low)} by the spread of the steps"


RULES = (
    Rule(
        "host-contention",
        "Loading takes the training's own cores",
        {
            "slower": Parameter(
                0.05, "of the training's own step: all of the interval must be longer by more than this"
            ),
            "cpu": Parameter(40, "%: below this 95th percentile of CPU the cores have room for both"),
            "least": Parameter(20, "counted steps that each side must have, of at most a minute"),
            "samples": Parameter(10, "samples of CPU that each side must have"),
        },
        "Compares the training's own step (without its wait for data and its copy to the device) on both sides of a "
        "switch or a turned knob, and fires when it became longer: the loader computes on the cores that the training "
        "needs. Abstains on few steps, where the difference lies within their spread, where batches have another size, "
        "in an evaluation, where the own step changed within a side, where another loader was changed meanwhile, where "
        "steal or other programs explain it, with dali-gpu, and where a GPU is at work whose own times are not known.",
        "This project's, after SPDL's advice to leave 60 % of the CPU free, and reports of trainings that a faster "
        "loader slowed down.",
        of_segment=contention,
        with_verdict=True,
    ),
)
