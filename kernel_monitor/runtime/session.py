"""One session: starts and stops the sampler, puts its frames into the store, and sends its recorder what to record."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

from .._version import DALI_PACKAGES
from ..node_sources import pseudonyms
from ..privacy import private
from ..protocol.states import LoaderState
from ..sample.clock import SessionClock
from ..sample.sampler_client import SamplerClient
from ..store import Store
from ..text import cause, printable_in
from .loader_tracker import LoaderTracker
from .node_tracker import NodeTracker
from .optional_parts import live_ranks
from .overhead import Share
from .recorder import FLUSH_S, RecorderFeed, Recording
from .settings import Settings

log = logging.getLogger(__name__)

_KEPT_NOTICES = 5
# Versions that a reader of a report or a recording needs to reproduce it; nothing personal.
_REPORTED_PACKAGES = ("kernel-monitor", "torch", "torchvision", *DALI_PACKAGES, "bokeh", "ipykernel", "psutil")


class Row(NamedTuple):
    """A row just appended to the store."""

    seq: int
    time: float  # s since the session began
    sampled: float  # when it was taken, by `time.monotonic()` (s)
    missed: int  # deadlines without a row since the previous row
    states: list[LoaderState]


class _HostValues(Mapping[str, float]):
    """A frame's values by the series' names; the host's columns are the store's first."""

    def __init__(self, columns: Mapping[str, int], values: Any) -> None:
        self._columns, self._values = columns, values

    def __getitem__(self, name: str) -> float:
        place = self._columns[name]
        if place >= len(self._values):
            raise KeyError(name)  # of a loader, a node or a rank
        return float(self._values[place])

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._values)


class Session:
    """One session: it begins with the first start and goes on when the sampler is stopped and started again."""

    def __init__(self, store: Store) -> None:
        self.id: str | None = None
        self.recorder = Recording()
        self.notices: list[str] = []
        self.missed = 0  # deadlines without a row in the whole session
        self.client: SamplerClient | None = None
        self.tracker = LoaderTracker(store, self.session_time, self.add_event)
        self.nodes = NodeTracker(store, self.remember)
        self.ranks = live_ranks(store, self.remember, self.add_event)
        self.share = Share()
        self.expected_hello: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._feed = RecorderFeed(self._send, lambda: self.recorder.on, hidden=self.hidden_names)
        self._store = store
        self._clock: SessionClock | None = None
        self._lock = threading.RLock()
        self._settings = Settings()
        self._stepped = 0.0  # time of the last `take_steps`
        self._measured: set[str] = set()  # ids of charts
        self._fresh = True  # the recorder of a new sampler has received nothing yet
        self._window_from = 0.0

    def listen(self, row: Callable[[Row], None], changed: Callable[..., None], first: Callable[[str], None]) -> None:
        """Set what the reader thread calls.

        `changed` gets a kind and a `message` (`stopped`: no more rows); `first` the id of a chart for which something
        was measured for the first time (`store.charts.ONCE_CHARTS`).
        """
        self._on_row, self._on_change, self._on_first = row, changed, first

    @property
    def running(self) -> bool:
        return self.client is not None

    @property
    def restarts(self) -> int:
        """The number of restarts of the running sampler."""
        return 0 if self.client is None else self.client.restarts

    def start(self, settings: Settings) -> bool:
        """Start the sampler. Returns False if it runs already."""
        with self._lock:
            if self.client is not None:
                return False
            self._settings = settings
            began = self._clock is None
            if self._clock is None or self.id is None:
                self._clock = SessionClock(time.monotonic(), time.time())
                self.id = uuid.uuid4().hex
            origin = self._clock.origin
            path = self.recorder.set(on=settings.record, folder=settings.record_to, session=self.id, origin=origin)
            self._window_from = self._stepped = time.monotonic()
            self.tracker.begin()
            self.tracker.attach(settings.attach)
            self.ranks.begin(settings.ranks)
            self._set_expected_columns(self._clock)
            self._fresh = True
            client = self.client = SamplerClient(
                settings.interval,
                on_hello=self._on_hello,
                on_frame=self._on_frame,
                on_notice=self._on_notice,
                on_exit=self._on_exit,
                clock=self._clock,
                session=self.id,
                record=path,
            )
            client.start()
            # atexit runs the newest first: ours before the client's, which would end the sampler without a goodbye.
            atexit.unregister(self.stop)
            atexit.register(self.stop, "the process ended")
        if began and settings.price is not None:
            self.add_event("price", 0.0, **_price_of(settings))
        return True

    def _set_expected_columns(self, clock: SessionClock) -> None:
        """Give the store the columns of this machine's last hello, so that pages build their charts meanwhile."""
        hello = None if self._store.schema.host else self.expected_hello()
        if hello is not None:
            self.tracker.refresh()
            try:
                self._store.set_host({**hello, "interval": self._settings.interval, "origin": clock.origin})
            except (KeyError, TypeError, ValueError) as error:
                log.debug("the stored hello is not valid: %r", error)  # the sampler sends its own in a moment

    def stop(self, reason: str = "stopped") -> bool:
        """Record a goodbye and end the sampler. Returns False if none runs."""
        with self._lock:
            client = self.client
            if client is None:
                return False
            self.goodbye(reason)
            self.client = None
            if self.recorder.on:
                self.recorder.end("The session has ended; its recording is kept.")
        atexit.unregister(self.stop)
        self.tracker.attach(False)
        self.tracker.stop_calibrations()
        self.ranks.end()
        client.stop()  # without the lock: it joins the reader thread, which may need it
        return True

    def abandon(self, error: Exception) -> None:
        """End a start that failed, and keep the reason for the status."""
        client, self.client = self.client, None
        self.recorder.end(f"Nothing is measured: {cause(error)}")
        self.remember(self.recorder.to_json()["message"])
        log.warning("nothing is measured: %s", cause(error))
        log.debug("the monitor could not start", exc_info=error)
        with suppress(Exception):  # whatever failed may fail again
            self.tracker.attach(False)
            self.ranks.end()
            if client is not None:
                client.stop()

    def goodbye(self, reason: str) -> None:
        """Record that this process is about to end on purpose, before something kills the sampler."""
        with self._lock:
            if self.client is not None:
                self.take_steps()
                self._feed.goodbye(reason, self.tracker.loaders(), self.tracker.states())

    def configure(self, before: Settings, after: Settings) -> None:
        """Apply changed settings to the running sampler and its recorder."""
        now = self.session_time(time.monotonic())
        has_price = _price_of(after) != _price_of(before)
        if has_price and now is not None:
            self.add_event("price", now, **_price_of(after))
        with self._lock:
            self._settings = after
            if after.unfolded != before.unfolded:
                self.nodes.unfold(after.unfolded)
            if after.ranks != before.ranks and self.client is not None:
                self.ranks.end()
                self.ranks.begin(after.ranks)
            if self.client is None or self.id is None or self._clock is None:
                return
            if after.attach != before.attach:
                self.tracker.attach(after.attach)
            if after.interval != before.interval:
                self._send({"do": "interval", "seconds": after.interval})
            if after.node_names != before.node_names:
                self._feed.begin(self.facts())  # what was recorded with other names is recorded again
            elif has_price or after.interval != before.interval:
                self._feed.record("facts", facts=self.facts())
            wanted = (after.record, after.record_to)
            if wanted == (before.record, before.record_to) and (self.recorder.on or not after.record):
                return
            origin = self._clock.origin
            path = self.recorder.set(on=after.record, folder=after.record_to, session=self.id, origin=origin)
            self._send({"do": "record", "path": None if path is None else str(path)})
            if path is not None:
                self._feed.begin(self.facts())

    def calibrate(self, loader: str) -> None:
        """Have other engines run on some files of a loader (its id), in a process of its own, unless that was done."""
        for live in self.tracker.loaders() if self.running else ():
            if live.id == loader:
                live.calibrate()

    def add_event(self, kind: str, at: float, **fields: Any) -> dict[str, Any]:
        """Add an event at a session time (s), for pages, reports and the recording; returns it."""
        event = self._store.add_event(kind, at, **printable_in(fields))
        self._feed.record("event", event=event)
        return event

    def record_cell(self, *, running: bool) -> None:
        """Record whether a cell runs, for the server extension's metrics."""
        self._feed.cell(running=running)

    def take_steps(self) -> None:
        """Move the steps that ended since the last call into the store, and send them to the recorder."""
        now = time.monotonic()
        seconds = max(FLUSH_S, now - self._stepped)  # steps timed on a GPU arrive several at once
        self._stepped = now
        for loader, rows, dropped in self.tracker.steps(seconds):
            self._store.steps.add(loader, rows, dropped)
            self._feed.record("steps", loader=loader, rows=rows, dropped=dropped)

    def facts(self) -> dict[str, Any]:
        """Package versions, Python, platform, interval (s), price; `rank` and `world_size` if set (by torchrun).

        `node_names` is there, and true, where exports may name other machines.
        """
        settings = self._settings
        ranks = {"rank": os.environ.get("RANK", ""), "world_size": os.environ.get("WORLD_SIZE", "")}
        return {
            "python": platform.python_version(),
            "platform": platform.system(),
            "versions": {name: found for name in _REPORTED_PACKAGES if (found := version(name)) is not None},
            "interval": settings.interval,
            "price": settings.price,
            "currency": settings.currency,
            **({} if settings.node_price is None else {"node_price": settings.node_price}),
            **{name: int(text) for name, text in ranks.items() if text.isdecimal()},
            **({"node_names": True} if settings.node_names else {}),
        }

    def hidden_names(self) -> dict[str, str] | None:
        """Return the names of other machines that may not leave this one, and the ids in their place; None if they
        may.
        """
        return None if self._settings.node_names else pseudonyms()

    def session_time(self, monotonic: float) -> float | None:
        """Return the session time (s) of a `time.monotonic()`; None before the session began."""
        clock = self._clock
        return None if clock is None else clock.time(monotonic)

    def forget_in_child(self) -> None:
        """Detach a forked child: it has no sampler, session or recording."""
        self._lock = threading.RLock()
        self.client = self.id = self._clock = None
        self.recorder = Recording()
        self.ranks.forget_in_child()

    def _send(self, message: dict[str, Any]) -> object:
        client = self.client
        return client is not None and client.send(message)

    # -- the sampler's reader thread --------------------------------------------------------------------------------

    def _on_hello(self, hello: dict[str, Any]) -> None:
        clock = self._clock
        self._store.set_host(hello if clock is None else {**hello, "origin": clock.origin})
        if self._fresh:
            self._fresh = False
            client = self.client
            self.share.begin(None if client is None else client.pid)
            self._feed.begin(self.facts())

    def _on_frame(self, sampled: float, missed: int, values: Any) -> None:
        clock = self._clock
        if clock is None:
            return
        tracker = self.tracker
        states = tracker.refresh()
        self.nodes.refresh()
        self.ranks.refresh()
        self.missed += missed
        at = clock.time(sampled)
        window = max(sampled - self._window_from, 1e-6)
        self._window_from = sampled
        loaders, nodes = tracker.values(window), self.nodes.values()
        ranks = self.ranks.values(_HostValues(self._store.schema.columns, values), nodes)
        seq = self._store.append(at, values, loaders | nodes | ranks)
        for chart, measured in (("phases", tracker.phased), ("nodes", self.nodes.nodes), ("ranks", self.ranks.ranks)):
            if measured and chart not in self._measured:
                self._measured.add(chart)
                self._on_first(chart)
        if sampled - self._stepped >= FLUSH_S:
            self.take_steps()
        self._feed.epochs(tracker.past)
        self._feed.row(at, loaders, states, tracker.loaders())
        self._feed.nodes(at, self.nodes.nodes, nodes)
        self._feed.ranks(at, self.ranks.ranks, ranks)
        self._on_row(Row(seq, at, sampled, missed, states))

    def _on_notice(self, notice: dict[str, Any]) -> None:
        message = str(notice.get("message", ""))
        if notice.get("kind") == "recorder":
            self.recorder.handle_notice(notice)
            return
        self.remember(message)
        if notice.get("level") == "error":  # the client gave up restarting
            with self._lock:
                client, self.client = self.client, None
            if client is not None:
                client.stop()
            self.recorder.end("Nothing is measured any more.")
            self._on_change("stopped", message=message)
        elif "kind" in notice:
            self._on_change(str(notice["kind"]), message=message)

    def _on_exit(self, reason: str) -> None:
        self._fresh = True
        self.remember(f"the sampler ended: {reason}")
        at = self.session_time(time.monotonic())
        if at is not None:
            self.add_event("sampler-restarted", at, message=private(reason))

    def remember(self, message: str) -> None:
        """Keep a message for the status; only the newest ones are kept."""
        self.notices = [*(kept for kept in self.notices if kept != message), message][-_KEPT_NOTICES:]


def _price_of(settings: Settings) -> dict[str, Any]:
    """Return the prices as an event has them."""
    per_node = {} if settings.node_price is None else {"per_node": settings.node_price}
    return {"per_hour": settings.price, "currency": settings.currency, **per_node}


@cache  # a reply on the control channel must take less than a millisecond
def version(distribution: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
