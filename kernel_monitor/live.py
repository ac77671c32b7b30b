"""The monitor of this process, ``kernel_monitor.monitor``: sampler, store, loaders and pages, joined."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
import uuid
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .diagnose import strip as switch_strip
from .errors import MonitorError, SessionError
from .following import Following
from .sample.client import SamplerClient
from .store import Snapshot, Store
from .stream import wire
from .stream.hub import Hub, Publisher

if TYPE_CHECKING:
    from .loaders import SwitchableLoader
    from .widgets import Dashboard

DEFAULT_INTERVAL_S = 0.1
STRIP_PERIOD_S = 1.0
KEPT_NOTICES = 5
# What a reader of an exported page may want to reproduce; nothing personal.
REPORTED_PACKAGES = ("kernel-monitor", "torch", "torchvision", "nvidia-dali-cuda120", "bokeh", "ipykernel", "psutil")


class Monitor:
    """Samples this machine, follows this process's loaders, and serves the pages that show them.

    Everything is thread-safe. Nothing runs before :meth:`start`.
    """

    def __init__(self) -> None:
        self.hub = Hub()
        self.store = Store()
        self._following = Following(self.store, self._session_time)
        self._lock = threading.RLock()
        self._client: SamplerClient | None = None
        self._publish: Publisher | None = None
        self._session: str | None = None
        self._zero = 0.0
        self._origin = 0.0
        self._interval = DEFAULT_INTERVAL_S
        self._last_frame_at = 0.0
        self._strip: dict[str, Any] | None = None
        self._strip_due = 0.0
        self._sent_event = 0
        self._told_paused = False
        self._notices: list[str] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_in_child)

    # -- what a person calls ------------------------------------------------------------------------------------

    def start(self, *, interval: float | None = None) -> None:
        """Start sampling, every ``interval`` seconds (0.05 to 60; 0.1 unless told, or as before).

        Raises:
            SessionError: the interval is out of range.
        """
        with self._lock:
            wanted = self._interval if interval is None else interval
            if not 0.05 <= wanted <= 60:
                raise SessionError(f"The interval is {wanted:g} s; it must lie between 0.05 and 60 s.")
            if self._client is not None and wanted == self._interval:
                return
            outgoing, self._client = self._client, None
        if outgoing is not None:
            outgoing.stop()  # without the lock: it waits for a thread that may need it
        self._begin(wanted)
        self.notify("started")

    def _begin(self, interval: float) -> None:
        with self._lock:
            if self._client is not None:
                return  # another thread was faster
            if self._session is None:
                self._session = uuid.uuid4().hex
                self._zero, self._origin = time.monotonic(), time.time()
            self._interval = interval
            self._last_frame_at = time.monotonic()
            self._client = SamplerClient(
                interval,
                on_hello=self._on_hello,
                on_frame=self._on_frame,
                on_notice=self._on_notice,
                on_exit=self._on_sampler_exit,
                zero=self._zero,
            )
            self._client.start()

    def stop(self) -> None:
        """Stop sampling. What was measured stays, for the charts and for :meth:`export`."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.stop()
            self.notify("stopped")

    @property
    def running(self) -> bool:
        return self._client is not None

    @property
    def session(self) -> str | None:
        """This process's session id; None before the first start."""
        return self._session

    @property
    def strip(self) -> dict[str, Any] | None:
        """What the last switch changed, or None (docs/architecture.md, *Strip*)."""
        return self._strip

    def dashboard(self) -> Dashboard:
        """The dashboard as a widget, for the output of a cell. Starts the monitor if needed."""
        from .widgets import Dashboard

        self.start()
        return Dashboard()

    def loaders(self) -> list[SwitchableLoader]:
        """The live switchable loaders of this process, oldest first."""
        return self._following.loaders()

    def loader_states(self) -> list[dict[str, Any]]:
        """The states of the live loaders, and the last states of the newest that are gone (``"ended": true``)."""
        return self._following.states()

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

    def status(self) -> str:
        """One line for people: what runs and what was missed."""
        if self._session is None:
            return "kernel_monitor is not running. %monitor start starts it."
        state = "running" if self.running else "stopped"
        lines = [f"kernel_monitor is {state}: {self.store.last_seq:,} samples, one every {self._interval:g} s"]
        client = self._client
        if client is not None and client.restarts:
            lines.append(f"the sampler was restarted {client.restarts} times (gaps are drawn as gaps)")
        reason = self.store.schema.gpu_reason
        if reason:
            lines.append(f"no GPU rows: {reason}")
        lines += [f"{state['name']}: {state['status']}" for state in self.loader_states()]
        lines += self._notices
        return "\n".join(lines)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write everything measured so far as one HTML file that opens offline.

        Raises:
            MonitorError: nothing was measured, rendering failed, or ``path`` cannot be written (no file is left).
        """
        from .report import write

        target = Path(path).expanduser()
        html = self.render()
        return write(target, html)

    # -- for the pages --------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """The answer to a page's first question: who is there, and in which state."""
        return {
            "protocol": wire.PROTOCOL,
            "version": __version__,
            "environment": Path(sys.prefix).name,
            "ipykernel": _version("ipykernel"),
            "bokeh": _version("bokeh"),
            "running": self.running,
            "session": self._session,
        }

    def snapshot(self) -> Snapshot:
        if self._session is None or self.store.last_seq == 0:
            raise SessionError("Nothing was measured yet: start the monitor first (%monitor start).")
        versions = {name: version for name in REPORTED_PACKAGES if (version := _version(name)) is not None}
        facts = {
            "session": self._session,
            "python": platform.python_version(),
            "versions": versions,
            "interval": self._interval,
            "exported": time.time(),
            "restarts": self._client.restarts if self._client is not None else 0,
        }
        return self.store.snapshot(self._following.reported(), facts)

    def render(self) -> str:
        """The exported page as text, rendered in a process of its own."""
        from .report.client import render_in_process

        return render_in_process(self.snapshot())

    def export_name(self) -> str:
        return time.strftime("kernel-monitor-%Y-%m-%d-%H%M%S.html")

    def connect(self, publish: Publisher | None) -> None:
        """Give the way to the pages (None takes it away)."""
        self._publish = publish

    def notify(self, kind: str, **fields: Any) -> None:
        """Tell all pages about a change that they did not ask for themselves."""
        publish = self._publish
        if publish is not None:
            publish(wire.NOTICE, {"kind": kind, **self.hello(), **fields})

    # -- the sampler's reader thread --------------------------------------------------------------------------------

    def _on_hello(self, hello: dict[str, Any]) -> None:
        self.store.set_host({**hello, "origin": self._origin})

    def _on_notice(self, notice: dict[str, Any]) -> None:
        message = str(notice.get("message", ""))
        self._remember(message)
        if notice.get("level") == "error":  # there will be no further restart
            with self._lock:
                client, self._client = self._client, None
            if client is not None:
                client.stop()
            self.notify("stopped", message=message)

    def _remember(self, message: str) -> None:
        self._notices = [*(known for known in self._notices if known != message), message][-KEPT_NOTICES:]

    def _on_sampler_exit(self, reason: str) -> None:
        self._remember(f"the sampler ended: {reason}")
        self.store.add_event("sampler-restarted", time.monotonic() - self._zero, message=reason)

    def _on_frame(self, sampled: float, missed: int, values: Any) -> None:
        self._following.look()
        row_time = sampled - self._zero
        window = max(sampled - self._last_frame_at, 1e-6)
        self._last_frame_at = sampled
        seq = self.store.append(row_time, values, self._following.values(window))
        publish = self._publish
        if publish is None or not self.hub.watched:
            self._told_paused = False
            return
        if self.hub.paused:
            if not self._told_paused:
                self._told_paused = True
                self.notify("paused")
            return
        self._told_paused = False
        self._refresh_strip(row_time)
        rows = self.store.rows(seq - 1)
        events = self.store.events(self._sent_event)
        if events:
            self._sent_event = events[-1]["id"]
        now = time.time()
        publish(
            wire.FRAME,
            {
                "protocol": wire.PROTOCOL,
                "session": self._session,
                "schema": rows.schema.version,
                "seq": seq,
                "time": row_time,
                "sampled": now - (time.monotonic() - sampled),
                "sent": now,
                "missed": missed,
                "loaders": self.loader_states(),
                "events": events,
                "strip": self._strip,
            },
            [wire.encode_values(rows.values[-1])],
        )

    def _session_time(self, monotonic: float) -> float | None:
        return None if self._session is None else monotonic - self._zero

    def _refresh_strip(self, now: float) -> None:
        if now < self._strip_due:
            return
        self._strip_due = now + STRIP_PERIOD_S
        events = self.store.events()
        if any(event["kind"] == "switch" for event in events):
            self._strip = switch_strip(self.store.rows(), events, self.loader_states())

    def _forget_in_child(self) -> None:
        """In a forked child (a loader worker) everything of ours is inert."""
        self._lock = threading.RLock()
        self._client = None
        self._publish = None
        self._session = None


def _question(loader: SwitchableLoader, backend: str) -> str | None:
    state = loader.state()
    if backend == (state["wanted"] or state["backend"]):
        return None
    return next((one["confirm"] for one in state["backends"] if one["name"] == backend), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


monitor = Monitor()

__all__ = ["Monitor", "monitor"]
