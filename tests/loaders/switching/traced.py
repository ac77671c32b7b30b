"""Data sets for the schedules: photos of which one image is read for each sample, and those that traces follow.

In: an empty folder. Out: `Traced`, by name in `KINDS`; each has `MOST` samples, and the label of each is its index.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from ..conftest import draw_photo
from ..data.joint_comparison import Comparison, Reference
from ..data.torchvision_joint import FLOATS, UNIT, JointCase, columns, png_mask
from .schedule import MOST

SEED = 3  # of the loaders
SIDE, CROP = 32, 8  # pixels


# ---- Data sets. Each has the paths of its files in lists, in which a schedule replaces some.


class Pairs(Dataset[Any]):
    """Images with their masks, from the `first` on."""

    def __init__(self, root: Path, transforms: Any, first: int = 0, count: int = MOST) -> None:
        names = [f"{number:02d}" for number in range(first, first + count)]
        self.first = first
        self.images = [str(root / "photos" / "only" / f"{name}.jpg") for name in names]
        self.masks = [str(root / "masks" / f"{name}.png") for name in names]
        self.transforms = transforms

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image, mask = Image.open(self.images[index]).convert("RGB"), tv_tensors.Mask(Image.open(self.masks[index]))
        return *self.transforms(image, mask), self.first + index


class Boxes(Pairs):
    """Images of several sizes with boxes; there are as many boxes as the index says."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB")
        corners = torch.arange(4 * index, dtype=torch.float32).reshape(-1, 2, 2) % 13
        corners[:, 1] += corners[:, 0] + 3
        boxes = tv_tensors.BoundingBoxes(corners.reshape(-1, 4), format="XYXY", canvas_size=(image.height, image.width))
        return self.transforms(image, {"boxes": boxes, "index": index})


class TwoViews:
    """The same chain twice."""

    def __init__(self, chain: Any) -> None:
        self.chain = chain

    def __call__(self, image: Any) -> Any:
        return [self.chain(image), self.chain(image)]


# ---- Transforms.


def cropped() -> v2.Compose:
    crop = v2.RandomResizedCrop(CROP, scale=(0.3, 1.0), antialias=True)
    return v2.Compose([crop, v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(FLOATS, scale=True)])


def resized() -> v2.Compose:
    resize = v2.Resize((CROP + 4, CROP + 4), antialias=True)
    return v2.Compose([v2.ToImage(), resize, v2.RandomCrop(CROP), v2.ToDtype(FLOATS, scale=True)])


def shortest() -> v2.Compose:
    sizes = v2.RandomShortestSize([8, 10, 12], antialias=True)
    return v2.Compose([v2.ToImage(), sizes, v2.RandomHorizontalFlip(), v2.ToDtype(FLOATS, scale=True)])


def chain() -> v1.Compose:
    return v1.Compose([v1.RandomResizedCrop(CROP), v1.RandomHorizontalFlip(), v1.ToTensor()])


# ---- What the schedules are played with.


@dataclass(frozen=True)
class Kind:
    """A data set, and where the indices of its samples are in a batch."""

    case: JointCase
    indices: Callable[[Any], Iterable[int]]


def _photos(transform: Callable[[], Any]) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        dataset = ImageFolder(root / "photos", transform())
        dataset.samples = [(path, index) for index, (path, _) in enumerate(dataset.samples)]
        return dataset

    return make


def _mixture(root: Path) -> Any:
    half = MOST // 2
    return ConcatDataset([Pairs(root, cropped(), 0, half), Pairs(root, resized(), half, MOST - half)])


def _case(name: str, make: Callable[[Path], Any], **more: Any) -> JointCase:
    return JointCase(name, make, **{"scale": UNIT, "collate": default_collate, "samples": MOST, "limit": 4.0, **more})


def _second(batch: Any) -> Any:
    return batch[1].tolist()


def _third(batch: Any) -> Any:
    return batch[2].tolist()


KINDS = {
    "photos": Kind(_case("photos", _photos(chain), draws="transform"), _second),
    "masks": Kind(_case("masks", lambda root: Pairs(root, cropped())), _third),
    "views": Kind(_case("views", _photos(lambda: TwoViews(chain())), draws="transform"), _second),
    "boxes": Kind(
        _case("boxes", lambda root: Boxes(root, shortest()), collate=columns),
        lambda batch: [target["index"] for target in batch[1]],
    ),
    "mixture": Kind(_case("mixture", _mixture), _third),
}
TRACED = tuple(name for name in KINDS if name != "photos")


@dataclass
class Samples:
    """The samples of a kind for one schedule after another.

    Args:
        kind: the kind.
        root: the folder of the files.
    """

    kind: Kind
    root: Path
    _known: dict[tuple[int, int, int], Any] = field(default_factory=dict)

    @functools.cached_property
    def _reference(self) -> Reference:
        dataset: Any = self.kind.case.make(self.root)
        parts = getattr(dataset, "datasets", [dataset])
        return Reference(dataset, [(self.kind.case, part) for part in parts], SEED)

    def dataset(self, bad: Iterable[int]) -> Any:
        """Return the data set, with a file that is no image for each `bad` index."""
        dataset: Any = self.kind.case.make(self.root)
        broken = str(self.root / "broken")
        for index in bad:
            if isinstance(dataset, ImageFolder):
                dataset.samples[index] = broken, index
                continue
            part = next(p for p in getattr(dataset, "datasets", [dataset]) if 0 <= index - p.first < len(p))
            files = part.masks if index % 2 and not isinstance(part, Boxes) else part.images
            files[index - part.first] = broken
        return dataset

    def compare(self, batch: Any, epoch: int, drawn: Sequence[tuple[int, int]]) -> None:
        """Compare a batch with plain torch's samples; `drawn` are their indices, and how often each came before."""
        for index, occurrence in drawn:
            if (epoch, index, occurrence) not in self._known:
                self._known[epoch, index, occurrence] = self._reference.sample(index, epoch, occurrence)
        expected = [copy.copy(self._known[epoch, index, occurrence]) for index, occurrence in drawn]
        Comparison(self.kind.case).check(batch, self.kind.case.collate(expected))


def write(root: Path) -> Path:
    """Write the files into an empty folder, and a file that is no image; return the folder."""
    rng = np.random.default_rng(0)
    (root / "photos" / "only").mkdir(parents=True)
    for number in range(MOST):
        draw_photo(root / "photos" / "only" / f"{number:02d}.jpg", rng, SIDE, SIDE)
        png_mask(root / "masks" / f"{number:02d}.png", rng.integers(0, 5, (SIDE, SIDE), dtype=np.uint8))
    (root / "broken").write_bytes(b"\xff\xd8 no more than that")
    return root
