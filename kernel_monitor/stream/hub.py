"""The pages of this kernel: their subscriptions, and the request to open a sidebar.

A page holds a lease that it renews while it shows the charts. Frames are sent only while a lease is valid and a cell
ran within the last ten minutes: jupyter-server counts every message as activity, and an open tab must not keep an idle
kernel (and its GPU) from being culled.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import MonitorError
from ..protocol.message_types import ErrorReply, HistoryReply
from ..protocol.states import ChartState, Event
from ..store import Rows
from ..text import line, printable, printable_in

LEASE_S = 20.0  # how long a subscription lives without renewal, in seconds
MOST_LEASES = 1000  # of pages at a time
IDLE_PAUSE_S = 600.0  # seconds without a running cell after which frames pause until a user acts on a page

Publish = Callable[..., Any]  # sends (type, content, buffers=None) to every connected page; for any thread

FRAMES, GLANCE = "frames", "glance"  # kinds of leases: every frame for charts, or a few figures for a status bar


class Hub:
    """The subscriptions of one kernel."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[tuple[str, str], float] = {}  # expiry by (kind, client)
        self._bundled: set[str] = set()  # clients that take several rows in a frame
        self._held: set[str] = set()  # clients that cannot renew while a cell runs
        self._cells_running = 0
        self._cell_runs: Callable[[], bool] | None = None
        self._last_activity = clock()  # a cell, or a user who acted on a page
        self._last_cell = clock()
        self.ever_subscribed = False

    def subscribe(self, client: str, *, touch: bool = False, kind: str = FRAMES, bundled: bool = False) -> None:
        """Start or renew a lease; `touch`: a user acted on the page, which ends a pause; `bundled`: see `bundles`.

        Raises MonitorError if there are too many.
        """
        now = self._clock()
        with self._lock:
            if len(self._leases) >= MOST_LEASES and (kind, client) not in self._leases:
                self._expire()
                if len(self._leases) >= MOST_LEASES:
                    raise MonitorError(f"{MOST_LEASES:,} pages show this kernel already: close some of them.")
            self._leases[kind, client] = now + LEASE_S
            if kind == FRAMES:
                (self._bundled.add if bundled else self._bundled.discard)(client)
            self.ever_subscribed = self.ever_subscribed or kind == FRAMES
            if touch:
                self._last_activity = now

    def hold(self, client: str) -> None:
        """Keep a client's leases until the running cell has ended: no renewal of its gets through before."""
        with self._lock:
            self._held.add(client)

    def holds(self, client: str, kind: str) -> bool:
        """Return whether this client holds a valid lease of this kind."""
        with self._lock:
            self._expire()
            return (kind, client) in self._leases

    @property
    def bundles(self) -> bool:
        """Whether all pages that are sent frames take several rows in one."""
        with self._lock:
            return all(client in self._bundled for kind, client in self._leases if kind == FRAMES)

    def unsubscribe(self, client: str) -> None:
        with self._lock:
            self._held.discard(client)
            for kind in (FRAMES, GLANCE):
                self._leases.pop((kind, client), None)

    def clear(self) -> None:
        """Forget the pages; and the cells, whose ends are no longer seen."""
        with self._lock:
            self._leases.clear()
            self._held.clear()
            self._cells_running = 0

    def cell_started(self) -> None:
        with self._lock:
            self._cells_running += 1
            self._last_activity = self._clock()

    def cell_ended(self) -> None:
        with self._lock:
            # A cell may have started before we were registered.
            self._cells_running = max(0, self._cells_running - 1)
            self._last_activity = self._last_cell = self._clock()

    @property
    def cell_running(self) -> bool:
        """Whether a cell runs."""
        with self._lock:
            return self._busy()

    @property
    def idle_s(self) -> float:
        """The time since the last cell ended, s; 0 while one runs."""
        with self._lock:
            if self._busy():
                self._last_cell = self._clock()
            return self._clock() - self._last_cell

    def wanted(self, kind: str) -> bool:
        """Return whether a page holds a valid lease of this kind."""
        with self._lock:
            self._expire()
            return any(of == kind for of, _ in self._leases)

    def _expire(self) -> None:
        now = self._clock()
        if self._held and self._busy():
            # After the cell's end a renewal has one lease's time to arrive.
            held = {lease: now + LEASE_S for lease in self._leases if lease[1] in self._held}
            self._leases |= held
        self._leases = {lease: until for lease, until in self._leases.items() if until >= now}
        clients = {client for _, client in self._leases}
        self._held &= clients
        self._bundled &= clients

    def ask_cells(self, runs: Callable[[], bool]) -> None:
        """Ask this whether a cell runs, where no hook says so; then nothing is paused, as nothing counts messages."""
        self._cell_runs = runs

    def _busy(self) -> bool:
        return self._cells_running > 0 or (self._cell_runs is not None and self._cell_runs())

    @property
    def paused(self) -> bool:
        """Return whether frames are paused because no cell ran for `IDLE_PAUSE_S`."""
        with self._lock:
            idle = self._cells_running == 0 and self._cell_runs is None
            return idle and self._clock() - self._last_activity > IDLE_PAUSE_S


