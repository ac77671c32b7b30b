"""The first screen: what the loop is bound by, what the last change brought, and images per second before and after."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..diagnose import strip
from .markup import Html, el, join, listed, section, table
from .pictures import PARTS, bar, key
from .subject import statistic
from .words import duration, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..diagnose.model import Gain, Stretch, Verdict
    from .subject import Subject

KINDS = {
    "input-bound": "Input-bound: the loop waits for its data",
    "copy-bound": "Copy-bound: the loop waits for copies to the device",
    "compute-bound": "Compute-bound: the loop is busy computing",
    "residual-heavy": "Residual-heavy: most of a step is none of the phases",
    "undetermined": "Undetermined",
}
ACTIONS = {"loader": "no wait for data left"}
"""What a gain's action is called; an engine is called by its name."""


def verdict(subject: Subject) -> Html:
    """What the loop is bound by, why, what to do next and what it would bring."""
    found = subject.analysis.verdict
    of = f"{subject.called(found.stretch)}, {found.steps:,} steps" if found.stretch else "no stretch to judge"
    return section(
        "verdict",
        "Verdict",
        None,
        el("p", el("b", KINDS[found.kind]), el("span", of, class_="of"), class_=f"kind {found.kind}"),
        el("p", found.sentence, class_="sentence"),
        el("p", el("b", "Next: "), found.advice, class_="advice") if found.advice else None,
        _bars(subject),
        _gains(found),
        el("p", f"To say more: {'; '.join(found.missing)}.", class_="note") if found.missing else None,
    )


def _bars(subject: Subject) -> Html | None:
    """Where a step's time goes, of both sides of the change or of the one stretch."""
    lines, sides = [], []
    for one in subject.pair:
        judged = subject.verdicts.get(one.key)
        if judged is None or not judged.shares:
            continue
        sides.append(judged.shares)
        said = ", ".join(f"{PARTS.get(part, part)} {100 * share:.0f} %" for part, share in judged.shares.items())
        mean = f"{number(one.step)} ms a step, mean of {one.steps:,}" if math.isfinite(one.step) else ""
        lines.append(
            el(
                "div",
                el("p", el("b", subject.called(one.key)), f" {judged.kind}", el("span", mean), class_="line"),
                bar(judged.shares, f"Share of a step's time: {said}"),
            )
        )
    return el("div", *lines, key(sides), class_="bars") if lines else None


def _gains(found: Verdict) -> Html | None:
    if not found.gains:
        return None
    lines = [f"{_action(gain)}: {share(gain)}{_basis(gain)}" for gain in found.gains]
    return join(el("h3", "What to expect"), listed(lines, class_="gains"))


def _basis(gain: Gain) -> str:
    return f" ({gain.basis.rstrip('.')})" if gain.basis else ""


def _action(gain: Gain) -> str:
    return ACTIONS.get(gain.action, gain.action)


def share(gain: Gain) -> str:
    """`31 to 46 % of the step time saved`; what cannot be told is said to be that."""
    if not (math.isfinite(gain.low) and math.isfinite(gain.high)):
        return "cannot be told"
    low, high = round(100 * gain.low), round(100 * gain.high)
    span = f"{low} %" if low == high else f"{low} to {high} %"
    return f"{span} of the step time saved".replace("-", "−")


def strip_section(subject: Subject) -> Html | None:
    """What the newest change brought, in figures: those of the last switch, or of the stretches of another change."""
    snapshot = subject.snapshot
    found = strip(snapshot, snapshot.events, snapshot.loaders)
    if found is not None:
        rows = [row for row in found["rows"] if row["label"] not in ("samples", "counted over")]
        title = join("What the switch changed: ", el("b", f"{found['source']} → {found['target']}"))
        return _changed(title, rows, found["text"], _predicted(subject))
    if len(subject.pair) < 2:
        return _rate(subject)
    before, after = subject.pair
    title = join("What changed: ", el("b", f"{subject.called(before.key)} → {subject.called(after.key)}"))
    counts = " → ".join(f"{one.samples:,} in {duration(one.seconds)}" for one in (before, after))
    return _changed(title, list(_rows(before, after)), f"Images: {counts}.", _predicted(subject))


