"""Recorded sessions as users and pages see them: opened, shown in a dashboard, exported."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .analysis import analyse
from .analysis import strip as switch_strip
from .analysis.results import plain
from .errors import MonitorError, SessionError
from .output import check, write
from .record import folders, reader
from .record import sessions as found
from .record.sessions import moment_text, span_text
from .store import Rows, Schema, Snapshot
from .store.charts import DEFAULT_CHARTS, available, shown_series
from .stream.chart_documents import Documents
from .text import shown, shown_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from .protocol.analysis_states import VerdictState
    from .protocol.message_types import RecordedLabel, SessionEntry
    from .protocol.states import Strip
    from .widgets import Dashboard

KEPT_OPEN = 4  # sessions kept open; others are opened again on request


@contextmanager
def interpreted(name: object, what: str, *, remote: bool = False) -> Iterator[None]:
    """Turn any failure over the content of a recording into a SessionError: the file may be of any origin.

    Args:
        name: of the recording.
        what: is made from it, for the message.
        remote: the work is done in another process, which reports failures as MonitorError.
    """
    try:
        # Recorded numbers may be anything; NumPy's warnings about them are not helpful.
        with np.errstate(all="ignore"):
            yield
    except Exception as error:
        if isinstance(error, SessionError) or (isinstance(error, MonitorError) and not remote):
            raise
        reason = str(error) if remote else f"{type(error).__name__}: {error}"
        raise SessionError(f"{name} cannot be made into {what} ({reason}).") from error


class RecordedSession:
    """One recorded session, as it was when it was opened; made by `kernel_monitor.open_session`.

    Attributes:
        session: the reader (`kernel_monitor.record.reader.Session`): `rows`, `events`, `steps`, `facts`, `check`…;
            its public names read through.
    """

    def __init__(self, session: reader.Session) -> None:
        self.session = session

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.session, name)

    def __repr__(self) -> str:
        return f"<recorded session {self.session.id[:8]}, {self.session.seconds:.0f} s: {self.session.path}>"

    @property
    def id(self) -> str:
        return self.session.id

    def to_pandas(self, series: Any = None, **options: Any) -> pd.DataFrame:
        """The rows as a DataFrame over UTC timestamps, all series or those named; as `reader.Session.to_pandas`."""
        return self.session.to_pandas(series, **options)

    def dashboard(self) -> Dashboard:
        """The session in the dashboard, labelled as recorded; for the output of a cell."""
        from .widgets import Dashboard

        return Dashboard(recorded=self.id)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the session as one HTML file that opens offline.

        Raises:
            MonitorError: rendering failed, or `path` cannot be written; an existing file is then unchanged.
        """
        check(path)
        return write(path, self.render())

    def render(self) -> str:
        """The HTML report, rendered in a separate process."""
        from .report.client import render_in_process

        with interpreted(self.session.path, "a page", remote=True):
            return render_in_process(lambda: self.snapshot)

    @cached_property
    def snapshot(self) -> Snapshot:
        """The session in at most some thousand rows, longer ones as means over equal bins."""
        with interpreted(self.session.path, "a snapshot"):
            whole = self.session.snapshot()
            schema = whole.schema
            loaders = tuple(replace(loader, name=shown(loader.name)) for loader in schema.loaders)
            return replace(
                whole,
                schema=replace(schema, loaders=loaders),
                events=shown_in(whole.events),
                loaders=shown_in(whole.loaders),
                facts=shown_in(dict(whole.facts)),
            )

    @cached_property
    def charts(self) -> tuple[str, ...]:
        """Ids of the charts that have data, and of the default ones."""
        schema = self.snapshot.schema
        with interpreted(self.session.path, "charts"):
            have = [chart["id"] for chart in available(schema) if chart["available"] or chart["default"]]
        return tuple(have) or DEFAULT_CHARTS

    @cached_property
    def page_rows(self) -> Rows:
        """The rows as sent to a page: only the charts' series."""
        snapshot = self.snapshot
        full = replace(snapshot.schema, charts=self.charts)
        part: Schema = full.restricted(set(shown_series(full, self.charts)))
        columns = np.array([full.columns[name] for name in part.names], dtype=np.intp)
        return Rows(schema=part, seq=snapshot.seq, time=snapshot.time, values=snapshot.values[:, columns])

    @cached_property
    def document(self) -> bytes:
        """The chart document (JSON), with tools to pan and zoom."""
        with interpreted(self.session.path, "charts", remote=True):
            return Documents().get(self.page_rows.schema, "recorded")

    @cached_property
    def strip(self) -> Strip | None:
        snapshot = self.snapshot
        with interpreted(self.session.path, "the strip of a switch"):
            return switch_strip(snapshot, snapshot.events, snapshot.loaders)

    @cached_property
    def verdict(self) -> VerdictState | None:
        """The verdict on the session for pages: `analysis.results.Verdict` and `loader`; None without a loader."""
        analysis = analyse(self.snapshot)  # never raises for recorded data
        judged = next((segment for segment in analysis.segments if segment.key == analysis.verdict.segment), None)
        return None if judged is None else cast("VerdictState", {**plain(analysis.verdict), "loader": judged.loader})

    def words(self) -> str:
        """One line: date, length, how it ended, and the file."""
        label = self.label()
        end = "still running" if label["live"] else "ended" if label["goodbye"] else "ended without goodbye"
        when = f"{moment_text(label['started'])}, {span_text(label['seconds'])}"
        return shown(f"Recorded session of {when}, {end}: {label['path']}")

    def export_name(self) -> str:
        return time.strftime("kernel-monitor-%Y-%m-%d-%H%M%S.html", time.localtime(self.session.started))

    def label(self) -> RecordedLabel:
        """`started`, `ended` (both Unix s; `ended` None while live), `live`, `goodbye`, `seconds`, `bin_s`, `path`."""
        session, ended = self.session, self.session.ended
        binned = self.snapshot.facts.get("recorded", {})
        return {
            "started": session.started,
            "ended": None if session.live else session.started + session.seconds,
            "live": session.live,
            "goodbye": bool(ended and ended.get("goodbye")),
            "reason": None if ended is None else ended.get("reason"),
            "seconds": session.seconds,
            "bin_s": binned.get("bin_s"),
            "path": str(session.path),
        }


