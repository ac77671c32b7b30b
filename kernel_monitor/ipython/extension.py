"""Registers magics and hooks in an IPython shell for `%load_ext`, and removes them for `%unload_ext`."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..runtime import monitor
from .answers import leave_out
from .magics import MonitorMagics

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..stream.chart_documents import Documents
    from ..stream.jupyter import KernelChannels, Send


class Extension:
    """Magics, cell hooks and the control channel of one IPython shell; one without pages has no `documents`."""

    def __init__(self, shell: InteractiveShell, documents: Documents | None) -> None:
        self._shell = shell
        self._documents = documents
        self._magics = MonitorMagics(shell, monitor)
        self._channels: KernelChannels | None = None

    def load(self) -> None:
        shell: Any = self._shell
        shell.register_magics(self._magics)
        shell.input_transformers_cleanup.append(leave_out)
        shell.events.register("pre_run_cell", self._before_cell)
        shell.events.register("post_run_cell", self._after_cell)
        documents = self._documents
        if documents is None:
            return
        from ..control import Control
        from ..stream.jupyter import KernelChannels, cell_under_way

        threading.Thread(target=_import_widgets, name="kernel-monitor-import", daemon=True).start()
        self._channels = KernelChannels(shell.kernel)
        handle, pages = Control(monitor, documents).handle, monitor.widget_pages
        pages.answer(lambda: handle)

        def from_control_channel(content: Any, reply: Send) -> None:
            pages.others = True
            handle(content, reply)

        self._channels.listen(from_control_channel)
        monitor.live_session.expected_hello = documents.hello
        self._channels.before_shutdown(partial(monitor.live_session.goodbye, "the kernel was shut down"))
        monitor.publisher.connect(self._channels.publish)
        # Loaded by a cell, which is under way; or by the sidebar on a subshell, which it uses only while a cell runs on
        # the main shell.
        if cell_under_way() or threading.current_thread() is not threading.main_thread():
            self._cell_started()
        monitor.publisher.notify("loaded")

    def unload(self) -> None:
        shell: Any = self._shell
        monitor.stop("the extension was unloaded")
        monitor.publisher.notify("unloaded")
        monitor.hub.clear()
        monitor.widget_pages.listen(on=False)
        monitor.publisher.connect(None)
        if self._channels is not None:
            self._channels.unlisten()
        shell.events.unregister("pre_run_cell", self._before_cell)
        shell.events.unregister("post_run_cell", self._after_cell)
        shell.input_transformers_cleanup.remove(leave_out)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("monitor", None)
        shell.magics_manager.registry.pop(type(self._magics).__name__, None)

    def _before_cell(self, info: Any) -> None:
        self._cell_started()
        self._magics.cells.begin(str(info.raw_cell))

    def _after_cell(self, _result: Any) -> None:
        monitor.hub.cell_ended()
        monitor.live_session.record_cell(running=monitor.hub.cell_running)
        self._magics.after_cell()

    def _cell_started(self) -> None:
        monitor.hub.cell_started()
        monitor.live_session.record_cell(running=True)


def _import_widgets() -> None:
    """Import the widget (0.1 s) before `%monitor` needs it."""
    with suppress(Exception):  # `%monitor` reports it
        import_module("kernel_monitor.widgets")
