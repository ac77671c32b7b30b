"""Answers to requests about recorded sessions; each reads a file, so they run on a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..stream import bokehjs
from ..stream import page_messages as wire
from ..stream.hub import LEASE_S

if TYPE_CHECKING:
    from ..protocol import message_types as types
    from ..protocol.states import Event, LoaderState, MonitorState
    from ..recorded import RecordedSession

Answer = tuple[Mapping[str, object], list[bytes]]
"""Content and buffers of a reply."""


class RecordedRequests:
    """Answers for opened sessions.

    Args:
        state: returns settings, charts and recording of this process's monitor, which such pages show, too.
    """

    def __init__(self, state: Callable[[], MonitorState]) -> None:
        self._state = state
        self.answers: dict[str, Callable[[RecordedSession], Answer]] = {
            "subscribe": self._subscribe,
            "history": self._history,
            "document": self._document,
            "export": self._export,
        }

    def _subscribe(self, session: RecordedSession) -> Answer:
        rows = session.page_rows
        content: types.SubscribeReply = {
            "status": "ok",
            "lease": LEASE_S,
            "session": session.id,
            "running": False,
            "recorded": session.label(),
            "seq": int(rows.seq[-1]) if len(rows) else 0,
            "schema": rows.schema.to_json(),
            "loaders": [complete(state) for state in session.snapshot.loaders],
            "events": cast("list[Event]", session.snapshot.events),
            "strip": session.strip,
            "paused": False,
            "verdict": session.verdict,
            "offers": [],
            "diagnosing": None,
            "profiling": None,
            **self._state(),
        }
        return content, []

    def _history(self, session: RecordedSession) -> Answer:
        events = cast("list[Event]", session.snapshot.events)
        return wire.history(session.page_rows, events, self._state()["charts"])

    def _document(self, session: RecordedSession) -> Answer:
        version = session.page_rows.schema.version
        content: types.DocumentReply = {"status": "ok", "schema": version, "bokeh": bokehjs.version()}
        return content, [session.document]

    def _export(self, session: RecordedSession) -> Answer:
        content: types.ExportReply = {"status": "ok", "filename": session.export_name()}
        return content, [session.render().encode()]


def complete(state: Mapping[str, Any]) -> LoaderState:
    """A recorded state with every field: the reader leaves out those that are damaged or that were not recorded."""
    unknown: LoaderState = {
        "id": "",
        "name": "",
        "backend": "",
        "wanted": None,
        "status": "",
        "backends": [],
        "epoch": 0,
        "batch": 0,
        "batches": None,
        "samples": 0,
        "planned": None,
        "lost": 0,
        "doubled": 0,
        "skipped": 0,
        "replaced": 0,
        "skips": [],
        "knobs": {"workers": None, "prefetch": None, "threads": None},
        "decoded": {},
        "calibration": {},
    }
    engine = {"available": False, "reason": None, "confirm": None, "note": None}
    known: Any = {key: value for key, value in state.items() if key != "epochs" and value is not None}
    known["backends"] = [{**engine, **entry} for entry in known.get("backends", ())]
    known["knobs"] = {**unknown["knobs"], **known.get("knobs", {})}
    return {**unknown, **known}
