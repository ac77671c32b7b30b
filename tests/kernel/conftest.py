from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .kernels import KERNELS, Page, SharedKernel, start_monitor


@pytest.fixture(scope="session", autouse=True)
def warm(recordings: Path) -> None:
    """The chart documents are made; else the first kernel has a process more, which makes them."""
    subprocess.run([sys.executable, "-m", "kernel_monitor.warm"], check=True)


@pytest.fixture(scope="module", params=KERNELS)
def shared(request: pytest.FixtureRequest) -> Iterator[SharedKernel]:
    """One kernel of each supported ipykernel for the tests of a module."""
    kernel = SharedKernel(request.param)
    yield kernel
    kernel.shut_down()


@pytest.fixture
def page(shared: SharedKernel) -> Iterator[Page]:
    """A page of the module's kernel, with the package imported anew and the monitor started and measuring."""
    with shared.fresh() as page:
        yield start_monitor(page)


@pytest.fixture
def measuring(shared: SharedKernel) -> Page:
    """As `page`, but not begun anew for each test: for tests after which the monitor is as it was before."""
    return shared.measuring()
