from __future__ import annotations

import contextlib
import gc
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import SwitchableLoader, listen, live, switchable
from kernel_monitor.loaders.engines import backends, engine, fork_server, worker_start
from kernel_monitor.os_process import FORK_SERVER

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# What is killed or interrupted leaves warnings, not of ours: torch raises the death of a worker from a signal handler,
# so in some object's `__del__` as well; Pillow's file is open before its `with`; the feeder of a dead worker's queue.
violent = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
    "ignore::ResourceWarning",
)


def augmented(size: int = 32) -> v1.Compose:
    return v1.Compose(
        [v1.RandomResizedCrop(size), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(list(MEAN), list(STD))]
    )


def draw_photo(path: Path, rng: np.random.Generator, height: int, width: int) -> None:
    """A smooth, noisy JPEG: what resizing and decoding differ on."""
    coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    noisy = (smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(path, quality=90)


def make_folder(root: Path, images: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for number in range(images):
        folder = root / f"class_{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        draw_photo(folder / f"{number:04d}.jpg", rng, int(rng.integers(60, 130)), int(rng.integers(60, 130)))
    return root


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """243 JPEGs of mixed sizes in three classes."""
    return make_folder(tmp_path_factory.mktemp("images"), 243)


@pytest.fixture
def without_dali(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process in which DALI has not run yet: workers are forked, and made anew at each epoch."""
    for thread in threading.enumerate():  # which may still start DALI for a loader of another test
        if thread.name.startswith(("prepare ", "knobs")):
            thread.join(30)
    monkeypatch.setattr(worker_start, "_dali_runs", threading.Event())
    monkeypatch.setattr(fork_server, "_server", None)
    yield
    release_all()  # their workers are the server's children
    if fork_server._server is not None:
        fork_server._server.close()


def dali_begins() -> None:
    """From here on as in a process in which DALI runs."""
    worker_start.before_dali()
    worker_start.note_dali()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Forks of a process with threads, and more workers than cores, are what these tests are about."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"))


Make = Callable[..., SwitchableLoader]


def release_all() -> None:
    for loader in live():
        loader.release()


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Release every loader that a test leaves."""
    yield
    release_all()


@pytest.fixture
def make(folder: Path) -> Make:
    def make(*, transform: Any = None, root: Path = folder, seed: int = 5, **options: Any) -> SwitchableLoader:
        dataset = ImageFolder(root, transform or augmented())
        settings: dict[str, Any] = {"batch_size": 8, "num_workers": 2, **options}
        return switchable(DataLoader(dataset, **settings), seed=seed)

    return make


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    """What loaders tell from here on."""
    heard: list[dict[str, Any]] = []
    unlisten = listen(heard.append)
    yield heard
    unlisten()


def deliver(loader: SwitchableLoader) -> tuple[torch.Tensor, torch.Tensor]:
    """One epoch: all images and all targets."""
    images, targets = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(targets)


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What is given up must be gone at once, not when Python looks for reference cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def seed_all(seed: int = 11) -> None:
    torch.manual_seed(seed)
    random.seed(seed + 1)
    np.random.seed(seed + 2)  # noqa: NPY002 - what people's code draws from


def planned(loader: Any, epoch: int | None = None) -> list[int]:
    """The targets in the plan's order."""
    return [loader.dataset.samples[index][1] for index in loader.plan(epoch)]


def check_counts(loader: SwitchableLoader, samples: int = 243) -> Any:
    """Assert that the newest epoch has so many samples, each once; returns the state."""
    state = loader.state()
    assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, samples), state["status"]
    return state


def wait_for(condition: Callable[[], object], seconds: float = 150) -> None:
    """Wait until the condition holds. New workers that import torch take some ten seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def settle(loader: SwitchableLoader) -> None:
    """Wait until no engine is being prepared, but for one that the first iteration prepares, after the workers."""
    wait_for(lambda: (wish := loader.switch_state.preparing) is None or wish is loader.preparation.deferred, 60)


def switch_to(loader: Any, backend: str) -> Any:
    """Switch, and wait until the engine is ready; returns the loader."""
    loader.switch(backend)
    settle(loader)
    return loader


def on_both(
    loader: SwitchableLoader, take: Callable[[Any], Any] = deliver, engine: str = "dali-cpu"
) -> tuple[Any, Any]:
    """The same epoch on torchvision and on another engine."""
    torchvision = take(loader)
    switch_to(loader, engine).set_epoch(0)
    return torchvision, take(loader)


def worst(images: torch.Tensor, others: torch.Tensor) -> float:
    """The largest mean difference of an image that `augmented` made, pixel values 0 to 255."""
    return float(((images - others).abs().mean(dim=(1, 2, 3)) * 255 * 0.226).max())


def child_processes() -> set[int]:
    """Process ids of the workers that live; multiprocessing's own servers are not among them."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join([child.name(), *child.cmdline()])
            servers = ("resource_tracker", "forkserver", FORK_SERVER)
            if child.status() != psutil.STATUS_ZOMBIE and not any(name in command for name in servers):
                found.add(child.pid)
    return found


def set_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the machine have so many cores."""
    for module in (engine, backends):
        monkeypatch.setattr(module, "usable_cores", lambda: count)


def run_python(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    settings = {"capture_output": True, "text": True, "timeout": 300, **options}
    return subprocess.run([sys.executable, *map(str, command)], check=False, **settings)
