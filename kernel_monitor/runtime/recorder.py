"""The kernel's half of the recorder, which runs in the sampler and sees neither loaders nor switches."""

from __future__ import annotations

import base64
import logging
import math
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from ..errors import MonitorError
from ..node_sources import Node, node_series
from ..privacy import T, own_name, private_in, pseudonymous, without_secrets_in
from ..rank import Rank, job_series, jobs_of, rank_series
from ..record import sessions
from ..text import cause, log_failed, printable

if TYPE_CHECKING:
    from ..loaders import AnyLoader
    from ..protocol.states import RecorderState, RecordingState

    Loaders = Sequence[AnyLoader]

States = Sequence[Mapping[str, Any]]
LOG = logging.getLogger(__name__)

FLUSH_S = 0.5  # between two sends of values and steps: a killed kernel loses at most this much
COMPARE_S = 1.0  # between two comparisons of the loaders' states and workers with those sent last
OFF = "Recording is off."


class NodeRows(TypedDict):
    """Rows of one node that wait: each its time, and float32 values of `node_series` in base64."""

    cores: tuple[int, ...]
    gpus: int
    rows: list[tuple[float, str]]


class _RankRows(TypedDict):
    """Rows of one rank that wait, as `NodeRows` has them, of `rank_series`."""

    steps: bool
    gpu: bool
    job: int | None  # the rows are of `job_series` of this job
    rows: list[tuple[float, str]]


class Recording:
    """The file of one session and the recorder's last report about it; a failure is a state, never an exception.

    States: `recording`; `moved` (recording, but elsewhere than asked for: `message` says why); `stopped` (it failed:
    `message` says why and what to do); `off`.
    """

    def __init__(self) -> None:
        self._state: RecordingState = {"state": "off", "path": None, "message": OFF}
        self._path: Path | None = None
        self._folder: str | None = None
        self._moved: str | None = None
        self._answered = threading.Event()  # the recorder has answered the newest request

    def to_json(self) -> RecordingState:
        return self._state

    @property
    def on(self) -> bool:
        return self._state["state"] in ("recording", "moved")

    def set(self, *, on: bool, folder: str | None, session: str, origin: float) -> Path | None:
        """Begin, resume or end the recording of a session (its id) that began at `origin` (Unix s).

        Returns its file, the same for a whole session unless `folder` changes (None: the default one), or None.
        """
        if not on:
            self.end()
            return None
        self._answered.clear()
        try:
            if self._path is None or folder != self._folder:
                place = sessions.choose_folder(None if folder is None else Path(folder))
                self._path, self._moved = sessions.new_file(place, session, origin), place.message
                self._folder = folder
        except Exception as error:  # noqa: BLE001 - whatever it is, the session goes on without a recording
            self._path = None
            why = str(error) if isinstance(error, MonitorError) else cause(error)
            self._set("stopped", None, f"This session is not recorded: {why}")
            return None
        self._set("recording", self._path, self._moved or "")
        return self._path

    def end(self, message: str = OFF) -> None:
        """Recording ends on request."""
        self._set("off", self._path, message)

    def settle(self, seconds: float) -> None:
        """Wait at most `seconds` for the recorder's answer, so that the state is the result and not the request."""
        if self.on and not self._answered.wait(seconds):
            self._set("recording", self._path, "the recorder has not answered yet")

    def handle_notice(self, notice: Mapping[str, Any]) -> None:
        """Take over the recorder's report, unless it answers an earlier request."""
        state, path = cast("RecorderState", notice.get("state")), notice.get("path")
        if state == "off" or self._state["state"] == "off":
            return
        if path is not None and state != "moved" and self._path is not None and Path(path) != self._path:
            return
        self._answered.set()
        if state == "recording" and self._moved is not None:
            self._set(state, self._path, self._moved)
        else:
            self._set(state, self._path if path is None else Path(path), str(notice.get("message") or ""))

    def _set(self, state: RecorderState, path: Path | None, message: str) -> None:
        if state == "recording" and self._moved is not None:
            state = "moved"
        self._state = {"state": state, "path": None if path is None else str(path), "message": message}


