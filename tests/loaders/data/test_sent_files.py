"""Batches whose files travel with them: what a worker that does not see the files computes is the same, bit for bit."""

from __future__ import annotations

import os
import pickle
import random
import re
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

from kernel_monitor import switchable
from kernel_monitor.errors import SampleError
from kernel_monitor.loaders.data.file_check import FileTable
from kernel_monitor.loaders.data.keyed_dataset import KeyedDataset
from kernel_monitor.loaders.data.sent_files import SentFiles
from kernel_monitor.loaders.engines.torch_engine import answer
from kernel_monitor.loaders.engines.worker_pickle import for_other_machines, why_not_remote
from kernel_monitor.loaders.plan import Slot
from kernel_monitor.ray.engine import packed
from kernel_monitor.ray.node_worker import probes, read_files, sees

from ..conftest import augmented
from .datasets import RUNNABLE, Case, as_written, equal
from .datasets.folder import photos
from .views import TwoCropsTransform

SEED = 11


class Elsewhere:
    """A loader's data set in a worker that does not see a folder: meanwhile it has another name."""

    def __init__(self, wrapped: DataLoader[Any], root: Path, **options: Any) -> None:
        self.root = root
        self.loader = switchable(wrapped, seed=SEED, **options)
        self.keyed: KeyedDataset = self.loader.pool.setting.keyed
        self.wrapped = wrapped
        self.files = FileTable(1)
        self.blob = b""

    def delivery(self, slot: Slot) -> Any:
        """A batch as the engine `ray` delivers it where the files are sent."""
        # Once, as the engine does when it joins: later the data set may have opened what cannot be sent.
        self.blob = self.blob or packed(self.keyed, self.wrapped)
        before = torch.get_rng_state(), random.getstate()
        rows = self.keyed.to_send(slot, self.files)
        assert torch.equal(torch.get_rng_state(), before[0])  # the training's own generators are where they were
        assert random.getstate() == before[1]
        sent = for_other_machines(rows), [row.path for row in rows if row.path is not None]
        contents = read_files(sent[1])
        away = self.root.rename(self.root.with_name("away"))
        try:
            _, keyed, collate, _ = pickle.loads(self.blob)  # noqa: S301 - made above
            arrived = SentFiles(pickle.loads(sent[0]), contents)  # noqa: S301 - made above
            return answer(slot, collate(keyed.__getitems__(slot._replace(sent=arrived))))
        finally:
            away.rename(self.root)


def slots(total: int, size: int = 4) -> list[Slot]:
    places = [list(range(first, min(first + size, total))) for first in range(0, total, size)]
    return [Slot(number, 0, SEED, indices, [0] * len(indices)) for number, indices in enumerate(places)]


@as_written
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_every_data_set(case: Case, root: Path) -> None:
    elsewhere = Elsewhere(DataLoader(case.make(root), batch_size=4, collate_fn=case.collate), root)
    if why_not_remote(elsewhere.keyed) is not None:
        return  # `ray` is grey
    refusal = elsewhere.keyed.source.unsendable
    assert not (refusal is None and case.unsent)
    if refusal is None:
        found = [elsewhere.delivery(slot) for slot in slots(len(elsewhere.keyed))]
        expected = list(elsewhere.loader)
        assert [delivery.error for delivery in found] == [None] * len(expected)
        assert all(equal(one.batch, other) for one, other in zip(found, expected, strict=True))
    else:
        assert case.unsent or case.expect == "grey", refusal
        assert re.search(case.unsent or case.reason, f"The data set {refusal}"), refusal
    elsewhere.loader.release()


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
