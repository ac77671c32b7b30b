"""Real kernels for the tests: start one, run cells in it, talk to its control channel as a page would."""

from __future__ import annotations

import ast
import os
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from kernel_monitor.protocol.message_types import PROTOCOL

from ..waiting import until

KERNELS = ("python3", "python3-ipykernel6")
BUSY_CELL = """
import threading, time
_stop = threading.Event()
def _spin():
    while not _stop.is_set():
        sum(range(1000))
threading.Thread(target=_spin, daemon=True).start()
_until = time.monotonic() + {seconds}
try:
    while time.monotonic() < _until:
        sum(range(1000))
finally:
    _stop.set()
"""
# As in a new kernel: nothing of the package is imported or runs, and the variables are gone.
AS_NEW = """
import sys as _sys, tempfile as _tempfile, threading as _threading
if "kernel_monitor" in _sys.modules:
    for _thread in _threading.enumerate():
        if _thread.name == "kernel-monitor-import":
            _thread.join(20)
    get_ipython().extension_manager.unload_extension("kernel_monitor")
    for _name in [_name for _name in _sys.modules if _name.split(".")[0] == "kernel_monitor"]:
        del _sys.modules[_name]
_tempfile.tempdir = None
get_ipython().reset(new_session=False)
"""


class Page:
    """One client of a kernel: what a browser page is, without the browser."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client: BlockingKernelClient = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.started = False  # a cell that nobody has waited for

    def run(self, code: str, *, timeout: float = 60) -> dict[str, Any]:
        """Execute a cell; fails on an error. Returns the reply's content."""
        reply: dict[str, Any] = self.client.execute_interactive(code, timeout=timeout, output_hook=lambda _m: None)
        self.started = False
        content: dict[str, Any] = reply["content"]
        assert content["status"] == "ok", "\n".join(content.get("traceback", [str(content)]))
        return content

    def value(self, expression: str, *, timeout: float = 60) -> Any:
        """The value of an expression in the kernel, as a literal."""
        reply = self.client.execute_interactive(
            "", user_expressions={"value": expression}, timeout=timeout, output_hook=lambda _m: None
        )
        self.started = False
        result = reply["content"]["user_expressions"]["value"]
        assert result["status"] == "ok", result
        return ast.literal_eval(result["data"]["text/plain"])

    def start(self, code: str) -> str:
        """Start a cell and do not wait for it."""
        self.started = True
        # An interrupt is an error: for a moment after its reply the kernel would abort what else was sent.
        return str(self.client.execute(code, stop_on_error=False))

    def interrupt(self) -> None:
        """End the cell that was started."""
        self.manager.interrupt_kernel()
        self.client.get_shell_msg(timeout=20)
        self.started = False

    def request(
        self, command: Any, args: Any = None, *, timeout: float = 20, protocol: Any = PROTOCOL
    ) -> dict[str, Any]:
        """One control request; returns the whole reply message."""
        return self.raw_request({"protocol": protocol, "command": command, "args": args or {}}, timeout=timeout)

    def raw_request(self, content: Any, *, timeout: float = 20) -> dict[str, Any]:
        message = self.client.session.msg("kernel_monitor_request", content)
        self.client.control_channel.send(message)
        end = time.monotonic() + timeout
        while True:
            reply: dict[str, Any] = self.client.get_control_msg(timeout=max(0.01, end - time.monotonic()))
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply

    def ask(self, command: str, **args: Any) -> dict[str, Any]:
        """One control request that must succeed; returns the reply's content."""
        content: dict[str, Any] = self.request(command, args)["content"]
        assert content["status"] == "ok", content
        return content

    def rows(self, more_than: int = 0, *, seconds: float = 30) -> int:
        """How many rows the store has, once they are more than that: a sampler starts in the background."""
        until(
            lambda: self._rows() > more_than,
            seconds,
            lambda: self.value("__import__('kernel_monitor').monitor.status()"),
        )
        return self._rows()

    def _rows(self) -> int:
        return int(self.ask("history", since=0)["rows"])

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.value("__import__('os').getpid()"))

    def frames(self, seconds: float) -> list[dict[str, Any]]:
        """The frames that arrive within ``seconds``."""
        return [m for m in self.iopub(seconds) if m["header"]["msg_type"] == "kernel_monitor_frame"]

    def iopub(self, seconds: float) -> list[dict[str, Any]]:
        end = time.monotonic() + seconds
        out = []
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except queue.Empty:
                break
            message["arrived"] = time.time()
            out.append(message)
        return out

    def close(self) -> None:
        self.client.stop_channels()


@contextmanager
def kernel(name: str = "python3", **env: str) -> Iterator[Page]:
    """A fresh kernel with one page connected; shut down, at the latest by force, when the block ends."""
    manager = KernelManager(kernel_name=name)
    manager.start_kernel(env={**os.environ, **env})
    try:
        page = Page(manager)
        yield page
        page.close()
    finally:
        manager.shutdown_kernel(now=True)


class SharedKernel:
    """A kernel for several tests. Each finds it as if it were new; one that cannot be brought there is restarted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._manager = KernelManager(kernel_name=name)
        self._manager.start_kernel()
        self._measuring: Page | None = None

    @contextmanager
    def fresh(self, **environment: str) -> Iterator[Page]:
        """A page of the kernel, with these variables in the kernel's environment."""
        self._end_measuring()
        page = Page(self._manager)
        page.run(AS_NEW)
        page.run(f"import os as _os; _os.environ.update({environment!r})")
        try:
            yield page
        finally:
            self._leave(page)

    def measuring(self) -> Page:
        """A page of the kernel with the monitor measuring: the same until a test asks for a fresh one."""
        if self._measuring is None:
            self._measuring = start_monitor(Page(self._manager))
        return self._measuring

    def shut_down(self) -> None:
        self._end_measuring()
        self._manager.shutdown_kernel(now=True)

    def _end_measuring(self) -> None:
        if self._measuring is not None:
            self._leave(self._measuring)
            self._measuring = None

    def _leave(self, page: Page) -> None:
        try:
            if page.started:
                page.interrupt()
            page.run(AS_NEW)
        except (AssertionError, RuntimeError, TimeoutError, queue.Empty):
            self._manager.restart_kernel(now=True)
        finally:
            page.close()


def start_monitor(page: Page) -> Page:
    """Load the extension and wait until rows are measured."""
    page.run("%load_ext kernel_monitor\n%monitor start")
    page.rows()
    return page