class RecorderFeed:
    """Sends the recorder what changed since the last send, one JSON line each on the sampler's stdin. Thread-safe.

    Nothing here blocks: the sampler's client buffers or drops lines while the pipe is full. `recording` returns whether
    the recorder records; `hidden` the names of nodes that may not be recorded, with their pseudonyms, None where all
    may. The messages are in `docs/messages.md`, *Kernel to sampler*.
    """

    def __init__(
        self,
        send: Callable[[dict[str, Any]], object],
        recording: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        hidden: Callable[[], Mapping[str, str] | None] = lambda: None,
    ) -> None:
        self._send = send
        self._recording = recording
        self._hidden = hidden
        self._clock = clock
        self._lock = threading.Lock()  # goodbye and rows come from different threads
        self._rows: list[tuple[float, Mapping[str, float]]] = []
        self._node_rows: dict[str, NodeRows] = {}
        self._states: States | None = None
        self._nodes: Sequence[Node] = ()
        self._ranks: Sequence[Rank] = ()
        self._rank_rows: dict[str, _RankRows] = {}
        self._epochs: Mapping[str, Any] | None = None
        self._workers: list[int] = []
        self._cell_running: bool | None = None
        self._flushed = self._compared = clock()

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Send everything to a sampler that has just started."""
        with self._lock:
            self._states, self._nodes, self._ranks, self._epochs, self._workers = None, (), (), None, []
            self._compared -= COMPARE_S
        self._send({"do": "facts", "facts": facts})
        if self._cell_running is not None:
            self.cell(running=self._cell_running)

    def cell(self, *, running: bool) -> None:
        """Send whether a cell runs."""
        self._cell_running = running
        self.record("cell_running", cell_running=running)

    def record(self, do: str, **fields: Any) -> None:
        """Send a message that is for the recorder only: `facts`, `event`, `steps` or `epochs`."""
        if self._recording():
            if do != "steps":
                fields = self._hide(fields)
            # A mark's words are the user's, and may name a folder.
            self._send({"do": do, **(private_in(fields) if do == "event" else fields)})

    def epochs(self, past: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Send the counts of the epochs before each loader's newest; `past` is a new object when they changed."""
        if self._recording() and past is not self._epochs:
            self._epochs = past
            self._send({"do": "epochs", "epochs": past})

    def row(self, row_time: float, values: Mapping[str, float], states: States, loaders: Loaders) -> None:
        """Send the loaders' values and states of the row at `row_time` (session s), some at a time."""
        now = self._clock()
        with self._lock:
            if values and self._recording():
                self._rows.append((row_time, values))
            if now - self._flushed >= FLUSH_S:
                self._flush()
                self._flushed = now
            if now - self._compared >= COMPARE_S:
                self._compared = now
                self._send_changes(states, loaders)

    def nodes(self, row_time: float, nodes: Sequence[Node], values: Mapping[str, float]) -> None:
        """Take the nodes and their values of the row at `row_time`, to be sent with the loaders' next ones."""
        if not self._recording():
            return
        with self._lock:
            if nodes != self._nodes:
                self._nodes = nodes
                entries = [
                    asdict(node) if self._hidden() is None else {**asdict(node), "name": node.id} for node in nodes
                ]
                self._send({"do": "nodes", "nodes": self._hide(entries)})
            for node in nodes if values else ():
                names = _node_names(node.id, node.cores, len(node.gpus))
                cells = [values.get(name, math.nan) for name in names]
                if not all(map(math.isnan, cells)):
                    rows = self._node_rows.get(node.id)
                    if rows is None or (rows["cores"], rows["gpus"]) != (node.cores, len(node.gpus)):
                        self._flush_nodes()
                        fresh: NodeRows = {"cores": node.cores, "gpus": len(node.gpus), "rows": []}
                        rows = self._node_rows.setdefault(node.id, fresh)
                    rows["rows"].append((row_time, _packed(cells)))

    def ranks(self, row_time: float, ranks: Sequence[Rank], values: Mapping[str, float]) -> None:
        """Take the ranks and their values of the row at `row_time`, as `nodes`; hosts have their ids as names."""
        if not self._recording():
            return
        with self._lock:
            if ranks != self._ranks:
                self._flush_nodes()
                self._ranks = ranks
                self._send({"do": "ranks", "ranks": self._hide([asdict(rank) for rank in ranks])})
            if not values:
                return
            for rank in ranks:
                gpu = rank.gpu is not None
                names = _rank_names(rank.id, rank.steps, gpu)
                self._add(rank.id, {"steps": rank.steps, "gpu": gpu, "job": None, "rows": []}, names, row_time, values)
            for job in jobs_of(ranks):
                none: _RankRows = {"steps": True, "gpu": False, "job": job, "rows": []}
                self._add(f"job-{job}", none, [name for name, _ in job_series(job)], row_time, values)

    def _add(
        self, key: str, fresh: _RankRows, names: Sequence[str], row_time: float, values: Mapping[str, float]
    ) -> None:
        cells = [values.get(name, math.nan) for name in names]
        if not all(map(math.isnan, cells)):
            self._rank_rows.setdefault(key, fresh)["rows"].append((row_time, _packed(cells)))

    def goodbye(self, reason: str, loaders: Loaders, states: States) -> None:
        """Send the last values and the reason why the session ends."""
        with self._lock:
            self._flush()
            self._send_changes(states, loaders)
        self._send({"do": "goodbye", "reason": reason})

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._send({"do": "values", "rows": rows})
        self._flush_nodes()

    def _hide(self, value: T) -> T:
        """Nested lists and dicts without keys, and with the pseudonyms of machines in place of their names."""
        hidden = self._hidden()
        return without_secrets_in(value if hidden is None else pseudonymous(value, {**own_name(), **hidden}))

    def _flush_nodes(self) -> None:
        found, self._node_rows = self._node_rows, {}
        if found:
            self._send({"do": "node-values", "nodes": found})
        ranks, self._rank_rows = self._rank_rows, {}
        if ranks:
            self._send({"do": "rank-values", "ranks": ranks})

    def _send_changes(self, states: States, loaders: Loaders) -> None:
        workers = sorted(pid for loader in loaders for pid in loader.worker_pids)
        if workers != self._workers:
            self._workers = workers
            self._send({"do": "roles", "workers": workers})
        if self._recording() and states != self._states:
            self._states = states
            self._send({"do": "loaders", "loaders": self._hide(states)})


