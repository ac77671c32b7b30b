"""The class that everybody writes first: a list of files, a transform, an image and a label."""

# ruff: noqa: PTH118, PTH119, PTH208 - os.path, as people write it

from __future__ import annotations

import glob
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T  # noqa: N812 - as people write it

from ...conftest import augmented
from .case import Case, as_list
from .folder import CLASSES, fixed, label_of, photos
from .reasons import DECODES_ONLY

logger = logging.getLogger(__name__)


class MyDataset(Dataset[Any]):
    """What the README of half of all repositories has."""

    def __init__(
        self, paths: Sequence[Any], labels: Sequence[int], transform: Callable[..., Any] | None = None
    ) -> None:
        self.paths = paths
        self.labels = labels
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        label = self.labels[index]
        if self.transform:
            image = self.transform(image)
        return image, label


class PetsByGlob(Dataset[Any]):
    """The label is in the file's path."""

    def __init__(self, root: str, transform: Any) -> None:
        self.files = sorted(glob.glob(root + "/*/*.jpg"))  # noqa: PTH207
        self.class_to_idx = {c: i for i, c in enumerate(CLASSES)}
        self.tf = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Any:
        f = self.files[i]
        lbl = f.split("/")[-2]
        with Image.open(f) as im:
            x = self.tf(im.convert("RGB"))
        return x, torch.tensor(self.class_to_idx[lbl], dtype=torch.long), f


class PetsWithPathlib(Dataset[Any]):
    """Paths are `Path`s, and the sample tells its own."""

    def __init__(self, root: Path, split: str = "train", transform: Any = None) -> None:
        super().__init__()
        files = sorted(p for p in (root / "photos").rglob("*") if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
        cut = int(0.75 * len(files))
        self.files = files[:cut] if split == "train" else files[cut:]
        self._transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, idx: int) -> Any:
        file = self.files[idx]
        img: Any = Image.open(str(file))
        img = img.convert(mode="RGB")
        return self._transform(img), file.parent.name, file


class AsTorchvisionOpens(Dataset[Any]):
    """`pil_loader`, copied into one's own class."""

    def __init__(self, samples: list[tuple[str, int]], transform: Any) -> None:
        self.samples, self.transform = samples, transform

    @staticmethod
    def pil_loader(path: str) -> Image.Image:
        with open(path, "rb") as f:  # noqa: PTH123
            img = Image.open(f)
            return img.convert("RGB")

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        sample = self.pil_loader(path)
        return self.transform(sample), target

    def __len__(self) -> int:
        return len(self.samples)


class ListOfDicts(Dataset[Any]):
    """A JSON of annotations, as detection and captioning repositories have."""

    def __init__(self, annotations: Path, root: Path, preprocess: Any) -> None:
        self.items: list[dict[str, Any]] = [
            {"image": name, "caption": found[0], "n": len(found)}
            for name, found in json.loads(annotations.read_text()).items()
        ]
        self.root = root
        self.preprocess = preprocess

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, idx: int | torch.Tensor) -> Any:
        if torch.is_tensor(idx):
            idx = int(idx)
        item = self.items[idx]
        logger.debug("loading %s", item["image"])
        image = self.preprocess(Image.open(os.path.join(self.root, item["image"])).convert("RGB"))
        return {**item, "image": image, "tokens": [ord(c) for c in item["caption"]][:6]}


class NoTransform(Dataset[Any]):
    """The images as they are; the collate function of the training does the rest."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.names = sorted(os.listdir(root))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, k: int) -> Any:
        return Image.open(os.path.join(self.root, self.names[k])).convert("RGB"), k


class Repeated(Dataset[Any]):
    """A small set, several times in an epoch."""

    def __init__(self, base: Sequence[Path], times: int, transform: Any) -> None:
        self.base, self.times, self.transform = base, times, transform

    def __len__(self) -> int:
        return len(self.base) * self.times

    def __getitem__(self, index: int) -> Any:
        path = self.base[index % len(self.base)]
        return self.transform(Image.open(path).convert("RGB")), index // len(self.base), label_of(path)


class NotADataset:
    """Nothing of torch's is inherited: `__getitem__` and `__len__` are enough for a DataLoader."""

    def __init__(self, root: str, size: int) -> None:
        self.imgs = [os.path.join(d, n) for d, _, names in sorted(os.walk(root)) for n in sorted(names)]
        self.trans = T.Compose([T.Resize([size, size]), T.CenterCrop(size - 4), T.ToTensor()])

    def __len__(self) -> int:
        return len(self.imgs)

    def __getitem__(self, i: int) -> Any:
        return self.trans(Image.open(self.imgs[i]).convert("RGB")), os.path.basename(self.imgs[i])


class WithCurriculum(Dataset[Any]):
    """The training tells it the epoch; a sample changes nothing."""

    def __init__(self, paths: list[Path], transform: Any) -> None:
        self.paths, self.transform, self.epoch = paths, transform, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        difficulty = min(1.0, 0.1 * self.epoch + index / len(self))
        return {"x": self.transform(Image.open(path).convert("RGB")), "difficulty": difficulty, "y": label_of(path)}


class SimpleDataset(Dataset[Any]):
    """After fast.ai: items, and functions that get x and y from one."""

    def __init__(self, items: list[Path], get_x: Any, get_y: Any, item_tfms: Any) -> None:
        self.items = items
        self.get_x, self.get_y, self.item_tfms = get_x, get_y, item_tfms

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        o = self.items[i]
        return self.item_tfms(self.get_x(o)), self.get_y(o)


def open_rgb(fn: Path) -> Image.Image:
    return Image.open(fn).convert("RGB")


def _my(folder: Path, transform: Any) -> Any:
    paths = photos(folder)
    return MyDataset(paths, [label_of(path) for path in paths], transform)


def _pairs(folder: Path) -> list[tuple[str, int]]:
    return [(str(path), label_of(path)) for path in photos(folder)]


CASES = (
    Case("MyDataset", lambda folder: _my(folder, fixed())),
    Case("MyDataset, augmented", lambda folder: _my(folder, augmented()), random=True),
    Case("MyDataset without a transform", lambda folder: _my(folder, None), collate=as_list, with_workers=DECODES_ONLY),
    Case("files by glob", lambda folder: PetsByGlob(str(folder / "photos"), fixed())),
    Case("pathlib", lambda folder: PetsWithPathlib(folder, "train", fixed()), collate=as_list, samples=18),
    Case("pil_loader, copied", lambda folder: AsTorchvisionOpens(_pairs(folder), augmented()), random=True),
    Case(
        "list of dicts from JSON",
        lambda folder: ListOfDicts(folder / "captions.json", folder / "photos", fixed()),
        note="It logs each file: that is no side effect that matters.",
        collate=as_list,
    ),
    Case(
        "no transform at all",
        lambda folder: NoTransform(str(folder / "photos" / "cat")),
        note="The image comes as PIL.Image.Image, as convert() gives it.",
        collate=as_list,
        samples=8,
        with_workers=DECODES_ONLY,
    ),
    Case("a small set twice", lambda folder: Repeated(photos(folder), 2, augmented()), samples=48, random=True),
    Case("no torch class", lambda folder: NotADataset(str(folder / "photos"), 40)),  # type: ignore[arg-type,return-value]
    Case("get_x and get_y", lambda folder: SimpleDataset(photos(folder), open_rgb, label_of, augmented()), random=True),
    Case("set_epoch", lambda folder: WithCurriculum(photos(folder), fixed())),
)