def _changed(title: Html, rows: list[dict[str, Any]], text: str, *more: Html | None) -> Html:
    cards = [_card(row) for row in sorted(rows, key=lambda row: row["unit"] != "images/s")]
    return el(
        "section",
        el("h2", title, id="change-title"),
        el("div", *cards, class_="cards") if cards else None,
        el("p", text, class_="strip"),
        *more,
        id="change",
        class_="switch",
        aria_labelledby="change-title",
    )


def _rate(subject: Subject) -> Html | None:
    """Images per second of a session in which nothing was changed."""
    for one in subject.pair:
        if math.isfinite(one.rate):
            words = (
                f"{number(one.rate)} images/s: {one.samples:,} in {duration(one.seconds)}, {subject.called(one.key)}"
            )
            return el("p", el("b", words), ". Nothing was changed in this session.", class_="rate")
    return None


def _predicted(subject: Subject) -> Html | None:
    """The gain that was said before the change, beside the one that was measured."""
    change = subject.change
    if change is None or change.predicted is None:
        return None
    gain = change.predicted
    measured = gain.measured if math.isfinite(gain.measured) else change.saved
    told = number(100 * measured, "%").replace("-", "−") + " %" if math.isfinite(measured) else "not yet known"
    inside = ""
    if math.isfinite(measured) and math.isfinite(gain.low) and math.isfinite(gain.high):
        inside = ", within it" if gain.low <= measured <= gain.high else ", outside of it"
    words = f"Predicted before the change ({_action(gain)}): {share(gain)}{_basis(gain)}. Measured: {told}{inside}."
    return el("p", words, class_="predicted")


def _rows(before: Stretch, after: Stretch) -> Iterable[dict[str, Any]]:
    """The strip's rows from two stretches."""
    yield {"label": "images/s", "unit": "images/s", "before": before.rate, "after": after.rate}
    for label, metric in (("CPU p95", "cpu"), ("GPU p50", "gpu")):
        sides = [statistic(one, metric) for one in (before, after)]
        if sides[0] is not None and sides[1] is not None:
            low, high = ((one.values.p95 if metric == "cpu" else one.values.p50) for one in (sides[0], sides[1]))
            yield {"label": label, "unit": "%", "before": low, "after": high}
    yield {"label": "data wait per step", "unit": "ms", "before": before.wait, "after": after.wait}


def _card(row: Mapping[str, Any]) -> Html:
    before, after, unit = float(row["before"]), float(row["after"]), str(row["unit"])
    label = str(row["label"])
    if not (math.isfinite(before) and math.isfinite(after)):
        change = "one side is not known"
    elif unit == "images/s" and before > 0:
        change = f"{after / before:.2f} times as many"
    elif unit == "%":
        change = f"{after - before:+.0f} points"
    else:
        change = f"{after - before:+.1f} {unit}"
    shown = "" if unit == "images/s" else f" {unit}"
    return el(
        "div",
        el("span", label, class_="label"),
        el(
            "span",
            el("span", _figure(before), class_="before"),
            el("span", " → ", class_="arrow"),
            el("b", _figure(after)),
            el("span", shown, class_="unit"),
            class_="figures",
        ),
        el("span", change.replace("-", "−"), class_="change"),
        class_="card",
    )


def _figure(value: float) -> str:
    if not math.isfinite(value):
        return "?"
    return f"{value:,.0f}" if abs(value) >= 10 or value == 0 else f"{value:.1f}"


def cannot(subject: Subject) -> Html | None:
    """What the session does not tell, a sentence each; damage of its file among it."""
    told = subject.snapshot.facts.get("recorded")
    damaged = [str(one) for one in told.get("damaged") or ()] if isinstance(told, dict) else []
    lines = [*subject.analysis.cannot, *(f"The recording is damaged and was read around it: {one}" for one in damaged)]
    if not lines:
        return None
    return section("cannot", "What this session cannot say", None, listed(dict.fromkeys(lines)))


def verdicts(subject: Subject) -> Html | None:
    """The verdict of every stretch, with what was missing."""
    judged = [(one, subject.verdicts[one.key]) for one in subject.analysis.stretches if one.key in subject.verdicts]
    if len(judged) < 2:
        return None
    rows = [
        [subject.called(one.key), found.kind, f"{found.steps:,}", found.sentence, "; ".join(found.missing) or "-"]
        for one, found in judged
    ]
    head = ["stretch", "verdict", "steps", "why", "what is missing"]
    shown = table(head, rows, numbers=range(2, 3), label="Verdicts")
    return section("verdicts", "The verdict of each stretch", None, shown)
