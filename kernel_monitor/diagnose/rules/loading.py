"""Processes that load, against the cores that there are for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .. import advice
from ..limits import limits_note, usable_cores
from ..model import Evidence
from .base import Parameter, Rule, plainly, span, too_few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..decision import Decision
    from ..model import Advice, Finding, Stretch
    from .base import Asked, Session

UNKNOWN = "workers: how many processes load is not known of what is only watched"


def dataloader(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """Too few or too many processes (DALI: threads) for the cores."""
    many, word = _loading(session, stretch)
    cores = usable_cores(session.frames.snapshot.schema)
    if many is None or cores <= 0:
        return asked.abstained(UNKNOWN if many is None else "cores: none is known", stretch=stretch)
    percent = 100 * many / cores
    share = stretch.wait / stretch.step if stretch.step > 0 else math.nan
    note = limits_note(session.frames.snapshot.schema)
    facts = [f"prefetch {stretch.knobs['prefetch']}"] if "prefetch" in stretch.knobs else []
    state = next((one for one in session.frames.snapshot.loaders if one["id"] == stretch.loader), {})
    if state.get("pin_memory") is not None:
        facts.append("pinned memory" if state["pin_memory"] else "memory not pinned")
    few = percent < asked["few"]
    evidence = Evidence(
        text=(
            f"{_counted(many, word)} for {cores:g} cores: {percent:.0f} %"
            + (f" ({note})" if note else "")
            + (f"; the loop waits {100 * share:.0f} % of its step" if math.isfinite(share) else "")
            + "".join(f"; {fact}" for fact in facts)
        ),
        value=percent,
        threshold=asked["few"] if few else asked["many"],
        unit="%",
        start=stretch.start,
        end=stretch.end,
    )
    if few and share > asked["wait"]:
        return asked.fired(_number(session, stretch), evidence, stretch=stretch, samples=stretch.steps)
    if percent > asked["many"]:
        return asked.fired(_number(session, stretch), evidence, stretch=stretch, samples=stretch.steps)
    return asked.quiet(evidence, stretch=stretch, samples=stretch.steps)


def too_many(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """Workers that take the cores from the loop itself."""
    many, word = _loading(session, stretch)
    cores = usable_cores(session.frames.snapshot.schema)
    if many is None or cores <= 0:
        return asked.abstained(UNKNOWN if many is None else "cores: none is known", stretch=stretch)
    rows = session.rows(stretch)
    load = session.frames.load[rows]
    load = load[np.isfinite(load)]
    if len(load) < asked["least"]:
        return asked.abstained(too_few("samples of CPU", len(load), asked["least"]), stretch=stretch)
    full = float(np.mean(load > asked["cpu"]))
    evidence = Evidence(
        text=(
            f"{_counted(many, word)} on {cores:g} cores, which were above {asked['cpu']:g} % busy in "
            f"{100 * full:.0f} % of {len(load):,} samples"
        ),
        value=many / cores,
        threshold=asked["per_core"],
        unit=f"{word} per core",
        share=full,
        start=stretch.start,
        end=stretch.end,
    )
    if many > asked["per_core"] * cores and full > asked["share"]:
        return asked.fired(_number(session, stretch), evidence, stretch=stretch, samples=len(load))
    return asked.quiet(evidence, stretch=stretch, samples=len(load))


def saturated(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """One core does all the work."""
    frames = session.frames
    if len(frames.cores) < 2:
        return asked.abstained("a second core that this process may use", stretch=stretch)
    rows = session.rows(stretch)
    busiest, place = (one[rows] for one in frames.hottest)
    mean = frames.cpu[rows]
    known = np.isfinite(busiest) & np.isfinite(mean)
    count = int(known.sum())
    if count < asked["least"]:
        return asked.abstained(too_few("samples of CPU", count, asked["least"]), stretch=stretch)
    alone = known & (busiest >= asked["core"]) & (mean < asked["mean"])
    share = float(alone.sum() / count)
    cores, times = np.unique(place[alone], return_counts=True)
    text = (
        f"One core at {asked['core']:g} % or more, while the mean was below {asked['mean']:g} %, in "
        f"{100 * share:.0f} % of {count:,} samples"
    )
    if len(cores):
        text += f"; most often core {frames.cores[int(cores[times.argmax()])]} ({times.max():,} times)"
    kernel = frames.series("process/kernel/cpu")[rows]
    if np.isfinite(kernel).any():
        text += f"; the kernel took {np.nanmedian(kernel):.0f} % of one core (median)"
    evidence = Evidence(text, 100 * share, 100 * asked["share"], "%", share, **span(frames.time[rows][alone]))
    if share > asked["share"]:
        return asked.fired(
            _one_thread(session.decision(stretch)), evidence, stretch=stretch, samples=count, times=int(alone.sum())
        )
    return asked.quiet(evidence, stretch=stretch, samples=count)


def _number(session: Session, stretch: Stretch) -> Sequence[Advice]:
    """Whether more or fewer of what loads."""
    decision = session.decision(stretch)
    many, word = _loading(session, stretch)
    if decision.withheld is not None:
        return (advice.over(decision),)
    told = advice.crowd(decision, decision.crowd(many, word))
    return plainly("How many should load is not known.", stretch) if told is None else (told,)


def _one_thread(decision: Decision) -> Sequence[Advice]:
    seen = advice.say(decision, "One thread is the limit while the other cores idle, most likely the loop's own.")
    if decision.withheld is not None:
        return (seen, advice.over(decision))
    if not decision.waits:
        return (seen, advice.say(decision, "Give it less to do, or more threads (torch.set_num_threads)."))
    text = "Move work out of it: transforms belong in the data set, not in the loop."
    number = decision.crowd()
    raised = advice.crowd(decision, number) if number is not None and number.many == 0 else None
    switch = advice.engines(decision) if decision.best is not None else ()
    return (seen, advice.say(decision, text), *([] if raised is None else [raised]), *switch)


def _counted(many: float, word: str) -> str:
    """`1 worker`, `2 workers`"""
    return f"{many:g} {word.removesuffix('s') if many == 1 else word}"


def _loading(session: Session, stretch: Stretch) -> tuple[float | None, str]:
    """How many processes or threads load for the stretch, and what they are; None where that is not known."""
    if stretch.backend.startswith("dali"):
        threads = stretch.knobs.get("threads")
        return (None if threads is None else float(threads)), "threads"
    if "workers" in stretch.knobs:
        return float(stretch.knobs["workers"]), "workers"
    counts = session.frames.series("process/workers/count")[session.rows(stretch)]
    counts = counts[np.isfinite(counts)]
    return (float(np.median(counts)) if len(counts) else None), "workers"


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
        of_stretch=dataloader,
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
        of_stretch=too_many,
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
        of_stretch=saturated,
        replayed=True,
    ),
)
