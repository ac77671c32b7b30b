"""An unreadable file: the same SampleError on every engine, and the process lives."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, UnidentifiedImageError
from torchvision import transforms as v1

from kernel_monitor.errors import SampleError

from ..conftest import Make, augmented, deliver, make_folder, settle

ENGINES = [("torchvision", 0), ("torchvision", 2), ("dali-cpu", 0), ("dali-cpu", 2)]


@pytest.fixture
def few(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "few", 24)


def spoil(root: Path, kind: str) -> Path:
    """Spoil the sixth file of the first class, index 5."""
    path = sorted((root / "class_0").iterdir())[5]
    content = path.read_bytes()
    path.unlink()
    if kind == "text":
        path.write_text("not an image")
    elif kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "header cut":
        path.write_bytes(content[:100])
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        assert kind == "missing"
    return path


@pytest.mark.parametrize(("backend", "workers"), ENGINES)
@pytest.mark.parametrize("kind", ["text", "truncated", "header cut", "missing", "pipe", "folder"])
def test_a_bad_file_is_named_and_the_loop_can_go_on(
    few: Path, make: Make, backend: str, workers: int, kind: str
) -> None:
    loader = make(root=few, batch_size=4, num_workers=workers)
    path = spoil(few, kind)
    loader.switch(backend)
    if workers == 0:
        settle(loader)
    iterator = iter(loader)
    assert len(next(iterator)[1]) == 4
    with pytest.raises(SampleError) as caught:
        next(iterator)
    assert (caught.value.index, caught.value.path) == (5, str(path))
    assert str(path) in str(caught.value)
    assert "sample 5" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    if kind == "text":
        assert type(caught.value.__cause__) is UnidentifiedImageError
    assert sum(len(targets) for _, targets in iterator) == 16
    state = loader.state()
    assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, 20)
    assert loader.backend == backend


class Clumsy:
    """A transform with a bug."""

    def __call__(self, image: Any) -> Any:
        if image.mean() > 0:
            raise ZeroDivisionError("the user's own bug")
        return image


@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_own_errors_are_raised_as_torch_raises_them(make: Make, workers: int) -> None:
    loader = make(transform=v1.Compose([v1.ToTensor(), Clumsy()]), num_workers=workers)
    with pytest.raises(ZeroDivisionError, match="the user's own bug") as caught:
        next(iter(loader))
    assert ("in DataLoader worker process" in str(caught.value)) == (workers > 0)


def test_an_error_in_collate_or_target_transform_is_raised_by_dali_too(make: Make) -> None:
    def collate(samples: list[Any]) -> Any:
        raise KeyError("collate")

    loader = make(num_workers=0, collate_fn=collate)
    loader.switch("dali-cpu")
    settle(loader)
    with pytest.raises(KeyError, match="collate"):
        next(iter(loader))


def test_a_sampler_error_comes_after_what_was_taken(make: Make) -> None:
    class Sampler(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Any:
            yield [1, 2]
            yield [3, 4]
            raise ArithmeticError("the sampler's own")

    loader = make(num_workers=2, batch_size=1, batch_sampler=Sampler())
    iterator = iter(loader)
    assert len(next(iterator)[1]) == len(next(iterator)[1]) == 2
    with pytest.raises(ArithmeticError, match="the sampler's own"):
        next(iterator)
    assert loader.state()["batches"] is None


def test_a_file_that_goes_bad_between_epochs_is_noticed(few: Path, make: Make) -> None:
    loader = make(root=few, batch_size=4, num_workers=0, transform=augmented())
    loader.switch("dali-cpu")
    settle(loader)
    deliver(loader)
    path = spoil(few, "truncated")
    with pytest.raises(SampleError, match=str(path)):
        deliver(loader)
    Image.new("RGB", (40, 50)).save(path)
    assert len(deliver(loader)[1]) == 24
    shutil.rmtree(few)
    with pytest.raises(SampleError, match="No such file"):
        deliver(loader)
