"""``%%monitor``: what the machine did while a cell ran, in a few lines under it.

IPython runs the cell as it runs any other: the first line is taken out before (`leave_out`), and what is to be known
stands in the events before and after. So exceptions, `await`, the last expression and line numbers are as without it.
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnose.limits import allowed_cores, limits_note
from ..diagnose.loops import Loop, beside, of_steps
from ..steps.records import PROFILED, WARM_UP
from ..text import line

if TYPE_CHECKING:
    from ..live import Monitor
    from ..store import Rows

FIRST_LINE = re.compile(r"%%monitor(?:[ \t]+(?P<label>.*?))?[ \t]*$")
MOST_LETTERS = 200
"""Of what a cell is called."""
FEWEST_ROWS = 2
"""Samples that it takes to say how busy the machine was."""
PROCESSES_S = 2.0
"""What the kernel's processes take is read once a second: of a shorter cell it says little."""
LEFT = "text-align: left"
Line = tuple[str, str]


def label_of(first_line: str) -> str | None:
    """What a cell's first line calls it, perhaps nothing; None if it does not begin with `%%monitor`."""
    found = FIRST_LINE.match(first_line.rstrip("\n"))
    return None if found is None else found["label"] or ""


def leave_out(lines: list[str]) -> list[str]:
    """An input transformer: the cell without its first line if that is ours, each other line where it was."""
    if not lines or label_of(lines[0]) is None:
        return lines
    rest = lines[1:]
    # A cell magic below it has to come first.
    return rest if rest and rest[0].startswith("%%") else [f"# {lines[0]}", *rest]


@dataclass(frozen=True)
class Cell:
    """A cell that runs.

    Attributes:
        label: what its first line calls it.
        began: by `time.monotonic()`.
        images: delivered before, by the loaders' ids.
    """

    label: str
    began: float
    images: dict[str, int]


class Cells:
    """The cells under way that want a summary: one a thread, as subshells run cells beside each other."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._running: dict[int, Cell] = {}

    def begin(self, source: str) -> None:
        """A cell begins; one of ours is remembered, and the monitor started if need be."""
        self._running.pop(threading.get_ident(), None)
        label = label_of(source.lstrip().partition("\n")[0])
        if label is None:
            return
        self._monitor.start()
        self._running[threading.get_ident()] = Cell(line(label, MOST_LETTERS), time.monotonic(), self._images())

    def end(self) -> list[Line] | None:
        """The cell of this thread has ended: (label, text) pairs about it; None if it is none of ours."""
        cell = self._running.pop(threading.get_ident(), None)
        if cell is None:
            return None
        ended = time.monotonic()
        sampling = self._monitor._sampling
        start, end = sampling.session_time(cell.began), sampling.session_time(ended)
        if start is None or end is None:
            return [("Cell", f"{_span(ended - cell.began)}; the monitor does not run")]
        sampling.add_event("cell", end, label=cell.label, began=start, ended=end)
        return self._lines(cell, start, end)

    def _lines(self, cell: Cell, start: float, end: float) -> list[Line]:
        monitor = self._monitor
        monitor._sampling.take_steps()
        rows = monitor.store.rows(monitor.store.seq_before(start))
        inside = (rows.time > start) & (rows.time <= end)
        lines = [("Time", f"{_span(end - start)}, {int(inside.sum())} samples")]
        if inside.sum() < FEWEST_ROWS:
            every = f"{rows.schema.interval or monitor.settings['interval']:g} s"
            lines.append(("Machine", f"too short to say how busy it was: there is a sample every {every}"))
        else:
            lines += machine(rows, inside, processes=end - start >= PROCESSES_S)
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
        """Images of each loader with its steps, and where the time of a step went, if any ended."""
        monitor = self._monitor
        steps = monitor.store.steps.table(start)
        now = self._images()
        lines: list[Line] = []
        for state in monitor.loader_states():
            own = steps.of(state["id"], start, end)
            gone = state["id"] not in now
            images = int(own["images"].sum()) if gone else now[state["id"]] - cell.images.get(state["id"], 0)
            if images == 0 and len(own) == 0:
                continue
            taken = float(own["step"].sum())
            rate = own["images"].sum() / taken if taken > 0 else images / max(end - start, 1e-9)
            text = f"{images:,} images, {rate:,.0f} images/s, {len(own):,} steps"
            usual = own[(own["flags"] & (WARM_UP | PROFILED)) == 0]
            whole = float(usual["step"].sum())
            if whole > 0 and np.isfinite(usual["wait"]).all():
                text += f", {100 * float(usual['wait'].sum()) / whole:.0f} % of the step spent waiting for data"
            lines.append((f"Loader {state['name']}", f"{text} ({state['backend']} at the end)"))
        return [*lines, *self._verdict(of_steps(steps, start, end))]

    def _verdict(self, loops: list[Loop]) -> list[Line]:
        """On the newest loop that stands beside no other, by its name where there are several."""
        aside = beside(loops)
        newest = max((one for one in loops if one.loader not in aside), key=lambda one: one.end, default=None)
        if newest is None:
            return []
        states = self._monitor.loader_states()
        verdict = self._monitor._serving.judging.judge(newest.end, states, loader=newest.loader)
        if verdict is None:
            return []
        name = next((f"{one['name']}: " for one in states if one["id"] == newest.loader and len(loops) > 1), "")
        return [("Verdict", f"{name}{verdict['kind']}: {verdict['sentence']}")]

    def _images(self) -> dict[str, int]:
        return {one.id: one.meter.totals().images for one in self._monitor._sampling.following.sources()}


def machine(rows: Rows, inside: np.ndarray[Any, Any], *, processes: bool = True) -> list[Line]:
    """How busy cores, GPUs and memory were in some rows, and what of it this kernel and its children took."""
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


def cell_text(lines: list[Line]) -> str:
    """The lines as text."""
    width = max(len(label) for label, _ in lines)
    return "\n".join(["%%monitor", *(f"  {label:<{width}}  {text}" for label, text in lines)])


def cell_html(lines: list[Line]) -> str:
    """The lines as a table without scripts."""
    body = "".join(
        f'<tr><th scope="row" style="{LEFT}">{escape(label)}</th><td style="{LEFT}">{escape(text)}</td></tr>'
        for label, text in lines
    )
    return f"<table><caption>This cell</caption><tbody>{body}</tbody></table>"


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"
