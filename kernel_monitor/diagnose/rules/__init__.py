"""Rules: each looks for one fault, says what it saw and what to do, or which signal it would need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import MonitorError
from ..frames import Frames
from . import bottlenecks, gpu, loading, memory, ranks, steps, usage
from .base import NO_DELIVERY, Asked, Parameter, Rule, Session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ...store import Snapshot
    from ..decision import Decision
    from ..model import Finding, Stretch

__all__ = ["RULES", "Parameter", "Rule", "evaluate"]

RULES: dict[str, Rule] = {
    rule.id: rule for family in (bottlenecks, gpu, loading, steps, memory, ranks, usage) for rule in family.RULES
}
"""Every rule by its id."""


def evaluate(
    snapshot: Snapshot,
    stretches: Sequence[Stretch],
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    *,
    others: Sequence[Snapshot] = (),
    frames: Frames | None = None,
    decisions: Mapping[str, Decision] | None = None,
) -> tuple[Finding, ...]:
    """Ask every rule, in the order of `RULES`; those of stretches of each stretch.

    Args:
        snapshot: the session.
        stretches: as `stretches.stretches` makes them of it.
        thresholds: other values for some parameters, by the rule's id and the parameter's name.
        others: sessions of the other ranks.
        frames: the session's rows, where they were made before.
        decisions: by the stretches' keys, what is decided of them: the rules' advice is made from it.

    Raises:
        MonitorError: there is no such rule or parameter.
    """
    given = {rule: dict(values) for rule, values in (thresholds or {}).items()}
    _check(given)
    session = Session(Frames(snapshot) if frames is None else frames, stretches, others, decisions or {})
    return tuple(
        finding
        for rule in RULES.values()
        for finding in _ask(Asked(rule, {**rule.defaults, **given.get(rule.id, {})}), session)
    )


def _ask(asked: Asked, session: Session) -> Iterator[Finding]:
    rule = asked.rule
    if rule.of_session is not None:
        yield rule.of_session(session, asked)
    if rule.of_stretch is not None:
        judged = [one for one in session.stretches if rule.replayed or not one.synthetic]
        for stretch in judged:
            yield rule.of_stretch(session, asked, stretch)
        if not judged:
            replayed = "deliveries: all batches of this session were replayed"
            yield asked.abstained(replayed if session.stretches else NO_DELIVERY)


def _check(given: Mapping[str, Mapping[str, float]]) -> None:
    for rule, values in given.items():
        if rule not in RULES:
            raise MonitorError(f"There is no rule {rule!r}. The rules are: {', '.join(RULES)}.")
        for name in values:
            if name not in RULES[rule].parameters:
                known = ", ".join(RULES[rule].parameters) or "none"
                raise MonitorError(f"The rule {rule} has no threshold {name!r}. It has: {known}.")
