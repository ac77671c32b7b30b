"""The only module that touches ipykernel: publish on iopub, listen on the control channel."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from comm import get_comm_manager

from . import wire

if TYPE_CHECKING:
    from .control import Control


class Presence:
    """Stands in the kernel's list of comms: pages ask for that, in any kernel, before they send a request of ours.

    No comm of the library's: that would be opened in every page, and those that do not know it would close it.
    """

    def __init__(self) -> None:
        self.comm_id = uuid.uuid4().hex
        self.target_name = wire.TARGET

    def handle_msg(self, _msg: Any) -> None:
        """Nothing is said here."""

    def handle_close(self, _msg: Any) -> None:
        """Stay in the list, from which the manager has taken it, as long as the extension is loaded."""
        get_comm_manager().register_comm(cast("Any", self))


def page_of_cell(shell: Any) -> str | None:
    """The session id of the page whose request runs now in a shell; None in a shell that has no kernel."""
    get_parent = getattr(getattr(shell, "kernel", None), "get_parent", None)
    if get_parent is None:
        return None
    page = (get_parent("shell") or {}).get("header", {}).get("session")
    return page if isinstance(page, str) and page else None


class KernelChannels:
    """Connects a :class:`~kernel_monitor.stream.control.Control` to the ipykernel of this process."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._presence: Any = Presence()
        # Frames belong to no cell: front ends attach a message to a cell by its parent, and nbclient logs an error
        # for message types it does not know when they belong to one.
        self._parent = {"header": kernel.session.msg_header("kernel_monitor")}

    def publish(self, msg_type: str, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        kernel = self._kernel
        kernel.session.send(
            kernel.iopub_socket,
            msg_type,
            wire.sendable(content),
            parent=self._parent,
            ident=f"kernel.{kernel.ident}.{msg_type}".encode(),
            buffers=buffers,
        )

    def listen(self, control: Control) -> None:
        """Register the request handler (also for requests that arrive while a cell runs)."""
        kernel = self._kernel

        def handler(stream: Any, ident: Any, parent: dict[str, Any]) -> None:
            def send(content: dict[str, Any], buffers: list[bytes]) -> None:
                try:
                    kernel.session.send(stream, wire.REPLY, content, parent, ident, buffers=buffers or None)
                except Exception as exc:  # noqa: BLE001 - told to the page, which would wait for ever
                    kernel.session.send(stream, wire.REPLY, wire.error(exc), parent, ident)

            control_thread = threading.get_ident()

            def reply(content: dict[str, Any], buffers: list[bytes]) -> None:
                if threading.get_ident() == control_thread:
                    send(content, buffers)
                else:
                    # zmq sockets belong to one thread: a late answer goes back through the control thread's loop.
                    stream.io_loop.add_callback(send, content, buffers)

            control.handle(parent.get("content"), reply)

        kernel.control_handlers[wire.REQUEST] = handler
        get_comm_manager().register_comm(self._presence)

    def unlisten(self) -> None:
        get_comm_manager().unregister_comm(self._presence)
        self._kernel.control_handlers.pop(wire.REQUEST, None)
        self._kernel.__dict__.pop("do_shutdown", None)

    def before_shutdown(self, call: Callable[[], None]) -> None:
        """Call `call` when the kernel is asked to shut down, or to restart.

        ipykernel then ends its child processes before Python's own exit functions run.
        """
        kernel = self._kernel
        shut_down = kernel.do_shutdown

        def told(restart: bool) -> Any:
            try:
                call()
            finally:
                result = shut_down(restart)
            return result

        kernel.do_shutdown = told
