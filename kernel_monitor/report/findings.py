"""What the templates show of what was found: verdict, last change, rules, diagnoses, profiles, cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..analysis import strip
from ..analysis.results import Finding, Segment
from ..analysis.rules import RULES
from ..protocol.states import StripRow
from .formats import duration, is_known, plural
from .segments_section import legend, stack
from .subject import Subject, statistic

SEVERITIES = ("critical", "warning", "note")
MOST_EVIDENCE = 4  # pieces of evidence of one finding that are listed; how many more there are is said
MOST_KEYS = 4  # segments that are named one by one where a rule says the same of several
OPERATORS = (
    ("cpu", "CPU operators", "self_ms", "count", "calls"),
    ("gpu", "GPU kernels", "ms", "launches", "launches"),
)
"""Of a profile: the key, the heading, the field of its time, that of its count, and what a person calls the count."""


def verdict(subject: Subject) -> dict[str, Any]:
    """Where a step's time goes, of both sides of the change or of the one segment."""
    judged = [(segment, found) for segment in subject.pair if (found := subject.verdicts.get(segment.key))]
    bars = [(segment, found, stack(found.shares)) for segment, found in judged if found.shares]
    return {"bars": bars, "legend": legend([found.shares for _, found, _ in bars])}


def verdicts(subject: Subject) -> dict[str, Any] | None:
    segments = [segment.key for segment in subject.analysis.segments]
    judged = [(key, subject.verdicts[key]) for key in segments if key in subject.verdicts]
    return {"judged": judged} if len(judged) > 1 else None


def cannot(subject: Subject) -> dict[str, Any] | None:
    """What the session does not tell, a sentence each; damage of its file among it."""
    damaged = subject.recorded.get("damaged") or ()
    lines = [
        *subject.analysis.cannot,
        *(f"The recording is damaged and was read around it: {piece}" for piece in damaged),
    ]
    return {"lines": dict.fromkeys(lines)} if lines else None


def change(subject: Subject) -> dict[str, Any]:
    """What the newest change brought, in figures: those of the last switch, or of the segments of another change."""
    snapshot = subject.snapshot
    found = strip(snapshot, snapshot.events, snapshot.loaders)
    if found is not None:
        title, sides, text = "What the switch changed:", f"{found['source']} → {found['target']}", found["text"]
        rows = [row for row in found["rows"] if row["label"] not in ("samples", "counted over")]
    elif len(subject.pair) == 2:
        before, after = subject.pair
        title, sides = "What changed:", f"{subject.called(before.key)} → {subject.called(after.key)}"
        counts = " → ".join(f"{side.samples:,} in {duration(side.seconds)}" for side in subject.pair)
        text, rows = f"Images: {counts}.", list(_rows(before, after))
    else:
        # Nothing was changed: the rate alone.
        return {"rated": next((segment for segment in subject.pair if is_known(segment.rate)), None)}
    shown = [{**dict(row), "last": row["unit"] != "images/s"} for row in rows]
    return {"title": title, "sides": sides, "rows": shown, "text": text}


def _rows(before: Segment, after: Segment) -> Iterator[StripRow]:
    """The strip's rows from two segments."""
    yield {"label": "images/s", "unit": "images/s", "before": before.rate, "after": after.rate}
    for label, metric, quantile in (("CPU p95", "cpu", "p95"), ("GPU p50", "gpu", "p50")):
        sides = [found for side in (before, after) if (found := statistic(side, metric)) is not None]
        if len(sides) == 2:
            low, high = (getattr(side.values, quantile) for side in sides)
            yield {"label": label, "unit": "%", "before": low, "after": high}
    yield {"label": "data wait per step", "unit": "ms", "before": before.wait, "after": after.wait}


