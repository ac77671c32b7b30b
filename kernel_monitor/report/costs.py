"""What the stretches cost at a price per hour, and what it would take to feed the loop without a wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .markup import Html, el, join, section, table
from .words import number

if TYPE_CHECKING:
    from ..diagnose.model import Cost
    from .subject import Subject

BEFORE = "$£¥"
"""Currencies of one sign that stand before the figure where it is written in English."""


def costs(subject: Subject) -> Html | None:
    """Cost per step, epoch and thousand images; how many cores the loop needs. None without either."""
    feeding = _feeding(subject)
    found = subject.analysis.costs
    if not found and feeding is None:
        return None
    if not found:
        words = 'No price is set: monitor.configure(price="2.50 €") or %monitor price 2.50€ tells what a step costs.'
        return section("cost", "Cost", None, el("p", words, class_="note"), feeding)
    base = next((one for one in found if math.isfinite(one.per_thousand)), None)
    rows = [
        [
            subject.called(one.stretch),
            money(one.per_hour, one),
            money(one.per_step, one),
            money(one.per_epoch, one),
            money(one.per_thousand, one),
            _against(one, base),
            _counts(subject, one.stretch),
        ]
        for one in found
    ]
    against = f"against {base.stretch}" if base is not None else "against"
    head = ["stretch", "an hour", "a step", "an epoch", "1,000 images", against, "reckoned from"]
    note = (
        "Price per hour / 3600 × seconds of a step; an epoch only where one delivered what its plan has. "
        "The machine is paid for whether it waits or not."
    )
    if all(one.per_hour == 0 for one in found):
        note += " At a price of zero everything is free, and nothing can be compared."
    return section("cost", "Cost", note, table(head, rows, numbers=range(1, 6), label="Cost"), feeding)


def _against(one: Cost, base: Cost | None) -> str:
    """`46 % less` for a thousand images than in the first stretch that has a price of them."""
    if base is None or one is base or not base.per_thousand > 0 or not math.isfinite(one.per_thousand):
        return "-"
    change = round(100 * (one.per_thousand / base.per_thousand - 1))
    return "the same" if change == 0 else f"{abs(change)} % {'more' if change > 0 else 'less'}"


def money(value: float, cost: Cost) -> str:
    """`$0.00201`, `2.50 €`: three significant digits, in whole units of the currency; `-` where it cannot be said."""
    if not math.isfinite(value):
        return "-"
    digits = 2 if value == 0 or abs(value) >= 1 else min(2 - math.floor(math.log10(abs(value))), 9)
    figure = f"{value:,.{digits}f}"
    sign = cost.currency.strip()
    return f"{sign}{figure}" if sign and sign in BEFORE else f"{figure} {sign}".strip()


def _counts(subject: Subject, key: str) -> str:
    one = subject.stretches.get(key)
    return f"{one.steps:,} steps, {one.samples:,} images" if one else "-"


def _feeding(subject: Subject) -> Html | None:
    found = subject.analysis.feeding
    if found is None:
        return None
    entries = [
        ("CPU of one core per image", f"{number(1e3 * found.cpu_per_image)} ms", found.cpu_per_image),
        ("Cores to feed this loop", number(found.cores_needed), found.cores_needed),
        ("Cores that it may use", number(found.cores), found.cores),
    ]
    lines = [
        el("div", el("dt", term), el("dd", words if math.isfinite(value) else "not measured"))
        for term, words, value in entries
    ]
    return join(
        el("h3", f"What it takes to feed the loop, from {subject.called(found.stretch)}"),
        el("dl", *lines),
        el("p", el("b", "Next: "), found.advice) if found.advice else None,
    )
