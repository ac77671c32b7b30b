"""Rules on the steps of a loop: late first ones, single long ones, patterns, and epochs that delivered too little."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from ...steps.measured_step import PHASES
from .. import advice
from ..advice import Decision
from ..frames import Steps, counted
from ..loops import epoch_counts
from ..results import Advice, EpochCount, Evidence, Finding, Segment
from ..step_times import part_with_period, strongest_period
from .rule import NO_DELIVERY, Check, Parameter, Rule, Session, SignalMissing, plain_advice, require, span

# ---- Rules on the steps themselves: how late the first came, single long ones, and patterns.

SHOWN = 3  # outliers that are listed one by one


def outliers(session: Session, check: Check, segment: Segment) -> Finding:
    steps = _counted(session, check, segment)
    times = steps["step"].astype(np.float64)
    usual, mean, deviation = float(np.median(times)), float(times.mean()), float(times.std())
    limit = max(mean + check["k"] * deviation, check["longer"] * usual)
    beyond = times > limit
    count = int(beyond.sum())
    text = (
        f"{count:,} of {len(times):,} steps took more than {1e3 * limit:,.0f} ms (mean + {check['k']:g} "
        f"standard deviations, and {check['longer']:g} times the median) and cost "
        f"{float((times[beyond] - usual).sum()):,.1f} s"
    )
    evidence = [Evidence(text, count, check["n"], "steps", count / len(times), **span(steps["end"][beyond]))]
    if count <= check["n"]:
        return check.quiet(*evidence, samples=len(times))
    for place in np.flatnonzero(beyond)[np.argsort(-times[beyond])][:SHOWN]:
        step = steps[place]
        wait, whole, end = 1e3 * float(step["wait"]), 1e3 * float(times[place]), float(step["end"])
        words = f"batch {step['batch']:,} of epoch {step['epoch'] + 1}: {whole:,.0f} ms"
        if math.isfinite(wait):
            words += f", {wait:,.0f} of them waiting for data"
        evidence.append(Evidence(words, whole, unit="ms", start=end - whole / 1e3, end=end))
    if np.nansum(steps["wait"][beyond]) > 0.5 * times[beyond].sum():
        text = (
            "Most of that time was spent waiting for data: look for large or slow files among those batches, for "
            "storage that stalls, or for workers that start anew with each epoch (persistent_workers=True keeps them)."
        )
    else:
        text = (
            "The loop itself took that time, not its data: look for what it does now and then (checkpoints, "
            "logging, evaluation, garbage collection) and for other users of the machine at those moments."
        )
    return check.finding(True, plain_advice(text, segment), *evidence, samples=len(times), times=count)


def period(session: Session, check: Check, segment: Segment) -> Finding:
    steps = _counted(session, check, segment)
    batches = steps["batch"].astype(np.intp)
    if float(np.mean(np.abs(np.diff(batches)) > 1)) > check["gaps"] and session.snapshot.steps.dropped:
        raise SignalMissing("every step: only some of them were kept", samples=len(steps))
    times = 1e3 * steps["step"].astype(np.float64)
    numbers = np.flatnonzero(counted(session.steps(segment)))
    found = strongest_period(times, batches, numbers)
    if found is None:
        return check.quiet(samples=len(times))
    phase = part_with_period(found, {part: 1e3 * steps[part].astype(np.float64) for part in PHASES}, batches, numbers)
    text = (
        f"A pattern of {found.steps} steps: {found.words} on average over {len(times):,} steps; it explains "
        f"{100 * found.explained:.0f} % of how they vary"
        + ("" if phase is None else f", most of it in the phase {phase}")
    )
    unit = "% of the mean step"
    evidence = check.evidence(text, 100 * found.effect, 100 * check["effect"], unit, found.explained)
    waits = strongest_period(1e3 * np.nan_to_num(steps["wait"].astype(np.float64)), batches, numbers)
    advised: Sequence[Advice]
    if waits is None or waits.steps != found.steps or waits.explained <= check["explained"]:
        advised = plain_advice(
            f"The loop itself does something every {found.steps} steps: gradients summed over several batches are "
            "meant to; an alternation of two batch shapes, of synchronisations, or of memory given back is not.",
            segment,
        )
    elif segment.knobs.get("workers") == found.steps:
        advised = _workers_in_turn(session.decision(segment), found.steps)
    else:
        text = "The wait for data follows this pattern: look at what the slow batches have in common."
        advised = plain_advice(text, segment)
    fires = found.effect > check["effect"] and found.explained > check["explained"]
    return check.finding(fires, advised, evidence, samples=len(times), times=len(times) // found.steps)


def _workers_in_turn(decision: Decision, many: int) -> Sequence[Advice]:
    text = f"Every {many} steps the wait for data repeats, as the {many} workers deliver in turn: they do not keep up."
    seen = advice.advise(decision, text)
    if decision.withheld is not None:
        return (seen, advice.withheld_advice(decision))
    return (seen, *advice.more_workers(decision), *(advice.engines(decision) if decision.waits else ()))


def initialisation(session: Session, check: Check) -> Finding:
    time, seq = session.frames.time, session.snapshot.seq
    evidence, late, unknown = [], 0, False
    first: dict[str, Segment] = {}
    for segment in session.segments:
        first.setdefault(segment.loader, segment)
    for loader, segment in first.items():
        rows = time[np.isfinite(session.frames.series(f"loader/{loader}/images"))]
        steps = session.frames.steps(loader)
        step = float(steps["end"][0]) if len(steps) else segment.start
        # The first row is of the session's beginning only where none before it has been overwritten.
        if len(seq) == 0 or len(rows) == 0 or (rows[0] == time[0] and seq[0] > 1):
            unknown = True
            continue
        begun = 0.0 if rows[0] == time[0] else float(rows[0])
        minutes = (step - begun) / 60
        late += minutes > check["minutes"]
        text = f"{segment.name}: {minutes:,.1f} min from its making (or the session's start) to its first step"
        evidence.append(Evidence(text, minutes, check["minutes"], "min", start=begun, end=step))
    if not evidence:
        raise SignalMissing("the session's beginning: its rows are no longer kept" if unknown else NO_DELIVERY)
    advised = plain_advice(
        "If nobody was at rest between, time went by before the first step: downloads, lists of files read anew, "
        "models compiled. Keep what can be kept between runs, or make the loader after it."
    )
    return check.finding(late > 0, advised, *evidence, samples=len(evidence), times=late)


def _counted(session: Session, check: Check, segment: Segment) -> Steps:
    """Return the segment's steps that count, if they are as many as the rule takes."""
    steps = session.steps(segment)
    steps = steps[counted(steps)]
    if not session.snapshot.steps:
        raise SignalMissing("steps: this session holds only their means")
    require("steps", len(steps), check["least"], samples=len(steps))
    return steps


