"""The monitor of this process, ``kernel_monitor.monitor``: sampler, store, loaders and pages, joined."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError, SessionError
from ..recorded import Opened, RecordedSession
from ..store import Snapshot, Store
from ..stream.hub import Hub, Publisher
from .cost import thread_seconds
from .recording import words
from .sampling import Row, Sampling, facts
from .serving import Serving
from .settings import Record, Settings

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..widgets import Dashboard


class Monitor:
    """Samples this machine, follows this process's loaders, and serves the pages that show them.

    Everything is thread-safe. Nothing runs before :meth:`start`.
    """

    def __init__(self) -> None:
        self.hub = Hub()
        self.store = Store()
        self.opened = Opened()
        self._settings = Settings()
        self._lock = threading.RLock()
        self._serving = Serving(self.store, self.hub, lambda: self._settings)
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
    ) -> None:
        """Start sampling, with these settings or, for those not given, as before; what runs is configured.

        Args:
            interval: s between samples, 0.05 to 60; 0.1 at first.
            history: s of samples kept for the charts, 60 to 3600; 600 at first.
            charts: ids of the charts to show (see `configure`).
            record: whether to record the session to a file, and to which folder; True at first.

        Raises:
            SessionError: a value cannot be taken.
        """
        self.configure(interval=interval, history=history, charts=charts, record=record)
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
    ) -> dict[str, Any]:
        """Change settings, while the monitor runs too, with nothing lost; returns all of them.

        Args:
            interval, history: as for `start`.
            charts: ids of `kernel_monitor.store.charts`, among which `all` and `default` stand for those.
            record: False stops the recording, True goes on with it in the same file, a folder says where.

        Raises:
            SessionError: a value cannot be taken; nothing was changed.
        """
        with self._lock:
            before = self._settings
            after = before.changed(interval=interval, history=history, charts=charts, record=record)
            self._settings = after
            self._shape()
            if after != before or record is not None:
                self._sampling.configure(before, after)
        if after != before:
            self.notify("configured")
        return after.to_json()

    @property
    def settings(self) -> dict[str, Any]:
        """`interval`, `history` (s), `charts` (ids), `record` (bool), `record_to` (a folder, or None)."""
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

    def switch(self, backend: str, *, loader: str | None = None, confirmed: bool = False) -> dict[str, Any]:
        """Ask a loader to go on with another backend; returns its state at once.

        Args:
            backend: a backend's name.
            loader: the loader's id or name; may be left out where there is one.
            confirmed: a person has said yes to what `question` asks.

        Raises:
            MonitorError: there is no such loader, or there is a question and nobody has said yes.
            BackendUnavailable: there is no such backend, or it cannot run here.
        """
        chosen = self._choose(loader)
        question = None if confirmed else _question(chosen, backend)
        if question is not None:
            raise MonitorError(f"{question} Nothing was switched: this has to be confirmed.")
        chosen.switch(backend)
        return dict(chosen.state())

    def question(self, backend: str, *, loader: str | None = None) -> str | None:
        """What a person is to be asked before `switch` to a backend; None where there is nothing to ask.

        Raises:
            MonitorError: there is no such loader.
        """
        return _question(self._choose(loader), backend)

    def set(
        self,
        *,
        loader: str | None = None,
        workers: int | None = None,
        prefetch: int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Change a loader's knobs from its next batch boundary on; returns its state at once.

        Args:
            loader: the loader's id or name; may be left out where there is one.
            workers: processes that load for `torchvision`.
            prefetch: batches in flight: per worker for `torchvision`, in all for DALI.
            threads: threads of DALI.

        Raises:
            MonitorError: there is no such loader, nothing is to be set, or a value cannot be taken.
        """
        if workers is None and prefetch is None and threads is None:
            raise MonitorError("Say what to set: workers, prefetch or threads.")
        chosen = self._choose(loader)
        chosen.set(workers=workers, prefetch=prefetch, threads=threads)
        return dict(chosen.state())

    def _choose(self, loader: str | None) -> SwitchableLoader:
        """The live loader of that id or name; the only one for None."""
        live = self.loaders()
        if not live:
            raise MonitorError(
                "This kernel has no switchable loader. "
                "Wrap yours: loader = switchable(loader)  # from kernel_monitor import switchable"
            )
        chosen = [one for one in live if loader in (None, one.id, one.name)]
        if len(chosen) != 1:
            names = ", ".join(one.name for one in live)
            problem = "Several are live: say which" if loader is None else f"No single loader is called {loader!r}"
            raise MonitorError(f"{problem}. The loaders are: {names}.")
        return chosen[0]

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
        lines += [f"{state['name']}: {state['status']}" for state in self.loader_states()]
        lines += sampling.notices
        return "\n".join(lines)

    def news(self) -> str | None:
        """A sentence that is said once in this process: that the session before ended without goodbye; or None."""
        news, self._news = self._news, None
        return news

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write everything measured so far as one HTML file that opens offline.

        Raises:
            MonitorError: nothing was measured, rendering failed, or ``path`` cannot be written (no file is left).
        """
        from ..report import write

        target = Path(path).expanduser()
        html = self.render()
        return write(target, html)

    # -- for the pages --------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """The answer to a page's first question: who is there, and in which state."""
        return self._serving.hello()

    def state(self) -> dict[str, Any]:
        """`settings`, `charts` (those there are, and why not) and `recording`."""
        return self._serving.state()

    def glance(self) -> dict[str, Any]:
        """The figures of a status bar."""
        return self._serving.glance()

    def snapshot(self) -> Snapshot:
        sampling = self._sampling
        if sampling.session is None or self.store.last_seq == 0:
            raise SessionError("Nothing was measured yet: start the monitor first (%monitor start).")
        what = {
            "session": sampling.session,
            **facts(self._settings.interval),
            "exported": time.time(),
            "restarts": self.restarts,
        }
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

    def notify(self, kind: str, **fields: Any) -> None:
        """Tell all pages about a change that they did not ask for themselves."""
        self._serving.notify(kind, **fields)

    def goodbye(self, reason: str) -> None:
        """Tell the recorder that this process is about to end on purpose; whatever ends it then, that stays true."""
        self._sampling.say_goodbye(reason)

    # -- the sampler's reader thread --------------------------------------------------------------------------------

    def row(self, row: Row) -> None:
        self._serving.row(row)

    def changed(self, kind: str, **fields: Any) -> None:
        self.notify(kind, **fields)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _shape(self) -> None:
        """Give the store the settings' size and charts."""
        self.store.set_capacity(self._settings.capacity)
        self.store.set_charts(self._settings.charts)

    def _tell_what_was_left(self) -> None:
        left, self._sampling.left = self._sampling.left, None
        if left is not None:
            self._news = left["message"]
            self._sampling.remember(left["message"])
            self.notify("left-without-goodbye", **left)

    def _forget_in_child(self) -> None:
        """In a forked child (a loader worker) everything of ours is inert."""
        self._lock = threading.RLock()
        self._sampling.forget_in_child()
        self._serving.connect(None)


def _question(loader: SwitchableLoader, backend: str) -> str | None:
    state = loader.state()
    if backend == (state["wanted"] or state["backend"]):
        return None
    return next((one["confirm"] for one in state["backends"] if one["name"] == backend), None)


monitor = Monitor()


def open_session(path: str | os.PathLike[str] | None = None) -> RecordedSession:
    """Open a recorded session: the newest one, or by its path, its id or the beginning of that.

    Raises:
        SessionError: there is none, or it cannot be read; the message says why.
    """
    return monitor.opened.open(path)


__all__ = ["Monitor", "monitor", "open_session"]
