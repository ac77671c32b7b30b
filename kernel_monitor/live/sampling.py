"""The sampler of this process's session: its frames into the store, and back to it what its recorder is to know."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, NamedTuple, Protocol

from ..paths import private
from ..sample.client import SamplerClient
from ..sample.clock import SessionClock
from ..store import Store
from ..text import shown_in
from .cost import Share
from .following import Following
from .recording import Recording, left_behind
from .settings import Settings
from .telling import FLUSH_S, Teller

log = logging.getLogger(__name__)

KEPT_NOTICES = 5
# What a reader of an exported page or a recording may want to reproduce; nothing personal.
REPORTED_PACKAGES = ("kernel-monitor", "torch", "torchvision", "nvidia-dali-cuda120", "bokeh", "ipykernel", "psutil")


class Row(NamedTuple):
    """A row that has just been put into the store.

    Attributes:
        seq: its number.
        time: s since the session began.
        sampled: when it was taken, by `time.monotonic()`.
        missed: deadlines without a row since the one before.
        states: the loaders' states.
    """

    seq: int
    time: float
    sampled: float
    missed: int
    states: list[dict[str, Any]]


class Told(Protocol):
    """What `Sampling` tells its owner; called on the sampler's reader thread."""

    def row(self, row: Row) -> None:
        """A row came."""

    def changed(self, kind: str, **fields: Any) -> None:
        """Something that no frame says; `stopped` and `message` when there will be no more frames."""

    def phased(self) -> None:
        """Phases of a loader's steps were measured for the first time."""


