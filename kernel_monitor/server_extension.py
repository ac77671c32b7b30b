"""The Jupyter server extension: GPU use and idle time of its kernels on the server's `/metrics`, off by default.

`c.KernelMonitor.prometheus = True` in the server's configuration turns it on. Without it this module imports nothing
heavy and does one thing: it tells the server that a page's requests to the monitor are no cells.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traitlets import Bool
from traitlets.config import Configurable

from .errors import SessionError
from .protocol.message_types import REQUEST

if TYPE_CHECKING:
    import psutil
    from prometheus_client.core import GaugeMetricFamily

    from .analysis.idle_gpus import GpuUse
    from .record.reader import Session

PERIOD_S = 1.0  # between two readings, however often `/metrics` is scraped
LOOK_BACK_S = 600.0  # of a recording's rows that one reading looks at
STALE_S = 10.0  # a recording whose newest row is older tells nothing of now
_SAMPLER = "kernel_monitor.sample"


class KernelMonitor(Configurable):
    """What `jupyter_server_config.py` may set."""

    prometheus = Bool(
        default_value=False,
        help="Add the GPU use and the idle time of this server's kernels to its /metrics.",
    ).tag(config=True)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "kernel_monitor.server_extension"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Load the extension into a `ServerApp`."""
    kernels = server.kernel_manager
    # A request on the control channel ends with the status *idle*, also while a cell runs: the server would take the
    # kernel for idle, and might cull it in the middle of a training.
    untracked = getattr(kernels, "untracked_message_types", None)
    if untracked is not None and REQUEST not in untracked:
        kernels.untracked_message_types = [*untracked, REQUEST]
    if KernelMonitor(parent=server).prometheus:
        from prometheus_client import REGISTRY

        from .analysis import idle_gpus  # noqa: F401 - imported now, so that no scrape waits for NumPy
        from .record import reader  # noqa: F401

        REGISTRY.register(KernelCollector(kernels, server.log.warning))


@dataclass
class _Kernel:
    """What is known of one kernel between two readings; times in Unix s."""

    pid: int | None  # of its process on this machine
    state: str = ""  # by the server, at the last reading or change
    idle_since: float | None = None  # by the server; None while a cell runs
    cell_running: bool = False  # by its recording, which also knows of cells beside those of subshells
    cell_seen: float = 0.0  # when the recording told last of a running cell
    last_used: dict[int, float] = field(default_factory=dict)  # by the GPU's index
    sampler: psutil.Process | None = None
    session: Session | None = None
    read_to: float = 0.0  # session s up to which `last_used` has been read

    def change(self, state: str, since: float) -> None:
        """Take a state of the server's; one that is not `idle` is taken for a running cell."""
        if state != self.state:
            self.state = state
            self.idle_since = since if state == "idle" else None

    @property
    def unused_since(self) -> float | None:
        """The time since which no cell runs; None while one does."""
        return None if self.idle_since is None or self.cell_running else max(self.idle_since, self.cell_seen)


class KernelCollector:
    """A collector of `prometheus_client`, which reads the kernels of a `MappingKernelManager` when it is scraped.

    Args:
        kernels: the server's kernel manager.
        warn: called with a sentence when a recording cannot be read; once for each kernel and cause.
        clock: the time, Unix s.
    """

    def __init__(self, kernels: Any, warn: Callable[[str], object], clock: Callable[[], float] = time.time) -> None:
        self._kernels = kernels
        self._warn = warn
        self._clock = clock
        self._known: dict[str, _Kernel] = {}
        self._warned: set[tuple[str, str]] = set()
        self._metrics: list[GaugeMetricFamily] = []
        self._read_at = float("-inf")  # monotonic s
        self._lock = threading.Lock()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics without values, so that registering reads nothing."""
        return _metrics().values()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics of all kernels, at most `PERIOD_S` old."""
        with self._lock:
            if time.monotonic() - self._read_at >= PERIOD_S:
                self._metrics = self._read()
                self._read_at = time.monotonic()
            return self._metrics

    def _read(self) -> list[GaugeMetricFamily]:
        now = self._clock()
        found = _metrics()
        present = list(self._kernels.list_kernel_ids())
        for gone in set(self._known) - set(present):
            del self._known[gone]
        for kernel_id in present:
            kernel = self._kernel(kernel_id, now)
            try:
                uses = _uses(kernel, now)
            except Exception as error:  # noqa: BLE001 - a damaged recording must not take the server's own metrics
                uses, kernel.session = [], None
                self._warn_once(kernel_id, f"{type(error).__name__}: {error}")
            idle = kernel.unused_since
            found[_IDLE].add_metric([kernel_id], 0.0 if idle is None else max(0.0, now - idle))
            for use in uses:
                labels = [kernel_id, str(use.index), use.scope]
                if use.utilization is not None:
                    found[_UTILIZATION].add_metric(labels, use.utilization)
                    since = None if idle is None or not use.held else max(idle, kernel.last_used[use.index])
                    found[_GPU_IDLE].add_metric(labels, 0.0 if since is None else max(0.0, now - since))
                if use.memory is not None:
                    found[_MEMORY].add_metric(labels, use.memory)
        return list(found.values())

    def _kernel(self, kernel_id: str, now: float) -> _Kernel:
        """Return what is known of a kernel; the first time, begin to follow its state."""
        manager = self._kernels.get_kernel(kernel_id)
        pid = getattr(getattr(manager, "provisioner", None), "pid", None)
        kernel = self._known.get(kernel_id)
        if kernel is None:
            kernel = self._known[kernel_id] = _Kernel(pid)
            manager.observe(lambda change: self._changed(kernel_id, change["new"]), "execution_state")
        elif pid != kernel.pid:  # it was restarted
            kernel.pid, kernel.sampler, kernel.session = pid, None, None
            kernel.last_used, kernel.cell_running = {}, False
        # Each cell counts as activity, and more does: the last cell ended no later. So an idle kernel is not taken for
        # idle for longer than it is.
        last = getattr(manager, "last_activity", None)
        kernel.change(str(manager.execution_state), min(now, last.timestamp()) if isinstance(last, datetime) else now)
        return kernel

    def _changed(self, kernel_id: str, state: str | None) -> None:
        kernel = self._known.get(kernel_id)
        if kernel is not None:
            kernel.change(str(state), self._clock())

    def _warn_once(self, kernel_id: str, cause: str) -> None:
        if (kernel_id, cause) not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add((kernel_id, cause))
            self._warn(f"kernel_monitor: the recording of kernel {kernel_id} cannot be read: {cause}")


