from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.kernels import Page, kernel, start_monitor

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(recordings: Path, tmp_path: Path) -> Iterator[Page]:
    """A page of a kernel of its own, whose monitor measures; its sockets are in a folder of the test."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    with kernel(PYTHONPATH=str(ROOT), XDG_RUNTIME_DIR=str(folder), OMP_NUM_THREADS="1") as page:
        yield start_monitor(page)


@pytest.fixture
def port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