class SidebarRequest:
    """A request to the page of a cell to open its sidebar, until that page confirms; the newest counts. Thread-safe.

    `page` is the session id of its connection, which every cell request carries, so that other pages of the same kernel
    ignore the request. A page that connects later finds it in the reply to its first request.
    """

    def __init__(self) -> None:
        self.page: str | None = None
        self._lock = threading.Lock()
        self._answered = threading.Event()

    def ask(self, page: str) -> None:
        with self._lock:
            self.page = page
            self._answered.clear()

    def answer(self, page: str) -> None:
        """Accept a page's confirmation that it opens its sidebar."""
        with self._lock:
            if page == self.page:
                self.page = None
                self._answered.set()

    def wait(self, seconds: float) -> bool:
        """Return whether the page confirms within `seconds`."""
        return self._answered.wait(seconds)


# ---- Encodes messages to pages; `kernel_monitor.protocol` has their types, `tests/wire/golden` an example of each.

MAX_ERROR = 4000  # characters of an error's message


def encode_values(values: npt.NDArray[np.float32]) -> bytes:
    """Return one row of the table as bytes: float32 little-endian, shape ``(series,)``; missing is NaN."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def history(rows: Rows, events: list[Event], charts: list[ChartState]) -> tuple[HistoryReply, list[bytes]]:
    """Return the reply with many rows; buffers seq, time (float64[n]) and values (float32[n·m], row-major)."""
    content: HistoryReply = {
        "status": "ok",
        "schema": rows.schema.to_json(),
        "rows": len(rows.seq),
        "events": events,
        "charts": charts,
    }
    buffers = [rows.seq.astype("<f8").tobytes(), rows.time.astype("<f8").tobytes(), encode_values(rows.values)]
    return content, buffers


def error(exc: BaseException) -> ErrorReply:
    """Return the reply to a failed request: the exception's class name and message, always encodable."""
    name = line(type(exc).__name__)
    try:
        message = str(exc)
    except BaseException as worse:  # noqa: BLE001 - a user's exception whose __str__ fails must still be reported
        message = f"{name}, which has no words of its own: {type(worse).__name__} in its __str__"
    return {"status": "error", "error": name, "message": printable(message)[:MAX_ERROR] or name}


def sendable(content: Mapping[str, object]) -> Mapping[str, object]:
    """Return the content of a message with unencodable text escaped; MonitorError if a value is not JSON.

    Jupyter drops a message that it cannot encode, or sends bytes that are not UTF-8.
    """
    try:
        json.dumps(content, ensure_ascii=False, default=_number).encode()
    except UnicodeEncodeError:
        return printable_in(dict(content))
    except (TypeError, ValueError, RecursionError) as cause:
        raise MonitorError(f"The answer cannot be sent: {cause}.") from cause
    return content


def _number(value: Any) -> int | float:
    """Convert NumPy numbers, as Jupyter does."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
