"""The monitor of this process, `kernel_monitor.monitor`: the public object that owns sampler, store and pages."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import steps
from ..analysis.job_figures import scaling
from ..diagnosis.loop_command import Diagnosis, LoopCommand
from ..diagnosis.loop_guard import LoopContext
from ..errors import MonitorError, SessionError
from ..os_process import in_forked_children
from ..plugins import missing, plugin
from ..recorded import Opened, RecordedSession
from ..steps import phase_times
from ..store import Snapshot, Store
from ..stream.hub import Hub, SidebarRequest
from ..stream.widget_pages import WidgetPages
from ..text import checked_text, printable, quoted
from .current_verdict import under_way
from .experiment_log import ExperimentLog, Source
from .export import Exporter, lines
from .loader_commands import LiveLoader, LoaderCommands
from .optional_parts import PATIENCE_S, profiler
from .overhead import OwnCost, thread_seconds
from .publisher import Publisher
from .recorder import left_behind
from .session import Session
from .settings import Price, Record, Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..analysis.job_figures import Scaling
    from ..analysis.switch_comparison import SwitchComparison
    from ..protocol.analysis_states import DiagnosisState, Findings, GainState, OfferState, ProfileState, VerdictState
    from ..protocol.states import LoaderState, RecordingState, SettingsState
    from ..widgets import Dashboard
    from .experiment_log import ExperimentLogState

_RECORDER_ANSWER_S = 3.0  # how long `configure` waits for the recorder's answer, which usually takes 50 ms
MAX_LABEL = 200  # characters of a mark's label; charts show the first forty


class Monitor:
    """Samples this machine, follows this process's loaders, and serves the pages that show them.

    Thread-safe. Nothing runs before `start`. Pages and magics use its parts: the sampler and its recorder
    (`live_session`), rows and events (`store`), recorded sessions (`opened`) and others.
    """

    step = steps.step
    phase = steps.phase
    watch = staticmethod(steps.watch)

    def __init__(self) -> None:
        self.hub = Hub()
        self.sidebar = SidebarRequest()
        self.store = Store()
        self.widget_pages = WidgetPages(self.hub)
        self.opened = Opened(self.widget_pages)
        self._settings = Settings()
        self._lock = threading.RLock()
        self.live_session = Session(self.store)
        session, tracker = self.live_session, self.live_session.tracker
        self.exporter = Exporter(session, self.store)
        self._log = ExperimentLog(Source(self.store, tracker.states, self.exporter.comparison, session.remember))
        self.publisher = Publisher(
            session, self.store, self.widget_pages, lambda: self._settings, self._tasks, self._log.failures
        )
        session.listen(self.publisher.row, self.publisher.notify, self._show)
        self._loaders = LoaderCommands(tracker, self.publisher.current.offers, session.ranks)
        context = LoopContext(
            store=self.store,
            loaders=tracker.loaders,
            sources=tracker.sources,
            running=lambda: session.running,
            session_time=session.session_time,
            add_event=session.add_event,
            start=self.start,
            gains=self._gains,
        )
        self.diagnosis = LoopCommand(self._loaders.choose_own, context)
        self.profiler = profiler(session, self.start)
        self._news: str | None = None
        self._began = 0.0
        self._configure_store()
        in_forked_children(self._forget_in_child)

    def start(
        self,
        *,
        interval: float | None = None,
        history: float | None = None,
        charts: str | list[str] | tuple[str, ...] | None = None,
        record: Record | None = None,
        price: Price | None = None,
        node_names: bool | None = None,
        attach: bool | None = None,
    ) -> None:
        """Start sampling with these settings (see `configure`); a monitor that runs already is configured.

        Only settings that are not accepted raise: where nothing can be measured, the log and the status say why.
        """
        self.configure(
            interval=interval, history=history, charts=charts, record=record, price=price, node_names=node_names,
            attach=attach,
        )  # fmt: skip
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - the script that is to be measured goes on
            self.live_session.abandon(error)

    def _begin(self) -> None:
        with self._lock:
            left = left_behind() if self.session is None else None
            started = self.live_session.start(self._settings)
        if left is not None:
            self._news = left["message"]
            self.live_session.remember(left["message"])
            self.publisher.notify("left-without-goodbye", **left)
        if started:
            self._began = time.monotonic()
            self._log.begin(self._settings.log_to)
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
        attach: bool | None = None,
        http: bool | None = None,
        log_to: str | list[str] | tuple[str, ...] | None = None,
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
            attach: whether every DataLoader that this process iterates is measured, and can be switched by a click;
                default True. False: only what `switchable` or `watch_loader` has wrapped.
            http: whether dashboards in front ends without a control channel may send their requests to a port of
                127.0.0.1 that this process opens, so that clicks are acted on while a cell runs; default False. Part of
                no recording.
            log_to: whose active run gets the measured figures every 5 s and what a switch changed: `wandb`, `mlflow`,
                `tensorboard` (a folder in `runs`), `tensorboard:FOLDER`, a list of these, or an empty text for none
                (the default). `experiment_logs` has the result. Part of no recording.

        Raises:
            SessionError: a value is not accepted; nothing was changed.
            MonitorError: `http` is given, and no port can be opened.
            MonitorError: `ranks` is given, and the package `ranks` is not installed.
        """
        if http is not None and not isinstance(http, bool):
            raise SessionError(f"http is True or False, not {quoted(http)}.")
        with self._lock:
            put_in_force = _ray_settings(ray, send_files)
            if isinstance(ranks, str) and ranks and plugin("ranks") is None:
                raise missing("ranks")
            before = self._settings
            after = before.changed(
                interval=interval, history=history, charts=charts, record=record, price=price, node_names=node_names,
                ranks=ranks, unfolded=unfolded, attach=attach, log_to=log_to,
            )  # fmt: skip
            self._settings = after
            put_in_force()
            if http is not None:
                self.widget_pages.listen(on=http)
            self._configure_store()
            if after != before or record is not None:
                self.live_session.configure(before, after)
        if after.log_to != before.log_to and self.running:
            self._log.begin(after.log_to)
        if record is not None and self.running:
            self.live_session.recorder.settle(_RECORDER_ANSWER_S)
        if after != before:
            self.publisher.notify("configured")
        return after.to_json()

    def stop(self, reason: str = "stopped") -> None:
        """Stop sampling. What was measured stays, for the charts and for `export`."""
        self._log.end()
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
    def experiment_logs(self) -> list[ExperimentLogState]:
        """For each client of `log_to`: `client`, `state` (`waiting`, `logging`, `failed`), `run`, `message`."""
        return self._log.states()

    @property
    def running(self) -> bool:
        return self.live_session.running

    @property
    def session(self) -> str | None:
        """The session's id; None before the first start."""
        return self.live_session.id

    def cost(self) -> OwnCost:
        """Return the monitor's own use of the processor.

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
        """Return a few lines for people: what runs, what it costs, what was missed and where it is recorded."""
        if self.live_session.id is None:
            return "kernel_monitor is not running. %monitor start starts it."
        found = lines(self.live_session, self.store, self.settings, self.cost())
        return printable("\n".join([*found, *self._log.lines(), *self.step_notices(), *self.live_session.notices]))

    def dashboard(self) -> Dashboard:
        """Return the dashboard as a widget, for the output of a cell. Starts the monitor if needed."""
        from ..widgets import Dashboard

        self.start()
        return Dashboard(self.widget_pages)

    @property
    def verdict(self) -> VerdictState | None:
        """The current verdict (`analysis.results.Verdict` as JSON, and `loader`); None before the first step.

        `over` is true where the loop has ended, or pauses.
        """
        at = self.live_session.session_time(time.monotonic())
        return None if at is None else self.publisher.current.judge(at, self.loader_states())

    @property
    def loaders(self) -> list[LiveLoader]:
        """The loaders of this process that can be switched, wrapped and attached; see `LiveLoader`."""
        return self._loaders.live()

    @property
    def offers(self) -> list[OfferState]:
        """Switches that are offered to loops that have waited for their data for some time, each once.

        Updated while a page shows the loop. `switch` accepts one, `decline` refuses it.
        """
        offers = self.publisher.current.offers
        offers.refresh(self.loader_states(), diagnosing="diagnosing" in under_way(self._tasks()))
        return offers.standing

    @property
    def diagnosing(self) -> DiagnosisState | None:
        """Progress of the newest diagnosis or tune, with what was measured as `result`; None before the first one."""
        return self.diagnosis.state

    @property
    def profiling(self) -> ProfileState | None:
        """Progress of the newest profile, with its `result` at the end; None before the first one."""
        return self.profiler.state

    def switch(self, backend: str, *, loader: str | None = None, confirmed: bool = False) -> LoaderState:
        """Ask a loader to continue with another engine from its next batch; returns its state at once.

        Args:
            backend: the engine's name.
            loader: the loader's id or name; optional if there is only one.
            confirmed: the user agreed to what `question` asks.

        Raises:
            MonitorError: there is no such loader, or a question has not been confirmed.
            BackendUnavailable: there is no such engine, or it cannot run here.
        """
        return self._loaders.switch(backend, loader=loader, confirmed=confirmed)

    def set(
        self,
        *,
        loader: str | None = None,
        workers: int | None = None,
        prefetch: int | None = None,
        threads: int | None = None,
    ) -> LoaderState:
        """Change a loader's knobs from its next batch on; returns its state at once.

        Args:
            loader: the loader's id or name; optional if there is only one.
            workers: worker processes of `torchvision`.
            prefetch: batches in flight: per worker for `torchvision`, in total for DALI.
            threads: threads of DALI.

        Raises:
            MonitorError: there is no such loader, no knob is given, or a value is not accepted.
        """
        return self._loaders.set(loader=loader, workers=workers, prefetch=prefetch, threads=threads)

    def question(self, backend: str, *, loader: str | None = None) -> str | None:
        """Return the question to ask before switching to an engine, or None."""
        return self._loaders.question(backend, loader=loader)

    def decline(self, loader: str | None = None) -> bool:
        """Refuse the offer to a loader (its id or name) for this session; returns False if nothing was offered."""
        return self._loaders.decline(loader)

    def diagnose(
        self, loader: str | None = None, *, seconds: float = 8.0, confirmed: bool = False, wait: bool = True
    ) -> Diagnosis | None:
        """Measure every engine that can run here in the running loop, and come back to the one in use.

        The loop must be running in another thread, or this must be called in the loop with `wait=False`. The loop
        itself only has its engine switched; its batches are the same ones in the same order.

        Args:
            loader: the loader's id or name; may be left out where one is in use.
            seconds: how long each engine is measured, 1 to 60; longer (up to 25 s) where too few steps end in it.
            confirmed: a person allows `synthetic` too, which replays batches in the places of the plan's: the ceiling.
            wait: until it is done; else `diagnosing` has its progress.

        Returns:
            What was found; None with `wait=False`.

        Raises:
            MonitorError: there is no such loader, one is being diagnosed already, or the diagnosis was aborted (no loop
                runs, the loop ended, somebody clicked meanwhile); `diagnosing` has what was measured until then.
        """
        return self.diagnosis.diagnose(loader, seconds=seconds, confirmed=confirmed, wait=wait)

    def tune(self, loader: str | None = None, *, seconds: float = 60.0, wait: bool = True) -> Diagnosis | None:
        """Find, in the running loop, the engine and the knobs that bring the most images/s, and go on with them.

        Engines, workers, threads and batches in flight are tried in short windows of steps, the best of them again in
        longer ones. Where no setting is surely faster than the one in use, that one goes on. Settings for which the
        memory does not suffice are left out. The loop must be running in another thread, or this must be called in the
        loop with `wait=False`; its batches are the same ones in the same order.

        Args:
            loader: the loader's id or name; may be left out where one is in use.
            seconds: how long it may take, 15 to 600; a loop with long steps needs more to try much.
            wait: until it is done; else `diagnosing` has its progress.

        Returns:
            What was found, with the setting as a `line` to paste; None with `wait=False`.

        Raises:
            MonitorError: as for `diagnose`.
        """
        return self.diagnosis.tune(loader, seconds=seconds, wait=wait)

    def undo_tune(self) -> None:
        """Bring back the setting from before the newest tune; a MonitorError where nothing was changed."""
        self.diagnosis.undo_tune()

    def cancel_diagnosis(self) -> bool:
        """End the diagnosis or tune under way; the loader goes back to the setting it had. False if there is none."""
        return self.diagnosis.cancel()

    def profile(
        self, steps: int = 10, *, loader: str | None = None, wait: bool = True, patience: float = PATIENCE_S
    ) -> dict[str, Any] | None:
        """Profile the next steps of the running loop with torch.profiler: operators, kernels, and a trace of them.

        It starts and stops on the loop's own thread between two steps. The steps are marked as profiled, for they
        take longer, and are left out of every other figure; in the loop itself call it with `wait=False`.

        Args:
            steps: 1 to 200.
            loader: id or name of the loader (or of `monitor.step`'s source) whose steps count; whichever steps next,
                if it is left out.
            wait: until it is done; else `profiling` has its progress.
            patience: s to wait for the first step.

        Returns:
            What was found, as docs/messages.md has it (*Profile*), which prints as two tables; None with `wait=False`.

        Raises:
            MonitorError: there is no such loader, a profile is under way, or it failed; the message says why.
        """
        return self.profiler.start(steps, loader=loader, wait=wait, patience=patience)

    def snapshot(self) -> Snapshot:
        """Return an immutable copy of everything measured so far; SessionError if that is nothing."""
        return self.exporter.snapshot()

    def comparison(self, loader: str | None = None) -> SwitchComparison:
        """Return what a switch of a loader's engine changed: `print(monitor.comparison())` at the end of a training.

        It has `sentence` (also its text), `switch`, `before` and `after` (figures of both sides) and `faster`. The
        sentence gives the reason where nothing can be compared.

        Args:
            loader: the loader's id or name; by default the one of which most was measured on both sides of a switch.

        Raises:
            MonitorError: no loader, or more than one, has that name.
        """
        return self.exporter.comparison(loader)

    def code(self, loader: str | None = None, *, compare: bool = True) -> str:
        """Return a Python file that delivers a loader's batches by DALI, without this package.

        Args:
            loader: its id or name; by default the only one.
            compare: whether to compare its pixels with the data set's own; see `SwitchableLoader.code`.

        Raises:
            MonitorError: there is no such loader, or something of it has no code form; the message names it.
        """
        return self._loaders.choose_own(loader).code(compare=compare)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write everything measured so far as one HTML file that opens offline.

        An existing regular file is replaced (through symbolic links, if any); a device or a named pipe is written to
        directly; a recorded session is never replaced.

        Raises:
            MonitorError: nothing was measured, rendering failed, or `path` cannot be written; an existing file is then
                left unchanged.
        """
        return self.exporter.export(path)

    def scaling(self, job: int | None = None, *, alone: str | os.PathLike[str] | Snapshot | None = None) -> Scaling:
        """Return the scaling efficiency of a job: its images/s over its ranks times those of one rank alone.

        Args:
            job: its number; by default the newest one of several ranks.
            alone: a recorded session (path, id or the id's beginning) or a snapshot with one rank alone; by default a
                job of one rank in this session.

        Returns:
            `efficiency`, `together` and `alone` with their rates and counts; `print()` of it gives one sentence.

        Raises:
            SessionError: one of the two was not measured, or not for long enough.
        """
        if alone is None or isinstance(alone, Snapshot):
            return scaling(self.snapshot(), job, alone)
        return scaling(self.snapshot(), job, self.opened.open(alone).snapshot, f" (session {os.fspath(alone)})")

    def loader_states(self) -> list[LoaderState]:
        """Return the states of the loaders that live in this process."""
        return self.live_session.tracker.states()

    def job_states(self) -> list[LoaderState]:
        """Return the states of the loaders that all ranks of a job have in common."""
        return self.live_session.ranks.loader_states()

    def mark(self, label: str) -> dict[str, Any]:
        """Mark this moment: charts draw a line with this label, and a new segment begins for the analysis.

        Args:
            label: a few words, such as `augment x12`.

        Returns:
            The event: `id`, `kind`, `time` (session s), `label`.
        """
        text = checked_text(label, "A mark", sys.maxsize)
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
        return list(phase_times.DEVICE_FAILURE)

    def news(self) -> str | None:
        """Return the message that the previous session ended without a goodbye, returned once; or None."""
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
        return {"diagnosing": self.diagnosing, "profiling": self.profiling}

    def _gains(self, loader: str) -> list[GainState]:
        """Return the gains that changes of a loader (its id) are expected to bring, as `analysis.results.Gain` in
        JSON.
        """
        at = self.live_session.session_time(time.monotonic())
        state = next((state for state in self.loader_states() if state["id"] == loader), None)
        return [] if at is None or state is None else self.publisher.current.gains(at, state)

    def _forget_in_child(self) -> None:
        """Make everything inert in a forked child, such as a loader's worker."""
        self.diagnosis.forget_in_child()
        self.profiler.forget_in_child()
        self._lock = threading.RLock()
        self.live_session.forget_in_child()
        self._log.forget_in_child()
        self.publisher.connect(None)
        self.widget_pages.clear()


monitor: Monitor = Monitor()


def open_session(path: str | os.PathLike[str] | None = None) -> RecordedSession:
    """Open a recorded session: the newest one, or by its path, its id or a prefix of the id.

    Raises:
        SessionError: there is none, or it cannot be read; the message gives the reason.
    """
    return monitor.opened.open(path)


def _ray_settings(address: str | None, send_files: bool | str | None) -> Callable[[], None]:
    """Check the settings of the engine `ray`; the returned function puts them in force.

    Raises:
        SessionError: a value is not accepted, or there is no such engine.
    """
    if address is None and send_files is None:
        return lambda: None
    engine = plugin("ray")
    if engine is None:
        raise SessionError("ray= and send_files= are settings of the engine ray, which is not installed.")
    try:
        put_in_force: Callable[[], None] = engine.settings(address, send_files)
    except MonitorError as error:
        raise SessionError(str(error)) from None
    return put_in_force
