"""A real Jupyter server that culls idle kernels: an open page of ours must not keep one, and its GPU, for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..waiting import until
from .servers import JupyterServer, jupyter_server

IDLE_S = 20  # longer than a kernel takes to start beside other tests: it would be culled before it answers


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JupyterServer]:
    """A server that ends every kernel that was idle for `IDLE_S`, connected or not."""
    options = (f"cull_idle_timeout={IDLE_S}", "cull_interval=1", "cull_connected=True")
    with jupyter_server(tmp_path, *(f"--MappingKernelManager.{option}" for option in options)) as found:
        yield found


def test_neither_an_open_page_nor_one_that_vanished_keeps_a_kernel(server: JupyterServer) -> None:
    left = server.start_kernel()
    page = server.connect(left)
    page.run("import kernel_monitor.stream.hub as hub\nhub.LEASE_S = 4.0")
    page.run("%load_ext kernel_monitor\n%monitor start")
    page.ask("subscribe", client="one")
    assert page.frames(2)
    page.close()  # the tab is gone and has not said so

    kernel = server.start_kernel()
    page = server.connect(kernel)
    page.run("%load_ext kernel_monitor\n%monitor start")
    # Ten minutes without a cell, made short.
    page.run(f"import kernel_monitor.stream.hub as hub\nhub.IDLE_PAUSE_S = {2 * IDLE_S}")
    began = time.monotonic()
    page.ask("subscribe", client="one")
    seen = page.iopub(1.5 * IDLE_S)
    frames = [message for message in seen if message["header"]["msg_type"] == "kernel_monitor_frame"]
    assert len(frames) > 5 * IDLE_S
    assert kernel in server.kernels(), "while frames flow the server sees activity"
    # A page renews its lease until it is told of the pause.
    page.ask("subscribe", client="one")
    notices = [
        message["content"]["kind"]
        for message in page.iopub(2 * IDLE_S + 5 - (time.monotonic() - began))
        if message["header"]["msg_type"] == "kernel_monitor_notice"
    ]
    assert notices == ["paused"]
    until(lambda: left not in server.kernels(), 6 * IDLE_S)
    until(lambda: server.kernels() == [], 6 * IDLE_S)
    page.close()
