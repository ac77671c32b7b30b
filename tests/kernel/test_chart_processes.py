"""The processes that make chart documents: one at a time however many loaders come, and none outlives its kernel."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from kernel_monitor.protocol.message_types import PROTOCOL

from ..waiting import until
from .kernels import Page, kernel

LOADERS = 8
END_S = 2.0  # after which none may be left
ADD = "made.append(watch_loader([1], name='train')); list(made[-1])"


def renderers(pid: int) -> list[psutil.Process]:
    """Return the processes of a kernel that make documents, on request or in advance."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if "kernel_monitor.views" in words or "kernel_monitor.warm" in words:
            found.append(process)
    return found


@contextmanager
def counted(pid: int) -> Iterator[list[int]]:
    """How many there were at a time, looked at all the time during the block."""
    counts: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            counts.append(len(renderers(pid)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()


def ask_for_charts(page: Page) -> str:
    """Send a page's request for the charts of now; returns the id to which the answer belongs."""
    content = {"protocol": PROTOCOL, "command": "document", "args": {}}
    message = page.client.session.msg("kernel_monitor_request", content)
    page.client.control_channel.send(message)
    return str(message["header"]["msg_id"])


def test_one_at_a_time_and_none_after_the_kernels_end(tmp_path: Path) -> None:
    with kernel(KERNEL_MONITOR_CACHE=str(tmp_path)) as page:
        pid = page.pid
        page.run("%load_ext kernel_monitor\n%monitor start")
        page.rows()
        page.run("from kernel_monitor.steps import watch_loader\nmade = []")
        with counted(pid) as counts:
            asked = set()
            for number in range(LOADERS):
                page.run(ADD)
                until(lambda: page.value("len(__import__('kernel_monitor').monitor.store.schema.loaders)") > number)  # noqa: B023
                asked.add(ask_for_charts(page))
            while asked:
                reply = page.client.get_control_msg(timeout=120)
                assert reply["content"]["status"] == "ok", reply["content"]
                asked.discard(reply["parent_header"]["msg_id"])
        assert max(counts) == 1
        documents = len(list(tmp_path.rglob("*.json")))
        page.ask("configure", charts=["cpu", "memory"])
        ask_for_charts(page)
        working = until(lambda: renderers(pid))
        os.kill(pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(working, timeout=3 * END_S)
        assert alive == []
        assert documents > 0
