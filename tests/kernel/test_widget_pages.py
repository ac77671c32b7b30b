"""What a kernel sends to a page that has its widget alone, as in VS Code: while a cell runs that it cannot ask."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from kernel_monitor.protocol.message_types import FRAME, PROTOCOL, REPLY, REQUEST
from kernel_monitor.stream.widget_pages import FIRST_OPENING_S

from .kernels import BUSY_CELL, Page, SharedKernel

SHOW = "%load_ext kernel_monitor\n%monitor\n"
NEWEST_ONLY = True


def test_a_page_that_could_not_ask_is_sent_everything_while_the_cell_runs(shared: SharedKernel) -> None:
    with shared.fresh() as page:
        page.start(SHOW + BUSY_CELL.format(seconds=30))
        messages = _messages(page, lambda found: sum(m["type"] == FRAME for m in found) >= 10, 25)
        page.interrupt()
    opening = [str(message.get("command")) for message in messages if message["type"] == REPLY]
    assert sorted(opening) == ["bokehjs", "document", "hello", "history", "subscribe"]
    assert all(message["busy"] and message["content"].get("status", "ok") == "ok" for message in messages)
    buffers = {message.get("command"): message["buffers"] for message in messages}
    assert len(buffers["bokehjs"][0]) > 500_000
    seqs = [message["content"]["seq"] for message in messages if message["type"] == FRAME]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


def test_nothing_is_sent_unasked_where_no_person_looks_or_another_page_does(shared: SharedKernel) -> None:
    shown = "%monitor\n" + BUSY_CELL.format(seconds=20)
    with shared.fresh() as page:
        page.run("%load_ext kernel_monitor")
        page.started = True
        page.client.execute(shown, stop_on_error=False, allow_stdin=False)
        headless = _messages(page, lambda _found: False, FIRST_OPENING_S + 1.5)
        page.interrupt()
        page.request("hello")
        page.start(shown)
        controlled = _messages(page, lambda _found: False, FIRST_OPENING_S + 1.5)
        page.interrupt()
    assert (headless, controlled) == ([], [])


def test_requests_of_the_widget_are_validated_and_answered_by_their_id(shared: SharedKernel) -> None:
    with shared.fresh() as page:
        page.run(SHOW)
        comm = page.value("list(__import__('ipywidgets').widgets.widget._instances)[-1]")

        def send(content: Any) -> None:
            data = {"comm_id": comm, "data": {"method": "custom", "content": content}}
            page.client.shell_channel.send(page.client.session.msg("comm_msg", data))

        hello = {"protocol": PROTOCOL, "command": "hello", "args": {}}
        contents: tuple[Any, ...] = (
            [],
            {"type": "other", "id": "a", "content": hello},
            {"type": REQUEST, "id": 7, "content": hello},
            {"type": REQUEST, "id": "b" * 65, "content": hello},
            {"type": REQUEST, "id": "wrong", "content": {**hello, "command": "format-disk"}},
            {"type": REQUEST, "id": "none", "content": None},
            {"type": REQUEST, "id": "right", "content": hello},
        )
        for content in contents:
            send(content)
        replies = _messages(page, lambda found: len(found) >= 3, 20)
    answers = [(reply["id"], reply["content"]["status"], reply["busy"]) for reply in replies]
    assert answers == [("wrong", "error", False), ("none", "error", False), ("right", "ok", False)]


def _messages(page: Page, enough: Callable[[list[dict[str, Any]]], bool], seconds: float) -> list[dict[str, Any]]:
    """The custom messages of widgets, each with its buffers, until they are enough or the time is over."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + seconds
    while not enough(found) and (left := end - time.monotonic()) > 0:
        try:
            message = page.client.get_iopub_msg(timeout=left)
        except queue.Empty:
            break
        data = message["content"].get("data", {}) if message["msg_type"] == "comm_msg" else {}
        if data.get("method") == "custom":
            found.append({**data["content"], "buffers": message["buffers"]})
    return found
