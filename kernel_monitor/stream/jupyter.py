"""The connection to ipykernel: publish on iopub, handle requests on the control channel."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

from comm import get_comm_manager

from ..protocol.message_types import REPLY, REQUEST, TARGET
from . import hub as wire

Send = Callable[[Mapping[str, object], list[bytes]], None]  # sends content and buffers; any thread


class Presence:
    """An entry in the kernel's list of comms, which tells pages that this kernel answers our requests.

    Not a `comm.Comm`: that would be opened in every page, and closed by those that do not know its target.
    """

    def __init__(self) -> None:
        self.comm_id = uuid.uuid4().hex
        self.target_name = TARGET

    def handle_msg(self, _msg: Any) -> None:
        """Ignore messages."""

    def handle_close(self, _msg: Any) -> None:
        """Register again: the manager removes a closed comm, but the extension is still loaded."""
        get_comm_manager().register_comm(cast("Any", self))


def page_of_cell(shell: Any) -> str | None:
    """Return the session id of the page whose cell runs now; None in a shell without a kernel."""
    get_parent = getattr(getattr(shell, "kernel", None), "get_parent", None)
    page = get_parent and (get_parent("shell") or {}).get("header", {}).get("session")
    return page if isinstance(page, str) and page else None


def has_user() -> bool:
    """Return whether the running cell can ask its user: nbclient and what is built on it say that theirs cannot."""
    parent = _cell_request()
    return parent is None or parent.get("content", {}).get("allow_stdin", True) is not False


def cell_under_way() -> bool:
    """Return whether a cell runs now whose end ipykernel will announce."""
    parent = _cell_request() or {}
    runs = parent.get("header", {}).get("msg_type") == "execute_request"
    return runs and not parent.get("content", {}).get("silent", False)


def _cell_request() -> dict[str, Any] | None:
    """Return the newest request on the shell channel of this process's kernel; None without an ipykernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    get_parent = getattr(getattr(shell, "kernel", None), "get_parent", None)
    return None if get_parent is None else get_parent("shell") or {}


class KernelChannels:
    """The channels to pages through the ipykernel of this process: messages to pages, requests from them."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._presence: Any = Presence()
        # Front ends attach a message to a cell by its parent header, and nbclient logs an error for unknown types of
        # messages that belong to a cell: frames get a parent that is no cell.
        self._parent = {"header": kernel.session.msg_header("kernel_monitor")}

    def publish(self, msg_type: str, content: Mapping[str, object], buffers: list[bytes] | None = None) -> None:
        kernel = self._kernel
        kernel.session.send(
            kernel.iopub_socket,
            msg_type,
            wire.sendable(content),
            parent=self._parent,
            ident=f"kernel.{kernel.ident}.{msg_type}".encode(),
            buffers=buffers,
        )

    def listen(self, handle: Callable[[Any, Send], None]) -> None:
        """Register a handler of requests, which also runs while a cell runs.

        `handle` is called on the control thread with a request's content and what sends the reply to it.
        """
        kernel = self._kernel

        def handler(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
            def send(content: Mapping[str, object], buffers: list[bytes]) -> None:
                try:
                    kernel.session.send(stream, REPLY, content, parent, ident, buffers=buffers or None)
                except Exception as exc:  # noqa: BLE001 - sent to the page, which would wait for ever
                    kernel.session.send(stream, REPLY, wire.error(exc), parent, ident)

            control_thread = threading.get_ident()

            def reply(content: Mapping[str, object], buffers: list[bytes]) -> None:
                if threading.get_ident() == control_thread:
                    send(content, buffers)
                else:
                    # A zmq socket may be used by one thread only: late replies go through the control thread's loop.
                    stream.io_loop.add_callback(send, content, buffers)

            handle(parent.get("content"), reply)

        kernel.control_handlers[REQUEST] = handler
        get_comm_manager().register_comm(self._presence)

    def unlisten(self) -> None:
        get_comm_manager().unregister_comm(self._presence)
        self._kernel.control_handlers.pop(REQUEST, None)
        self._kernel.__dict__.pop("do_shutdown", None)

    def before_shutdown(self, call: Callable[[], None]) -> None:
        """Call `call` when the kernel is about to shut down or restart.

        ipykernel kills child processes before functions registered with `atexit` run.
        """
        kernel = self._kernel
        shut_down = kernel.do_shutdown

        def do_shutdown(restart: bool) -> Any:
            try:
                call()
            finally:
                result = shut_down(restart)
            return result

        kernel.do_shutdown = do_shutdown
