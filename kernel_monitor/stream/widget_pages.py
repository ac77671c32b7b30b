"""Pages that reach the kernel by the widget protocol alone: VS Code, Colab, marimo (docs/messages.md, *Widget*).

Such a page has no control channel and hears nothing on iopub. Its requests are custom messages of the widget, which a
kernel reads between two cells only; what the kernel sends arrives while a cell runs, too. So while a cell runs the
kernel sends what a page would have asked for (the *opening*: its first replies) unasked, and the page reads those.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol.message_types import NOTICE, PROTOCOL, REPLY, REQUEST
from ..text import log_failed
from .http_requests import Handle, HttpRequests, Reply
from .hub import FRAMES, Hub
from .jupyter import has_user

Send = Callable[[dict[str, Any], list[bytes] | None], object]  # sends a custom message of one widget; any thread

FIRST_OPENING_S = 3.0  # after a widget was made: a page with a control channel has used it by then
_LATEST_OPENING_S = 300.0  # most seconds between two openings for a page that may listen by now
_HISTORY_BYTES = 2_000_000  # of values in an opening
_LONGEST_ID = 64
log = logging.getLogger(__name__)

_OPENING = ("hello", "subscribe", "history", "document", "bokehjs")


class WidgetPage:
    """The pages of one widget; `interactive`: it is live, and a person ran its cell, not nbclient or papermill."""

    def __init__(self, pages: WidgetPages, send: Send, *, interactive: bool) -> None:
        self.id = uuid.uuid4().hex
        self.clients: frozenset[str] = frozenset()  # replaced, never modified: other threads read it
        self.opened_with = -1  # version of the schema in the newest opening
        self.asks = False  # a page has sent a request
        self.has_bokehjs = False
        self._resume = False  # it was told of a pause, or of a start: to be ended by what the next cell brings
        self._pages = pages
        self._send = send
        self._interactive = interactive
        self._wait = FIRST_OPENING_S
        self._due = time.monotonic() + self._wait

    def receive(self, message: Any) -> None:
        """Take a custom message of the page; a request gets exactly one reply."""
        if not isinstance(message, dict) or message.get("type") != REQUEST:
            return
        ident, content = message.get("id"), message.get("content")
        if not isinstance(ident, str) or len(ident) > _LONGEST_ID:
            return  # from no page of ours; a reply could not be told from another
        self.request(content, lambda reply, buffers: self.send(REPLY, reply, buffers, id=ident))

    def request(self, content: Any, reply: Reply) -> None:
        """Handle a request of the page, however it came here."""
        self.asks = True
        self._pages.handle(content, reply)
        command, args = (content.get("command"), content.get("args")) if isinstance(content, dict) else (None, None)
        client = args.get("client") if isinstance(args, dict) else None
        if command == "subscribe" and isinstance(client, str) and self._holds(client):
            self.clients = frozenset({client, *filter(self._holds, self.clients)})
            self._pages.hub.hold(client)
        elif command == "unsubscribe" and isinstance(client, str):
            self.clients -= {client}
        self.has_bokehjs = self.has_bokehjs or command == "bokehjs"

    def send(self, kind: str, content: Mapping[str, object], buffers: list[bytes] | None = None, **fields: str) -> None:
        """Send a message of a kind (its type in the protocol)."""
        pages = self._pages
        message: dict[str, Any] = {
            "type": kind,
            "page": self.id,
            "busy": pages.hub.cell_running,
            "http": pages.http,
            **fields,
        }
        message["content"] = content
        try:
            self._send(message, buffers or None)
        except Exception:  # noqa: BLE001 - see below
            # On the sampler's reader thread, or in a cell: neither may end because one page is gone.
            log_failed(log, "a dashboard is sent nothing more")
            self._pages.remove(self)

    def open(self, now: float, version: int, since: int) -> None:
        """Send what a page asks for first, if a page may wait for it that cannot ask now."""
        first = self._interactive and not self.asks and now >= self._due and not self._pages.others
        if not (first or self._resume or (self.watches and version != self.opened_with)):
            return
        self._resume = False
        if first:
            self._wait = min(2 * self._wait, _LATEST_OPENING_S)
            self._due = now + self._wait
        self.opened_with = version
        if not self.clients:
            self.clients = frozenset({f"widget-{uuid.uuid4().hex}"})
        client = next(iter(self.clients))
        arguments = {"subscribe": {"client": client}, "history": {"since": since}}
        for command in _OPENING[: -1 if self.has_bokehjs else None]:
            request = {"protocol": PROTOCOL, "command": command, "args": arguments.get(command, {})}
            self._pages.handle(request, self._pushed(command))
        self._pages.hub.hold(client)

    def _pushed(self, command: str) -> Reply:
        return lambda content, buffers: self.send(REPLY, content, buffers, command=command)

    def publish(self, kind: str, content: Mapping[str, object], buffers: list[bytes] | None) -> None:
        """Send what all pages are sent: frames to those that watch, notices to those that have ever asked."""
        if self.watches or (kind == NOTICE and self.asks):
            self._resume = self._resume or (kind == NOTICE and content["kind"] in ("paused", "started"))
            self.send(kind, content, buffers)

    @property
    def watches(self) -> bool:
        """Whether one of its pages holds a lease."""
        return any(map(self._holds, self.clients))

    def _holds(self, client: str) -> bool:
        return self._pages.hub.holds(client, FRAMES)


class WidgetPages:
    """All such pages of one kernel. Thread-safe: the sampler's reader thread sends, the main thread receives."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.others = False  # pages with a control channel are there
        self._http: HttpRequests | None = None
        self._make: Callable[[], Handle] | None = None
        self._handle: Handle | None = None
        self._lock = threading.Lock()
        self._pages: weakref.WeakSet[WidgetPage] = weakref.WeakSet()

    @property
    def answers(self) -> bool:
        """Whether requests are handled."""
        return self._make is not None

    def answer(self, make: Callable[[], Handle]) -> None:
        """Set the function that returns what handles a request (`Control.handle`); called once, when first needed."""
        self._make, self._handle = make, None

    @property
    def http(self) -> dict[str, str] | None:
        """The `url` and `token` of requests over HTTP; None unless the user allowed them."""
        return None if self._http is None else self._http.address

    def listen(self, *, on: bool) -> None:
        """Begin or end to take requests over HTTP; MonitorError if no port can be opened."""
        before = self._http
        if on and before is None:
            self._http = HttpRequests(self._from_http)
        elif not on and before is not None:
            self._http = None
            before.close()

    def _from_http(self, content: Any, reply: Reply) -> None:
        ident = content.get("page") if isinstance(content, dict) else None
        page = next((page for page in self._all() if page.id == ident), None)
        (self.handle if page is None else page.request)(content, reply)

    def handle(self, content: Any, reply: Reply) -> None:
        """Handle one request."""
        if self._handle is None:
            if self._make is None:
                reply({"status": "error", "error": "NotLoaded", "message": "Run %load_ext kernel_monitor first."}, [])
                return
            self._handle = self._make()
        self._handle(content, reply)

    def add(self, send: Send, *, live: bool = True) -> WidgetPage:
        """Add a widget that the running cell made; `live`: it shows this kernel, not a recording."""
        page = WidgetPage(self, send, interactive=live and has_user())
        follow_cells(self.hub)
        with self._lock:
            self._pages.add(page)
        return page

    def remove(self, page: WidgetPage) -> None:
        with self._lock:
            self._pages.discard(page)

    def clear(self) -> None:
        """Forget all pages, and the server, in a forked child: its socket is the parent's."""
        self._http = None
        self._lock = threading.Lock()  # a forked child may have it locked
        self._pages = weakref.WeakSet()

    @property
    def wait(self) -> bool:
        """Whether there are pages that cannot ask now."""
        return len(self._pages) > 0 and self.hub.cell_running

    def refresh(self, version: int, width: int, last: int) -> None:
        """Send openings that are due; `version` and `width` (series) of the schema, `last` row's number."""
        since, now = max(0, last - _HISTORY_BYTES // (4 * max(1, width))), time.monotonic()
        for page in self._all():
            page.open(now, version, since)

    def publish(self, kind: str, content: Mapping[str, object], buffers: list[bytes] | None = None) -> None:
        """Send a message to the pages that it is for."""
        for page in self._all():
            page.publish(kind, content, buffers)

    def _all(self) -> list[WidgetPage]:
        with self._lock:
            return list(self._pages)


def follow_cells(hub: Hub) -> None:
    """Tell the hub how to know whether a cell runs in marimo, which has no hooks before and after cells."""
    marimo = sys.modules.get("marimo._runtime.context")
    context = None if marimo is None else getattr(marimo, "safe_get_context", lambda: None)()
    if context is not None:
        hub.ask_cells(lambda: getattr(context, "execution_context", None) is not None)
