"""What the templates show of what was found: verdict, rules, diagnoses, profiles, cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..analysis.results import Finding
from ..analysis.rules import RULES
from .formats import is_known, plural
from .segments_section import legend, stack
from .subject import Subject

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


def rules(subject: Subject) -> dict[str, Any] | None:
    """What every rule says: those that fired with evidence and advice, the quiet, those that could not look."""
    found = subject.analysis.findings
    if not found:
        return None
    fired, quiet, abstained = by_state(found)
    note = (
        f"Of {plural(len(fired) + len(quiet) + len(abstained), 'rule')} {len(fired)} fired; "
        f"{len(quiet)} found nothing; {len(abstained)} lacked a signal."
    )
    return {
        "note": note,
        "fired": sorted(fired.values(), key=lambda findings: SEVERITIES.index(severity(findings))),
        "quiet": list(quiet.values()),
        "abstained": len(abstained),
        "lacking": [pair for findings in abstained.values() for pair in _lacking(findings)],
        "partly": {
            rule: lacking
            for rule in (*fired, *quiet)
            if (lacking := _lacking(each for each in found if each.rule == rule and each.state == "abstained"))
        },
        "explained": RULES,
        "most_evidence": MOST_EVIDENCE,
        "most_keys": MOST_KEYS,
        "severity": severity,
        "advised": _advised,
        "seen": _seen,
    }


def by_state(found: Sequence[Finding]) -> tuple[dict[str, list[Finding]], ...]:
    """The findings of the rules that fired, that looked and did not fire, and that could not look, by rule.

    A rule is in one of them: in the first that any of its segments puts it in, with the findings of that state.
    """
    kinds: list[dict[str, list[Finding]]] = []
    for state in ("fired", "quiet", "abstained"):
        grouped = _grouped((each for each in found if each.state == state), lambda each: each.rule)
        kinds.append({rule: own for rule, own in grouped.items() if not any(rule in kind for kind in kinds)})
    return tuple(kinds)


def _lacking(findings: Iterable[Finding]) -> list[tuple[list[Finding], str]]:
    """What is missing, each once, with the findings that say so."""
    grouped = _grouped(findings, lambda each: "; ".join(each.missing) or "-")
    return [(own, missing) for missing, own in grouped.items()]


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
