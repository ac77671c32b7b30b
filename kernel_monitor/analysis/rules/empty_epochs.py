"""The rule on epochs that ended without delivering what an epoch delivers: their times must not be averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ..epoch_counts import epoch_counts
from ..results import EpochCount, Evidence, Finding
from .rule import NO_DELIVERY, Check, Parameter, Rule, Session, SignalMissing, plainly

MOST_NAMED = 3  # numbers of epochs that are listed; of more the first and the last
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
    return check.finding(True, plainly(ADVICE), *evidence, samples=len(ended), times=times)


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
    if len(numbers) > MOST_NAMED:
        return f"{len(numbers)} epochs ({numbers[0]} to {numbers[-1]})"
    return f"epochs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _short(own: Sequence[EpochCount], share: float) -> Iterator[tuple[EpochCount, float, str]]:
    """Epochs that delivered something and yet too little: each with how much is usual, and by what."""
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


RULES = (
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
