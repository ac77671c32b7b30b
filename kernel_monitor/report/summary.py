"""What a report says first: what held the training up, what was changed, and what that brought.

All figures are of one comparison (`results.Change`) of two segments. Where nothing was changed it says what to do
next, and where no loader was watched what the machine did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..analysis.changes import headline
from ..analysis.frames import Frames
from ..analysis.number_text import amount, factor, figure, percent
from ..analysis.results import Change, Segment, Verdict
from ..analysis.switch_comparison import change_rows
from ..analysis.switches import first
from .formats import duration, plural
from .subject import Subject
from .switch_picture import picture

HELD_UP, CHANGED, BROUGHT = "What held the training up", "What was changed", "What it brought"
SPEED, NEXT, MACHINE = "How fast it was", "What to do next", "What the machine did"
LARGER_PARTS = {"copy-bound": ("copy", "copying to the device"), "residual-heavy": ("other", "in no measured phase")}
"""By the kind of a verdict, the part of a step that it names, and how that is called."""
SAID = ("images/s", "waiting for data", "samples", "counted over")  # rows whose figures the answers have
MOST_LOADERS = 4  # that have a line beside the main one's answers; how many more there are is said


@dataclass(frozen=True)
class Answer:
    """One question of a reader with its answer: `text` large, `details` a small line each."""

    question: str
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """What there is to say of a loader beside the main one; `quiet` where little depends on it."""

    name: str
    text: str
    quiet: bool


def summary(subject: Subject) -> dict[str, Any]:
    change = subject.change
    if change is None:
        answers = list(_unchanged(subject))
        return {"answers": answers, "others": _others(subject), "rows": [], "gain": None, "picture": None}
    before, after = subject.pair
    at = first(change.switch) if change.switch is not None else after.start
    source, target = _engines(change, before, after)
    return {
        "answers": [
            _held_up(before, subject.verdicts.get(before.key)),
            _changed(subject, change, at),
            _brought(change, before, after),
        ],
        "others": _others(subject),
        "rows": [row for row in change_rows(before, after) if row["label"] not in SAID]
        if change.reason is None
        else [],
        "gain": change.predicted,
        "measured": change.saved,
        "picture": picture(subject.snapshot, at, after.loader),
        "at": at,
        "sides": (source, target) if source != target else ("before", "after"),
    }


def _engines(change: Change, before: Segment, after: Segment) -> tuple[str, str]:
    switch = change.switch or {}
    return str(switch.get("source", before.backend)), str(switch.get("target", after.backend))


def _held_up(segment: Segment, found: Verdict | None) -> Answer:
    kind = "undetermined" if found is None else found.kind
    part, called = LARGER_PARTS.get(kind, ("", ""))
    share = found.shares.get(part, math.nan) if found is not None else math.nan
    if math.isfinite(share) and share > 0:
        text, spent = f"{percent(share)} % of each step was {called}", share * segment.step
    elif math.isfinite(segment.wait_share):
        text, spent = f"{percent(segment.wait_share)} % of each step was waiting for data", segment.wait
        if kind == "compute-bound":
            text = f"Computing: only {text}"
    else:
        return Answer(HELD_UP, "Not known: no time of a step was measured")
    counted = f"{figure(spent)} of {figure(segment.step)} ms, {plural(segment.steps, 'step')}"
    return Answer(HELD_UP, text, (f"{counted}, {segment.name} on {segment.backend}",))


def _changed(subject: Subject, change: Change, at: float) -> Answer:
    before, after = subject.pair
    source, target = _engines(change, before, after)
    knobs = [
        f"{name} {before.knobs.get(name, '-')} → {value}"
        for name, value in after.knobs.items()
        if value != before.knobs.get(name)
    ]
    if source != target:
        what = f"{source} → {target}"
    elif after.label:
        what = f"“{after.label}”"
    else:
        what = ", ".join(knobs) or "nothing but a new start"
    place = ""
    event = change.switch or {}
    if event.get("batch") is not None:
        place = f"at batch {event['batch']:,}"
        place += f" of epoch {event['epoch'] + 1:,}, " if event.get("epoch") is not None else ", "
    return Answer(CHANGED, f"{after.name}: {what}", (f"{place}{subject.clock(at)}",))


def gain_text(change: Change, before: Segment, after: Segment) -> str:
    """`1.48 × faster: 298 → 440 images/s`."""
    words = factor(change.faster)
    return f"{words[:1].upper()}{words[1:]}: {figure(before.rate)} → {figure(after.rate)} images/s"


def _brought(change: Change, before: Segment, after: Segment) -> Answer:
    careful = tuple(f"Careful: {caveat}" for caveat in change.caveats)
    if change.reason is not None or not math.isfinite(change.faster):
        reason = change.reason or "the rate of one side is not known"
        return Answer(BROUGHT, f"Not known: {reason}", careful)
    details = []
    if math.isfinite(before.wait_share) and math.isfinite(after.wait_share):
        shares = f"{percent(before.wait_share)} → {percent(after.wait_share)} %"
        details.append(f"step {figure(before.step)} → {figure(after.step)} ms, {shares} of it waiting for data")
    sides = amount(before.samples, before.seconds), amount(after.samples, after.seconds, "")
    details.append(f"{sides[0]}, then {sides[1]}")
    return Answer(BROUGHT, gain_text(change, before, after), (*details, *careful))


def _unchanged(subject: Subject) -> Iterator[Answer]:
    """Of a session in which nothing was changed."""
    segment = subject.pair[0] if subject.pair else None
    if segment is None:
        yield Answer(MACHINE, _machine(subject))
        return
    yield _held_up(segment, subject.verdicts.get(segment.key))
    if segment.rate > 0:
        counts = amount(segment.samples, segment.seconds)
        details = (f"{counts}, {segment.name} on {segment.backend}", "Nothing was changed in this session.")
        yield Answer(SPEED, f"{figure(segment.rate)} images/s", details)
    advised = subject.analysis.verdict.advised
    if advised:
        yield Answer(NEXT, advised[0].text)


def _machine(subject: Subject) -> str:
    """One sentence on a session without a step."""
    snapshot = subject.snapshot
    why = "no batch was delivered" if snapshot.schema.loaders or snapshot.loaders else "no loader was watched"
    if not len(snapshot.time):
        return f"Not known: no sample was taken, and {why}."
    frames = Frames(snapshot)
    busy = [
        f"{name} {figure(float(known.mean()))} % busy on average"
        for name, values in (("The CPU cores were", frames.cpu), ("the GPUs", frames.mean("gpu", "utilisation")))
        if len(known := values[np.isfinite(values)])
    ]
    seconds = float(snapshot.time[-1] - snapshot.time[0]) + snapshot.schema.interval
    return f"{', '.join(busy) or 'The machine was watched'} over {duration(seconds)}; {why}."


def _others(subject: Subject) -> list[Line]:
    """A line for each other loader, by its name: a loader that its cell made again has the same one."""
    segments = subject.analysis.segments
    shown = subject.pair[0].name if subject.pair else None
    found = []
    for name in dict.fromkeys(segment.name for segment in segments if segment.name != shown):
        own = [segment for segment in segments if segment.name == name]
        quiet = all(segment.loader in subject.aside or segment.evaluates for segment in own)
        text, measured = _other(subject, own)
        found.append(Line(name, text, quiet or not measured))
    found.sort(key=lambda line: line.quiet)
    lines = found[:MOST_LOADERS]
    if len(found) > MOST_LOADERS:
        lines.append(Line(f"{len(found) - MOST_LOADERS} more", "see Segments", True))
    return lines


def _other(subject: Subject, own: list[Segment]) -> tuple[str, bool]:
    """What a loader's own changes brought, or how it ran; and whether enough was measured for that."""
    keys = {segment.key for segment in own}
    changes = [made for made in subject.analysis.changes if {made.before, made.after} <= keys]
    said = headline(own, changes)
    if said is not None:
        before, after = subject.segments[said.before], subject.segments[said.after]
        return f"{' → '.join(_engines(said, before, after))}. {gain_text(said, before, after)}", True
    switched = [made for made in changes if made.switch is not None]
    if switched:
        before, after = subject.segments[switched[-1].before], subject.segments[switched[-1].after]
        return f"{' → '.join(_engines(switched[-1], before, after))}; {switched[-1].reason}", False
    most = max(own, key=lambda segment: segment.seconds)
    if not most.rate > 0:
        return f"{most.backend}; too little was measured", False
    waiting = f", {percent(most.wait_share)} % of each step waiting for data" if math.isfinite(most.wait_share) else ""
    return f"{most.backend}, not switched: {figure(most.rate)} images/s{waiting}", True
