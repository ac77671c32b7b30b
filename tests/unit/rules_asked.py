"""Rules asked of constructed sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_monitor.analysis.session_analysis import analyse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernel_monitor.analysis.results import Finding
    from kernel_monitor.store import Snapshot


def ask(rule: str, snapshot: Snapshot, *, others: Sequence[Snapshot] = (), **thresholds: float) -> Finding:
    """The one finding of a rule about a session of one segment, or about the session."""
    found = findings(rule, snapshot, others=others, **thresholds)
    assert len(found) == 1
    (one,) = found
    if one.state == "fired":
        assert one.advice
        assert one.evidence
        assert one.severity in ("warning", "critical")
        assert one.times > 0
    else:
        assert (one.advice, one.severity) == ("", "note")
    assert bool(one.missing) == (one.state == "abstained")
    return one


def findings(rule: str, snapshot: Snapshot, *, others: Sequence[Snapshot] = (), **thresholds: float) -> list[Finding]:
    """What a rule says of every segment."""
    found = analyse(snapshot, thresholds={rule: thresholds}, others=others).findings
    return sorted((one for one in found if one.rule == rule), key=lambda one: one.segment or "")
