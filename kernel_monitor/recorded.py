"""Recorded sessions as users and pages see them: opened, shown in a dashboard, exported."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .analysis import analyse, switch_strip
from .analysis.results import plain
from .analysis.verdict import past
from .errors import MonitorError, SessionError
from .output import check, write
from .protocol.analysis_states import VerdictState
from .protocol.message_types import RecordedLabel, SessionEntry
from .protocol.states import Strip
from .record import reader, sessions
from .record import sessions as found
from .record.sessions import moment_text, span_text
from .store import Rows, Schema, Snapshot
from .store.charts import DEFAULT_CHARTS, chart_states, page_series
from .stream.chart_documents import Documents
from .text import printable, printable_in

if TYPE_CHECKING:
    from .stream.widget_pages import WidgetPages
    from .widgets import Dashboard

_KEPT_OPEN = 4  # sessions kept open; others are opened again on request


@contextmanager
def interpreted(name: object, what: str, *, remote: bool = False) -> Iterator[None]:
    """Turn any failure to make `what` from the recording `name` into a SessionError: the file may be of any origin.

    `remote`: the work is done in another process, which reports failures as MonitorError.
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

    The public names of its reader read through: `id`, `rows`, `events`, `steps`, `facts`, `to_pandas`, `check`…
    """

    def __init__(self, session: reader.Session, pages: WidgetPages | None = None) -> None:
        self._pages = pages
        self.session = session
        self.id = session.id

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.session, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self.session) if not name.startswith("_"))})

    def __repr__(self) -> str:
        return f"<recorded session {self.session.id[:8]}, {self.session.seconds:.0f} s: {self.session.path}>"

    def dashboard(self) -> Dashboard:
        """Return the session in the dashboard, labelled as recorded; for the output of a cell."""
        from .widgets import Dashboard

        return Dashboard(self._pages, recorded=self.id)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the session as one HTML file that opens offline; on a MonitorError an existing file is unchanged."""
        check(path)
        return write(path, self.render())

    def render(self) -> str:
        """Return the HTML report, rendered in a separate process."""
        from .stream.render_process import render_report

        with interpreted(self.session.path, "a page", remote=True):
            return render_report(lambda: self.snapshot)

    @cached_property
    def snapshot(self) -> Snapshot:
        """The session in at most some thousand rows, longer ones as means over equal bins."""
        with interpreted(self.session.path, "a snapshot"):
            whole = self.session.snapshot()
            schema = whole.schema
            loaders = tuple(replace(loader, name=printable(loader.name)) for loader in schema.loaders)
            nodes = tuple(
                replace(node, name=printable(node.name), reason=None if node.reason is None else printable(node.reason))
                for node in schema.nodes
            )
            ranks = tuple(
                replace(rank, host=printable(rank.host), reason=None if rank.reason is None else printable(rank.reason))
                for rank in schema.ranks
            )
            return replace(
                whole,
                schema=replace(schema, loaders=loaders, nodes=nodes, ranks=ranks),
                events=printable_in(whole.events),
                loaders=printable_in(whole.loaders),
                facts=printable_in(dict(whole.facts)),
            )

    @cached_property
    def charts(self) -> tuple[str, ...]:
        """Ids of the charts that have data, and of the default ones."""
        schema = self.snapshot.schema
        with interpreted(self.session.path, "charts"):
            have = [chart["id"] for chart in chart_states(schema) if chart["available"] or chart["default"]]
        return tuple(have) or DEFAULT_CHARTS

    @cached_property
    def page_rows(self) -> Rows:
        """The rows as sent to a page: only the charts' series."""
        snapshot = self.snapshot
        full = replace(snapshot.schema, charts=self.charts)
        part: Schema = full.restricted(set(page_series(full, self.charts)))
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
        if judged is None:
            return None
        verdict = replace(analysis.verdict, sentence=past(analysis.verdict.sentence))
        return cast("VerdictState", {**plain(verdict), "loader": judged.loader, "over": True})

    def words(self) -> str:
        """Return one line: date, length, how it ended, and the file."""
        label = self.label()
        end = "still running" if label["live"] else "ended" if label["goodbye"] else "ended without goodbye"
        when = f"{moment_text(label['started'])}, {span_text(label['seconds'])}"
        return printable(f"Recorded session of {when}, {end}: {label['path']}")

    def export_name(self) -> str:
        return time.strftime("kernel-monitor-%Y-%m-%d-%H%M%S.html", time.localtime(self.session.origin))

    def label(self) -> RecordedLabel:
        """Return `started` and `ended` in Unix s; `ended` is None while live."""
        session = self.session
        ended, seconds = session.ended, session.seconds
        binned = self.snapshot.facts.get("recorded", {})
        return {
            "started": session.origin,
            "ended": None if ended is None else session.origin + seconds,
            "live": ended is None,
            "goodbye": bool(ended and ended["goodbye"]),
            "reason": None if ended is None else ended["reason"],
            "seconds": seconds,
            "bin_s": binned.get("bin_s"),
            "path": str(session.path),
        }


class Opened:
    """The opened recorded sessions, by id."""

    def __init__(self, pages: WidgetPages | None = None) -> None:
        sessions.anchor_override()
        self._pages = pages
        self._lock = threading.Lock()
        self._sessions: dict[str, RecordedSession] = {}

    def open(self, path: str | os.PathLike[str] | None = None) -> RecordedSession:
        """Open a session, a live one as it is now; `path` and errors as for `reader.open_session`."""
        if path is not None and not os.fspath(path):
            raise SessionError(
                "A session without a name cannot be opened: give its file, its id or the beginning of that."
            )
        try:
            session = RecordedSession(reader.open_session(path), self._pages)
        except OSError as error:
            raise SessionError(f"The session cannot be opened: {error}") from error
        with self._lock:
            self._sessions.pop(session.id, None)
            self._sessions[session.id] = session
            if len(self._sessions) > _KEPT_OPEN:
                del self._sessions[next(iter(self._sessions))]  # the one that was opened first
        return session

    def get(self, recorded: str) -> RecordedSession:
        """Return the session with an id; opened if it is not open."""
        with self._lock:
            known = self._sessions.get(recorded)
        return known if known is not None else self.open(recorded)

    def listing(self) -> list[SessionEntry]:
        """Return the recorded sessions, newest first; each as `record.sessions.Found`."""
        return [cast("SessionEntry", {**asdict(entry), "path": str(entry.path)}) for entry in found.sessions()]


def table(entries: list[SessionEntry]) -> str:
    if not entries:
        return "No session is recorded yet."
    lines = []
    for entry in entries:
        end = "live" if entry["live"] else "ended" if entry["goodbye"] else "ended without goodbye"
        if (problem := entry["problem"]) is not None:
            end = f"damaged: {problem}" if entry["damaged"] else f"not readable here: {problem}"
        size = f"{entry['bytes'] / 1e6:.1f} MB" if entry["bytes"] >= 1e6 else f"{entry['bytes'] / 1e3:.0f} kB"
        words = [moment_text(entry["started"]), span_text(entry["seconds"]), size, end]
        lines.append([entry["id"][:8], *words, entry["path"]])
    widths = [max(len(line[k]) for line in lines) for k in range(5)] + [0]
    return printable("\n".join("  ".join(map(str.ljust, line, widths)) for line in lines))
