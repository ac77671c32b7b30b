"""What ``%load_ext`` puts into a shell and ``%unload_ext`` takes out again."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from ..live import monitor
from .cells import leave_out
from .magics import MonitorMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..stream.jupyter import KernelChannels


class Extension:
    """The monitor's hold on one IPython shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._magics = MonitorMagics(shell, monitor)
        self._channels: KernelChannels | None = None

    def load(self) -> None:
        shell: Any = self._shell
        shell.register_magics(self._magics)
        shell.input_transformers_cleanup.append(leave_out)
        shell.events.register("pre_run_cell", self._before_cell)
        shell.events.register("post_run_cell", self._after_cell)
        kernel = getattr(shell, "kernel", None)
        if kernel is None or getattr(kernel, "control_stream", None) is None:
            return  # terminal IPython, or a kernel inside another process: no pages to serve
        from ..stream.control import Control
        from ..stream.jupyter import KernelChannels

        self._channels = KernelChannels(kernel)
        control = Control(monitor)
        control.documents.warm()
        self._channels.listen(control)
        self._channels.before_shutdown(partial(monitor.goodbye, "the kernel was shut down"))
        monitor.connect(self._channels.publish)
        if threading.current_thread() is not threading.main_thread():
            # The sidebar loaded us on a subshell, which it does only while a cell runs on the main shell.
            monitor.hub.cell_started()
        monitor.notify("loaded")

    def unload(self) -> None:
        shell: Any = self._shell
        monitor.stop("the extension was unloaded")
        monitor.notify("unloaded")
        monitor.hub.clear()
        monitor.connect(None)
        if self._channels is not None:
            self._channels.unlisten()
        shell.events.unregister("pre_run_cell", self._before_cell)
        shell.events.unregister("post_run_cell", self._after_cell)
        shell.input_transformers_cleanup.remove(leave_out)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("monitor", None)
        shell.magics_manager.registry.pop(type(self._magics).__name__, None)

    def _before_cell(self, info: Any) -> None:
        monitor.hub.cell_started()
        self._magics.before_cell(str(info.raw_cell))

    def _after_cell(self, _result: Any) -> None:
        monitor.hub.cell_ended()
        self._magics.after_cell()
        self._magics.refresh_summaries()
