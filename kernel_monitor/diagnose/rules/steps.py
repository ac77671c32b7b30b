"""The steps themselves: how late the first came, single long ones, and patterns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .. import advice
from ..frames import counted
from ..model import Evidence
from .base import NO_DELIVERY, Parameter, Rule, plainly, span, too_few
from .periods import strongest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..decision import Decision
    from ..frames import Steps
    from ..model import Advice, Finding, Stretch
    from .base import Asked, Session

NO_STEPS = "steps: this session holds only their means"
SHOWN = 3
"""Outliers that are told one by one."""


def outliers(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """Single steps that took far longer."""
    steps, missing = _counted(session, asked, stretch)
    if missing is not None:
        return asked.abstained(missing, stretch=stretch, samples=len(steps))
    times = steps["step"].astype(np.float64)
    usual, mean, deviation = float(np.median(times)), float(times.mean()), float(times.std())
    limit = max(mean + asked["k"] * deviation, asked["longer"] * usual)
    beyond = times > limit
    count = int(beyond.sum())
    worst = np.flatnonzero(beyond)[np.argsort(-times[beyond])][:SHOWN]
    lost = float((times[beyond] - usual).sum())
    evidence = [
        Evidence(
            text=(
                f"{count:,} of {len(times):,} steps took more than {1e3 * limit:,.0f} ms (mean + {asked['k']:g} "
                f"standard deviations, and {asked['longer']:g} times the median) and cost {lost:,.1f} s"
            ),
            value=count,
            threshold=asked["n"],
            unit="steps",
            share=count / len(times),
            **span(steps["end"][beyond]),
        )
    ]
    for place in worst:
        wait, whole = 1e3 * float(steps["wait"][place]), 1e3 * float(times[place])
        words = f"batch {steps['batch'][place]:,} of epoch {steps['epoch'][place] + 1}: {whole:,.0f} ms"
        if math.isfinite(wait):
            words += f", {wait:,.0f} of them waiting for data"
        end = float(steps["end"][place])
        evidence.append(Evidence(words, whole, unit="ms", start=end - whole / 1e3, end=end))
    if count > asked["n"]:
        waits = np.nansum(steps["wait"][beyond]) > 0.5 * times[beyond].sum()
        text = (
            "Most of that time was spent waiting for data: look for large or slow files among those batches, for "
            "storage that stalls, or for workers that start anew with each epoch (persistent_workers=True keeps them)."
            if waits
            else "The loop itself took that time, not its data: look for what it does now and then (checkpoints, "
            "logging, evaluation, garbage collection) and for other users of the machine at those moments."
        )
        return asked.fired(plainly(text, stretch), *evidence, stretch=stretch, samples=len(times), times=count)
    return asked.quiet(*evidence[:1], stretch=stretch, samples=len(times))


def period(session: Session, asked: Asked, stretch: Stretch) -> Finding:
    """Step times that follow a pattern of a few steps."""
    steps, missing = _counted(session, asked, stretch)
    if missing is not None:
        return asked.abstained(missing, stretch=stretch, samples=len(steps))
    batches = steps["batch"].astype(np.intp)
    if float(np.mean(np.abs(np.diff(batches)) > 1)) > asked["gaps"] and session.frames.snapshot.steps.dropped:
        return asked.abstained("every step: only some of them were kept", stretch=stretch, samples=len(steps))
    times = 1e3 * steps["step"].astype(np.float64)
    found = strongest(times, batches)
    if found is None:
        return asked.quiet(stretch=stretch, samples=len(times))
    told = " / ".join(f"{one:,.1f}" if one < 100 else f"{one:,.0f}" for one in found.means)
    evidence = Evidence(
        text=(
            f"A pattern of {found.steps} steps: {told} ms on average over {len(times):,} steps; it explains "
            f"{100 * found.explained:.0f} % of how they vary"
        ),
        value=100 * found.effect,
        threshold=100 * asked["effect"],
        unit="% of the mean step",
        share=found.explained,
        start=stretch.start,
        end=stretch.end,
    )
    if found.effect > asked["effect"] and found.explained > asked["explained"]:
        waits = strongest(1e3 * np.nan_to_num(steps["wait"].astype(np.float64)), batches)
        data = waits is not None and waits.steps == found.steps and waits.explained > asked["explained"]
        if data and stretch.knobs.get("workers") == found.steps:
            advised = _round(session.decision(stretch), found.steps)
        elif data:
            text = "It is the wait for data that follows the pattern: look at what every such batch has in common."
            advised = plainly(text, stretch)
        else:
            advised = plainly(
                f"The loop itself does something every {found.steps} steps: gradients summed over several batches are "
                "meant to; an alternation of two batch shapes, of synchronisations, or of memory given back is not.",
                stretch,
            )
        return asked.fired(advised, evidence, stretch=stretch, samples=len(times), times=len(times) // found.steps)
    return asked.quiet(evidence, stretch=stretch, samples=len(times))


def _round(decision: Decision, many: int) -> Sequence[Advice]:
    """Workers that deliver in turn and are waited for."""
    text = f"The wait for data follows the {many} workers round: they deliver in turn and do not keep up."
    seen = advice.say(decision, text)
    if decision.withheld is not None:
        return (seen, advice.over(decision))
    number = decision.crowd()
    raised = advice.crowd(decision, number) if number is not None and number.reason == "idle" else None
    return (seen, *([] if raised is None else [raised]), *(advice.engines(decision) if decision.waits else ()))


def initialisation(session: Session, asked: Asked) -> Finding:
    """How long it took to the first step."""
    snapshot, evidence, late, unknown = session.frames.snapshot, [], 0, 0
    first: dict[str, Stretch] = {}
    for one in session.stretches:
        first.setdefault(one.loader, one)
    for loader, stretch in first.items():
        rows = session.frames.time[np.isfinite(session.frames.series(f"loader/{loader}/images"))]
        steps = session.frames.steps(loader)
        step = float(steps["end"][0]) if len(steps) else stretch.start
        # The first row is of the session's beginning only where none before it has been overwritten.
        cut = len(snapshot.seq) == 0 or len(rows) == 0 or (rows[0] == session.frames.time[0] and snapshot.seq[0] > 1)
        if cut:
            unknown += 1
            continue
        begun = 0.0 if rows[0] == session.frames.time[0] else float(rows[0])
        minutes = (step - begun) / 60
        late += minutes > asked["minutes"]
        text = f"{stretch.name}: {minutes:,.1f} min from its making (or the session's start) to its first step"
        evidence.append(Evidence(text, minutes, asked["minutes"], "min", start=begun, end=step))
    if not evidence:
        return asked.abstained("the session's beginning: its rows are no longer kept" if unknown else NO_DELIVERY)
    if late:
        advised = plainly(
            "If nobody was at rest between, time went by before the first step: downloads, lists of files read anew, "
            "models compiled. Keep what can be kept between runs, or make the loader after it."
        )
        return asked.fired(advised, *evidence, samples=len(evidence), times=late)
    return asked.quiet(*evidence, samples=len(evidence))


def _counted(session: Session, asked: Asked, stretch: Stretch) -> tuple[Steps, str | None]:
    """The stretch's steps that count, and what is missing where they are fewer than the rule takes."""
    steps = session.steps(stretch)
    steps = steps[counted(steps)]
    if len(steps) >= asked["least"]:
        return steps, None
    return steps, too_few("steps", len(steps), asked["least"]) if session.frames.snapshot.steps else NO_STEPS


