"""Real Jupyter servers on loopback: their REST interface, and pages of their kernels."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from ..waiting import until
from .kernels import Page

TOKEN = "kernel-monitor-test"  # noqa: S105 - guards nothing: the server listens on loopback for one test


class JupyterServer:
    """A running server, at `base`."""

    def __init__(self, base: str, runtime: Path) -> None:
        self.base = base
        self._runtime = runtime

    def read(self, path: str, method: str = "GET", *, token: str = TOKEN) -> bytes:
        headers = {"Authorization": f"token {token}"} if token else {}
        request = urllib.request.Request(f"{self.base}{path}", method=method, headers=headers)  # noqa: S310 - our own
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own address
            content: bytes = answer.read()
        return content

    def call(self, path: str, method: str = "GET") -> Any:
        return json.loads(self.read(path, method) or b"null")

    def answers(self) -> bool:
        with suppress(urllib.error.URLError, ConnectionError):
            self.kernels()
            return True
        return False

    def kernels(self) -> list[str]:
        return [entry["id"] for entry in self.call("/api/kernels")]

    def start_kernel(self) -> str:
        kernel: str = self.call("/api/kernels", "POST")["id"]
        return kernel

    def connect(self, kernel: str) -> Page:
        client = BlockingKernelClient(connection_file=str(self._runtime / f"kernel-{kernel}.json"))
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        page = Page.__new__(Page)
        page.client = client
        return page


@contextmanager
def jupyter_server(folder: Path, *options: str, **environment: str) -> Iterator[JupyterServer]:
    """Start a server with these options; ended by its own process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
                f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}",
                f"--ServerApp.root_dir={folder}", *options,
            ],
            env={**os.environ, "JUPYTER_RUNTIME_DIR": str(runtime), **environment}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        found = JupyterServer(f"http://127.0.0.1:{port}", runtime)
        until(found.answers, 60, (folder / "server.log").read_text)
        yield found
    finally:
        process.terminate()
        process.wait(30)
