"""Rules on the processes that load, against the cores that there are for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .. import advice
from ..decision import Decision
from ..machine_limits import limits_note, usable_cores
from ..results import Advice, Evidence, Finding, Segment
from ..statistics import finite
from .rule import Check, Parameter, Rule, Session, SignalMissing, plainly, require, span


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


def too_many(session: Session, check: Check, segment: Segment) -> Finding:
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
        return (advice.over(decision),)
    known = advice.crowd(decision, decision.crowd(many))
    return known or plainly("How many should load is not known.", segment)


def _one_thread(decision: Decision) -> Sequence[Advice]:
    seen = advice.say(decision, "One thread is the limit while the other cores idle, most likely the loop's own.")
    if decision.withheld is not None:
        return (seen, advice.over(decision))
    if not decision.waits:
        return (seen, advice.say(decision, "Give it less to do, or more threads (torch.set_num_threads)."))
    text = "Move work out of it: transforms belong in the data set, not in the loop."
    found = decision.crowd()
    advised = advice.crowd(decision, found) if found is not None and found.many == 0 else ()
    switch = advice.engines(decision) if decision.best is not None else ()
    return (seen, advice.say(decision, text), *advised, *switch)


def _amount(many: float, word: str) -> str:
    """`1 worker`, `2 workers`"""
    return f"{many:g} {word.removesuffix('s') if many == 1 else word}"


def _loading(session: Session, segment: Segment) -> tuple[float, str, float]:
    """How many processes or threads load for the segment, what they are, and the cores that there are for them."""
    if segment.nodes:
        raise SignalMissing("workers on this machine: they are on others")
    word = segment.crowd
    many: float | None = segment.knobs.get(word)
    if many is None and word == "workers":
        counts = finite(session.frames.series("process/workers/count")[session.rows(segment)])
        many = float(np.median(counts)) if len(counts) else None
    cores = usable_cores(session.snapshot.schema)
    if many is None:
        raise SignalMissing("workers: how many processes load is not known of what is only watched")
    if cores <= 0:
        raise SignalMissing("cores: none is known")
    return many, word, cores


RULES = (
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
        "SageMaker Debugger's Dataloader (below 70 % or above 200 % of the cores). Mended: the cores are those that "
        "this process may use, and few workers of a loop that never waits are no fault.",
        of_segment=dataloader,
    ),
    Rule(
        "too-many-workers",
        "Workers crowd out the loop",
        {
            "per_core": Parameter(1, "workers or threads per usable core: more are many"),
            "cpu": Parameter(90, "%: CPU above it is full"),
            "share": Parameter(0.5, "of the samples: in more than these the CPU must be full"),
            "least": Parameter(20, "samples that it takes"),
        },
        "Fires when there are more workers than cores and the cores are full: the loop's thread then waits for its "
        "turn to feed the GPU. Abstains where the number of workers is not known.",
        "This project's, after a published run in which 0 or 1 workers gave a better used GPU than many.",
        of_segment=too_many,
    ),
    Rule(
        "saturated-core",
        "One core does all the work",
        {
            "core": Parameter(95, "%: a core at it or above is saturated"),
            "mean": Parameter(60, "%: below it the others have little to do (two cores, one idle: 50 %)"),
            "share": Parameter(0.5, "of the samples: more than these must be so"),
            "least": Parameter(20, "samples that it takes"),
        },
        "Fires when for most of the time one core, whichever, is saturated while the mean of the usable cores is low. "
        "Abstains with one core.",
        "This project's. It is what a bottleneck rule must not be: that one looks at the mean.",
        of_segment=saturated,
        replayed=True,
    ),
)
