"""Text under a cell: answers of the magics, results that come later, and the summary of `%%monitor`."""

from __future__ import annotations

import re
import shlex
import textwrap
import threading
import time
from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import numpy as np

from ..analysis.frames import allowed_cores, counted, limits_note
from ..analysis.loops import Loop, loops_of_steps, secondary
from ..analysis.results import Analysis
from ..analysis.rules import with_verdict
from ..analysis.switch_comparison import sentence
from ..diagnosis.loop_command import Diagnosis
from ..plugins import Later
from ..protocol.analysis_states import DiagnosisState
from ..runtime import Monitor
from ..runtime.export import loader_words
from ..store import Rows
from ..text import line

# ---- Text answers of the magics: the summary of a session, results printed under a later cell, and the verdict.

WIDTH = 100
_MOST_FINDINGS = 6
_ResultRows = list[tuple[str, str]]


def summary_rows(monitor: Monitor) -> _ResultRows:
    """Return (label, text) pairs: duration, CPU, GPUs or why there are none, loaders, the switch that says most."""
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


def text_table(title: str, rows: _ResultRows) -> str:
    """Return labels and texts in two columns below a title."""
    width = max(len(label) for label, _ in rows)
    return "\n".join([title, *(f"  {label:<{width}}  {text}" for label, text in rows)])


def html_table(title: str, rows: _ResultRows) -> str:
    """Return the same as HTML without scripts."""
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

    def __init__(self) -> None:
        self._pending: dict[str, Callable[[], str | None]] = {}

    def expect(self, command: str, later: Later) -> str:
        """Remember what a command of `%monitor` will answer; returns what to print now."""
        self._pending[command] = later.answer
        return f"{later.text}: the result stands under the cell in which it is ready"

    def ready(self) -> list[str]:
        """Return the results that are ready, each once."""
        found = {command: answer() for command, answer in list(self._pending.items())}
        ready = {command: text for command, text in found.items() if text is not None}
        for command in ready:
            del self._pending[command]
        return list(ready.values())


def diagnosis_text(state: DiagnosisState | None) -> str | None:
    """Return what a diagnosis or a tune found, or how it ended; None while it runs."""
    if state is None or state["state"] == "running":
        return None
    result = state["result"]
    found = "" if not result else str(Diagnosis(result))
    if state["state"] == "done":
        return found
    name = "diagnosis" if state["kind"] == "diagnose" else "tune"
    return "\n".join(filter(None, [f"{name} {state['state']}: {state['message']}", found]))


def analysis_text(analysis: Analysis) -> str:
    """Return the analysis of a session: verdict, reason, warnings, advice, gains, and the other rules that fired."""
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
    for finding in fired[:_MOST_FINDINGS]:
        evidence = finding.evidence[0].text if finding.evidence else finding.advice
        where = "" if finding.segment in (None, verdict.segment) else f", {finding.segment}"
        parts.append(("rule", f"{finding.title} ({finding.severity}{where}): {evidence}"))
    if len(fired) > _MOST_FINDINGS:
        parts.append(("rules", f"{len(fired) - _MOST_FINDINGS} more fired: %monitor export PATH has all of them"))
    parts += [("needs", text) for text in verdict.missing if text not in verdict.advice]
    parts += [("cannot", text) for text in analysis.cannot]
    lines = [f"{of}{verdict.kind}"]
    for label, words in parts:
        if words:
            lines += _wrapped(label, words)
    return "\n".join(lines)


def offer_lines(monitor: Monitor) -> list[str]:
    """Return the open offers, each with the command that accepts it."""
    names = {state["id"]: state["name"] for state in monitor.loader_states() if not state["ended"]}
    lines = []
    for offer in monitor.offers:
        of = f" --loader {shlex.quote(names[offer['loader']])}" if len(names) > 1 else ""
        lines += _wrapped("offer", f"{offer['sentence']} %monitor switch {offer['engine']}{of}")
    return lines


