"""Results of the running session: a snapshot, the comparison of the last switch, and the HTML report."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..analysis.switch_comparison import SwitchComparison, comparison
from ..errors import SessionError
from ..output import check, write
from ..report.client import render_in_process
from ..report.privacy import with_pseudonyms
from ..store import Snapshot, Store
from ..text import line
from .session import Session


class Exporter:
    """Exports one session."""

    def __init__(self, session: Session, store: Store) -> None:
        self._session = session
        self._store = store

    def snapshot(self) -> Snapshot:
        """An immutable copy of everything measured so far; SessionError if that is nothing."""
        session = self._session
        if session.id is None or self._store.last_seq == 0:
            raise SessionError("Nothing was measured yet: start the monitor first (%monitor start).")
        session.take_steps()
        facts = {"session": session.id, **session.facts(), "exported": time.time(), "restarts": session.restarts}
        return self._store.snapshot(session.tracker.reported(), facts)

    def comparison(self, loader: str | None = None) -> SwitchComparison:
        """What a switch of a loader's engine changed: `print(monitor.comparison())` at the end of a training.

        It has `sentence` (also its text), `switch`, `before` and `after` (figures of both sides) and `faster`. The
        sentence gives the reason where nothing can be compared.

        Args:
            loader: the loader's id or name; by default the one of which most was measured on both sides of a switch.

        Raises:
            MonitorError: no loader, or more than one, has that name.
        """
        try:
            snapshot = self.snapshot()
        except SessionError:  # the last line of a training must not raise
            return SwitchComparison("Nothing was measured: %monitor in a cell before the training starts the monitor.")
        return comparison(snapshot, None if loader is None else line(loader))

    def render(self) -> str:
        """The HTML report, rendered in a separate process; other machines have their names only if that is allowed."""
        snapshot, names = self.snapshot(), self._session.hidden_names()
        return render_in_process(snapshot if names is None else with_pseudonyms(snapshot, names))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write everything measured so far as one HTML file that opens offline.

        An existing regular file is replaced (through symbolic links, if any); a device or a named pipe is written to
        directly; a recorded session is never replaced.

        Raises:
            MonitorError: nothing was measured, rendering failed, or `path` cannot be written; an existing file is then
                left unchanged.
        """
        check(path)
        return write(path, self.render())
