"""Rules: each checks segments or the session for one fault, and reports evidence and advice, or the missing signal.

`rule.py` has what they share, the other modules one family of rules each; `docs/rules.md` is written from them.

Internal: no part of the public interface.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ...errors import MonitorError
from ...store import Snapshot
from ..advice import Decision
from ..frames import Frames
from ..results import Finding, Segment
from . import gpu, host, loop, samples, session
from .rule import NO_DELIVERY, Check, Parameter, Rule, Session, SignalMissing

__all__ = ["RULES", "Parameter", "Rule", "evaluate", "warnings", "with_verdict"]

RULES: dict[str, Rule] = {rule.id: rule for family in (gpu, host, loop, samples, session) for rule in family.RULES}
"""Every rule by its id."""


def evaluate(
    snapshot: Snapshot,
    segments: Sequence[Segment],
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    others: Sequence[Snapshot] = (),
    frames: Frames | None = None,
    decisions: Mapping[str, Decision] | None = None,
    only: Collection[str] = RULES,
) -> tuple[Finding, ...]:
    """Check every rule (or `only` some, by their ids), in the order of `RULES`; those of segments for each segment.

    `thresholds` replaces parameters, by the rule's id and the parameter's name. `others` are the sessions of the other
    ranks. The rules' advice is made from `decisions`, by the segments' keys.

    Raises:
        MonitorError: there is no such rule or parameter.
    """
    given = {rule: dict(values) for rule, values in (thresholds or {}).items()}
    for name, values in given.items():
        if name not in RULES:
            raise MonitorError(f"There is no rule {name!r}. The rules are: {', '.join(RULES)}.")
        for wrong in (one for one in values if one not in RULES[name].parameters):
            known = ", ".join(RULES[name].parameters) or "none"
            raise MonitorError(f"The rule {name} has no threshold {wrong!r}. It has: {known}.")
    session = Session(snapshot, Frames(snapshot) if frames is None else frames, segments, others, decisions or {})
    return tuple(
        finding
        for rule in RULES.values()
        if rule.id in only
        for finding in _findings(rule, {**rule.defaults, **given.get(rule.id, {})}, session)
    )


def with_verdict(findings: Sequence[Finding], segment: str | None) -> tuple[Finding, ...]:
    """Return the fired findings of rules with `with_verdict`, on a segment (its key) or on the session."""
    ids = {rule.id for rule in RULES.values() if rule.with_verdict}
    fired = [finding for finding in findings if finding.state == "fired" and finding.rule in ids]
    return tuple(finding for finding in fired if finding.segment in (None, segment))


def warnings(findings: Sequence[Finding], segment: str | None) -> tuple[str, ...]:
    """Return `with_verdict` as sentences: the evidence and the advice."""
    return tuple(_sentence(finding) for finding in with_verdict(findings, segment))


def _sentence(finding: Finding) -> str:
    seen = [f"{evidence.text.removesuffix('.')}." for evidence in finding.evidence]
    return " ".join([*seen, *([finding.advice] if finding.advice else [])])


def _findings(rule: Rule, thresholds: Mapping[str, float], session: Session) -> Iterator[Finding]:
    tested = [segment for segment in session.segments if not segment.tried]
    judged = [segment for segment in tested if rule.replayed or not segment.synthetic]
    for segment in judged if rule.of_segment is not None else [None]:
        check = Check(rule, thresholds, segment)
        try:
            if rule.of_segment is not None and segment is not None:
                yield rule.of_segment(session, check, segment)
            elif rule.of_session is not None:
                yield rule.of_session(session, check)
        except SignalMissing as missing:
            yield check.abstained(missing)
    if rule.of_segment is not None and not judged:
        replayed = "deliveries: all batches of this session were replayed"
        yield Check(rule, thresholds).abstained(SignalMissing(replayed if session.segments else NO_DELIVERY))
