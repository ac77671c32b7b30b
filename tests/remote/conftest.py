from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.ray import cluster as ray_cluster
from kernel_monitor.ray import engine as ray_engine
from kernel_monitor.ray.driver_process import DriverProcess

from ..loaders.conftest import augmented, make_folder
from .running import RunningCluster

__all__ = ["RunningCluster"]

PATIENCE = 90.0  # s, for what takes a busy machine long


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Forks of a process with threads, and more workers than cores, are what these tests are about."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"))


def until(true: Callable[[], Any], loader: SwitchableLoader | None = None) -> None:
    """Wait until something is true; what the loader says of itself is shown if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, loader and (loader.state()["status"], loader.knobs, loader.nodes)
        time.sleep(0.02)


@pytest.fixture(scope="session")
def running() -> Iterator[RunningCluster]:
    cluster = RunningCluster()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(running: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> RunningCluster:
    """The three-node cluster, whole, which new loaders find by RAY_ADDRESS."""
    if died := running.restore():
        print(f"replaced nodes that had died: {', '.join(died)}")
    monkeypatch.setenv(ray_cluster.VARIABLE, running.address)
    return running


class Kept:
    """One driver process for the engines of all loaders, as each takes some seconds to start."""

    def __init__(self) -> None:
        self.driver: DriverProcess | None = None
        self._address = ""
        self._close: Callable[[], None] = lambda: None

    def __call__(
        self, address: str, blob: bytes, workers: int, prefetch: int, finish: Any, probes: Any, sending: Any
    ) -> DriverProcess:
        driver = self.driver
        if driver is None or not driver.alive or address != self._address:
            self.close()
            self._address = address
            driver = self.driver = DriverProcess(address, blob, workers, prefetch, finish, probes, sending)
            self._close, driver.close = driver.close, lambda: None  # type: ignore[method-assign]
        driver._finish = finish
        driver.give(blob)
        driver.turn(workers, prefetch)
        return driver

    def close(self) -> None:
        self._close()
        self.driver = None


@pytest.fixture(scope="session")
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.close()


@pytest.fixture
def quick(cluster: RunningCluster, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> RunningCluster:
    """The cluster, with a driver process that outlives the loaders."""
    monkeypatch.setattr(ray_engine, "DriverProcess", kept)
    return cluster


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 JPEGs of mixed sizes in three classes."""
    return make_folder(tmp_path_factory.mktemp("images"), 120)


Make = Callable[..., SwitchableLoader]


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    """Wrap a DataLoader over the folder; everything is released at the end."""
    made: list[SwitchableLoader] = []

    def make(*, transform: Any = None, dataset: Any = None, seed: int = 5, **options: Any) -> SwitchableLoader:
        data = ImageFolder(folder, transform or augmented()) if dataset is None else dataset
        on_error = options.pop("on_error", "raise")
        settings: dict[str, Any] = {"batch_size": 4, "num_workers": 2, **options}
        loader = switchable(DataLoader(data, **settings), seed=seed, on_error=on_error)
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.release()
