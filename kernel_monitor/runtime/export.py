"""Results of the running session: a snapshot, the last comparison, the report, and `%monitor status`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .. import own_files
from ..analysis.switch_comparison import SwitchComparison, comparison
from ..errors import SessionError
from ..output import check, write
from ..report.privacy import with_pseudonyms
from ..store import Snapshot, Store
from ..stream.render_process import render_report
from ..text import line
from .overhead import OwnCost
from .recorder import words
from .session import Session

if TYPE_CHECKING:
    from ..protocol.states import LoaderState, SettingsState


# ---- Results of the running session: a snapshot, the comparison of the last switch, and the HTML report.


class Exporter:
    """Exports one session."""

    def __init__(self, session: Session, store: Store) -> None:
        self._session = session
        self._store = store

    def snapshot(self) -> Snapshot:
        """Return an immutable copy of everything measured so far; SessionError if that is nothing."""
        session = self._session
        if session.id is None or self._store.last_seq == 0:
            raise SessionError("Nothing was measured yet: start the monitor first (%monitor start).")
        session.take_steps()
        facts = {"session": session.id, **session.facts(), "exported": time.time(), "restarts": session.restarts}
        return self._store.snapshot(session.tracker.reported(), facts)

    def comparison(self, loader: str | None = None) -> SwitchComparison:
        """Return what a switch of a loader's engine changed: `print(monitor.comparison())` at the end of a training.

        See `Monitor.comparison`.
        """
        try:
            snapshot = self.snapshot()
        except SessionError:  # the last line of a training must not raise
            return SwitchComparison("Nothing was measured: %monitor in a cell before the training starts the monitor.")
        return comparison(snapshot, None if loader is None else line(loader))

    def render(self) -> str:
        """Return the HTML report, rendered in a separate process; other machines have their names only if that is
        allowed.
        """
        snapshot, names = self.snapshot(), self._session.hidden_names()
        return render_report(snapshot if names is None else with_pseudonyms(snapshot, names))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write everything measured so far as one HTML file that opens offline.

        See `Monitor.export`.
        """
        check(path)
        return write(path, self.render())


# ---- What `%monitor status` prints.


def loader_words(loader: LoaderState) -> str:
    """Return the state of a loader of this process: in the past tense where it has ended."""
    if loader.get("ended"):
        return f"has ended, was on {loader['backend']}"
    return loader["status"]


def lines(session: Session, store: Store, settings: SettingsState, cost: OwnCost) -> list[str]:
    """Return what runs, what it costs, what was missed, where it is recorded.

    The states of loaders, machines and ranks.
    """
    schema, interval, history = store.schema, settings["interval"], settings["history"]
    state = "running" if session.running else "stopped"
    found = [f"kernel_monitor is {state}: {store.last_seq:,} samples, one every {interval:g} s"]
    if cost["sampler"] is not None:
        found.append(f"cost: sampler {cost['sampler']:.1f} % of a core, in the kernel {cost['kernel']:.1f} %")
    found.append(words(session.recorder.to_json()))
    kept = schema.capacity * interval
    if kept < 0.99 * history:
        series = len(schema.series)
        found.append(f"the charts keep {kept:.0f} s: {series:,} series fill the memory that the history may take")
    if session.missed:
        found.append(f"{session.missed:,} samples were missed (gaps are drawn as gaps)")
    if session.restarts:
        found.append(f"the sampler was restarted {session.restarts} times")
    if schema.gpu_reason:
        found.append(f"no GPU rows: {schema.gpu_reason}")
    if (passed_over := own_files.passed_over()) is not None:
        found.append(passed_over)
    for loader in session.tracker.states():
        found.append(f"{loader['name']}: {loader_words(loader)}")
        if loader.get("ended"):
            continue
        found += [f"  {engine['name']}: {engine['note']}" for engine in loader["backends"] if engine.get("note")]
    found += [f"{loader['name']}: {loader['status']}" for loader in session.ranks.loader_states()]
    for node in session.nodes.nodes:
        found.append(f"machine {node.name}: {f'{len(node.cores)} cores' if node.alive else f'gone: {node.reason}'}")
    return [*found, *session.ranks.lines()]