def rules(subject: Subject) -> dict[str, Any] | None:
    """What every rule says: those that fired with evidence and advice, the quiet and those that lacked a signal."""
    found = subject.analysis.findings
    if not found:
        return None
    fired, quiet, abstained = (
        _grouped((finding for finding in found if finding.state == state), lambda finding: finding.rule)
        for state in ("fired", "quiet", "abstained")
    )
    names = {finding.rule for finding in found}
    note = (
        f"Of {plural(len(names), 'rule')} {len(fired)} fired; {len(quiet.keys() - fired.keys())} found nothing; "
        f"{len(names - fired.keys() - quiet.keys())} lacked a signal."
    )
    return {
        "note": note,
        "fired": sorted(fired.values(), key=lambda findings: SEVERITIES.index(severity(findings))),
        "quiet": list(quiet.values()),
        "abstained": len(abstained),
        # The same words of several segments once.
        "lacking": [
            (those, missing)
            for findings in abstained.values()
            for missing, those in _grouped(findings, lambda finding: "; ".join(finding.missing) or "-").items()
        ],
        "explained": RULES,
        "most_evidence": MOST_EVIDENCE,
        "most_keys": MOST_KEYS,
        "severity": severity,
        "advised": _advised,
        "seen": _seen,
    }


def _grouped(found: Iterable[Finding], key: Callable[[Finding], str]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for finding in found:
        grouped.setdefault(key(finding), []).append(finding)
    return grouped


def severity(findings: Sequence[Finding]) -> str:
    return min((finding.severity for finding in findings), key=SEVERITIES.index)


def _advised(findings: list[Finding]) -> list[str]:
    """What to do, each once; where segments differ in it, with their names."""
    by_text: dict[str, list[str]] = {}
    for finding in findings:
        if finding.advice:
            by_text.setdefault(finding.advice, []).append(finding.segment or "the session")
    return [text if len(by_text) == 1 else f"{', '.join(keys)}: {text}" for text, keys in by_text.items()]


def _seen(findings: list[Finding]) -> str:
    """The first evidence of each segment, each once."""
    texts = [evidence.text for finding in findings[:MOST_KEYS] for evidence in finding.evidence[:1]]
    return "; ".join(dict.fromkeys(texts))


def diagnoses(subject: Subject) -> dict[str, Any] | None:
    """Every diagnosis of the session, the newest first."""
    found = [event.get("result", event) for event in reversed(subject.analysis.diagnoses)]
    results = [result for result in found if isinstance(result, dict) and result.get("runs")]
    return {"results": results} if results else None


def operators(subject: Subject) -> dict[str, Any] | None:
    """The newest profile beside the one before it of the same loader on another engine; older ones folded."""
    results = [event.get("result", event) for event in subject.analysis.profiles]
    found = [result for result in results if isinstance(result, dict) and ("cpu" in result or "gpu" in result)]
    if not found:
        return None
    newest = found[-1]
    same = [profile for profile in found[:-1] if profile.get("loader") == newest.get("loader")]
    other = next((profile for profile in reversed(same) if profile.get("backend") != newest.get("backend")), None)
    before = other or (same[-1] if same else None)
    shown = [profile for profile in (before, newest) if profile is not None]
    older = [profile for profile in found if profile not in shown]
    return {"shown": shown, "older": older, "parts": OPERATORS, "by_share": _by_share}


def _by_share(shown: Sequence[Mapping[str, Any]], part: str) -> list[tuple[str, list[Mapping[str, Any] | None]]]:
    """Each operator's rows in the profiles (None where one lacks it), those of the largest share first."""
    sides = [{str(row["name"]): row for row in profile.get(part) or ()} for profile in shown]
    names = {name: max(float(side[name]["share"]) for side in sides if name in side) for side in sides for name in side}
    return [(name, [side.get(name) for side in sides]) for name in sorted(names, key=lambda name: -names[name])]


def cost(subject: Subject) -> dict[str, Any] | None:
    """What the segments cost at a price per hour, and what it would take to feed the loop without a wait."""
    costs, feeding = subject.analysis.costs, subject.analysis.feeding
    if not costs and feeding is None:
        return None
    base = next((cost for cost in costs if is_known(cost.per_thousand)), None)
    free = bool(costs) and all(cost.per_hour == 0 for cost in costs)
    return {"costs": costs, "feeding": feeding, "base": base, "free": free}
