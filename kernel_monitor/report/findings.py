"""The data of a report's sections on results: verdict, rules, diagnoses, profiles, cost, loaders, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..analysis.job_figures import RankFigures, job_figures
from ..analysis.results import Finding
from ..analysis.rules import RULES
from ..rank import JOB_PARTS, Rank
from ..store.schema import Schema
from .formats import amount, is_known, plural
from .sections import Subject, legend, stack

_SEVERITIES = ("critical", "warning", "note")
_MOST_EVIDENCE = 4  # pieces of evidence of one finding that are listed; how many more there are is said
_MOST_KEYS = 4  # segments that are named one by one where a rule says the same of several
_OPERATORS = (
    ("cpu", "CPU operators", "self_ms", "count", "calls"),
    ("gpu", "GPU kernels", "ms", "launches", "launches"),
)
"""The parts of a profile: key, heading, field of the time, field of the count, and the count's name for people."""


def verdict(subject: Subject) -> dict[str, Any]:
    """Return where a step's time goes, of both sides of the change or of the one segment."""
    judged = [(segment, found) for segment in subject.pair if (found := subject.verdicts.get(segment.key))]
    bars = [(segment, found, stack(found.shares)) for segment, found in judged if found.shares]
    return {"bars": bars, "legend": legend([found.shares for _, found, _ in bars])}


def verdicts(subject: Subject) -> dict[str, Any] | None:
    segments = [segment.key for segment in subject.analysis.segments]
    judged = [(key, subject.verdicts[key]) for key in segments if key in subject.verdicts]
    return {"judged": judged} if len(judged) > 1 else None


def cannot(subject: Subject) -> dict[str, Any] | None:
    """Return a sentence on each thing that the session does not tell; damage of its file is among them."""
    damaged = subject.recorded.get("damaged") or ()
    lines = [
        *subject.analysis.cannot,
        *(f"The recording is damaged and was read around it: {piece}" for piece in damaged),
    ]
    return {"lines": dict.fromkeys(lines)} if lines else None


def rules(subject: Subject) -> dict[str, Any] | None:
    """Return the findings of every rule: fired with evidence and advice, quiet, or abstained for lack of a signal."""
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
        "fired": sorted(fired.values(), key=lambda findings: _SEVERITIES.index(severity(findings))),
        "quiet": list(quiet.values()),
        "abstained": len(abstained),
        "lacking": [pair for findings in abstained.values() for pair in _lacking(findings)],
        "partly": {
            rule: lacking
            for rule in (*fired, *quiet)
            if (lacking := _lacking(each for each in found if each.rule == rule and each.state == "abstained"))
        },
        "explained": RULES,
        "most_evidence": _MOST_EVIDENCE,
        "most_keys": _MOST_KEYS,
        "severity": severity,
        "advised": _advised,
        "seen": _seen,
    }


def by_state(found: Sequence[Finding]) -> tuple[dict[str, list[Finding]], ...]:
    """Return the findings of the rules that fired, that found nothing, and that lacked a signal, by rule.

    A rule is in one of them: in the first that any of its segments puts it in, with the findings of that state.
    """
    kinds: list[dict[str, list[Finding]]] = []
    for state in ("fired", "quiet", "abstained"):
        grouped = _grouped((each for each in found if each.state == state), lambda each: each.rule)
        kinds.append({rule: own for rule, own in grouped.items() if not any(rule in kind for kind in kinds)})
    return tuple(kinds)


def _lacking(findings: Iterable[Finding]) -> list[tuple[list[Finding], str]]:
    """Return each missing signal once, with the findings that lack it."""
    grouped = _grouped(findings, lambda each: "; ".join(each.missing) or "-")
    return [(own, missing) for missing, own in grouped.items()]