def _wrapped(label: str, words: str) -> list[str]:
    head = f"  {label:<8}"
    return textwrap.wrap(words, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


# ---- `%%monitor`: a summary under a cell of what the machine did while the cell ran.

_FIRST_LINE = re.compile(r"%%monitor(?:[ \t]+(?P<label>.*?))?[ \t]*$")
MAX_LABEL = 200  # characters of a cell's label
FEWEST_ROWS = 2  # samples needed for the figures of the machine
_PROCESSES_S = (
    2.0  # shortest cell for which the CPU use of the kernel's processes is shown: it is sampled once a second
)
Line = tuple[str, str]


def label_of(first_line: str) -> str | None:
    """Return the label in a cell's first line, may be empty; None if the line does not begin with `%%monitor`."""
    found = _FIRST_LINE.match(first_line.rstrip("\n"))
    return None if found is None else found["label"] or ""


def leave_out(lines: list[str]) -> list[str]:
    """Input transformer: comment out a first line `%%monitor`, so that line numbers stay the same."""
    if not lines or label_of(lines[0]) is None:
        return lines
    rest = lines[1:]
    # Another cell magic must be on the first line.
    return rest if rest and rest[0].startswith("%%") else [f"# {lines[0]}", *rest]


class Cell(NamedTuple):
    """A cell that runs."""

    label: str  # from its first line
    began: float  # `time.monotonic()`
    images: dict[str, int]  # delivered before the cell, by loader id


class Cells:
    """The running cells that begin with `%%monitor`: one per thread, as subshells run cells concurrently."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._running: dict[int, Cell] = {}

    def begin(self, source: str) -> None:
        """Called before each cell; starts the monitor if the cell begins with `%%monitor`."""
        self._running.pop(threading.get_ident(), None)
        label = label_of(source.lstrip().partition("\n")[0])
        if label is None:
            return
        self._monitor.start()
        self._running[threading.get_ident()] = Cell(line(label, MAX_LABEL), time.monotonic(), self._images())

    def end(self) -> list[Line] | None:
        """Called after each cell; the summary as (label, text) pairs, or None if the cell did not ask for one."""
        cell = self._running.pop(threading.get_ident(), None)
        if cell is None:
            return None
        ended = time.monotonic()
        session = self._monitor.live_session
        start, end = session.session_time(cell.began), session.session_time(ended)
        if start is None or end is None:
            return [("Cell", f"{_span(ended - cell.began)}; the monitor does not run")]
        session.add_event("cell", end, label=cell.label, began=start, ended=end)
        return self._lines(cell, start, end)

    def _lines(self, cell: Cell, start: float, end: float) -> list[Line]:
        monitor = self._monitor
        monitor.live_session.take_steps()
        rows = monitor.store.rows(monitor.store.seq_before(start))
        inside = (rows.time > start) & (rows.time <= end)
        lines = [("Time", f"{_span(end - start)}, {int(inside.sum())} samples")]
        if inside.sum() < FEWEST_ROWS:
            every = f"{rows.schema.interval or monitor.settings['interval']:g} s"
            lines.append(("Machine", f"too short to say how busy it was: there is a sample every {every}"))
        else:
            lines += machine(rows, inside, processes=end - start >= _PROCESSES_S)
        lines += self._loaders(cell, start, end)
        switches = [
            f"{event['source']} → {event['target']} at {_span(event['time'] - start)}"
            for event in monitor.store.events()
            if event["kind"] == "switch" and start <= event["time"] <= end
        ]
        if switches:
            lines.append(("Switched", "; ".join(switches)))
        return lines

    def _loaders(self, cell: Cell, start: float, end: float) -> list[Line]:
        """Images, steps and share of waiting of each loader, and the verdict."""
        monitor = self._monitor
        steps = monitor.store.steps.table(start)
        now = self._images()
        lines: list[Line] = []
        for state in monitor.loader_states():
            own = steps.of(state["id"], start, end)
            ended = state["id"] not in now
            images = int(own["images"].sum()) if ended else now[state["id"]] - cell.images.get(state["id"], 0)
            if images == 0 and len(own) == 0:
                continue
            taken = float(own["step"].sum())
            rate = own["images"].sum() / taken if taken > 0 else images / max(end - start, 1e-9)
            text = f"{images:,} images, {rate:,.0f} images/s, {len(own):,} steps"
            usual = own[counted(own)]
            whole = float(usual["step"].sum())
            if whole > 0 and np.isfinite(usual["wait"]).all():
                text += f", {100 * float(usual['wait'].sum()) / whole:.0f} % of the step spent waiting for data"
            lines.append((f"Loader {state['name']}", f"{text} ({state['backend']} at the end)"))
        return [*lines, *self._verdict(loops_of_steps(steps, start, end))]

    def _verdict(self, loops: list[Loop]) -> list[Line]:
        """Return the verdict on the newest loop that does not run beside another one."""
        aside = secondary(loops)
        newest = max((loop for loop in loops if loop.loader not in aside), key=lambda loop: loop.end, default=None)
        if newest is None:
            return []
        states = self._monitor.loader_states()
        verdict = self._monitor.publisher.current.judge(newest.end, states, loader=newest.loader)
        if verdict is None:
            return []
        names = [state["name"] for state in states if state["id"] == newest.loader]
        name = f"{names[0]}: " if names and len(loops) > 1 else ""
        return [("Verdict", f"{name}{verdict['kind']}: {verdict['sentence']}")]

    def _images(self) -> dict[str, int]:
        sources = self._monitor.live_session.tracker.sources()
        return {source.id: source.meter.totals().images for source in sources}


def machine(rows: Rows, inside: np.ndarray[Any, Any], *, processes: bool = True) -> list[Line]:
    """Use of cores, GPUs and memory in some rows, and the share of this kernel and its child processes."""
    schema, part = rows.schema, rows.values[inside]

    def of(name: str) -> np.ndarray[Any, Any]:
        column = schema.columns.get(name)
        values = part[:, column] if column is not None else np.empty(0)
        found: np.ndarray[Any, Any] = values[np.isfinite(values)]
        return found

    lines: list[Line] = []
    cores = {number: of(f"cpu/{number}/busy") for number in sorted(allowed_cores(schema))}
    cores = {number: busy for number, busy in cores.items() if len(busy)}
    if cores:
        columns = [schema.columns[f"cpu/{number}/busy"] for number in cores]
        together = part[:, columns]
        together = together[np.isfinite(together).all(axis=1)].mean(axis=1)
        busiest = max(cores, key=lambda number: float(cores[number].mean()))
        text = f"mean {together.mean():.0f} %, p95 {np.percentile(together, 95):.0f} %" if len(together) else ""
        text += f"; busiest core {busiest}: {cores[busiest].mean():.0f} %"
        note = limits_note(schema)
        lines.append((f"CPU, {len(cores)} cores", text + (f" ({note})" if note else "")))
    roles = [(role, of(f"process/{role}/cpu")) for role in ("kernel", "workers")]
    own = [f"{role} {values.mean():.0f} %" for role, values in roles if len(values)]
    if own and processes:
        lines.append(("of it", f"{', '.join(own)} of one core"))
    for gpu in schema.gpus:
        used = of(f"gpu/{gpu.index}/utilisation")
        if len(used):
            lines.append((f"GPU {gpu.index}", f"mean {used.mean():.0f} %, p50 {np.percentile(used, 50):.0f} %"))
    if not schema.gpus and schema.gpu_reason:
        lines.append(("GPU", schema.gpu_reason))
    memory = [("host", of("memory/used")), *((f"GPU {g.index}", of(f"gpu/{g.index}/memory_used")) for g in schema.gpus)]
    peaks = [f"{name} {values.max() / 1e9:.1f} GB" for name, values in memory if len(values)]
    if peaks:
        lines.append(("Memory, most", ", ".join(peaks)))
    return lines


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"
