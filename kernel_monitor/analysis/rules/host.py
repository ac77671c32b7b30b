"""Rules on the host: cores that loader and training share, the processes that load, and memory that rises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...steps.measured_step import NO_GRADIENTS, ON_DEVICE
from .. import advice
from ..advice import CLEAR, Decision
from ..frames import Floats, Frames, Places, Steps, counted, limits_note, usable_cores
from ..results import Advice, Evidence, Finding, Point, Quantiles, Segment, faster
from ..segments import LONGEST_S
from ..step_times import BLOCKS, block_steps, finite, quantiles, student_t
from .rule import NO_DELIVERY, Check, Parameter, Rule, Session, SignalMissing, plain_advice, require, span

# ---- The rule on a loader that takes the cores that the training itself computes on: its steps, without their waits.

_GPU_IDLE = 10.0  # %, median utilisation: below it no GPU takes part in the steps
_OTHERS = 0.25  # cores: other programs that take so much more than before may be what slows the steps


@dataclass(frozen=True)
class Mean:
    """The mean of a side's steps without their waits, s, and half of its 95 % interval."""

    value: float
    half: float


@dataclass(frozen=True)
class Side:
    """At most a minute of a segment before or after the change that the rule judges."""

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
    slowdown = check.evidence(_sentence(before, after, *change), 100 * longer, 100 * slower, "% longer")
    cpu = check.evidence(_cpu(loads), loads[1].p95, check["cpu"], "%")
    return check.finding(fires, _advised(session, before, after), slowdown, cpu, samples=samples)


def sides_of(session: Session, check: Check, segment: Segment) -> tuple[Side, Side]:
    """Return both sides of the change that began a segment; abstain where there is too little."""
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
        sides.append(Side(part, steps, own, session.frames.delivery_rows(part.loader, start, end)))
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
    works = len(gpu) > 0 and any(not quantiles(gpu[side.rows]).p50 < _GPU_IDLE for side in (before, after))
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
    if more > _OTHERS and more > more_ours:
        raise SignalMissing(f"a machine to itself: other programs took {more:.1f} cores more than before the change")


def _average(values: Floats) -> float:
    """Return the mean of the values that are known; NaN for none."""
    known = finite(values)
    return float(known.mean()) if len(known) else math.nan


