"""The monitor of this process, `kernel_monitor.monitor`: the public object that owns sampler, store and pages."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..diagnosis import loop_guard
from ..diagnosis.diagnose_command import DiagnoseCommand
from ..errors import MonitorError, SessionError
from ..integrations import ray_cluster
from ..profiler import profile_run
from ..profiler.profile_command import ProfileCommand
from ..recorded import Opened, RecordedSession
from ..steps import cuda_times, phase, step, watch
from ..store import Store
from ..stream.hub import Hub, SidebarRequest
from ..text import given, shown
from .export import Exporter
from .loader_commands import LoaderCommands
from .offers import under_way
from .overhead import Cost, thread_seconds
from .publisher import Publisher
from .rank_commands import RankCommands
from .recorder import left_behind
from .session import Session
from .settings import Price, Record, Settings
from .status import lines

if TYPE_CHECKING:
    from ..protocol.analysis_states import DiagnosisState, Findings, GainState, OfferState, ProfileState, VerdictState
    from ..protocol.states import RecordingState, SettingsState
    from ..widgets import Dashboard

RECORDER_ANSWER_S = 3.0  # how long `configure` waits for the recorder's answer, which usually takes 50 ms
MAX_LABEL = 200  # characters of a mark's label; charts show the first forty


class Monitor:
    """Samples this machine, follows this process's loaders, and serves the pages that show them.

    Thread-safe. Nothing runs before `start`. Pages and magics use its parts: the sampler and its recorder
    (`live_session`), rows and events (`store`), recorded sessions (`opened`) and others.
    """

    def __init__(self) -> None:
        self.hub = Hub()
        self.sidebar = SidebarRequest()
        self.store = Store()
        self.opened = Opened()
        self._settings = Settings()
        self._lock = threading.RLock()
        self.live_session = Session(self.store)
        self.publisher = Publisher(self.live_session, self.store, self.hub, lambda: self._settings, self._tasks)
        self.live_session.listen(self.publisher.row, self.publisher.notify, self._show)
        self._loaders = LoaderCommands(
            self.live_session.tracker, self.publisher.current.offers, self.live_session.ranks.loaders
        )
        session, tracker = self.live_session, self.live_session.tracker
        at, add, start = session.session_time, session.add_event, self.start
        stage = loop_guard.Stage(
            self.store, tracker.loaders, tracker.sources, lambda: session.running, at, add, start, self._gains
        )
        self.diagnosis = DiagnoseCommand(self._loaders.choose_own, stage)
        self.profiler = ProfileCommand(
            profile_run.Stage(tracker.sources, lambda: session.recorder.to_json()["path"], at, add, start)
        )
        self.exporter = Exporter(self.live_session, self.store)
        # The public commands are the parts' own methods; their documentation is there.
        self.switch, self.set = self._loaders.switch, self._loaders.set
        self.question, self.decline = self._loaders.question, self._loaders.decline
        self.diagnose, self.cancel_diagnosis = self.diagnosis.start, self.diagnosis.cancel
        self.profile = self.profiler.start
        self.snapshot, self.comparison = self.exporter.snapshot, self.exporter.comparison
        self.export = self.exporter.export
        ranks = self.rank_commands = RankCommands(session.ranks, self.snapshot, self.opened.open)
        self.scaling, self.run_alone, self.stop_alone = ranks.scaling, ranks.run_alone, ranks.stop_alone
        self.step, self.phase, self.watch = step, phase, watch
        self.loader_states = self.live_session.tracker.states
        self.job_states = self.live_session.ranks.loader_states
        self._news: str | None = None
        self._began = 0.0
        self._configure_store()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_in_child)

    def start(
        self,
        *,
        interval: float | None = None,
        history: float | None = None,
        charts: str | list[str] | tuple[str, ...] | None = None,
        record: Record | None = None,
        price: Price | None = None,
        node_names: bool | None = None,
    ) -> None:
        """Start sampling with these settings (see `configure`); a monitor that runs already is configured."""
        self.configure(
            interval=interval, history=history, charts=charts, record=record, price=price, node_names=node_names
        )
        with self._lock:
            left = left_behind() if self.session is None else None
            started = self.live_session.start(self._settings)
        if left is not None:
            self._news = left["message"]
            self.live_session.remember(left["message"])
            self.publisher.notify("left-without-goodbye", **left)
        if started:
            self._began = time.monotonic()
            self.publisher.notify("started")

    def configure(
        self,
        *,
        interval: float | None = None,
        history: float | None = None,
        charts: str | list[str] | tuple[str, ...] | None = None,
        record: Record | None = None,
        price: Price | None = None,
        ray: str | None = None,
        send_files: bool | str | None = None,
        node_names: bool | None = None,
        ranks: str | None = None,
        unfolded: str | list[str] | tuple[str, ...] | None = None,
    ) -> SettingsState:
        """Change settings, also while the monitor runs, without losing samples; returns all settings.

        Args:
            interval: s between samples, 0.05 to 60; default 0.1.
            history: s of samples kept for the charts, 60 to 3600; default 600.
            charts: ids of `kernel_monitor.store.charts`, `all` or `default`.
            record: False stops the recording, True resumes it in the same file, a folder sets where to record; the
                result is in `recording`. Default True.
            price: of an hour of this machine: a number, or text such as `2.50 €`; an empty text removes it.
            ray: the cluster that the engine `ray` of this process's loaders joins from now on: `auto` or `host:port`;
                an empty text for the one of RAY_ADDRESS. Part of no recording.
            send_files: whether the nodes of that cluster get the contents of the data set's files with each batch:
                True, False, or `auto` (the default) for those that do not see the files. Counts from the next time that
                a loader joins the cluster. Part of no recording.
            node_names: whether recordings and exports may name other machines; default False: they are `node-1`, ….
            ranks: `tcp://HOST:PORT` of this machine, at which ranks of other machines may join with this session's
                keys; an empty text for none (the default). Set it before the ranks start. Part of no recording.
            unfolded: ids of the other machines that the chart `nodes` shows with their cores, `all`, `none`, or
                `default`: all while they have at most 64 cores together. Recordings have all cores in any case.

        Raises:
            SessionError: a value is not accepted; nothing was changed.
        """
        with self._lock:
            cluster = None if ray is None else _cluster(ray)
            if send_files not in (None, True, False, "auto"):
                raise SessionError(f"send_files is True, False or auto, not {send_files!r}.")
            before = self._settings
            after = before.changed(
                interval=interval, history=history, charts=charts, record=record, price=price, node_names=node_names,
                ranks=ranks, unfolded=unfolded,
            )  # fmt: skip
            self._settings = after
            if cluster is not None:
                ray_cluster.Chosen.address = cluster or None
            if send_files is not None:
                ray_cluster.Chosen.send_files = None if send_files == "auto" else bool(send_files)
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
        if self.live_session.id is None:
            return "kernel_monitor is not running. %monitor start starts it."
        found = lines(self.live_session, self.store, self.settings, self.cost())
        return shown("\n".join([*found, *self.step_notices(), *self.live_session.notices]))

    def dashboard(self) -> Dashboard:
        """The dashboard as a widget, for the output of a cell. Starts the monitor if needed."""
        from ..widgets import Dashboard

        self.start()
        return Dashboard()

    @property
    def verdict(self) -> VerdictState | None:
        """The current verdict (`analysis.results.Verdict` as JSON, and `loader`); None before the first step.

        `over` is true where the loop has ended, or pauses.
        """
        at = self.live_session.session_time(time.monotonic())
        return None if at is None else self.publisher.current.judge(at, self.loader_states())

    @property
    def offers(self) -> list[OfferState]:
        """Switches that are offered to loops that have waited for their data for some time, each once.

        Updated while a page shows the loop. `switch` accepts one, `decline` refuses it.
        """
        offers = self.publisher.current.offers
        offers.look(self.loader_states(), diagnosing="diagnosing" in under_way(self._tasks()))
        return offers.standing

    @property
    def diagnosing(self) -> DiagnosisState | None:
        """Progress of the newest diagnosis, with what it has measured as `result`; None before the first one."""
        return self.diagnosis.state

    @property
    def profiling(self) -> ProfileState | None:
        """Progress of the newest profile, with its `result` at the end; None before the first one."""
        return self.profiler.state

    def mark(self, label: str) -> dict[str, Any]:
        """Mark this moment: charts draw a line with this label, and a new segment begins for the analysis.

        Args:
            label: a few words, such as `augment x12`.

        Returns:
            The event: `id`, `kind`, `time` (session s), `label`.
        """
        text = given(label, "A mark", sys.maxsize)
        if not text:
            raise MonitorError("A mark needs words: monitor.mark('augment x12').")
        if len(text) > MAX_LABEL:
            raise MonitorError(f"A mark has {MAX_LABEL} letters at most, not {len(text)}.")
        at = self.live_session.session_time(time.monotonic())
        if at is None:
            raise SessionError("Nothing is measured yet: start the monitor first (%monitor start).")
        return self.live_session.add_event("mark", at, label=text)

    def step_notices(self) -> list[str]:
        """Messages about steps that cannot be measured."""
        return list(cuda_times.LOST)

    def news(self) -> str | None:
        """The message that the previous session ended without a goodbye, returned once; or None."""
        news, self._news = self._news, None
        return news

    def _configure_store(self) -> None:
        self.store.set_capacity(self._settings.capacity)
        self.store.set_charts(self._settings.charts)

    def _show(self, chart: str) -> None:
        """Show a chart (its id) by default from now on, unless the user chose the charts."""
        with self._lock:
            before = self._settings
            after = self._settings = replace(before, measured=before.measured | {chart})
            self._configure_store()
        if after.charts != before.charts:
            self.publisher.notify("configured")

    def _tasks(self) -> Findings:
        return {"diagnosing": self.diagnosing, "profiling": self.profiling, "alone": self.rank_commands.state()}

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


def _cluster(address: str) -> str:
    """A cluster's address, or an empty text for none; SessionError if it is no address."""
    try:
        return ray_cluster.checked(address) if address != "" else ""
    except MonitorError as error:
        raise SessionError(str(error)) from None
