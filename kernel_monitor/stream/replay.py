"""The answers for a recorded session: each reads a file, so they are given on a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from . import wire
from .hub import LEASE_S

if TYPE_CHECKING:
    from ..recorded import RecordedSession

Reply = tuple[dict[str, Any], list[bytes]]


class Replay:
    """Answers for sessions that are open.

    Args:
        state: settings, charts and recording of the monitor of this process, which pages of a session show too.
    """

    def __init__(self, state: Callable[[], dict[str, Any]]) -> None:
        self._state = state
        self.answers: dict[str, Callable[[RecordedSession], Reply]] = {
            "subscribe": self._subscribe,
            "history": self._history,
            "document": self._document,
            "export": self._export,
        }

    def _subscribe(self, session: RecordedSession) -> Reply:
        rows = session.page_rows
        return wire.ok(
            lease=LEASE_S,
            session=session.id,
            running=False,
            recorded=session.label(),
            seq=int(rows.seq[-1]) if len(rows) else 0,
            schema=rows.schema.to_json(),
            loaders=session.snapshot.loaders,
            events=session.snapshot.events,
            strip=session.strip,
            paused=False,
            verdict=session.verdict,
            diagnosing=None,
            profiling=None,
            **self._state(),
        ), []

    def _history(self, session: RecordedSession) -> Reply:
        content, buffers = wire.encode_history(session.page_rows)
        return wire.ok(**content, events=session.snapshot.events, charts=self._state()["charts"]), buffers

    def _document(self, session: RecordedSession) -> Reply:
        return wire.ok(schema=session.page_rows.schema.version, bokeh=bokeh_version()), [session.document]

    def _export(self, session: RecordedSession) -> Reply:
        return wire.ok(filename=session.export_name()), [session.render().encode()]


@lru_cache(maxsize=1)
def bokeh_version() -> str:
    """The version of this environment's Bokeh, without importing it."""
    return metadata.version("bokeh")
