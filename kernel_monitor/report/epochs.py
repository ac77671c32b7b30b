"""The epochs with what they really delivered: none is shown without its counts, and a short one is flagged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .markup import Html, counted, el, section, table
from .words import duration, number

if TYPE_CHECKING:
    from ..diagnose.model import EpochCount
    from .subject import Subject

MOST = 200
"""Epochs that are listed, the newest; those with a problem always are."""


def epochs(subject: Subject) -> Html | None:
    """Every epoch with its batches, samples, plan and time."""
    found = subject.analysis.epochs
    if not found:
        return None
    wrong = [one for one in found if one.problem]
    shown = [one for k, one in enumerate(found) if one.problem or k >= len(found) - MOST]
    rows = [_row(one) for one in shown]
    head = ["loader", "epoch", "batches", "samples", "of the plan", "time", "samples/s", "state"]
    note = (
        counted(len(found), "epoch") + ("" if len(shown) == len(found) else f", the newest {MOST} of them here") + "."
    )
    warned = None
    if wrong:
        which = ", ".join(f"{one.name} {one.epoch + 1}" for one in wrong[:8]) + (" …" if len(wrong) > 8 else "")
        words = f"{counted(len(wrong), 'epoch')} may not be compared by time ({which}): the last column says why."
        warned = el("p", el("b", "Careful: "), words, class_="warned")
    return section("epochs", "Epochs", note, warned, table(head, rows, numbers=range(1, 7), label="Epochs"))


def _row(one: EpochCount) -> list[str]:
    timed = math.isfinite(one.seconds)
    # A rate over a time in which too little was delivered would be read as a speed.
    rate = number(one.samples / one.seconds) if timed and one.seconds > 0 and not one.problem else "-"
    state = one.problem or ("whole" if one.finished else "not finished")
    flag = el("b", f"⚠ {state}") if one.problem else state
    return [
        one.name,
        f"{one.epoch + 1}",  # counted from 1, as on the dashboard
        f"{one.batches:,}",
        f"{one.samples:,}",
        f"{one.planned:,}" if one.planned is not None else "not known",
        duration(one.seconds) if timed else "-",
        rate,
        flag,
    ]
