"""A loop on a thread of its own over real loaders, beside a monitor: what a test makes fixtures of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import switchable
from kernel_monitor.runtime import Monitor
from tests.loaders.conftest import augmented, make_folder

IMAGES, BATCH = 60, 4

in_threads = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
"""Marks: loaders fork beside the loop's thread, and may have more workers than there are cores."""


class Training:
    """A loop that takes `work` s for each batch, and notes when each one came and how many samples it had."""

    def __init__(self, loader: Any, work: float = 0.02, *, epochs: int = 10_000, gradients: bool = True) -> None:
        self.loader = loader
        self.came: list[tuple[float, int]] = []
        self.pause = threading.Event()
        self._left = threading.Event()
        self._work, self._epochs = work, epochs
        self._thread = threading.Thread(target=torch.set_grad_enabled(gradients)(self._run))
        self._thread.start()

    def _run(self) -> None:
        for _ in range(self._epochs):
            for images, _labels in self.loader:
                self.came.append((time.monotonic(), len(images)))
                time.sleep(self._work)
                if self._left.is_set():
                    return
            while self.pause.is_set() and not self._left.is_set():
                time.sleep(0.01)

    def leave(self) -> None:
        self._left.set()
        self._thread.join()


Train = Callable[..., Training]


def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), IMAGES)


def loader_of(folder: Path) -> DataLoader[Any]:
    return DataLoader(ImageFolder(str(folder), augmented()), batch_size=BATCH, shuffle=True, num_workers=0)


def monitor_that_samples() -> Iterator[Monitor]:
    one = Monitor()
    one.start(record=False)
    yield one
    one.cancel_diagnosis()
    one.stop()


def loops(folder: Path) -> Iterator[Train]:
    """Starts loops over the images of `folder`, and has them leave at the end."""
    made: list[Training] = []

    def start(
        name: str = "train", *, work: float = 0.02, epochs: int = 10_000, gradients: bool = True, **more: Any
    ) -> Training:
        loader = switchable(loader_of(folder), name=name, **more)
        made.append(Training(loader, work, epochs=epochs, gradients=gradients))
        return made[-1]

    yield start
    while made:
        one = made.pop()
        one.leave()
        one.loader.release()
        del one.loader  # or the traceback of a failed test keeps it among the live ones, where the next tests find it
        del one
