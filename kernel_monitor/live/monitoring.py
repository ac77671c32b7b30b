"""The monitor of this process, ``kernel_monitor.monitor``: sampler, store, loaders and pages, joined."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SessionError
from ..output import check, write
from ..recorded import Opened, RecordedSession
from ..store import Snapshot, Store
from ..stream.hub import Hub, Publisher
from ..stream.sidebar import SidebarRequest
from ..text import shown
from .cost import thread_seconds
from .diagnosing import Diagnosing
from .profiling import Profiling
from .recording import words
from .sampling import Row, Sampling, facts
from .serving import Serving
from .settings import Price, Record, Settings
from .steering import Steering
from .stepping import Stepping

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..widgets import Dashboard
    from .offering import Offers

SETTLE_S = 3.0
"""How long is waited for the recorder's word when recording is turned on: it answers in some 50 ms."""


class Monitor(Steering, Stepping, Diagnosing, Profiling):
    """Samples this machine, follows this process's loaders, and serves the pages that show them.

    Everything is thread-safe. Nothing runs before :meth:`start`.
    """

    def __init__(self) -> None:
        self.hub = Hub()
        self.sidebar = SidebarRequest()
        self.store = Store()
        self.opened = Opened()
        self._settings = Settings()
        self._lock = threading.RLock()
        self._serving = Serving(self.store, self.hub, lambda: self._settings, self._tasks)
        self._sampling = Sampling(self.store, self)
        self._serving.sampling = self._sampling
        self._news: str | None = None
        self._began = 0.0
        self._shape()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_in_child)

    # -- what a person calls ------------------------------------------------------------------------------------

    def start(
        self,
        *,
        interval: float | None = None,
        history: float | None = None,
        charts: str | list[str] | tuple[str, ...] | None = None,
        record: Record | None = None,
        price: Price | None = None,
    ) -> None:
        """Start sampling, with these settings or, for those not given, as before; what runs is configured.

        Args:
            interval: s between samples, 0.05 to 60; 0.1 at first.
            history: s of samples kept for the charts, 60 to 3600; 600 at first.
            charts: ids of the charts to show (see `configure`).
            record: whether to record the session to a file, and to which folder; True at first.
            price: of an hour of this machine (see `configure`); none at first.

        Raises:
            SessionError: a value cannot be taken.
        """
        self.configure(interval=interval, history=history, charts=charts, record=record, price=price)
        if self._sampling.start(self._settings):
            self._began = time.monotonic()
            self._tell_what_was_left()
            self.notify("started")

    def configure(
        self,
        *,
        interval: float | None = None,
        history: float | None = None,
        charts: str | list[str] | tuple[str, ...] | None = None,
        record: Record | None = None,
        price: Price | None = None,
    ) -> dict[str, Any]:
        """Change settings, while the monitor runs too, with nothing lost; returns all of them.

        Args:
            interval, history: as for `start`.
            charts: ids of `kernel_monitor.store.charts`, among which `all` and `default` stand for those.
            record: False stops the recording, True goes on with it in the same file, a folder says where; `recording`
                says what became of it.
            price: of an hour of this machine: a number, or words such as `2.50 €`; an empty text takes it away.

        Raises:
            SessionError: a value cannot be taken; nothing was changed.
        """
        with self._lock:
            before = self._settings
            after = before.changed(interval=interval, history=history, charts=charts, record=record, price=price)
            self._settings = after
            self._shape()
            if after != before or record is not None:
                self._sampling.configure(before, after)
        if record is not None and self.running:
            self._sampling.recording.settle(SETTLE_S)
        if after != before:
            self.notify("configured")
        return after.to_json()

    @property
    def settings(self) -> dict[str, Any]:
        """`interval`, `history` (s), `charts` (ids), `record`, `record_to` (a folder, or None), `price`, `currency`."""
        return self._settings.to_json()

    @property
    def recording(self) -> dict[str, Any]:
        """`state` (`recording`, `moved`, `stopped`, `off`), `path` of the file, `message` for people."""
        return dict(self._sampling.recording.to_json())

    def stop(self, reason: str = "stopped") -> None:
        """Stop sampling. What was measured stays, for the charts and for :meth:`export`."""
        if self._sampling.stop(reason):
            self.notify("stopped")

    @property
    def running(self) -> bool:
        return self._sampling.client is not None

    @property
    def missed(self) -> int:
        """Deadlines of this session that brought no sample, as the sampler counted them."""
        return self._sampling.missed

    @property
    def sampler_pid(self) -> int | None:
        """The sampler's process number; None while there is none."""
        client = self._sampling.client
        return None if client is None else client.pid

    @property
    def restarts(self) -> int:
        """How often the sampler that runs now had to be started again."""
        client = self._sampling.client
        return 0 if client is None else client.restarts

    @property
    def session(self) -> str | None:
        """This process's session id; None before the first start."""
        return self._sampling.session

    @property
    def strip(self) -> dict[str, Any] | None:
        """What the last switch changed, or None (docs/architecture.md, *Strip*)."""
        return self._serving.strip

    @property
    def verdict(self) -> dict[str, Any] | None:
        """Where the time of a step goes now (`diagnose.model.Verdict` as JSON, and `loader`); None without a loop."""
        at = self._sampling.session_time(time.monotonic())
        return None if at is None else self._serving.judging.judge(at, self.loader_states())

    def dashboard(self) -> Dashboard:
        """The dashboard as a widget, for the output of a cell. Starts the monitor if needed."""
        from ..widgets import Dashboard

        self.start()
        return Dashboard()

    def loaders(self) -> list[SwitchableLoader]:
        """The live switchable loaders of this process, oldest first."""
        return self._sampling.following.loaders()

    def loader_states(self) -> list[dict[str, Any]]:
        """The states of the live loaders, and the last states of the newest that are gone (``"ended": true``)."""
        return self._sampling.following.states()

    def cost(self) -> dict[str, Any]:
        """What the monitor takes of the processor.

        `threads`: CPU seconds of each of its threads in this process, by name; `kernel`: per cent of one core that
        they take together since the start; `sampler`: that of the sampler process once it had started, or None.
        """
        threads = thread_seconds()
        lived = time.monotonic() - self._began
        return {
            "threads": threads,
            "kernel": 100 * sum(threads.values()) / lived if self.running and lived > 0 else 0.0,
            "sampler": self._sampling.share.now() if self.running else None,
        }

    def status(self) -> str:
        """A few lines for people: what runs, what it costs, what was missed and where it is recorded."""
        sampling = self._sampling
        if sampling.session is None:
            return "kernel_monitor is not running. %monitor start starts it."
        state = "running" if self.running else "stopped"
        lines = [f"kernel_monitor is {state}: {self.store.last_seq:,} samples, one every {self._settings.interval:g} s"]
        cost = self.cost()
        if cost["sampler"] is not None:
            lines.append(f"cost: sampler {cost['sampler']:.1f} % of a core, in the kernel {cost['kernel']:.1f} %")
        lines.append(words(self.recording))
        kept = self.store.schema.capacity * self._settings.interval
        if kept < 0.99 * self._settings.history:
            series = len(self.store.schema.series)
            lines.append(f"the charts keep {kept:.0f} s: {series:,} series fill the memory that the history may take")
        if self.missed:
            lines.append(f"{self.missed:,} samples were missed (gaps are drawn as gaps)")
        if self.restarts:
            lines.append(f"the sampler was restarted {self.restarts} times")
        reason = self.store.schema.gpu_reason
        if reason:
            lines.append(f"no GPU rows: {reason}")
        for loader in self.loader_states():
            lines.append(f"{loader['name']}: {loader['status']}")
            lines += [f"  {one['name']}: {one['note']}" for one in loader["backends"] if one.get("note")]
        lines += self.step_notices()
        lines += sampling.notices
        return shown("\n".join(lines))

    def news(self) -> str | None:
        """A sentence that is said once in this process: that the session before ended without goodbye; or None."""
        news, self._news = self._news, None
        return news

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write everything measured so far as one HTML file that opens offline.

        A file that is there is replaced where its links lead, a device or a named pipe is written to as it is, and a
        recorded session is never replaced.

        Raises:
            MonitorError: nothing was measured, rendering failed, or ``path`` cannot be written (what was there is as it
                was).
        """
        check(path)
        return write(path, self.render())

    # -- for the pages --------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """The answer to a page's first question: who is there, and in which state."""
        return self._serving.hello()

    def state(self) -> dict[str, Any]:
        """`settings`, `charts` (those there are, and why not) and `recording`."""
        return self._serving.state()

    def findings(self) -> dict[str, Any]:
        """`verdict` as pages had it last, `offers`, `diagnosing` and `profiling`."""
        return self._serving.findings()

    def glance(self) -> dict[str, Any]:
        """The figures of a status bar."""
        return self._serving.glance()

    def snapshot(self) -> Snapshot:
        sampling = self._sampling
        if sampling.session is None or self.store.last_seq == 0:
            raise SessionError("Nothing was measured yet: start the monitor first (%monitor start).")
        what = {
            "session": sampling.session,
            **facts(self._settings),
            "exported": time.time(),
            "restarts": self.restarts,
        }
        sampling.take_steps()
        return self.store.snapshot(sampling.following.reported(), what)

    def render(self) -> str:
        """The exported page as text, rendered in a process of its own."""
        from ..report.client import render_in_process

        return render_in_process(self.snapshot())

    def export_name(self) -> str:
        return time.strftime("kernel-monitor-%Y-%m-%d-%H%M%S.html")

    def connect(self, publish: Publisher | None) -> None:
        """Give the way to the pages (None takes it away)."""
        self._serving.connect(publish)

    def expect(self, hello: Callable[[], Mapping[str, Any] | None]) -> None:
        """Ask `hello`, when the session begins, for what the sampler is likely to say: its hello of another session."""
        self._sampling.expected = hello

    def notify(self, kind: str, **fields: Any) -> None:
        """Tell all pages about a change that they did not ask for themselves."""
        self._serving.notify(kind, **fields)

    def open_sidebar(self, page: str, patience: float) -> bool:
        """Have a page open its sidebar.

        Args:
            page: the session id of its connection to the kernel.
            patience: s for which its answer is waited for; what comes later is taken all the same.

        Returns:
            Whether the page has answered that it does.
        """
        self.sidebar.ask(page)
        self.notify("sidebar", page=page)
        return self.sidebar.wait(patience)

    def goodbye(self, reason: str) -> None:
        """Tell the recorder that this process is about to end on purpose; whatever ends it then, that stays true."""
        self._sampling.say_goodbye(reason)

    # -- the sampler's reader thread --------------------------------------------------------------------------------

    def row(self, row: Row) -> None:
        self._serving.row(row)

    def changed(self, kind: str, **fields: Any) -> None:
        self.notify(kind, **fields)

    def phased(self) -> None:
        """The chart of the phases is shown from now on, unless charts were chosen."""
        with self._lock:
            before = self._settings
            after = self._settings = replace(before, phased=True)
            self._shape()
        if after.charts != before.charts:
            self.notify("configured")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _shape(self) -> None:
        """Give the store the settings' size and charts."""
        self.store.set_capacity(self._settings.capacity)
        self.store.set_charts(self._settings.charts)

    def _note(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Note that something happens now; returns the event."""
        at = self._sampling.session_time(time.monotonic())
        if at is None:
            raise SessionError("Nothing is measured yet: start the monitor first (%monitor start).")
        return self._sampling.add_event(kind, at, **fields)

    def _tell_what_was_left(self) -> None:
        left, self._sampling.left = self._sampling.left, None
        if left is not None:
            self._news = left["message"]
            self._sampling.remember(left["message"])
            self.notify("left-without-goodbye", **left)

    @property
    def _offers(self) -> Offers:
        return self._serving.judging.offers

    def _tasks(self) -> dict[str, Any]:
        return {"diagnosing": self.diagnosing, "profiling": self.profiling}

    def _gains(self, loader: str) -> list[dict[str, Any]]:
        """What is to be expected of changes of a loader (its id) now, as `diagnose.model.Gain` in JSON."""
        at = self._sampling.session_time(time.monotonic())
        state = next((one for one in self.loader_states() if one["id"] == loader), None)
        return [] if at is None or state is None else self._serving.judging.gains(at, state)

    def _forget_in_child(self) -> None:
        """In a forked child (a loader worker) everything of ours is inert."""
        self._diagnosing = self._profile = None
        self._lock = threading.RLock()
        self._sampling.forget_in_child()
        self._serving.connect(None)


monitor = Monitor()


def open_session(path: str | os.PathLike[str] | None = None) -> RecordedSession:
    """Open a recorded session: the newest one, or by its path, its id or the beginning of that.

    Raises:
        SessionError: there is none, or it cannot be read; the message says why.
    """
    return monitor.opened.open(path)


__all__ = ["Monitor", "monitor", "open_session"]
