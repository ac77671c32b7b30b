"""Batches whose files travel with them: what a worker that does not see the files computes is the same, bit for bit.

So it is for every data set of the corpus: `test_own_datasets.py`.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import Caltech256, ImageFolder

from kernel_monitor.errors import SampleError
from kernel_monitor.ray.node_worker import probes, sees

from ..conftest import augmented
from .datasets import equal
from .datasets.folder import photos
from .elsewhere import Elsewhere, slots
from .views import TwoCropsTransform


def drawn(target: int) -> float:
    return target + random.random()


def noisy(image: torch.Tensor) -> torch.Tensor:
    """A transform that is not known, and draws."""
    return image + torch.rand(())


class Located(Dataset[Any]):
    """A data set of the protocol `ImageFiles`, of paths or of contents."""

    transform = v1.Compose([v1.RandomCrop(24), v1.ToTensor()])

    def __init__(self, paths: list[Path], *, contents: bool) -> None:
        self.paths, self.contents = paths, contents

    def __len__(self) -> int:
        return len(self.paths)

    def image_file(self, index: int) -> Any:
        path = self.paths[index]
        return path.read_bytes() if self.contents else path, random.random()

    def __getitem__(self, index: int) -> Any:
        raise AssertionError


def caltech(root: Path) -> Any:
    """Opened in the file's own mode; two classes of the data set, as it lies on the disk."""
    made = root / "caltech256"
    for number, name in enumerate(("001.ak47", "002.american-flag")):
        (made / "256_ObjectCategories" / name).mkdir(parents=True)
        for image in range(3):
            mode = "L" if image == 1 else "RGB"
            shown = Image.radial_gradient("L").resize((40 + image, 40)).convert(mode)
            shown.save(made / "256_ObjectCategories" / name / f"{number + 1:03d}_{image + 1:04d}.jpg")
    return Caltech256(root, transform=v1.Compose([v1.Grayscale(), v1.RandomRotation(20), v1.ToTensor()]))


def tree(root: Path) -> Path:
    """24 images as ImageFolder has them."""
    made = root / "classes"
    for number, path in enumerate(() if made.exists() else photos(root)):
        (made / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, made / "ab"[number % 2] / f"{number:02d}.jpg")
    return made


DATA_SETS: dict[str, Callable[[Path], Any]] = {
    "ImageFolder": lambda root: ImageFolder(tree(root), augmented(), target_transform=drawn),
    "a transform that is not known": lambda root: ImageFolder(
        tree(root), v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor(), noisy])
    ),
    "Subset": lambda root: Subset(ImageFolder(tree(root), augmented()), [5, 3, 3, 9, -1]),
    "ConcatDataset of two transforms": lambda root: ConcatDataset(
        [ImageFolder(tree(root), augmented()), ImageFolder(tree(root), v1.Compose([v1.Resize(24), v1.ToTensor()]))]
    ),
    "two views": lambda root: ImageFolder(tree(root), TwoCropsTransform(augmented(24))),
    "in the file's own mode": caltech,
    "paths": lambda root: Located(sorted(tree(root).glob("*/*")), contents=False),
    "contents": lambda root: Located(sorted(tree(root).glob("*/*")), contents=True),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA_SETS)
def test_known_layouts(name: str, root: Path) -> None:
    data = DATA_SETS[name](root)
    elsewhere = Elsewhere(DataLoader(data, batch_size=4, collate_fn=list), root)
    expected = list(elsewhere.loader)
    found = [elsewhere.delivery(slot) for slot in slots(len(data))]
    assert [delivery.error for delivery in found] == [None] * len(expected)
    assert all(equal(one.batch, other) for one, other in zip(found, expected, strict=True))
    elsewhere.loader.release()


def test_a_relative_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(root)
    monkeypatch.chdir(root.parent)
    elsewhere = Elsewhere(DataLoader(ImageFolder("images/classes", augmented()), batch_size=4), root)
    expected = list(elsewhere.loader)
    assert equal(elsewhere.delivery(slots(4)[0]).batch, expected[0])
    elsewhere.loader.release()


def spoilt(root: Path, how: str) -> str:
    """A folder of images of which the second is spoilt; returns its path."""
    path = sorted(tree(root).glob("a/*"))[1]
    content = path.read_bytes()
    path.unlink()
    if how == "text":
        path.write_text("no image")
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "pipe":
        os.mkfifo(path)
    return str(path)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("how", ["text", "cut", "pipe", "missing"])
def test_a_file_that_cannot_be_read(how: str, on_error: str, root: Path) -> None:
    tree(root)
    data = ImageFolder(root / "classes", augmented())
    path = spoilt(root, how)
    elsewhere = Elsewhere(DataLoader(data, batch_size=4), root, on_error=on_error)
    found = elsewhere.delivery(slots(4)[0])
    if on_error == "skip":
        (expected, *_) = list(elsewhere.loader)
        assert equal(found.batch, expected)
        assert list(found.skipped.values()) == elsewhere.loader.skipped()
        assert found.skipped[1].path == path
    else:
        with pytest.raises(SampleError) as raised:
            next(iter(elsewhere.loader))
        assert str(found.error) == str(raised.value)
        assert (found.error.path, found.error.index) == (path, 1)
        assert type(found.error.__cause__) is type(raised.value.__cause__)
        assert str(found.error.__cause__) == str(raised.value.__cause__)
    elsewhere.loader.release()


def test_the_probe_knows_other_files_under_the_same_path(root: Path) -> None:
    paths = [str(path) for path in sorted(tree(root).glob("*/*"))[:3]]
    wanted = probes([*paths, "/nowhere/at/all"])
    assert len(wanted) == 3
    assert sees(wanted)
    content = bytearray(Path(paths[1]).read_bytes())
    content[100] ^= 1
    Path(paths[1]).write_bytes(content)
    assert not sees(wanted)
    Path(paths[1]).unlink()
    assert not sees(wanted)
    assert sees(())
