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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests run in each supported ipykernel; those of a module with `NEWEST_ONLY` in the newest.

    It says so where what it is about does not pass through ipykernel any differently; what is marked
    `every_ipykernel` does both nevertheless.
    """
    if "shared" in metafunc.fixturenames:
        newest = getattr(metafunc.module, "NEWEST_ONLY", False)
        every = not newest or metafunc.definition.get_closest_marker("every_ipykernel") is not None
        metafunc.parametrize("shared", KERNELS if every else KERNELS[:1], indirect=True, scope="module")


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[SharedKernel]:
    """One kernel for the tests of a module, or one of each supported ipykernel."""
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
