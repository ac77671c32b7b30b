"""A real Jupyter server that culls idle kernels: an open page of ours must not keep one, and its GPU, for ever."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from ..waiting import until
from .kernels import Page

TOKEN = "kernel-monitor-test"  # noqa: S105 - guards nothing: the server listens on loopback for one test
IDLE_S = 20  # longer than a kernel takes to start beside other tests: it would be culled before it answers


class Culling:
    """A server that ends every kernel that was idle for `IDLE_S`, connected or not."""

    def __init__(self, base: str, runtime: Path) -> None:
        self._base = base
        self._runtime = runtime

    def call(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own address
            f"{self._base}{path}", method=method, headers={"Authorization": f"token {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own address
            return json.loads(answer.read() or b"null")

    def answers(self) -> bool:
        with suppress(urllib.error.URLError, ConnectionError):
            self.kernels()
            return True
        return False

    def kernels(self) -> list[str]:
        return [entry["id"] for entry in self.call("/api/kernels")]

    def connect(self, kernel: str) -> Page:
        client = BlockingKernelClient(connection_file=str(self._runtime / f"kernel-{kernel}.json"))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        page = Page.__new__(Page)
        page.client = client
        return page


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Culling]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
                f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}",
                f"--ServerApp.root_dir={tmp_path}", f"--MappingKernelManager.cull_idle_timeout={IDLE_S}",
                "--MappingKernelManager.cull_interval=1", "--MappingKernelManager.cull_connected=True",
            ],
            env={**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime)}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        found = Culling(f"http://127.0.0.1:{port}", runtime)
        until(found.answers, 60, (tmp_path / "server.log").read_text)
        yield found
    finally:
        process.terminate()
        process.wait(30)


def test_neither_an_open_page_nor_one_that_vanished_keeps_a_kernel(server: Culling) -> None:
    left = server.call("/api/kernels", "POST")["id"]
    page = server.connect(left)
    page.run("import kernel_monitor.stream.hub as hub\nhub.LEASE_S = 4.0")
    page.run("%load_ext kernel_monitor\n%monitor start")
    page.ask("subscribe", client="one")
    assert page.frames(2)
    page.close()  # the tab is gone and has not said so

    kernel = server.call("/api/kernels", "POST")["id"]
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
