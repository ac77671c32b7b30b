"""The monitor of this process, `kernel_monitor.monitor`: the public object that owns sampler, store and pages."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..diagnosis import loop_guard
from ..diagnosis.diagnose_command import DiagnoseCommand
from ..profiler import profile_run
from ..profiler.profile_command import ProfileCommand
from ..recorded import Opened, RecordedSession
from ..store import Store
from ..stream.hub import Hub
from ..stream.sidebar_request import SidebarRequest
from .export import Exporter
from .loader_commands import LoaderCommands
from .marks import Marks
from .overhead import Cost, thread_seconds
from .publisher import Publisher, Tasks
from .session import Row, Session
from .settings import Price, Record, Settings
from .status import status, step_notices

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..protocol.analysis_states import DiagnosisState, GainState, OfferState, ProfileState, VerdictState
    from ..protocol.states import LoaderState, RecordingState, SettingsState, Strip
    from ..widgets import Dashboard

RECORDER_ANSWER_S = 3.0
"""How long `configure` waits for the recorder's answer when recording is turned on; it usually takes 50 ms."""


class Monitor:
    """Samples this machine, follows this process's loaders, and serves the pages that show them.

    Thread-safe. Nothing runs before :meth:`start`. Pages and magics use its parts: `live_session` (the sampler and its
    recorder), `store` (rows and events), `hub` (which pages are watching), `publisher` (what they are sent),
    `diagnosis`, `profiler`, `exporter`, `sidebar` and `opened` (recorded sessions).
    """

    def __init__(self) -> None:
        self.hub = Hub()
        self.sidebar = SidebarRequest()
        self.store = Store()
        self.opened = Opened()
        self._settings = Settings()
        self._lock = threading.RLock()
        self.live_session = Session(self.store, self)
        self.publisher = Publisher(self.live_session, self.store, self.hub, lambda: self._settings, self._tasks)
        self._loaders = LoaderCommands(self.live_session.tracker, self.publisher.current.offers, self._tasks)
        session, tracker = self.live_session, self.live_session.tracker
        at, add, start = session.session_time, session.add_event, self.start
        stage = loop_guard.Stage(
            self.store, tracker.loaders, tracker.sources, lambda: session.running, at, add, start, self._gains
        )
        self.diagnosis = DiagnoseCommand(self._loaders.choose, stage)
        self.profiler = ProfileCommand(
            profile_run.Stage(tracker.sources, lambda: session.recorder.to_json()["path"], at, add, start)
        )
        self.exporter = Exporter(self.live_session, self.store, lambda: self._settings)
        # The public commands are the parts' own methods; their documentation is there.
        self.switch, self.set = self._loaders.switch, self._loaders.set
        self.question, self.decline = self._loaders.question, self._loaders.decline
        self.diagnose, self.cancel_diagnosis = self.diagnosis.start, self.diagnosis.cancel
        self.profile = self.profiler.start
        self.snapshot, self.comparison = self.exporter.snapshot, self.exporter.comparison
        self.export = self.exporter.export
        self._marks = Marks(self.live_session)
        self.mark, self.step = self._marks.mark, self._marks.step
        self.phase, self.watch = self._marks.phase, self._marks.watch
        self.step_notices = step_notices
        self._news: str | None = None
        self._began = 0.0
        self._configure_store()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_in_child)

    # -- measuring --------------------------------------------------------------------------------------------------

    def start(
        self,
        *,
        interval: float | None = None,
        history: float | None = None,
        charts: str | list[str] | tuple[str, ...] | None = None,
        record: Record | None = None,
        price: Price | None = None,
    ) -> None:
        """Start sampling with these settings (see `configure`); a monitor that runs already is configured.

        Raises:
            SessionError: a value is not accepted.
        """
        self.configure(interval=interval, history=history, charts=charts, record=record, price=price)
        if self.live_session.start(self._settings):
            self._began = time.monotonic()
            self._report_unfinished_session()
            self.publisher.notify("started")

    def configure(
        self,
        *,
        interval: float | None = None,
        history: float | None = None,
        charts: str | list[str] | tuple[str, ...] | None = None,
        record: Record | None = None,
        price: Price | None = None,
    ) -> SettingsState:
        """Change settings, also while the monitor runs, without losing samples; those left out stay as they are.

        Args:
            interval: s between samples, 0.05 to 60; default 0.1.
            history: s of samples kept for the charts, 60 to 3600; default 600.
            charts: ids of `kernel_monitor.store.charts`, `all` or `default`.
            record: False stops the recording, True resumes it in the same file, a folder sets where to record; the
                result is in `recording`. Default True.
            price: of an hour of this machine: a number, or text such as `2.50 €`; an empty text removes it.

        Returns:
            All settings.

        Raises:
            SessionError: a value is not accepted; nothing was changed.
        """
        with self._lock:
            before = self._settings
            after = before.changed(interval=interval, history=history, charts=charts, record=record, price=price)
            self._settings = after
            self._configure_store()
            if after != before or record is not None:
                self.live_session.configure(before, after)
        if record is not None and self.running:
            self.live_session.recorder.settle(RECORDER_ANSWER_S)
        if after != before:
            self.publisher.notify("configured")
        return after.to_json()

    def stop(self, reason: str = "stopped") -> None:
        """Stop sampling. What was measured stays, for the charts and for `export`."""
        if self.live_session.stop(reason):
            self.publisher.notify("stopped")

    @property
    def settings(self) -> SettingsState:
        """`interval`, `history` (s), `charts` (ids), `record`, `record_to` (a folder, or None), `price`, `currency`."""
        return self._settings.to_json()

    @property
    def recording(self) -> RecordingState:
        """`state` (`recording`, `moved`, `stopped`, `off`), `path` of the file, `message` for people."""
        return self.live_session.recorder.to_json().copy()

    @property
    def running(self) -> bool:
        return self.live_session.running

    @property
    def missed(self) -> int:
        """Samples of this session that the sampler did not take in time."""
        return self.live_session.missed

    @property
    def sampler_pid(self) -> int | None:
        """The sampler's process id; None while there is none."""
        client = self.live_session.client
        return None if client is None else client.pid

    @property
    def restarts(self) -> int:
        """How often the running sampler was restarted."""
        return self.live_session.restarts

    @property
    def session(self) -> str | None:
        """The session's id; None before the first start."""
        return self.live_session.id

    def cost(self) -> Cost:
        """The monitor's own use of the processor.

        `threads`: CPU seconds of each of its threads in this process, by name; `kernel`: their sum since the start, in
        percent of one core; `sampler`: the sampler process after its start, in percent of one core, or None.
        """
        threads = thread_seconds()
        lived = time.monotonic() - self._began
        return {
            "threads": threads,
            "kernel": 100 * sum(threads.values()) / lived if self.running and lived > 0 else 0.0,
            "sampler": self.live_session.share.now() if self.running else None,
        }

    def status(self) -> str:
        """A few lines for people: what runs, what it costs, what was missed and where it is recorded."""
        return status(self.live_session, self.store, self.settings, self.cost(), self.loader_states())

    def dashboard(self) -> Dashboard:
        """The dashboard as a widget, for the output of a cell. Starts the monitor if needed."""
        from ..widgets import Dashboard

        self.start()
        return Dashboard()

    # -- loaders and loops ------------------------------------------------------------------------------------------

    def loaders(self) -> list[SwitchableLoader]:
        """The live switchable loaders of this process, oldest first."""
        return self.live_session.tracker.loaders()

    def loader_states(self) -> list[LoaderState]:
        """The states of the live loaders, and the last states of the most recently ended ones (`"ended": true`)."""
        return self.live_session.tracker.states()

    @property
    def strip(self) -> Strip | None:
        """Rates before and after the last switch, or None (docs/messages.md, *Strip*)."""
        return self.publisher.strip

    @property
    def verdict(self) -> VerdictState | None:
        """The current verdict (`analysis.results.Verdict` as JSON, and `loader`); None while no loop runs."""
        at = self.live_session.session_time(time.monotonic())
        return None if at is None else self.publisher.current.judge(at, self.loader_states())

    @property
    def offers(self) -> list[OfferState]:
        """Switches that are offered to loops that have waited for their data for some time, each once.

        Each has `loader` (its id), `source` (the engine in use), `engine`, `sentence`, and `gain`
        (`analysis.results.Gain` as JSON, or None). Updated while a page shows the loop. `switch` accepts one,
        `decline` refuses it.
        """
        return self._loaders.offers

    @property
    def diagnosing(self) -> DiagnosisState | None:
        """Progress of the newest diagnosis: `state` (`running`, `done`, `failed`, `cancelled`), `loader`, `name`,
        `backend` (under measurement), `done` and `total` (engines), `seconds_left`, `message`, `result` (what was
        measured, also by one that was aborted); None before the first one."""
        return self.diagnosis.state

    @property
    def profiling(self) -> ProfileState | None:
        """Progress of the newest profile: `state` (`running`, `done`, `failed`), `loader`, `done` and `total` (steps),
        `message`, `result`; None before the first one."""
        return self.profiler.state

    # -- called by magics and pages ---------------------------------------------------------------------------------

    def news(self) -> str | None:
        """The message that the previous session ended without a goodbye, returned once; or None."""
        news, self._news = self._news, None
        return news

    def open_sidebar(self, page: str, patience: float) -> bool:
        """Ask a page to open its sidebar.

        Args:
            page: the session id of its connection to the kernel.
            patience: s to wait for its answer; a later answer is accepted, too.

        Returns:
            Whether the page has answered.
        """
        self.sidebar.ask(page)
        self.publisher.notify("sidebar", page=page)
        return self.sidebar.wait(patience)

    # -- called by the session, on the sampler's reader thread --------------------------------------------------------

    def row(self, row: Row) -> None:
        self.publisher.row(row)

    def changed(self, kind: str, **fields: Any) -> None:
        self.publisher.notify(kind, **fields)

    def phased(self) -> None:
        """Show the chart of phases from now on, unless the user chose the charts."""
        with self._lock:
            before = self._settings
            after = self._settings = replace(before, phased=True)
            self._configure_store()
        if after.charts != before.charts:
            self.publisher.notify("configured")

    # -- private ------------------------------------------------------------------------------------------------------

    def _configure_store(self) -> None:
        self.store.set_capacity(self._settings.capacity)
        self.store.set_charts(self._settings.charts)

    def _report_unfinished_session(self) -> None:
        left, self.live_session.left = self.live_session.left, None
        if left is not None:
            self._news = left["message"]
            self.live_session.remember(left["message"])
            self.publisher.notify("left-without-goodbye", **left)

    def _tasks(self) -> Tasks:
        return {"diagnosing": self.diagnosing, "profiling": self.profiling}

    def _gains(self, loader: str) -> list[GainState]:
        """The gains that changes of a loader (its id) are expected to bring, as `analysis.results.Gain` in JSON."""
        at = self.live_session.session_time(time.monotonic())
        state = next((state for state in self.loader_states() if state["id"] == loader), None)
        return [] if at is None or state is None else self.publisher.current.gains(at, state)

    def _forget_in_child(self) -> None:
        """Make everything inert in a forked child, such as a loader's worker."""
        self.diagnosis.forget_in_child()
        self.profiler.forget_in_child()
        self._lock = threading.RLock()
        self.live_session.forget_in_child()
        self.publisher.connect(None)


monitor: Monitor = Monitor()


def open_session(path: str | os.PathLike[str] | None = None) -> RecordedSession:
    """Open a recorded session: the newest one, or by its path, its id or a prefix of the id.

    Raises:
        SessionError: there is none, or it cannot be read; the message gives the reason.
    """
    return monitor.opened.open(path)


__all__ = ["Monitor", "monitor", "open_session"]
