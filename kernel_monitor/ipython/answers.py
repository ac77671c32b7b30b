"""What magics answer later, under the cell in which it is ready, and the verdict in words."""

from __future__ import annotations

import shlex
import textwrap
from typing import TYPE_CHECKING, Any

from ..diagnose.operators import text as operators_text
from ..live.profiling import READING

if TYPE_CHECKING:
    from ..diagnose.model import Analysis, Gain
    from ..live import Monitor
    from ..store import Snapshot

WIDTH = 100
READING_S = 5.0
"""How long a cell's end waits for a trace that is being read."""
MOST_FINDINGS = 6


class Answers:
    """What was asked for by magics and not answered yet: a loop in the same cell has to go on meanwhile."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._asked: dict[str, dict[str, Any] | None] = {}  # what, and the state in which it was asked for
        self._profiled: dict[str, Any] | None = None

    def diagnosis(self) -> str:
        """A diagnosis was asked for; the words for that."""
        self._asked["diagnosing"] = None
        state = self._monitor.diagnosing or {}
        return f"diagnosing {state.get('name', 'the loader')}: the result stands under the cell in which it is ready"

    def profile(self, steps: int) -> str:
        """A profile was asked for; the words for that."""
        self._asked["profiling"] = None
        next_ones = "the next step" if steps == 1 else f"the next {steps} steps"
        return f"profiling {next_ones}: the result stands under the cell in which it is ready"

    def ready(self) -> list[str]:
        """The answers that are there by now, each once."""
        words = []
        for what in list(self._asked):
            state = getattr(self._monitor, what)
            if what == "profiling" and state is not None and state["message"] == READING:
                state = self._monitor.profile_ended(READING_S)
            if state is None or state["state"] == "running":
                continue
            del self._asked[what]
            words.append(self._profile(state) if what == "profiling" else self._diagnosis(state))
        return words

    def _profile(self, state: dict[str, Any]) -> str:
        if state["result"] is None:
            return f"not profiled: {state['message']}"
        before, self._profiled = self._profiled, state["result"]
        if before is not None and before["loader"] != state["loader"]:
            before = None
        return f"{operators_text(state['result'], before)}\n{state['message']}"

    def _diagnosis(self, state: dict[str, Any]) -> str:
        from ..live.diagnosing import Diagnosis

        result = state["result"]
        found = "" if not result else str(Diagnosis(result))
        if state["state"] == "done":
            return found
        return "\n".join(filter(None, [f"diagnosis {state['state']}: {state['message']}", found]))


def verdict_text(snapshot: Snapshot) -> str:
    """Verdict, why, advice, what to expect, and the rules that fired, of a session."""
    from ..diagnose.analysis import analyse

    return analysis_text(analyse(snapshot))


def analysis_text(analysis: Analysis) -> str:
    """The same of an analysis."""
    verdict = analysis.verdict
    of = "" if verdict.stretch is None else f"{verdict.stretch}: "
    parts = [("why", verdict.sentence), ("next", verdict.advice)]
    parts += [("gain", _gain(gain)) for gain in verdict.gains]
    if analysis.feeding is not None and analysis.feeding.advice:
        parts.append(("feeding", analysis.feeding.advice))
    fired = [one for one in analysis.findings if one.state == "fired"]
    for finding in fired[:MOST_FINDINGS]:
        evidence = finding.evidence[0].text if finding.evidence else finding.advice
        where = "" if finding.stretch in (None, verdict.stretch) else f", {finding.stretch}"
        parts.append(("rule", f"{finding.title} ({finding.severity}{where}): {evidence}"))
    if len(fired) > MOST_FINDINGS:
        parts.append(("rules", f"{len(fired) - MOST_FINDINGS} more fired: %monitor export PATH has all of them"))
    parts += [("missing", one) for one in verdict.missing if one not in verdict.advice]
    parts += [("cannot", one) for one in analysis.cannot]
    lines = [f"{of}{verdict.kind}"]
    for label, words in parts:
        if words:
            lines += _wrapped(label, words)
    return "\n".join(lines)


def offer_lines(monitor: Monitor) -> list[str]:
    """The switches that are offered, with what to type."""
    names = {state["id"]: state["name"] for state in monitor.loader_states() if not state["ended"]}
    lines = []
    for one in monitor.offers:
        of = f" --loader {shlex.quote(names[one['loader']])}" if len(names) > 1 else ""
        lines += _wrapped("offer", f"{one['sentence']} %monitor switch {one['engine']}{of}")
    return lines


def _wrapped(label: str, words: str) -> list[str]:
    head = f"  {label:<8}"
    return textwrap.wrap(words, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _gain(gain: Gain) -> str:
    what = "no wait for data" if gain.action == "loader" else gain.action
    low, high = (f"{100 * one:.0f}" for one in (gain.low, gain.high))
    span = f"{low} %" if low == high else f"{low} to {high} %"
    return f"{what}: {span} of the step time saved. {gain.basis}".rstrip()