RULES = (
    Rule(
        "initialisation-time",
        "The first step came late",
        {"minutes": Parameter(20, "min from when the loader was made, or the session began, to its first step")},
        "Says for each loader how long its first step took to come, and fires when that was long. Abstains where the "
        "session's beginning is no longer kept. A person who pauses between two cells counts as well.",
        "SageMaker Debugger's MaxInitializationTime (20 minutes).",
        of_session=initialisation,
    ),
    Rule(
        "step-outliers",
        "Single steps take far longer",
        {
            "k": Parameter(3, "standard deviations above the mean"),
            "n": Parameter(10, "steps: more than so many must lie beyond"),
            "longer": Parameter(1.5, "times the median: a step that took less is no outlier"),
            "least": Parameter(50, "steps that it takes"),
        },
        "Fires when more than so many steps of a stretch took far longer than the mean. Warm-up and profiled steps do "
        "not count, nor do pauses of the loop. Abstains on few steps.",
        "SageMaker Debugger's StepOutlier (k = 3, n = 10). Mended: of 10,000 steps that vary evenly 13 lie beyond "
        "three standard deviations, so a step must also take half as long again as the median.",
        of_stretch=outliers,
        replayed=True,
    ),
    Rule(
        "step-period",
        "Step times follow a pattern",
        {
            "effect": Parameter(0.2, "of the mean step: the pattern's longest place less its shortest"),
            "explained": Parameter(0.5, "of the variance: the place in the pattern must explain more than this"),
            "least": Parameter(48, "steps that it takes"),
            "gaps": Parameter(0.05, "of the steps: where more follow a step that was not kept, nothing can be said"),
        },
        "Looks for the period of 2 to 8 steps that explains most of the variance of step times (eta squared, after "
        "clipping and without drift), counted through all steps and by the batches' numbers. Abstains on few steps.",
        "This project's, after a published run whose backward pass alternated between 8.4 s and 28.5 s.",
        of_stretch=period,
        replayed=True,
    ),
)