_STEP_RULES = (
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
        "Fires when more than so many steps of a segment took far longer than the mean. Warm-up and profiled steps do "
        "not count, nor do pauses of the loop. Abstains on few steps.",
        "SageMaker Debugger's StepOutlier (k = 3, n = 10). Changed: of 10,000 steps that vary evenly 13 lie beyond "
        "three standard deviations, so a step must also take half as long again as the median.",
        of_segment=outliers,
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
        of_segment=period,
        replayed=True,
    ),
)


# ---- The rule on epochs that ended without delivering what an epoch delivers: their times must not be averaged.

_MOST_NAMED = 3  # numbers of epochs that are listed; of more the first and the last
ADVICE = (
    "Make the iterator anew for each epoch (iter(loader) in the loop), or call iterator.reset() at the end of each, as "
    "DALI's take with auto_reset=False; leave these epochs out of every average."
)


def empty(session: Session, check: Check) -> Finding:
    epochs = epoch_counts(session.snapshot)
    ended = [epoch for epoch in epochs if epoch.ended]
    if not ended:
        raise SignalMissing("an epoch that came to its end" if epochs else NO_DELIVERY, samples=len(epochs))
    evidence, times = [], 0
    for loader in dict.fromkeys(epoch.loader for epoch in ended):
        own = [epoch for epoch in ended if epoch.loader == loader]
        nothing = [epoch for epoch in own if epoch.batches == 0]
        short = list(_short(own, check["share"]))
        times += len(nothing) + len(short)
        if nothing:
            evidence.append(_of_nothing(nothing, own))
        for epoch, usual, whose in short:
            percent = 100 * epoch.passed / usual
            text = (
                f"{epoch.name}: epoch {epoch.epoch + 1} came to its end after {epoch.passed:,} samples, "
                f"{percent:.0f} % of the {usual:,.0f} {whose}: an average over epochs counts it as whole"
            )
            evidence.append(Evidence(text, percent, 100 * check["share"], "%"))
    if not evidence:
        text = f"{len(ended):,} epoch{'' if len(ended) == 1 else 's'} came to the end, none of them early"
        return check.quiet(Evidence(text), samples=len(ended))
    return check.finding(True, plain_advice(ADVICE), *evidence, samples=len(ended), times=times)


def _of_nothing(nothing: Sequence[EpochCount], own: Sequence[EpochCount]) -> Evidence:
    first = nothing[0]
    text = f"{first.name}: {_numbers([epoch.epoch + 1 for epoch in nothing])} delivered nothing"
    fullest = max(own, key=lambda epoch: epoch.samples)
    if fullest.batches:
        text += f"; epoch {fullest.epoch + 1} delivered {fullest.samples:,} samples in {fullest.batches:,} batches"
    those = "it" if len(nothing) == 1 else "them"
    text += f". The iterator was at its end and was not reset: an average over epochs counts {those} as whole"
    return Evidence(text, 0.0, unit="batches")


def _numbers(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"epoch {numbers[0]}"
    if len(numbers) > _MOST_NAMED:
        return f"{len(numbers)} epochs ({numbers[0]} to {numbers[-1]})"
    return f"epochs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _short(own: Sequence[EpochCount], share: float) -> Iterator[tuple[EpochCount, float, str]]:
    """Yield epochs that delivered too little but something: each with the usual count, and what that is taken from."""
    before: list[int] = []
    for epoch in own:
        if epoch.planned:
            usual, whose = float(epoch.planned), "that its loader's length promises"
        else:
            usual, whose = (float(median(before)) if before else 0.0), "that those before it delivered"
        if epoch.batches and epoch.passed < share * usual:
            yield epoch, usual, whose
        elif epoch.batches:
            before.append(epoch.passed)


_EPOCH_RULES = (
    Rule(
        "empty-epoch",
        "An epoch delivered nothing, or far too little",
        {"share": Parameter(0.5, "of what the loader's length promises, or the epochs before delivered (median)")},
        "Fires for each epoch that delivered no batch, or less than that share, although its iterator said that it was "
        "at its end: a loop that was left by break or by an error does not fire it. Skipped and replayed samples count "
        "as delivered. Abstains where no epoch came to its end.",
        "This project's, after a published comparison whose second epochs were most likely empty: its iterator was "
        "never reset, and the mean was taken over both.",
        of_session=empty,
        with_verdict=True,
    ),
)


RULES = (*_STEP_RULES, *_EPOCH_RULES)
