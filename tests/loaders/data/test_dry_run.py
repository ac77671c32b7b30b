"""Dry runs: what is learnt of a data set is true, and nobody but a dry run ever meets an image that is not decoded."""

from __future__ import annotations

import builtins
import re
import shutil
import threading
import time
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
from kernel_monitor.loaders.data.dry_call import DryCall, LazyImage
from kernel_monitor.loaders.data.own_dataset import OwnDataset, Reading

from .datasets import RUNNABLE, Case, as_written, write_images
from .datasets.folder import photos

BY_FILE = (
    "EXIF orientation",
    "is cut off",
    "4 components",
    "could not be opened",
    "neither a JPEG",
)  # reasons that are in the file, not in the data set


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def folder(images: Path, tmp_path: Path) -> Path:
    return shutil.copytree(images, tmp_path / "images")


class Photos(Dataset[Any]):
    def __init__(self, folder: Path, transform: Any = None) -> None:
        self.paths = photos(folder)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, index % 3


def is_lazy(image: object) -> bool:
    return type(image) is LazyImage


def resized() -> Any:
    return transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])


@as_written
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_what_is_learnt_of_a_data_set(case: Case, folder: Path) -> None:
    dataset = case.make(folder)
    if hasattr(type(dataset), "__getitems__"):
        return  # is never learnt: see test_datasets
    own = OwnDataset(dataset)
    own.learn()
    if case.expect == "grey":
        assert own.refusal is not None
        assert re.search(case.reason, own.refusal), own.refusal
        return
    assert own.refusal is None
    readings = [own.read(index) for index in range(case.samples)]
    reasons = [reading for reading in readings if isinstance(reading, str)]
    assert len(reasons) <= case.odd if case.reason in BY_FILE else len(reasons) == case.odd
    assert all(re.search(case.reason, reason) for reason in reasons)


@as_written
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_learning_leaves_nothing_behind(case: Case, folder: Path) -> None:
    dataset = case.make(folder)
    before = {name: value for name, value in vars(dataset).items() if not callable(value)}
    sizes = {name: len(value) for name, value in before.items() if isinstance(value, dict | list | set)}
    OwnDataset(dataset).learn()
    assert {name: value for name, value in vars(dataset).items() if not callable(value)}.keys() == before.keys()
    assert all(vars(dataset)[name] is value for name, value in before.items())
    assert {name: len(vars(dataset)[name]) for name in sizes} == sizes
    assert builtins.open is open


def test_an_image_answers_what_its_header_knows_and_becomes_itself_at_a_look(folder: Path) -> None:
    calls.install()
    path = photos(folder)[0]
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


def test_an_image_that_was_kept_is_the_real_one_afterwards(folder: Path) -> None:
    calls.install()
    path = photos(folder)[0]
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


def test_what_a_data_set_keeps_is_kept_in_the_data_set(folder: Path) -> None:
    class Counting(Photos):
        seen = 0

        def __getitem__(self, index: int) -> Any:
            self.seen += 1
            return super().__getitem__(index)

    dataset = Counting(folder, resized())
    own = OwnDataset(dataset)
    own.learn()
    assert own.refusal == "changes its own attributes"
    assert dataset.seen == 0
    own.compute(0, None)
    assert dataset.seen == 1


def test_a_transform_that_is_replaced_is_noticed(folder: Path) -> None:
    dataset = Photos(folder, resized())
    own = OwnDataset(dataset)
    own.learn()
    assert own.transform is dataset.transform
    assert own.current
    dataset.transform = resized()
    assert not own.current


def test_retry_loops_of_the_users_end(folder: Path) -> None:
    """A bare `except` in an endless loop catches whatever a dry run might raise."""

    class Stubborn(Photos):
        def __getitem__(self, index: int) -> Any:
            while True:
                try:
                    image = Image.open(self.paths[index]).convert("RGB")
                    assert image.getextrema() is not None
                    return self.transform(image), index
                except:  # noqa: E722 - as people write
                    index = (index + 1) % len(self)

    own = OwnDataset(Stubborn(folder, resized()))
    own.learn()
    assert own.refusal == f"{PIXELS} (.getextrema)"


