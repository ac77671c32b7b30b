"""What a widget's page is sent, and when: openings, notices, and what a broken page costs the others."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_monitor.protocol.message_types import FRAME, NOTICE, REPLY, REQUEST
from kernel_monitor.stream.hub import LEASE_S, Hub
from kernel_monitor.stream.widget_pages import WidgetPage, WidgetPages

OPENING = ["hello", "subscribe", "history", "document"]


class Kernel:
    """A kernel whose clock is set by hand, with one widget."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.hub = Hub(lambda: self.now)
        self.pages = WidgetPages(self.hub)
        self.pages.answer(lambda: self._handle)
        self.sent: list[dict[str, Any]] = []
        self.page: WidgetPage = self.pages.add(lambda message, _buffers: self.sent.append(message))

    def _handle(self, content: Any, reply: Any) -> None:
        if content["command"] == "subscribe":
            self.hub.subscribe(content["args"]["client"])
        reply({"status": "ok"}, [])

    def ask(self, command: str) -> None:
        self.page.receive({"type": REQUEST, "id": "1", "content": {"command": command, "args": {"client": "c"}}})

    def row(self, version: int = 1) -> list[str]:
        """A row was measured; what it makes the kernel send unasked."""
        self.sent.clear()
        if self.pages.wait:
            self.pages.refresh(version, 3, 10)
        return [str(message.get("command", message["type"])) for message in self.sent]


def test_while_a_cell_runs_a_new_schema_brings_an_opening_and_between_cells_nothing() -> None:
    kernel = Kernel()
    kernel.ask("subscribe")
    kernel.ask("bokehjs")
    sent = [kernel.row()]
    kernel.hub.cell_started()
    sent += [kernel.row(), kernel.row(), kernel.row(version=2)]
    assert sent == [[], OPENING, [], OPENING]  # with a first one, as the page may have asked for the schema before


@pytest.mark.parametrize("kind", ["paused", "started"])
def test_a_page_that_waits_for_a_cell_is_shown_the_next_one(kind: str) -> None:
    kernel = Kernel()
    kernel.ask("subscribe")
    kernel.ask("bokehjs")
    if kind == "started":
        kernel.ask("unsubscribe")  # as a page does whose monitor is stopped
    kernel.pages.publish(NOTICE, {"kind": kind})
    kernel.now += 100 * LEASE_S
    watches = [kernel.page.watches]
    kernel.hub.cell_started()
    assert kernel.row() == OPENING
    watches.append(kernel.page.watches)
    kernel.now += 100 * LEASE_S
    watches.append(kernel.page.watches)
    assert watches == [False, True, True]


def test_frames_are_for_pages_that_watch_and_notices_for_all_that_have_asked() -> None:
    kernel = Kernel()
    never: list[Any] = []
    kept = kernel.pages.add(lambda message, _buffers: never.append(message))
    kernel.ask("hello")
    kernel.sent.clear()
    kernel.pages.publish(FRAME, {})
    kernel.pages.publish(NOTICE, {"kind": "configured"})
    kernel.ask("subscribe")
    kernel.pages.publish(FRAME, {})
    assert [message["type"] for message in kernel.sent] == [NOTICE, REPLY, FRAME]
    assert (never, kept.clients) == ([], frozenset())


def test_a_page_that_cannot_be_sent_to_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    kernel = Kernel()

    def fail(_message: Any, _buffers: Any) -> None:
        raise OSError("its comm is gone")

    broken = kernel.pages.add(fail)
    for page in (kernel.page, broken):
        page.request({"command": "subscribe", "args": {"client": f"{id(page)}"}}, lambda *_answer: None)
    kernel.pages.publish(FRAME, {})
    kernel.pages.publish(FRAME, {})
    assert [message["type"] for message in kernel.sent] == [FRAME, FRAME]
    assert len(caplog.records) == 1


def test_without_a_handler_a_request_is_answered_with_what_to_run() -> None:
    sent: list[dict[str, Any]] = []
    page = WidgetPages(Hub()).add(lambda message, _buffers: sent.append(message))
    page.receive({"type": REQUEST, "id": "1", "content": {}})
    assert sent[0]["content"]["message"] == "Run %load_ext kernel_monitor first."


@pytest.mark.parametrize("client", [[], {}, [["c"]], 7, None, "", "x" * 10_000], ids=lambda client: f"{client!r:.10}")
def test_a_client_that_is_no_text_harms_nothing(client: Any) -> None:
    kernel = Kernel()
    kernel.pages.answer(lambda: lambda _content, reply: reply({"status": "error"}, []))
    for command in ("subscribe", "unsubscribe", ["subscribe"], client):
        kernel.page.receive({"type": REQUEST, "id": "1", "content": {"command": command, "args": {"client": client}}})
    assert [message["type"] for message in kernel.sent] == [REPLY] * 4
    assert kernel.page.clients == frozenset()
