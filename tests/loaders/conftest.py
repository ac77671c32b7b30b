from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.engines import fork_server, worker_start

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


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    """Wrap a DataLoader over the folder; everything is released at the end."""
    made: list[SwitchableLoader] = []

    def make(*, transform: Any = None, root: Path = folder, seed: int = 5, **options: Any) -> SwitchableLoader:
        dataset = ImageFolder(root, transform or augmented())
        settings: dict[str, Any] = {"batch_size": 8, "num_workers": 2, **options}
        loader = switchable(DataLoader(dataset, **settings), seed=seed)
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.release()


def deliver(loader: SwitchableLoader) -> tuple[torch.Tensor, torch.Tensor]:
    """One epoch: all images and all targets."""
    images, targets = zip(*loader, strict=True)
    return torch.cat(images), torch.cat(targets)


def settle(loader: SwitchableLoader) -> None:
    """Wait until no engine is being prepared."""
    deadline = time.monotonic() + 60
    while loader.switch_state.preparing is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
