"""Requests of pages over HTTP on loopback, for front ends in which nothing else reaches a kernel that runs a cell.

Off unless the user asks for it (`monitor.configure(http=True)`). It listens on 127.0.0.1 only, at a port that the
system chooses, and answers POST of one path. A request needs the token of this process, an `Origin` on this machine or
of VS Code's own pages, and a `Host` that names the loopback address: so no other web page can use it, not by DNS
rebinding either. What is asked for is validated as on the control channel (`kernel_monitor/control.py`).

Other users of the machine reach the port, too, and have no token. What they can cost the training is bounded: the
connections at a time, those that are accepted in a second, and what is read of each.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..errors import MonitorError

PATH = "/kernel-monitor"
_MAX_BODY = 64 * 1024  # bytes of a request; the longest that a page sends has a few hundred
_PATIENCE_S = 15.0  # for a client that is slow to send its request
_ANSWER_S = 120.0  # longest that an answer may take: a report's
_MOST_WAITING = 16  # connections that have not shown the token; a further one closes the oldest
_MOST_ANSWERED = 32  # requests with the token at a time
_PAUSE_S = 0.005  # between two connections that are accepted
_LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?|vscode-webview://[a-z0-9]+", re.ASCII)

Reply = Callable[[Mapping[str, object], list[bytes]], None]
Handle = Callable[[Any, Reply], None]

log = logging.getLogger(__name__)


class HttpRequests:
    """A server of requests for one process."""

    def __init__(self, handle: Handle) -> None:
        token = secrets.token_urlsafe(32)

        try:
            self._server = _Server(("127.0.0.1", 0), _Handler)
        except OSError as error:
            raise MonitorError(f"No port of 127.0.0.1 can be opened for requests over HTTP: {error}.") from error
        self._server.secret, self._server.answer = f"Bearer {token}".encode(), handle
        self.port: int = self._server.server_port
        self.address = {"url": f"http://127.0.0.1:{self.port}{PATH}", "token": token}
        threading.Thread(target=self._server.serve_forever, name="kernel-monitor-http", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    secret = b""
    answer: Handle

    def __init__(self, *args: Any) -> None:
        self._waiting: list[socket.socket] = []  # oldest first
        self._lock = threading.Lock()
        self.answered = threading.BoundedSemaphore(_MOST_ANSWERED)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; of too many that wait, the oldest is closed."""
        time.sleep(_PAUSE_S)
        with self._lock:
            self._waiting.append(request)
            oldest = self._waiting.pop(0) if len(self._waiting) > _MOST_WAITING else None
        if oldest is not None:
            with suppress(OSError):  # it has just ended
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection and close it."""
        self.end_waiting(request)
        super().shutdown_request(request)

    def end_waiting(self, request: Any) -> None:
        """Note that a connection has shown the token, or has ended: it is not closed for another."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        """Write nothing to the notebook's stderr: a page was closed while it was answered, or never spoke HTTP."""
        log.debug("a connection from %s failed", client_address, exc_info=True)  # noqa: LOG014 - called in a handler


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE_S
    server_version, sys_version = "kernel-monitor", ""

    def do_OPTIONS(self) -> None:
        """Answer the browser's question whether a page of this origin may send a request."""
        if self._refuses() is None:
            self._reply(204, b"", "text/plain")

    def do_POST(self) -> None:
        if self._refuses() is not None:
            return
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, self.server.secret):
            self._reply(401, b"The token is not this process's.", "text/plain")
            return
        self.server.end_waiting(self.connection)
        try:
            length = int(self.headers.get("Content-Length", ""))
            content = json.loads(self.rfile.read(length)) if 0 <= length <= _MAX_BODY else None
        except (ValueError, RecursionError):
            content = None
        if content is None:
            self._reply(400, b"The body is JSON of at most 64 KiB, with its Content-Length.", "text/plain")
            return
        if not self.server.answered.acquire(blocking=False):
            self._reply(503, b"Too many requests at a time.", "text/plain")
            return
        try:
            self._answer(content)
        finally:
            self.server.answered.release()

    def _answer(self, content: Any) -> None:
        found: list[bytes] = []
        ready = threading.Event()

        def reply(head: Mapping[str, object], buffers: list[bytes]) -> None:
            found.append(pack(head, buffers))
            ready.set()

        try:
            self.server.answer(content, reply)
        except Exception:
            log.exception("a fault in kernel_monitor; a request over HTTP has no answer")
            self._reply(500, b"A fault in kernel_monitor: see the kernel's log.", "text/plain")
            return
        if ready.wait(_ANSWER_S):
            self._reply(200, found[0], "application/octet-stream")
        else:
            self._reply(504, b"The answer took too long.", "text/plain")

    def _refuses(self) -> int | None:
        """Reply to a request that may not be answered; returns its status, None for one that may."""
        host, port = self.headers.get("Host", ""), self.server.server_port
        if host not in (f"127.0.0.1:{port}", f"localhost:{port}") or _LOCAL.fullmatch(self._origin) is None:
            self._reply(403, b"Only pages of this machine may ask.", "text/plain", allowed=False)
            return 403
        if self.path != PATH:
            self._reply(404, b"There is nothing here.", "text/plain")
            return 404
        return None

    @property
    def _origin(self) -> str:
        return str(self.headers.get("Origin", ""))

    def _reply(self, status: int, body: bytes, kind: str, *, allowed: bool = True) -> None:
        self.send_response(status)
        if allowed:
            self.send_header("Access-Control-Allow-Origin", self._origin)
            self.send_header("Access-Control-Allow-Headers", "Authorization, Content-Type")
            self.send_header("Access-Control-Allow-Methods", "POST")
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.send_header("Vary", "Origin")
        self.send_header("Content-Type", kind)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Write nothing to the notebook's stderr."""
        log.debug(format, *args)


def pack(content: Mapping[str, object], buffers: list[bytes]) -> bytes:
    """Return a reply's body: `<u32 little-endian JSON length><JSON {content, buffers: [length, …]}><buffers>`."""
    head = json.dumps({"content": content, "buffers": [len(buffer) for buffer in buffers]}, default=float).encode()
    return b"".join([struct.pack("<I", len(head)), head, *buffers])
