"""Sends frames, glances and notices to the pages of this kernel, while at least one is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .._version import __version__
from ..analysis import switch_strip
from ..analysis.frames import IDLE_S, allowed_cores
from ..analysis.idle_gpus import AFTER_S, idle_sentences
from ..analysis.segments import change_time, switches
from ..protocol import message_types
from ..protocol.analysis_states import Findings
from ..protocol.message_types import Figures, Frame, Glance, MachineFigures
from ..protocol.states import ChartState, Event, Identity, LoaderState, MonitorState, Strip
from ..store import Rows, Store
from ..store.charts import chart_states
from ..stream.hub import FRAMES, GLANCE, Publish, encode_values
from ..stream.widget_pages import WidgetPages
from .current_verdict import CurrentVerdict
from .session import Row, Session, version
from .settings import Settings

_GLANCE_PERIOD_S = 1.0
_MEAN_S = 2.0  # of the figures of a glance, as of those of a dashboard (widgets/src/charts/stats.ts)
_STRIP_PERIOD_S = 1.0
_IDLE_PERIOD_S = 5.0  # between two looks at idle GPUs
_STRIP_SHARE = 0.02  # of the time since the last switch, which may pass before the strip is computed again
_BUNDLE_S = 0.4  # of rows in a frame for pages that take several; what came of a click goes out at once
_LOADERS_PERIOD_S = 0.35  # between two frames with the loaders' counts, 40 kB of twenty; due before the next bundle
_AT_ONCE = ("id", "backend", "wanted", "status", "knobs", "backends", "ended")  # of a loader; a click waits for it
_STRIP_CHARTS = ("cpu", "gpu", "images", "wait")  # whose series the strip needs


class Publisher:
    """The stream to all pages of one kernel.

    `tasks` returns the progress of `diagnosing` and `profiling`, in objects that are replaced, never modified;
    `failures` sentences on what does not work at the moment.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        pages: WidgetPages,
        settings: Callable[[], Settings],
        tasks: Callable[[], Findings],
        failures: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.current = CurrentVerdict(store, session.calibrate, lambda: session.tracker.past)
        self.strip: Strip | None = None
        self._session = session
        self._store = store
        self._pages = pages
        self._hub = pages.hub
        self._settings = settings
        self._tasks = tasks
        self._failures = failures
        self._publish: Publish | None = None
        self._strip_due = 0.0
        self._strip_of = 0  # the newest event that it knows of
        self._strip_to = -1.0  # when the newest step ended that it knows of
        self._glance_due = 0.0
        self._idle_gpus: list[str] = []
        self._idle_due = 0.0
        self._sent_event = 0
        self._sent: dict[str, Any] = {"offers": []}
        self._frame_due = 0.0
        self._waiting: list[tuple[Any, Row, bytes]] = []  # of the next frame: session and schema, row, values
        self._loaders_due = 0.0
        self._loaders_outline: list[list[Any]] = []
        self._sent_paused = False
        self._charts: tuple[int, list[ChartState]] = (-1, [])

    def connect(self, publish: Publish | None) -> None:
        """Set the function that sends to the pages with a control channel; None for none."""
        self._publish = publish

    def hello(self) -> Identity:
        """Return the reply to a page's first request: versions, environment and state."""
        return {
            "protocol": message_types.PROTOCOL,
            "version": __version__,
            "environment": Path(sys.prefix).name,
            "ipykernel": version("ipykernel"),
            "bokeh": version("bokeh"),
            "running": self._session.running,
            "session": self._session.id,
            **self.state(),
        }

    def state(self) -> MonitorState:
        """Return `settings`, `charts` (each available, or with the reason why not) and `recording`."""
        schema = self._store.schema
        if self._charts[0] != schema.version:
            self._charts = schema.version, chart_states(schema)
        return {
            "settings": self._settings().to_json(),
            "charts": self._charts[1],
            "recording": self._session.recorder.to_json(),
        }

    def findings(self) -> Findings:
        """Return `verdict` and `main` loader as last computed, open `offers`, what is said of `ranks`, and tasks."""
        return {
            "verdict": self.current.verdict,
            "offers": self.current.offers.standing,
            "ranks": self._session.ranks.sentences(),
            "notices": [*self._idle_gpus, *self._failures()],
            "main": self.current.main,
            **self._tasks(),
        }

    def events(self, after: int = 0) -> list[Event]:
        """Return the session's events after the one with id `after`."""
        return cast("list[Event]", self._store.events(after))

    def notify(self, kind: str, **fields: Any) -> None:
        """Send all pages a notice of a change."""
        self._send(message_types.NOTICE, {"kind": kind, **self.hello(), **fields})

    def row(self, row: Row) -> None:
        """Send a new row to the pages that are watching. Called on the sampler's reader thread."""
        self.current.predict(row.states, self._session.add_event)
        self._open_pages()
        hub = self._hub
        frames, glances = hub.wanted(FRAMES), hub.wanted(GLANCE)
        if not (frames or glances):
            self._sent_paused, self._waiting = False, []
            return
        if hub.paused:
            if not self._sent_paused:
                self._sent_paused = True
                self.notify("paused")
            return
        self._sent_paused = False
        if frames:
            self._frame(row)
        if glances and row.sampled >= self._glance_due:
            # Due half an interval early, or rounding would delay each glance by a frame.
            self._glance_due = row.sampled + _GLANCE_PERIOD_S - min(0.5, self._settings().interval) / 2
            self.current.refresh(row.time, row.states)
            content: Glance = {"protocol": message_types.PROTOCOL, "session": self._session.id, **self.glance()}
            self._send(message_types.GLANCE, content)

    def glance(self) -> Figures:
        """Return the figures of a status bar, the kind of the current verdict, and the recording's state."""
        session, store = self._session, self._store
        last = max(1, round(_MEAN_S / self._settings().interval))
        now = session.session_time(time.monotonic())
        loaders, main = [loader.id for loader in session.tracker.loaders()], self.current.main
        if main in {source.id for source in session.tracker.sources()}:
            loaders = [str(main)]
        if now is not None and now > store.steps.newest + IDLE_S:
            loaders = []  # no loop runs: no rate, as on the tiles of a dashboard
        return {
            **machine_figures(store.rows(store.last_seq - last), loaders=loaders),
            "kind": None if now is None else self.current.kind(now),
            "recording": session.recorder.to_json(),
        }

    def _frame(self, row: Row) -> None:
        self._refresh_strip(row)
        self._refresh_idle_gpus(row)
        self.current.refresh(row.time, row.states, self._tasks(), self.strip)
        version, values = self._store.newest_page_row()
        of = self._session.id, version
        self._waiting = [*(waiting for waiting in self._waiting if waiting[0] == of), (of, row, encode_values(values))]
        events = self.events(self._sent_event) if self._store.last_event > self._sent_event else []
        now_shown: dict[str, Any] = {"recording": self._session.recorder.to_json(), **self.findings()}
        now_shown |= self._loaders([*row.states, *self._session.ranks.loader_states()], row.time)
        changed: Any = {key: value for key, value in now_shown.items() if value != self._sent.get(key)}
        if self._hub.bundles and row.time < self._frame_due and not events and not changed:
            return
        rows, self._waiting = self._waiting, []
        self._frame_due = row.time + _BUNDLE_S - min(_BUNDLE_S, self._settings().interval) / 2
        self._sent |= changed
        if events:
            self._sent_event = events[-1]["id"]
        now = time.time()
        content: Frame = {
            "protocol": message_types.PROTOCOL,
            "session": self._session.id,
            "schema": version,
            "seq": row.seq,
            "time": row.time,
            "sampled": now - (time.monotonic() - row.sampled),
            "sent": now,
            "missed": sum(of.missed for _, of, _ in rows),
            "events": events,
            "strip": self.strip,
        }
        if len(rows) > 1:
            content["before"] = [[of.seq, of.time] for _, of, _ in rows[:-1]]
        content.update(changed)
        self._send(message_types.FRAME, content, [b"".join(values for _, _, values in rows)])

    def _loaders(self, states: list[LoaderState], time: float) -> dict[str, Any]:
        """Return `loaders` if they are due; at once where more than counts has changed."""
        outline = [[state.get(key) for key in _AT_ONCE] for state in states]
        if time < self._loaders_due and outline == self._loaders_outline:
            return {}
        self._loaders_due, self._loaders_outline = time + _LOADERS_PERIOD_S, outline
        return {"loaders": states}

    def _send(self, kind: str, content: Any, buffers: list[bytes] | None = None) -> None:
        publish = self._publish
        if publish is not None:
            publish(kind, content, buffers)
        self._pages.publish(kind, content, buffers)

    def _open_pages(self) -> None:
        if not self._pages.wait:
            return
        version, values = self._store.newest_page_row()
        self._pages.refresh(version, len(values), self._store.last_seq)

    def _refresh_idle_gpus(self, row: Row) -> None:
        idle_s = self._hub.idle_s
        if idle_s < AFTER_S[0]:
            self._idle_gpus, self._idle_due = [], 0.0
        elif row.time >= self._idle_due:
            self._idle_due = row.time + _IDLE_PERIOD_S
            since = max(row.time - AFTER_S[0], row.time - idle_s)
            self._idle_gpus = idle_sentences(self._store.rows(self._store.seq_before(since)), idle_s)

    def _refresh_strip(self, row: Row) -> None:
        ended = self._store.steps.newest
        paused = ended > self._strip_to and row.time > ended + IDLE_S  # the last steps count, too
        if row.time < self._strip_due and self._store.last_event == self._strip_of and not paused:
            return
        self._strip_of, self._strip_to = self._store.last_event, ended
        events = self._store.events()
        done = switches(events)
        # The longer the sides that are compared, the less a second more can change.
        since = row.time - change_time(done[-1]) if done else 0.0
        self._strip_due = row.time + max(_STRIP_PERIOD_S, _STRIP_SHARE * since)
        if done:
            steps = self._store.steps.table()
            self.strip = switch_strip(self._store.rows(charts=_STRIP_CHARTS), events, row.states, steps)


