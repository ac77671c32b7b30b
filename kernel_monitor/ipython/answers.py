"""Text answers of the magics: the summary of a session, results printed under a later cell, and the verdict."""

from __future__ import annotations

import shlex
import textwrap
from html import escape
from typing import Any

import numpy as np

from ..analysis.results import Analysis
from ..analysis.rules import with_verdict
from ..analysis.switch_comparison import sentence
from ..diagnosis.diagnose_command import Diagnosis
from ..profiler.profile_command import text as operators_text
from ..profiler.profile_run import READING
from ..runtime import Monitor
from ..runtime.status import loader_words

WIDTH = 100
READING_S = 5.0  # how long the end of a cell waits for a trace that is being read
MOST_FINDINGS = 6
Rows = list[tuple[str, str]]


def summary_rows(monitor: Monitor) -> Rows:
    """(label, text) pairs: duration, CPU, GPUs or why there are none, loaders, the switch that says most."""
    rows = monitor.store.rows()
    schema = rows.schema
    if len(rows.seq) == 0:
        return [("Monitor", "started; no sample yet")]
    out = [("Time", f"{rows.time[-1] - rows.time[0]:.0f} s, {len(rows.seq):,} samples")]
    busy = [at for name, at in schema.columns.items() if name.startswith("cpu/") and name.endswith("/busy")]
    if busy:
        mean = np.nanmean(rows.values[1:, busy], axis=1) if len(rows.seq) > 1 else rows.values[:, busy[0]]
        out.append((f"CPU, {len(busy)} cores", _percentiles(mean)))
    for gpu in schema.gpus:
        column = schema.columns.get(f"gpu/{gpu.index}/utilisation")
        if column is not None:
            out.append((f"GPU {gpu.index}, {gpu.name}", _percentiles(rows.values[:, column])))
    if schema.gpu_reason:
        out.append(("GPU", schema.gpu_reason))
    for state in monitor.loader_states():
        planned = "?" if state["planned"] is None else f"{state['planned']:,}"
        counts = f"{state['samples']:,} of {planned} samples, {state['lost']} lost, {state['doubled']} doubled"
        counts += f", {state['replaced']:,} replaced by synthetic" if state["replaced"] else ""
        counts += f", {state['skipped']:,} skipped" if state["skipped"] else ""
        out.append((f"Loader {state['name']}", f"{loader_words(state)}; epoch {state['epoch'] + 1}: {counts}"))
    compared = monitor.comparison()
    if compared.switch is not None:
        out.append(("Switch", compared.sentence))
    return out


def text_table(title: str, rows: Rows) -> str:
    """Labels and texts in two columns below a title."""
    width = max(len(label) for label, _ in rows)
    return "\n".join([title, *(f"  {label:<{width}}  {text}" for label, text in rows)])


def html_table(title: str, rows: Rows) -> str:
    """The same as HTML without scripts."""
    left = 'style="text-align: left"'
    body = "".join(
        f'<tr><th scope="row" {left}>{escape(label)}</th><td {left}>{escape(text)}</td></tr>' for label, text in rows
    )
    return f"<table><caption>{title}</caption><tbody>{body}</tbody></table>"


def _percentiles(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return "no values"
    p50, p95 = np.percentile(finite, [50, 95])
    return f"p50 {p50:.0f} %, p95 {p95:.0f} %"


class Answers:
    """Results that were requested in a cell and are printed when ready, as the loop runs in the meantime."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._pending: list[str] = []  # names of the monitor's attributes
        self._profiled: dict[str, Any] | None = None

    def expect(self, what: str) -> str:
        """Remember that `diagnosing` or `profiling` was requested; returns what to print of its result."""
        if what not in self._pending:
            self._pending.append(what)
        return "the result stands under the cell in which it is ready"

    def ready(self) -> list[str]:
        """The results that are ready, each returned once."""
        words = []
        for what in list(self._pending):
            state = getattr(self._monitor, what)
            if what == "profiling" and state is not None and state["message"] == READING:
                state = self._monitor.profiler.ended(READING_S)
            if state is not None and state["state"] != "running":
                self._pending.remove(what)
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
        result = state["result"]
        found = "" if not result else str(Diagnosis(result))
        if state["state"] == "done":
            return found
        return "\n".join(filter(None, [f"diagnosis {state['state']}: {state['message']}", found]))


def analysis_text(analysis: Analysis) -> str:
    """The analysis of a session: verdict, reason, warnings, advice, gains, and the other rules that fired."""
    verdict = analysis.verdict
    of = "" if verdict.segment is None else f"{verdict.segment}: "
    parts = [("why", verdict.sentence), *(("careful", text) for text in verdict.warnings)]
    if analysis.headline is not None:
        sides = {segment.key: segment for segment in analysis.segments}
        before, after = sides[analysis.headline.before], sides[analysis.headline.after]
        parts.append(("switch", sentence(analysis.headline, before, after)))
    parts.append(("next", verdict.advice))
    parts += [("gain", f"{gain.words}. {gain.basis}".rstrip()) for gain in verdict.gains]
    if analysis.feeding is not None and analysis.feeding.advice not in ("", verdict.advice):
        parts.append(("loading", analysis.feeding.advice))
    said = with_verdict(analysis.findings, verdict.segment)
    fired = [finding for finding in analysis.findings if finding.state == "fired" and finding not in said]
    for finding in fired[:MOST_FINDINGS]:
        evidence = finding.evidence[0].text if finding.evidence else finding.advice
        where = "" if finding.segment in (None, verdict.segment) else f", {finding.segment}"
        parts.append(("rule", f"{finding.title} ({finding.severity}{where}): {evidence}"))
    if len(fired) > MOST_FINDINGS:
        parts.append(("rules", f"{len(fired) - MOST_FINDINGS} more fired: %monitor export PATH has all of them"))
    parts += [("needs", text) for text in verdict.missing if text not in verdict.advice]
    parts += [("cannot", text) for text in analysis.cannot]
    lines = [f"{of}{verdict.kind}"]
    for label, words in parts:
        if words:
            lines += _wrapped(label, words)
    return "\n".join(lines)


def offer_lines(monitor: Monitor) -> list[str]:
    """The open offers, each with the command that accepts it."""
    names = {state["id"]: state["name"] for state in monitor.loader_states() if not state["ended"]}
    lines = []
    for offer in monitor.offers:
        of = f" --loader {shlex.quote(names[offer['loader']])}" if len(names) > 1 else ""
        lines += _wrapped("offer", f"{offer['sentence']} %monitor switch {offer['engine']}{of}")
    return lines


def _wrapped(label: str, words: str) -> list[str]:
    head = f"  {label:<8}"
    return textwrap.wrap(words, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