class Opened:
    """The opened recorded sessions, by id."""

    def __init__(self) -> None:
        folders.anchor()
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, RecordedSession] = OrderedDict()

    def open(self, path: str | os.PathLike[str] | None = None) -> RecordedSession:
        """Open a session: the newest one, or by its path, id or the id's beginning; a live one as it is now.

        Raises:
            SessionError: there is none, or it cannot be read; the message says why.
        """
        if path is not None and not os.fspath(path):
            raise SessionError(
                "A session without a name cannot be opened: give its file, its id or the beginning of that."
            )
        try:
            session = RecordedSession(reader.open_session(None if path is None else os.fspath(path)))
        except OSError as error:
            raise SessionError(f"The session cannot be opened: {error}") from error
        with self._lock:
            self._sessions[session.id] = session
            self._sessions.move_to_end(session.id)
            while len(self._sessions) > KEPT_OPEN:
                self._sessions.popitem(last=False)
        return session

    def get(self, recorded: str) -> RecordedSession:
        """The session with an id; opened if it is not open.

        Raises:
            SessionError: there is no such session.
        """
        with self._lock:
            known = self._sessions.get(recorded)
        return known if known is not None else self.open(recorded)

    def listing(self) -> list[SessionEntry]:
        """The recorded sessions, newest first.

        Each has `path`, `id`, `started` (Unix s), `seconds`, `bytes`, `live`, `goodbye`, `host`, `problem` (why it is
        unreadable, or None) and `damaged` (unreadable although its version is supported).
        """
        return [cast("SessionEntry", {**asdict(entry), "path": str(entry.path)}) for entry in found.sessions()]


def table(entries: list[SessionEntry]) -> str:
    if not entries:
        return "No session is recorded yet."
    lines = []
    for entry in entries:
        end = "live" if entry["live"] else "ended" if entry["goodbye"] else "ended without goodbye"
        if (problem := entry["problem"]) is not None:
            end = f"damaged: {problem}" if entry["damaged"] else f"not readable here: {problem}"
        words = [moment_text(entry["started"]), span_text(entry["seconds"]), _size(entry["bytes"]), end]
        lines.append((entry["id"][:8], *words, entry["path"]))
    widths = [max(len(line[k]) for line in lines) for k in range(5)]
    return shown(
        "\n".join(
            "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[5]])
            for line in lines
        )
    )


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
