"""The rules: those that fired with their evidence and advice, the quiet and the abstained folded beneath them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..diagnose.rules import RULES
from .markup import Html, counted, el, folded, join, listed, section, table
from .words import clock, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..diagnose.model import Evidence, Finding
    from .subject import Subject

SEVERITIES = {"critical": 0, "warning": 1, "note": 2}
EVIDENCE = 4
"""Pieces of evidence of one finding that are listed; how many more there are is said."""
KEYS = 4
"""Stretches that are named one by one where a rule says the same of several."""


def rules(subject: Subject) -> Html | None:
    """What every rule says of the session and of its stretches."""
    found = subject.analysis.findings
    if not found:
        return None
    fired, quiet, abstained = (
        _by_rule(one for one in found if one.state == state) for state in ("fired", "quiet", "abstained")
    )
    worst = sorted(fired.values(), key=lambda of: min(SEVERITIES.get(one.severity, len(SEVERITIES)) for one in of))
    names = {one.rule for one in found}
    note = (
        f"Of {counted(len(names), 'rule')} {len(fired)} fired; {len(quiet.keys() - fired.keys())} looked and did not; "
        f"{len(names - fired.keys() - quiet.keys())} lacked a signal."
    )
    return section(
        "rules",
        "Rules",
        note,
        join(*(_fired(subject, of) for of in worst)) if worst else el("p", "No rule fired."),
        _quiet(subject, quiet),
        _abstained(subject, abstained),
    )


def _by_rule(found: Iterable[Finding]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for one in found:
        grouped.setdefault(one.rule, []).append(one)
    return grouped


def _fired(subject: Subject, of: list[Finding]) -> Html:
    """One rule: what it saw in each stretch, then what to do."""
    severity = min((one.severity for one in of), key=lambda one: SEVERITIES.get(one, len(SEVERITIES)))
    known = RULES.get(of[0].rule)
    return el(
        "article",
        el("h3", el("span", severity, class_=f"severity {severity}"), f" {of[0].title}"),
        *(_seen(subject, one) for one in of),
        *(el("p", el("b", "What to do: "), words) for words in _advice(of)),
        el("p", known.explanation, class_="of") if known is not None else None,
        el("p", f"Thresholds: {_parameters(of[0])}.", class_="of") if of[0].parameters else None,
        class_="rule",
    )


def _advice(of: list[Finding]) -> list[str]:
    """What to do, each once; where stretches differ in it, with their names."""
    by_text: dict[str, list[str]] = {}
    for one in of:
        if one.advice:
            by_text.setdefault(one.advice, []).append(one.stretch or "the session")
    return [text if len(by_text) == 1 else f"{', '.join(keys)}: {text}" for text, keys in by_text.items()]


def _seen(subject: Subject, one: Finding) -> Html:
    counts = [counted(one.times, "time")] if one.times else []
    counts += [f"of {one.samples:,} values"] if one.samples else []
    shown = [_evidence(subject, piece) for piece in one.evidence[:EVIDENCE]]
    if len(one.evidence) > EVIDENCE:
        shown.append(f"and {len(one.evidence) - EVIDENCE:,} more like these")
    words = el("p", ", ".join([subject.called(one.stretch), *counts]), class_="of")
    return join(words, listed(shown) if shown else None)


def _evidence(subject: Subject, piece: Evidence) -> str:
    """The evidence's own words and figures, then its share of the samples and its time."""
    words = []
    if math.isfinite(piece.share):
        words.append(f"{100 * piece.share:.0f} % of the samples")
    origin = subject.snapshot.schema.origin
    if math.isfinite(piece.start):
        moment = clock(origin + piece.start, subject.where)
        if math.isfinite(piece.end) and piece.end > piece.start:
            moment += f" to {clock(origin + piece.end, subject.where)}"
        words.append(moment)
    return f"{piece.text} ({', '.join(words)})" if words else piece.text


def _parameters(one: Finding) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in one.parameters.items())


def _of(subject: Subject, found: list[Finding]) -> str:
    """The stretches that findings are of: the first ones by name, of the others how many."""
    keys = [one.stretch or subject.called(None) for one in found]
    more = f" and {len(keys) - KEYS} more" if len(keys) > KEYS else ""
    return ", ".join(keys[:KEYS]) + more


def _quiet(subject: Subject, found: dict[str, list[Finding]]) -> Html | None:
    if not found:
        return None
    rows = [
        [
            of[0].title,
            _of(subject, of),
            f"{sum(one.samples for one in of):,}",
            _parameters(of[0]) or "-",
            "; ".join(dict.fromkeys(piece.text for one in of[:KEYS] for piece in one.evidence[:1])) or "-",
        ]
        for of in found.values()
    ]
    head = ["rule", "of", "values", "thresholds", "what it saw"]
    shown = table(head, rows, numbers=range(2, 3), label="Rules that did not fire")
    return folded(f"Looked, and did not fire ({len(found)})", shown)


def _abstained(subject: Subject, found: dict[str, list[Finding]]) -> Html | None:
    """What each rule lacked; the same words of several stretches once."""
    rows = []
    for of in found.values():
        lacking: dict[str, list[Finding]] = {}
        for one in of:
            lacking.setdefault("; ".join(one.missing) or "-", []).append(one)
        rows += [[of[0].title, _of(subject, those), words] for words, those in lacking.items()]
    if not rows:
        return None
    head = ["rule", "of", "what is missing"]
    shown = table(head, rows, numbers=range(0), label="Rules that lacked a signal")
    return folded(f"Could not look ({len(found)})", shown)