def test_other_threads_never_meet_an_image_that_is_not_decoded(folder: Path) -> None:
    own = OwnDataset(Photos(folder, resized()))
    own.learn()
    path, done, wrong = photos(folder)[0], threading.Event(), []

    def look() -> None:
        with calls.original_open(path) as real:
            expected = np.asarray(real.convert("RGB"))
        while not done.is_set():
            with Image.open(path) as image:
                if is_lazy(image) or not (np.asarray(image.convert("RGB")) == expected).all():
                    wrong.append(image)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 2
    rounds = 0
    while time.monotonic() < until:
        for index in range(len(own.dataset)):
            assert isinstance(own.read(index), Reading)
        rounds += 1
    done.set()
    for thread in threads:
        thread.join()
    assert rounds > 2
    assert wrong == []


def test_an_interrupt_in_a_dry_run_leaves_the_openers_to_others(folder: Path) -> None:
    class Interrupted(Photos):
        def __getitem__(self, index: int) -> Any:
            with Image.open(self.paths[index]):
                raise KeyboardInterrupt

    own = OwnDataset(Interrupted(folder, resized()))
    with pytest.raises(KeyboardInterrupt):
        own.read(0)
    with Image.open(own.dataset.paths[0]) as image:
        assert not is_lazy(image)
    with pytest.raises(KeyboardInterrupt):
        own.learn()
    assert builtins.open is open


def test_a_second_image_is_given_to_the_users_own_transform(folder: Path) -> None:
    """Two views of one image must not get the same random numbers."""

    class Views(Photos):
        def __getitem__(self, index: int) -> Any:
            image = Image.open(self.paths[index]).convert("RGB")
            return self.transform(image), self.transform(image)

    own = OwnDataset(Views(folder, resized()))
    own.learn()
    assert own.refusal == "calls its transform twice for a sample"
    first, second = own.compute(0, lambda _image: torch.zeros(1))
    assert first.shape == second.shape == (3, 16, 16)  # nothing is replaced where nothing was learnt


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


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (a_loaded, "works on the pixels itself (.rotate)"),
        (a_library, "works on the pixels itself (PIL.ImageOps.fit)"),
        (a_function, "works on the pixels itself (torchvision.transforms.functional.resize)"),
        (through_gray, "is not made RGB (.convert('L') comes first)"),
        (one_after_the_other, "uses more than one transform"),
        (twice, "calls its transform twice for a sample"),
    ],
)
def test_the_reason_names_the_call(folder: Path, does: Any, reason: str) -> None:
    class Doing(Photos):
        second = transforms.RandomHorizontalFlip()

        def __getitem__(self, index: int) -> Any:
            return does(Image.open(self.paths[index]), self)

    data = Doing(folder, resized() if does is not twice else transforms.Resize((16, 16)))
    own = OwnDataset(data)
    own.learn()
    assert own.refusal == reason


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
        TensorDataset(torch.zeros(8, 3, 4, 4), torch.zeros(8)),
    ],
    ids=["tensor", "array", "list", "dicts", "pairs", "data set"],
)
def test_samples_from_memory_are_called_that(cache: Any, folder: Path) -> None:
    own = OwnDataset(Cached(cache))
    own.learn()
    assert own.refusal == IN_MEMORY
    loader = switchable(DataLoader(Cached(cache), 4))
    assert loader.backends["dali-cpu"].reason == f"Cached {IN_MEMORY}."
    reading = OwnDataset(Cached(cache, photos(folder)[0]))
    reading.learn()
    assert reading.refusal == NO_IMAGE


@pytest.mark.parametrize("cache", [torch.zeros(8), [1] * 8, torch.zeros(5, 3, 4, 4), {"a": torch.zeros(3, 4, 4)}, None])
def test_labels_are_no_samples_from_memory(cache: Any) -> None:
    own = OwnDataset(Cached(cache))
    own.learn()
    assert own.refusal == NO_IMAGE