def _mean(values: Floats, segment: Segment) -> Mean:
    """Return the mean and its 95 % interval (Student's t) from runs of neighbouring steps, which vary alike."""
    count = max(2, min(BLOCKS, len(values) // block_steps(segment)))
    means = [float(part.mean()) for part in np.array_split(values, count)]
    return Mean(float(values.mean()), student_t(count) * float(np.std(means, ddof=1)) / math.sqrt(count))


def _longer(before: Mean, after: Mean) -> tuple[float, float, float]:
    """Return the share by which a mean became longer, and the bounds of its 95 % interval.

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
        return (advice.withheld_advice(decision),)
    word, many = after.segment.worker_knob, after.segment.knobs.get(after.segment.worker_knob)
    if many is None or many <= 1:
        return (advice.advise(decision, _alone(before, after, word)), *_faster(decision))
    fewer = _wanted(session, decision, before, after, many)
    text = f"Fewer {word}: loader.set({word}={fewer}) instead of {many}."
    if decision.kind == "input-bound":  # what the training gains, the loading loses
        text = f"Compare with fewer {word}, loader.set({word}={fewer}) instead of {many}; the loop also waits for data."
        return (advice.advise(decision, text, Point(word, "fewer", "neutral")), *_faster(decision))
    return (advice.advise(decision, text, Point(word, "fewer", "for")), *_faster(decision))


def _alone(before: Side, after: Side, word: str) -> str:
    if after.segment.knobs.get(word) == 1 and after.segment.began_by == "switch":
        one = word.removesuffix("s")
        return f"There is only one {one}: if the whole step became longer, go back to {before.segment.backend}."
    return "Let fewer processes or threads load."


def _faster(decision: Decision) -> tuple[Advice, ...]:
    return advice.engines(decision) if decision.best is not None else ()


def _wanted(session: Session, decision: Decision, before: Side, after: Side, many: int) -> int:
    """Return the number of processes to load with: that before a knob was changed, else the cores that are left."""
    word, known = after.segment.worker_knob, decision.worker_count()
    if known is not None and known.wanted < many:
        return known.wanted
    earlier = before.segment.knobs.get(word, many)
    if after.segment.began_by == "knobs" and earlier < many:
        return max(1, earlier)
    # Of torchvision the kernel's own load is the training's; the threads of DALI, or of the engine threads, are in it.
    training = finite(session.frames.series("process/kernel/cpu")[before.rows])
    cores = usable_cores(session.snapshot.schema)
    left = math.nan
    if len(training) and cores > 0 and before.segment.backend == "torchvision":
        left = cores - float(training.mean()) / 100
    return max(1, min(many - 1, math.floor(left) if math.isfinite(left) else many // 2))


def _range(low: float, high: float) -> str:
    return f"{faster(-high, -low)} by the spread of the steps"


_CONTENTION_RULES = (
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


# ---- Rules on the processes that load, against the cores that there are for them.


def dataloader(session: Session, check: Check, segment: Segment) -> Finding:
    many, word, cores = _loading(session, segment)
    percent = 100 * many / cores
    waits = segment.wait / segment.step if segment.step > 0 else math.nan
    note = limits_note(session.snapshot.schema)
    text = f"{_amount(many, word)} for {cores:g} cores: {percent:.0f} %" + (f" ({note})" if note else "")
    if math.isfinite(waits):
        text += f"; the loop waits {100 * waits:.0f} % of its step"
    if "prefetch" in segment.knobs:
        text += f"; prefetch {segment.knobs['prefetch']}"
    state = next((state for state in session.snapshot.loaders if state["id"] == segment.loader), {})
    if state.get("pin_memory") is not None:
        text += "; pinned memory" if state["pin_memory"] else "; memory not pinned"
    few = percent < check["few"]
    evidence = check.evidence(text, percent, check["few"] if few else check["many"], "%")
    fires = (few and waits > check["wait"]) or percent > check["many"]
    return check.finding(fires, _number(session, segment, many), evidence, samples=segment.steps)


def _too_many(session: Session, check: Check, segment: Segment) -> Finding:
    many, word, cores = _loading(session, segment)
    load = finite(session.frames.load[session.rows(segment)])
    require("samples of CPU", len(load), check["least"])
    full = float(np.mean(load > check["cpu"]))
    text = (
        f"{_amount(many, word)} on {cores:g} cores, which were above {check['cpu']:g} % busy in "
        f"{100 * full:.0f} % of {len(load):,} samples"
    )
    evidence = check.evidence(text, many / cores, check["per_core"], f"{word} per core", full)
    fires = many > check["per_core"] * cores and full > check["share"]
    return check.finding(fires, _number(session, segment, many), evidence, samples=len(load))


def saturated(session: Session, check: Check, segment: Segment) -> Finding:
    frames = session.frames
    if len(frames.cores) < 2:
        raise SignalMissing("a second core that this process may use")
    rows = session.rows(segment)
    busy = np.nan_to_num(frames.parts("cpu", "busy")[rows].astype(np.float64), nan=-1.0)
    busiest, place = busy.max(axis=1), busy.argmax(axis=1)
    mean = frames.cpu[rows]
    known = np.isfinite(mean)
    count = int(known.sum())
    require("samples of CPU", count, check["least"])
    alone = known & (busiest >= check["core"]) & (mean < check["mean"])
    share = float(alone.sum() / count)
    cores, times = np.unique(place[alone], return_counts=True)
    text = (
        f"One core at {check['core']:g} % or more, while the mean was below {check['mean']:g} %, in "
        f"{100 * share:.0f} % of {count:,} samples"
    )
    if len(cores):
        text += f"; most often core {frames.cores[int(cores[times.argmax()])]} ({times.max():,} times)"
    kernel = frames.series("process/kernel/cpu")[rows]
    if np.isfinite(kernel).any():
        text += f"; the kernel took {np.nanmedian(kernel):.0f} % of one core (median)"
    evidence = Evidence(text, 100 * share, 100 * check["share"], "%", share, **span(frames.time[rows][alone]))
    advised = _one_thread(session.decision(segment))
    return check.finding(share > check["share"], advised, evidence, samples=count, times=int(alone.sum()))


def _number(session: Session, segment: Segment, many: float) -> Sequence[Advice]:
    decision = session.decision(segment)
    if decision.withheld is not None:
        return (advice.withheld_advice(decision),)
    known = advice.worker_advice(decision, decision.worker_count(many))
    return known or plain_advice("The right number of workers is not known.", segment)


def _one_thread(decision: Decision) -> Sequence[Advice]:
    seen = advice.advise(decision, "One thread is the limit while the other cores idle, most likely the loop's own.")
    if decision.withheld is not None:
        return (seen, advice.withheld_advice(decision))
    if not decision.waits:
        return (seen, advice.advise(decision, "Give it less to do, or more threads (torch.set_num_threads)."))
    text = "Move work out of it: transforms belong in the data set, not in the loop."
    found = decision.worker_count()
    advised = advice.worker_advice(decision, found) if found is not None and found.current == 0 else ()
    switch = advice.engines(decision) if decision.best is not None else ()
    return (seen, advice.advise(decision, text), *advised, *switch)


def _amount(many: float, word: str) -> str:
    """Format a count of processes or threads: `1 worker`, `2 workers`."""
    return f"{many:g} {word.removesuffix('s') if many == 1 else word}"


def _loading(session: Session, segment: Segment) -> tuple[float, str, float]:
    """Return how many processes or threads load for the segment, what they are, and the cores that they have."""
    if segment.nodes:
        raise SignalMissing("workers on this machine: they are on others")
    word = segment.worker_knob
    many: float | None = segment.knobs.get(word)
    if many is None and word == "workers":
        counts = finite(session.frames.series("process/workers/count")[session.rows(segment)])
        many = float(np.median(counts)) if len(counts) else None
    cores = usable_cores(session.snapshot.schema)
    if many is None:
        raise SignalMissing("workers: their number is not known of an iterable that is only watched")
    if cores <= 0:
        raise SignalMissing("cores: none is known")
    return many, word, cores


_PROCESS_RULES = (
    Rule(
        "dataloader",
        "Workers do not fit the cores",
        {
            "few": Parameter(70, "%: fewer workers than that of the usable cores are few"),
            "many": Parameter(200, "%: more than that are many"),
            "wait": Parameter(0.1, "of the step: few workers matter only to a loop that waits for more than this"),
        },
        "Compares the workers (for DALI its threads) with the cores that this process may use, its quota included. Few "
        "fire only while the loop waits. Says prefetch and pinned memory where they are known. Abstains where the "
        "number of workers is not known.",
        "SageMaker Debugger's Dataloader (below 70 % or above 200 % of the cores). Changed: the cores are those that "
        "this process may use, and few workers of a loop that never waits are no fault.",
        of_segment=dataloader,
    ),
    Rule(
        "too-many-workers",
        "Workers crowd out the loop",
        {
            "per_core": Parameter(1, "workers or threads per usable core: more are many"),
            "cpu": Parameter(90, "%: CPU above it is full"),
            "share": Parameter(0.5, "of the samples: in more than this share the CPU must be full"),
            "least": Parameter(20, "samples that it takes"),
        },
        "Fires when there are more workers than cores and the cores are full: the loop's thread then waits for its "
        "turn to feed the GPU. Abstains where the number of workers is not known.",
        "This project's, after a published run in which 0 or 1 workers gave a better used GPU than many.",
        of_segment=_too_many,
    ),
    Rule(
        "saturated-core",
        "One core does all the work",
        {
            "core": Parameter(95, "%: a core at it or above is saturated"),
            "mean": Parameter(60, "%: below it the others have little to do (two cores, one idle: 50 %)"),
            "share": Parameter(0.5, "of the samples: in more than this share one core must be saturated"),
            "least": Parameter(20, "samples that it takes"),
        },
        "Fires when for most of the time one core, whichever, is saturated while the mean of the usable cores is low. "
        "Abstains with one core.",
        "This project's. It is what a bottleneck rule must not be: that one looks at the mean.",
        of_segment=saturated,
        replayed=True,
    ),
)


# ---- Rules on memory that rises: of GPUs from one moment to the next, of the host's processes over the whole session.

_SETTLES = 0.2  # share of the time from the first step to the last: what is allocated before it is no creep
FEWEST = 20  # readings that a line is fitted to
ROLES = {"kernel": "The kernel", "workers": "The workers together (shared pages count in each)"}
ADVICE = {
    "kernel": (
        "Something in the kernel keeps what each step makes: losses summed with their graph (use loss.item()), outputs "
        "kept in lists, figures never closed. A memory-mapped data set grows only until all of it was read."
    ),
    "workers": (
        "Workers that grow copy pages of the data set that they were forked with, because Python counts references in "
        "them: keep file names and labels in NumPy arrays or tensors instead of lists of Python objects."
    ),
}


def _memory_increase(session: Session, check: Check, segment: Segment) -> Finding:
    session.require_gpu("memory")
    frames, rows = session.frames, session.rows(segment)
    width = max(1, round(check["window"]))
    require("samples of GPU memory", len(rows), 2 * width)
    found, times = [], 0
    for number, values in zip(frames.gpus, frames.parts("gpu", "memory")[rows].T.astype(np.float64), strict=True):
        known = np.isfinite(values)
        if known.sum() < 2 * width:
            continue
        # A running sum over an hour of float32 values would lose more digits than the rises have.
        mean = np.lib.stride_tricks.sliding_window_view(values[known], width).mean(axis=1)
        rise = mean[width:] - mean[:-width]
        high = rise > check["rise"]
        begun = int(high[0]) + int((high[1:] & ~high[:-1]).sum())
        times += begun
        most = int(rise.argmax())
        when = frames.time[rows][known]
        text = (
            f"GPU {number}: memory rose by {rise[most]:.1f} points from one window of {width} samples to the "
            f"next ({mean[most]:.0f} → {mean[most + width]:.0f} %)" + (f"; {begun} such rises" if begun > 1 else "")
        )
        start, end = float(when[most]), float(when[most + 2 * width - 1])
        found.append(Evidence(text, float(rise[most]), check["rise"], "points", float(high.mean()), start, end))
    if not found:
        require("samples of GPU memory", 0, 2 * width)
    advised = plain_advice(
        "If memory goes on rising, tensors of earlier steps are kept: sum losses with loss.item() or "
        "loss.detach(), and do not keep outputs in lists. One rise at the first batch of a new size is torch's "
        "cache and harmless.",
        segment,
    )
    shown = [evidence for evidence in found if evidence.share] if times else found
    return check.finding(times > 0, advised, *shown, samples=len(rows), times=times)


def creep(session: Session, check: Check) -> Finding:
    if not session.segments:
        raise SignalMissing(NO_DELIVERY)
    start, end = session.segments[0].start, max(segment.end for segment in session.segments)
    require("seconds of a loop", round(end - start), check["seconds"])
    room = _room(session)
    evidence, rising, critical, samples = [], [], False, 0
    for role, name in ROLES.items():
        rise = _rise(session.frames, role, start + _SETTLES * (end - start), end)
        if rise is None:
            continue
        samples = max(samples, rise.samples)
        hours = room / (3600 * rise.slope) if rise.slope > 0 else math.inf
        text = f"{name}: {rise.slope * 3600 / 1e6:+,.0f} MB an hour over {rise.seconds:,.0f} s"
        if math.isfinite(hours):
            words = "would be full" if role == "kernel" else "would be full at most"
            text += f"; {room / 1e9:,.1f} GB are left, which {words} after {hours:,.1f} h"
        text += f" (a straight line explains {100 * rise.explained:.0f} %)"
        evidence.append(Evidence(text, hours, check["hours"], "h", start=start, end=end))
        grown = rise.slope * rise.seconds > check["grown"] * 1e6
        if grown and rise.explained > check["explained"] and hours < check["hours"]:
            rising.append(role)
            critical |= hours < 1
    if not evidence:
        raise SignalMissing("resident memory of the kernel's processes")
    advised = [sentence for role in rising for sentence in plain_advice(ADVICE[role])]
    severity: Literal["warning", "critical"] = "critical" if critical else "warning"
    return check.finding(bool(rising), advised, *evidence, samples=samples, times=len(rising), severity=severity)


@dataclass(frozen=True)
class _Rise:
    """A straight line through resident memory."""

    slope: float  # B/s
    explained: float  # share of the variance
    seconds: float  # of the readings
    samples: int  # readings


def _rise(frames: Frames, role: str, start: float, end: float) -> _Rise | None:
    values = frames.series(f"process/{role}/memory")
    rows = np.isfinite(values) & (frames.time > start) & (frames.time <= end) & frames.fresh("process")
    if rows.sum() < FEWEST:
        return None
    time, held = frames.time[rows], values[rows]
    slope, level = np.polyfit(time - time[0], held, 1)
    residual = float(np.var(held - level - slope * (time - time[0])))
    whole = float(np.var(held))
    explained = 1 - residual / whole if whole > 0 else 0.0
    return _Rise(float(slope), explained, float(time[-1] - time[0]), len(held))


def _room(session: Session) -> float:
    """Return the bytes left at the end, of the host's memory or of the container's limit, whichever is less."""
    host = session.snapshot.schema.host
    found = []
    for name, total in (
        ("memory/percent", host.get("memory_total")),
        ("container/memory_percent", (host.get("limits") or {}).get("memory")),
    ):
        values = finite(session.frames.series(name))
        if total and len(values):
            found.append(float(total) * (1 - float(values[-1]) / 100))
    if not found:
        raise SignalMissing("host memory: how much there is was not measured")
    return min(found)


_MEMORY_RULES = (
    Rule(
        "gpu-memory-increase",
        "GPU memory rises",
        {
            "rise": Parameter(5, "points that the moving average rises from one window to the next"),
            "window": Parameter(10, "samples of each window"),
        },
        "Fires when the mean of GPU memory over a window is so much above that of the window before. Abstains without "
        "a GPU.",
        "SageMaker Debugger's GPUMemoryIncrease (5 points, 10 samples). Changed: what the warm-up steps allocate is no "
        "increase.",
        of_segment=_memory_increase,
        replayed=True,
    ),
    Rule(
        "memory-creep",
        "Host memory creeps up",
        {
            "hours": Parameter(12, "h after which memory would be full at this pace"),
            "grown": Parameter(50, "MB that it must have grown in all"),
            "explained": Parameter(0.8, "of the variance: a straight line must explain more than this share"),
            "seconds": Parameter(120, "s of a loop that it takes"),
        },
        "Fits a straight line to the resident memory of kernel and of workers, from a fifth of the way into the first "
        "loop on (what loads at the start is no creep). Fires when at this pace the host's memory, or the container's, "
        "is full within so many hours. The page cache does not count, but files that are mapped into memory do. "
        "Abstains on short sessions.",
        "This project's.",
        of_session=creep,
    ),
)


RULES = (*_CONTENTION_RULES, *_PROCESS_RULES, *_MEMORY_RULES)