_IDLE = "kernel_monitor_kernel_idle_seconds"
_UTILIZATION = "kernel_monitor_gpu_utilization_ratio"
_MEMORY = "kernel_monitor_gpu_memory_bytes"
_GPU_IDLE = "kernel_monitor_gpu_idle_seconds"
_MOST_WARNINGS = 1000


def _metrics() -> dict[str, GaugeMetricFamily]:
    from prometheus_client.core import GaugeMetricFamily

    gpu = ["kernel_id", "gpu", "scope"]
    found = (
        GaugeMetricFamily(_IDLE, "Time since the kernel's last cell ended; 0 while one runs.", labels=["kernel_id"]),
        GaugeMetricFamily(_UTILIZATION, "Utilization of a GPU, 0 to 1.", labels=gpu),
        GaugeMetricFamily(_MEMORY, "GPU memory in use.", labels=gpu),
        GaugeMetricFamily(
            _GPU_IDLE, "Time in which the kernel held a GPU, did not use it and ran no cell.", labels=gpu
        ),
    )
    return {metric.name: metric for metric in found}


def _uses(kernel: _Kernel, now: float) -> list[GpuUse]:
    """Return the kernel's use of each GPU, and note when each was used last; none without a live recording."""
    from .analysis.idle_gpus import gpu_uses, series_of

    session = _live_session(kernel)
    if session is None:
        kernel.cell_running = False
        return []
    kernel.cell_running = bool(session.cell_running)
    if kernel.cell_running:
        kernel.cell_seen = now
    schema = session.schema
    names = [name for name in series_of([gpu.index for gpu in schema.gpus]) if name in schema.columns]
    start = max(kernel.read_to, now - session.origin - LOOK_BACK_S)
    rows = session.rows(start=start, series=names)
    if not len(rows.time) or now - (session.origin + rows.time[-1]) > max(STALE_S, 3 * schema.interval):
        return []
    kernel.read_to = float(rows.time[-1])
    uses = gpu_uses(rows)
    for use in uses:
        # Where nothing is known of the time before, the GPU counts as used until then.
        known = kernel.last_used.get(use.index, session.origin + start)
        used = known if use.last_used is None else session.origin + use.last_used
        kernel.last_used[use.index] = max(known, used)
    return uses


def _live_session(kernel: _Kernel) -> Session | None:
    """Return the recording that the kernel's sampler writes; None where there is none, or it is another user's."""
    if kernel.pid is None:
        return None
    import psutil

    from .record.reader import Session

    try:
        path = None if kernel.sampler is None else _open_recording(kernel.sampler)
        if path is None:
            kernel.sampler = kernel.session = None
            children = psutil.Process(kernel.pid).children(recursive=True)
            # The kernel's own before that of a script that a cell started.
            for child in sorted(children, key=lambda child: child.ppid() != kernel.pid):
                if _SAMPLER in child.cmdline() and (path := _open_recording(child)) is not None:
                    kernel.sampler = child
                    break
    except psutil.Error:  # a process that has ended, or another user's
        path = None
    if path is None:
        return None
    if kernel.session is None or kernel.session.path != path:
        try:
            kernel.session, kernel.read_to = Session(path), 0.0
        except SessionError:
            if time.time() - path.stat().st_mtime < STALE_S:
                return None  # it has just begun: there is no row yet
            raise
    return kernel.session


def _open_recording(sampler: psutil.Process) -> Path | None:
    """Return the recording that a sampler has open; psutil's errors if it cannot be asked."""
    from .record.format import SUFFIX

    return next((Path(file.path) for file in sampler.open_files() if file.path.endswith(SUFFIX)), None)