def _grouped(found: Iterable[Finding], key: Callable[[Finding], str]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = {}
    for finding in found:
        grouped.setdefault(key(finding), []).append(finding)
    return grouped


def severity(findings: Sequence[Finding]) -> str:
    return min((finding.severity for finding in findings), key=_SEVERITIES.index)


def _advised(findings: list[Finding]) -> list[str]:
    """Return each advice once; where it differs between segments, with their names."""
    by_text: dict[str, list[str]] = {}
    for finding in findings:
        if finding.advice:
            by_text.setdefault(finding.advice, []).append(finding.segment or "the session")
    return [text if len(by_text) == 1 else f"{', '.join(keys)}: {text}" for text, keys in by_text.items()]


def _seen(findings: list[Finding]) -> str:
    """Return the first evidence of each segment, each once."""
    texts = [evidence.text for finding in findings[:_MOST_KEYS] for evidence in finding.evidence[:1]]
    return "; ".join(dict.fromkeys(texts))


def diagnoses(subject: Subject) -> dict[str, Any] | None:
    """Return every diagnosis of the session, the newest first."""
    found = [event.get("result", event) for event in reversed(subject.analysis.diagnoses)]
    results = [result for result in found if isinstance(result, dict) and result.get("runs")]
    return {"results": results} if results else None


def operators(subject: Subject) -> dict[str, Any] | None:
    """Return the newest profile beside the one before it of the same loader on another engine; older ones folded."""
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
    return {"shown": shown, "older": older, "parts": _OPERATORS, "by_share": _by_share}


def _by_share(shown: Sequence[Mapping[str, Any]], part: str) -> list[tuple[str, list[Mapping[str, Any] | None]]]:
    """Return each operator's rows in the profiles (None where one lacks it), those of the largest share first."""
    sides = [{str(row["name"]): row for row in profile.get(part) or ()} for profile in shown]
    names = {name: max(float(side[name]["share"]) for side in sides if name in side) for side in sides for name in side}
    return [(name, [side.get(name) for side in sides]) for name in sorted(names, key=lambda name: -names[name])]


def cost(subject: Subject) -> dict[str, Any] | None:
    """Return what the segments cost at a price per hour, and what it would take to feed the loop without a wait."""
    costs, feeding = subject.analysis.costs, subject.analysis.feeding
    if not costs and feeding is None:
        return None
    base = next((cost for cost in costs if is_known(cost.per_thousand)), None)
    free = bool(costs) and all(cost.per_hour == 0 for cost in costs)
    return {"costs": costs, "feeding": feeding, "base": base, "free": free}


# ---- The data of the sections on loaders: deliveries, switches, knobs and skipped samples.

_HAPPENED = (
    "switch", "knobs", "mark", "switch-failed", "switch-superseded", "switch-cancelled", "fault",
    "sampler-restarted",
    "job-switch", "job-epoch",
)  # fmt: skip
"""Kinds of events that are listed."""
MOST = 200  # rows of a table at most, the newest; of epochs those with a problem always are in it


def epochs(subject: Subject) -> dict[str, Any] | None:
    """Return the epochs with what they really delivered; one that delivered too little is flagged."""
    found = subject.analysis.epochs
    if not found:
        return None
    shown = [epoch for k, epoch in enumerate(found) if epoch.problem or k >= len(found) - MOST]
    return {"epochs": found, "shown": shown, "wrong": [epoch for epoch in found if epoch.problem], "most": MOST}


def loading(subject: Subject) -> dict[str, Any] | None:
    """Return engines, deliveries, switches and skipped samples; None without a loader."""
    snapshot = subject.snapshot
    loaders = snapshot.loaders
    delivered = [
        (state["name"], epoch)
        for state in loaders
        if state.get("samples") is not None
        for epoch in (*state.get("epochs", ()), state)
    ]
    skipped = [(state["name"], skip) for state in loaders for skip in state.get("skips", ())]
    happened = [event for event in snapshot.events if event["kind"] in _HAPPENED]
    if not loaders and not happened:
        return None
    names = {loader.id: loader.name for loader in snapshot.schema.loaders}
    names |= {str(state["id"]): str(state["name"]) for state in loaders}
    return {
        "loaders": loaders,
        "names": names,
        "delivered": delivered,
        "happened": happened,
        "skipped": skipped,
        "most": MOST,
    }


# ---- The data of the section on the ranks of trainings: one row each.


def ranks(subject: Subject) -> dict[str, Any] | None:
    """Return the ranks that sent their steps, job by job; None where there was none."""
    snapshot = subject.snapshot
    jobs = job_figures(snapshot)
    if not jobs:
        return None
    every = [each for job in jobs for each in job.ranks]
    phases = [part for part, unit in JOB_PARTS if unit == "ms" and any(part in each.means for each in every)]
    products = [name for each in every if (name := _product(snapshot.schema, each.rank))]
    several = len(jobs) > 1
    return {
        "jobs": [
            {
                "name": f"Job {job.job}" if several else "",
                "rate": amount(job.rate, "images/s") if job.rate == job.rate else "",
                "ranks": plural(len(job.ranks), "rank"),
                "slowest": job.slowest.sentence if job.slowest is not None else "",
            }
            for job in jobs
        ],
        "phases": [phase for phase in phases if phase != "wait"],
        "products": list(dict.fromkeys(products)),
        "gpus": any(each.rank.gpu is not None for each in every),
        "rows": [_row(each, phases, several=several, binned=subject.bin_s is not None) for each in every],
    }


def _row(each: RankFigures, phases: list[str], *, several: bool, binned: bool) -> dict[str, Any]:
    rank = each.rank

    def mean(part: str, unit: str = "") -> str:
        return amount(each.means[part], unit) if part in each.means else "-"

    steps = "-" if each.steps is None else f"{'at least ' if binned else ''}{each.steps:,}"
    slow = ", ".join(f"{count} × by its {cause}" for cause, count in each.slow.most_common())
    numbers = [mean("step"), mean("wait"), *(mean(part) for part in phases if part != "wait")]
    return {
        "name": f"{rank.job}.{rank.number}" if several else str(rank.number),
        "host": rank.host or "this host",
        "device": "-" if rank.gpu is None else f"{rank.gpu}",
        "numbers": [*numbers, mean("wait_percent", "%"), mean("images"), steps],
        "slow": slow or "-",
        "end": "ran" if rank.alive else rank.reason or "ended",
    }


def _product(schema: Schema, rank: Rank) -> str:
    """Return the product name of a rank's GPU; empty where it is not known."""
    if rank.gpu is None:
        return ""
    if rank.node:
        names = next((dict(enumerate(node.gpus)) for node in schema.nodes if node.id == rank.node), {})
    else:
        names = {gpu.index: gpu.name for gpu in schema.gpus}
    return names.get(rank.gpu, "")