@lru_cache(maxsize=256)  # of hundreds of series ten times a second
def _node_names(node: str, cores: tuple[int, ...], gpus: int) -> tuple[str, ...]:
    return tuple(name for name, _ in node_series(node, cores, gpus))


@lru_cache(maxsize=1024)
def _rank_names(rank: str, steps: bool, gpu: bool) -> tuple[str, ...]:
    return tuple(name for name, _ in rank_series(rank, steps=steps, gpu=gpu))


def _packed(cells: Sequence[float]) -> str:
    """Return the values as float32 in base64."""
    return base64.b64encode(struct.pack(f"<{len(cells)}f", *cells)).decode("ascii")


def left_behind() -> dict[str, str] | None:
    """Return `{"path", "message"}` of the newest session that ended without a goodbye, once; or None."""
    try:
        found = sessions.left_without_goodbye()
        if found is None:
            return None
        sessions.mark_told(found)
    except Exception:  # noqa: BLE001 - this session must start whatever the folder contains
        log_failed(LOG, "Earlier recordings cannot be listed; %s=FOLDER names another folder", sessions.OVERRIDE)
        return None
    began, lasted = sessions.moment_text(found.started), sessions.span_text(found.seconds)
    message = (
        f"The last session (started {began}, {lasted}) ended without goodbye: "
        f"its recording is {found.path}. See it with %monitor open {found.path}."
    )
    return {"path": str(found.path), "message": message}


def words(recording: RecordingState) -> str:
    """Return a recording's state as one line."""
    if recording["state"] not in ("recording", "moved"):
        return f"not recording: {recording['message']}"
    line = f"recording to {printable(str(recording['path']))}"
    return f"{line} ({recording['message']})" if recording["message"] else line