class Sampling:
    """One session: from the first start on, whatever stops and starts the sampler has."""

    def __init__(self, store: Store, told: Told) -> None:
        self.session: str | None = None
        self.recording = Recording()
        self.left: dict[str, str] | None = None
        self.notices: list[str] = []
        self.client: SamplerClient | None = None
        self.following = Following(store, self.session_time, self.add_event)
        self.share = Share()
        self.expected: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._teller = Teller(self._send)
        self._store = store
        self._told = told
        self._clock: SessionClock | None = None
        self._lock = threading.RLock()
        self._settings = Settings()
        self._stepped = 0.0  # when steps were taken last
        self._phased = False
        self._fresh = True  # a sampler that has not been told anything
        self._window_from = 0.0
        self.missed = 0  # deadlines without a row, of the whole session

    def start(self, settings: Settings) -> bool:
        """Start the sampler; False if it runs already."""
        with self._lock:
            if self.client is not None:
                return False
            self._settings = settings
            began = self._clock is None
            if self._clock is None or self.session is None:
                self._clock = SessionClock(time.monotonic(), time.time())
                self.session = uuid.uuid4().hex
                self.left = left_behind()
            path = None
            if settings.record:
                path = self.recording.begin(settings.record_to, self.session, self._clock.origin)
            else:
                self.recording.end()
            self._teller.recording = path is not None
            self._window_from = self._stepped = time.monotonic()
            self.following.begin()
            self._lay_out(self._clock)
            self._fresh = True
            client = self.client = SamplerClient(
                settings.interval,
                on_hello=self._on_hello,
                on_frame=self._on_frame,
                on_notice=self._on_notice,
                on_exit=self._on_exit,
                clock=self._clock,
                session=self.session,
                record=path,
            )
            client.start()
            # Python runs these newest first: before the client's own, which would end the sampler without goodbye.
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)
        if began and settings.price is not None:
            self.add_event("price", 0.0, per_hour=settings.price, currency=settings.currency)
        return True

    def _lay_out(self, clock: SessionClock) -> None:
        """Give the store the columns that are expected, so that pages build their charts while the sampler starts.

        Its hello then changes nothing, or only what differs.
        """
        if self._store.schema.host:
            return
        hello = self.expected()
        if hello is not None:
            self.following.look()
            try:
                self._store.set_host({**hello, "interval": self._settings.interval, "origin": clock.origin})
            except (KeyError, TypeError, ValueError) as error:
                log.debug("What the sampler is expected to say is no hello: %r", error)  # it says it itself in a moment

    def stop(self, reason: str = "stopped") -> bool:
        """Say goodbye and end the sampler; False if none runs."""
        with self._lock:
            client = self.client
            if client is None:
                return False
            self.take_steps()
            self._teller.goodbye(reason, self.following.loaders(), self.following.states())
            self.client = None
            if self.recording.on:
                self.recording.end("The session has ended; its recording is kept.")
        atexit.unregister(self._at_exit)
        client.stop()  # without the lock: it waits for a thread that may need it
        return True

    def say_goodbye(self, reason: str) -> None:
        """The process is about to end, and perhaps without another word."""
        with self._lock:
            if self.client is not None:
                self.take_steps()
                self._teller.goodbye(reason, self.following.loaders(), self.following.states())

    def configure(self, before: Settings, after: Settings) -> None:
        """Let changed settings take effect in a sampler that runs."""
        now = self.session_time(time.monotonic())
        has_price = (after.price, after.currency) != (before.price, before.currency)
        if has_price and now is not None:
            self.add_event("price", now, per_hour=after.price, currency=after.currency)
        with self._lock:
            self._settings = after
            if self.client is None or self.session is None or self._clock is None:
                return
            if after.interval != before.interval:
                self._send({"do": "interval", "seconds": after.interval})
            if has_price or after.interval != before.interval:
                self._teller.facts(facts(after))
            wanted = (after.record, after.record_to)
            if wanted == (before.record, before.record_to) and (self.recording.on or not after.record):
                return
            path = None
            if after.record:
                path = self.recording.begin(after.record_to, self.session, self._clock.origin)
            else:
                self.recording.end()
            self._send({"do": "record", "path": None if path is None else str(path)})
            self._teller.recording = path is not None
            if path is not None:
                self._teller.greet(facts(after))

    def add_event(self, kind: str, at: float, **fields: Any) -> dict[str, Any]:
        """Note that something happened `at` seconds into the session, for pages, reports and the recording."""
        event = self._store.add_event(kind, at, **shown_in(fields))
        self._teller.event(event)
        return event

    def take_steps(self) -> None:
        """Put the steps that ended since the last time into the store, and let the recorder have them."""
        now = time.monotonic()
        seconds = max(FLUSH_S, now - self._stepped)  # those on a GPU come some at a time
        self._stepped = now
        for loader, rows, dropped in self.following.steps(seconds):
            self._store.steps.add(loader, rows, dropped)
            self._teller.steps(loader, rows, dropped)

    def session_time(self, monotonic: float) -> float | None:
        """Seconds into the session; None before it began."""
        clock = self._clock
        return None if clock is None else clock.time(monotonic)

    def forget_in_child(self) -> None:
        """In a forked child there is no sampler, no session and no recording."""
        self._lock = threading.RLock()
        self.client = self.session = self._clock = None
        self._teller.recording = False
        self.recording = Recording()

    def _at_exit(self) -> None:
        self.stop("the process ended")

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
            self._teller.greet(facts(self._settings))

    def _on_frame(self, sampled: float, missed: int, values: Any) -> None:
        clock = self._clock
        if clock is None:
            return
        following = self.following
        states = following.look()
        self.missed += missed
        at = clock.time(sampled)
        window = max(sampled - self._window_from, 1e-6)
        self._window_from = sampled
        loaders = following.values(window)
        seq = self._store.append(at, values, loaders)
        if following.phased and not self._phased:
            self._phased = True
            self._told.phased()
        if sampled - self._stepped >= FLUSH_S:
            self.take_steps()
        self._teller.epochs(following.past)
        self._teller.row(at, loaders, states, following.loaders())
        self._told.row(Row(seq, at, sampled, missed, states))

    def _on_notice(self, notice: dict[str, Any]) -> None:
        message = str(notice.get("message", ""))
        if notice.get("kind") == "recorder":
            self.recording.heard(notice)
            self._teller.recording = self.recording.on
            return
        self.remember(message)
        if notice.get("level") == "error":  # there will be no further restart
            with self._lock:
                client, self.client = self.client, None
            if client is not None:
                client.stop()
            self.recording.end("Nothing is measured any more.")
            self._teller.recording = False
            self._told.changed("stopped", message=message)
        elif "kind" in notice:
            self._told.changed(str(notice["kind"]), message=message)

    def _on_exit(self, reason: str) -> None:
        self._fresh = True
        self.remember(f"the sampler ended: {reason}")
        at = self.session_time(time.monotonic())
        if at is not None:
            self.add_event("sampler-restarted", at, message=private(reason))

    def remember(self, message: str) -> None:
        """Keep a sentence for the status, the newest ones."""
        self.notices = [*(known for known in self.notices if known != message), message][-KEPT_NOTICES:]


def facts(settings: Settings) -> dict[str, Any]:
    """What ran: versions of packages and of Python, the platform, seconds between samples, the price if there is one.

    `rank` and `world_size` too, where torch.distributed's environment says them.
    """
    versions = {name: found for name in REPORTED_PACKAGES if (found := version(name)) is not None}
    return {
        "python": platform.python_version(),
        "platform": platform.system(),
        "versions": versions,
        "interval": settings.interval,
        "price": settings.price,
        "currency": settings.currency,
        **_rank(),
    }


def _rank() -> dict[str, int]:
    """This process among those that train together, from the variables that torchrun sets."""
    said = {"rank": os.environ.get("RANK", ""), "world_size": os.environ.get("WORLD_SIZE", "")}
    return {name: int(text) for name, text in said.items() if text.isdecimal()}


def version(distribution: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