def machine_figures(rows: Rows, *, loaders: Sequence[str]) -> MachineFigures:
    """Return the figures of some rows, with the rates of these loaders (their ids) added up; what is not known is None.

    CPU is of the cores that this process may use, memory of its container where that has a limit.
    """
    schema = rows.schema
    limit = (schema.host.get("limits") or {}).get("memory")
    container = limit is not None and "container/memory" in schema.columns
    gpus = [f"gpu/{gpu.index}" for gpu in schema.gpus]
    cores = _values(rows, [f"cpu/{core}/busy" for core in allowed_cores(schema)])
    busy = _values(rows, [f"{gpu}/utilisation" for gpu in gpus])
    memory = _values(rows, ["container/memory" if container else "memory/used"])
    gpu_memory = _values(rows, [f"{gpu}/memory_used" for gpu in gpus])
    images = _values(rows, [f"loader/{loader}/images" for loader in loaders])
    return {
        "cpu": float(np.concatenate(cores).mean()) if cores else None,
        "gpu": float(np.concatenate(busy).mean()) if busy else None,
        "memory_used": _total([values[-1] for values in memory]),
        "memory_total": limit if container else schema.host.get("memory_total"),
        "gpu_memory_used": _total([values[-1] for values in gpu_memory]),
        "gpu_memory_total": _total([gpu.memory_total for gpu in schema.gpus if gpu.memory_total is not None]),
        "images": _total([values.mean() for values in images]),
    }


def _values(rows: Rows, names: list[str]) -> list[npt.NDArray[np.float32]]:
    """Return the known values of each of these series that has any."""
    columns = [rows.values[:, rows.schema.columns[name]] for name in names if name in rows.schema.columns]
    known = [values[np.isfinite(values)] for values in columns]
    return [values for values in known if len(values)]


def _total(figures: Sequence[float]) -> float | None:
    return float(sum(figures)) if figures else None
