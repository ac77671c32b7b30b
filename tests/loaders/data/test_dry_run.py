"""Dry runs: what is learnt of a data set is true, and nobody but a dry run ever meets an image that is not decoded.

That they leave nothing behind is tested with every data set of the corpus, in `test_own_datasets.py`.
"""

from __future__ import annotations

import builtins
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms
from torchvision.transforms import functional

from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.data import calls
from kernel_monitor.loaders.data.calls import IN_MEMORY, NO_IMAGE, PIXELS
from kernel_monitor.loaders.data.dry_call import DryCall, DryImage
from kernel_monitor.loaders.data.own_dataset import OwnDataset

from ..conftest import switch_to
from ..photos import Photos
from .datasets.folder import photos


def is_lazy(image: object) -> bool:
    return type(image) is DryImage


def resized() -> Any:
    return transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])


def test_an_image_answers_what_its_header_knows_and_becomes_itself_at_a_look(root: Path) -> None:
    calls.install()
    path = photos(root)[0]
    with calls.original_open(path) as real:
        expected = np.asarray(real.convert("RGB"))
    call = DryCall()
    with call:
        image: Any = Image.open(path)
        assert is_lazy(image)
        assert isinstance(image, Image.Image)
        assert (image.size, image.mode, image.format) == (real.size, real.mode, real.format)
        with image as opened:
            rgb = opened.convert("RGB")
        assert is_lazy(rgb)
        assert call.reason is None
        pixels = np.asarray(rgb)
    assert str(call.reason) == f"{PIXELS} (as an array)"
    assert type(rgb) is Image.Image
    assert (pixels == expected).all()


def test_an_image_that_was_kept_is_the_real_one_afterwards(root: Path) -> None:
    calls.install()
    path = photos(root)[0]
    with DryCall():
        kept = Image.open(path).convert("RGB")
    with DryCall(), path.open("rb") as file:
        from_file = Image.open(file)
    with calls.original_open(path) as real:
        expected = np.asarray(real.convert("RGB"))
    assert (np.asarray(kept) == expected).all()
    with from_file:
        assert (np.asarray(from_file) == expected).all()
    assert kept.resize((4, 4)).size == (4, 4)


def test_a_transform_that_is_replaced_is_noticed(root: Path) -> None:
    dataset = Photos(photos(root), resized())
    own = OwnDataset(dataset)
    own.learn()
    assert own.transform is dataset.transform
    assert own.current
    dataset.transform = resized()
    assert not own.current


def test_an_interrupt_in_a_dry_run_leaves_the_openers_to_others(root: Path) -> None:
    class Interrupted(Photos):
        def __getitem__(self, index: int) -> Any:
            with Image.open(self.paths[index]):
                raise KeyboardInterrupt

    own = OwnDataset(Interrupted(photos(root), resized()))
    with pytest.raises(KeyboardInterrupt):
        own.read(0)
    with Image.open(own.dataset.paths[0]) as image:
        assert not is_lazy(image)
    with pytest.raises(KeyboardInterrupt):
        own.learn()
    assert builtins.open is open


def a_loaded(image: Any, photos: Photos) -> Any:
    return photos.transform(image.rotate(90).convert("RGB"))


def a_library(image: Any, photos: Photos) -> Any:
    return photos.transform(ImageOps.fit(image, (20, 20)).convert("RGB"))


def a_function(image: Any, photos: Photos) -> Any:
    return photos.transform(functional.resize(image, [20, 20]))


def through_gray(image: Any, photos: Photos) -> Any:
    return photos.transform(image.convert("L").convert("RGB"))


def one_after_the_other(image: Any, photos: Photos) -> Any:
    return photos.second(photos.transform(image.convert("RGB")))  # type: ignore[attr-defined]


def twice(image: Any, photos: Photos) -> Any:
    return photos.transform(photos.transform(image.convert("RGB")))


class Doing(Photos):
    second = transforms.RandomHorizontalFlip()

    def __init__(self, paths: list[Path], transform: Any, does: Any) -> None:
        super().__init__(paths, transform)
        self.does = does

    def __getitem__(self, index: int) -> Any:
        return self.does(Image.open(self.paths[index]), self)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (a_loaded, "works on the pixels itself (.rotate)"),
        (a_library, "works on the pixels itself (PIL.ImageOps.fit)"),
        (through_gray, "is not made RGB (.convert('L') comes first)"),
    ],
)
def test_the_reason_names_the_call(root: Path, does: Any, reason: str) -> None:
    own = OwnDataset(Doing(photos(root), resized(), does))
    own.learn()
    assert own.refusal == reason


@pytest.mark.parametrize("does", [a_function, one_after_the_other, twice])
def test_what_dry_runs_do_not_follow_traces_do(root: Path, does: Any) -> None:
    def data() -> Doing:
        return Doing(photos(root), transforms.Resize((16, 16)) if does is twice else resized(), does)

    own = OwnDataset(data())
    own.learn()
    assert (own.refusal, own.learnt) == (None, None)
    assert own.forms is not None
    loaders = [switchable(DataLoader(data(), batch_size=8, collate_fn=list), seed=3) for _ in range(2)]
    expected, found = list(loaders[0]), list(switch_to(loaders[1], "dali-cpu"))
    assert loaders[1].decoded() == {"dali-cpu": len(data())}
    for one, other in zip(itertools.chain(*expected), itertools.chain(*found), strict=True):
        assert type(one) is type(other)
        assert np.shape(one) == np.shape(other)
        unit = 1.0 if isinstance(one, Image.Image) else 255.0
        assert np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).mean() * unit <= 1.5


class Cached(Dataset[Any]):
    def __init__(self, cache: Any, path: Path | None = None) -> None:
        self.cache, self.path = cache, path
        self.transform = transforms.ConvertImageDtype(torch.float32)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if self.path is not None:
            self.path.read_bytes()
        return self.transform(torch.zeros(3, 4, 4, dtype=torch.uint8)), index


@pytest.mark.parametrize(
    "cache",
    [
        torch.zeros(8, 3, 4, 4),
        np.zeros((8, 4, 4, 3)),
        [torch.zeros(3, 4, 4)] * 8,
        [{"image": np.zeros((4, 4))}] * 8,
        [(Image.new("RGB", (2, 2)), 1)] * 8,
        {number: torch.zeros(3, 4, 4) for number in range(8)},
        TensorDataset(torch.zeros(8, 3, 4, 4), torch.zeros(8)),
    ],
    ids=["tensor", "array", "list", "dicts", "pairs", "by index", "data set"],
)
def test_samples_from_memory_are_called_that(cache: Any, root: Path) -> None:
    own = OwnDataset(Cached(cache))
    own.learn()
    assert own.refusal == IN_MEMORY
    loader = switchable(DataLoader(Cached(cache), 4))
    assert loader.backends["dali-cpu"].reason == f"Cached {IN_MEMORY}."
    reading = OwnDataset(Cached(cache, photos(root)[0]))
    reading.learn()
    assert reading.refusal == NO_IMAGE


@pytest.mark.parametrize("cache", [torch.zeros(8), [1] * 8, torch.zeros(5, 3, 4, 4), {"a": torch.zeros(3, 4, 4)}, None])
def test_labels_are_no_samples_from_memory(cache: Any) -> None:
    own = OwnDataset(Cached(cache))
    own.learn()
    assert own.refusal == NO_IMAGE
