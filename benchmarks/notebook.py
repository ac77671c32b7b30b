"""A real notebook kernel for benchmarks, and a client that runs cells in it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[1]


class Notebook:
    """A kernel and the one client that runs cells in it."""

    def __init__(self, manager: KernelManager) -> None:
        self.connection_file = str(manager.connection_file)
        self.pid: int = manager.provisioner.pid  # type: ignore[union-attr]
        self._client: BlockingKernelClient = manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code: str, timeout: float = 300) -> None:
        """Execute a cell.

        Raises:
            SystemExit: the cell failed.
        """
        self._forget()
        reply = self._client.execute_interactive(code, timeout=timeout, output_hook=lambda _message: None)
        if reply["content"]["status"] != "ok":
            raise SystemExit("\n".join(reply["content"].get("traceback", [str(reply["content"])])))

    def value(self, expression: str) -> Any:
        """Return the value of an expression, as a literal."""
        self._forget()
        reply = self._client.execute_interactive(
            "", user_expressions={"value": expression}, timeout=60, output_hook=lambda _message: None
        )
        return ast.literal_eval(reply["content"]["user_expressions"]["value"]["data"]["text/plain"])

    def _forget(self) -> None:
        """Discard published messages: a full socket would drop the message that a cell has ended."""
        while self._client.iopub_channel.msg_ready():
            self._client.get_iopub_msg(timeout=1)

    def close(self) -> None:
        self._client.stop_channels()


@contextmanager
def notebook(**environment: str) -> Iterator[Notebook]:
    """A fresh kernel that finds this repository; ended with the block."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(ROOT), env={**os.environ, **environment})
    try:
        client = Notebook(manager)
        try:
            yield client
        finally:
            client.close()
    finally:
        manager.shutdown_kernel(now=True)
