"""Samples of two images, images with masks or boxes, one image transformed twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torchvision import transforms, tv_tensors
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms import v2

from ...conftest import augmented
from .base import Base
from .case import Case, as_list
from .folder import fixed, label_of
from .reasons import DECODES_ONLY, JOINT, ONLY_DECODED, PIXELS, SEVERAL, TWO_IMAGES, either


class Siamese(Base):
    """A pair, and whether both are of one class."""

    def __getitem__(self, index: int) -> Any:
        one, other = self.paths[index], self.paths[(index + 1 + index % 3) % len(self)]
        same = float(label_of(one) == label_of(other))
        images = [self.transform(Image.open(path).convert("RGB")) for path in (one, other)]
        return images[0], images[1], torch.tensor([same], dtype=torch.float32)


class Triplet(Base):
    """Anchor, positive and negative, the latter two drawn."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.by_place = np.array(self.labels)

    def __getitem__(self, index: int) -> Any:
        anchor = self.by_place[index]
        positive = np.random.choice(np.where(self.by_place == anchor)[0])  # noqa: NPY002
        negative = random.choice(np.where(self.by_place != anchor)[0].tolist())
        return tuple(self.transform(self.load(i)) for i in (index, int(positive), negative))


class Segmentation(Base):
    """An image and its mask, each with a transform of its own."""

    def __init__(self, folder: Path, transform: Any, target_transform: Any) -> None:
        super().__init__(folder, transform)
        self.masks = folder / "masks"
        self.target_transform = target_transform

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        mask = Image.open(self.masks / (self.paths[index].stem + ".png")).convert("L")
        return self.transform(image), self.target_transform(mask)


class PennFudan(Base):
    """After the tutorial on detection: tensors, boxes from the mask, a joint transform."""

    def __getitem__(self, idx: int) -> Any:
        img = read_image(str(self.paths[idx]))
        mask = read_image(str(self.folder / "masks" / f"{idx:02d}.png"), ImageReadMode.GRAY)
        ids = torch.unique(mask)[1:]
        masks = (mask == ids[:, None, None]).to(torch.uint8)
        image = tv_tensors.Image(img)
        target = {
            "masks": tv_tensors.Mask(masks),
            "labels": torch.ones((len(ids),), dtype=torch.int64),
            "image_id": idx,
        }
        return self.transform(image, target)


class Boxes(Base):
    """Boxes in a table; the transform changes image and boxes."""

    def __init__(self, folder: Path, transforms: Any) -> None:
        super().__init__(folder)
        self.transforms = transforms
        self.table = pd.read_csv(folder / "labels.csv")

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        row = self.table.iloc[index]
        boxes = tv_tensors.BoundingBoxes(
            [[row.x0, row.y0, row.x1, row.y1]], format="XYXY", canvas_size=(image.height, image.width)
        )
        return self.transforms(image, {"boxes": boxes, "labels": torch.tensor([int(row.label)])})


class Clip(Base):
    """Four frames, stacked in time."""

    def __getitem__(self, index: int) -> Any:
        frames = [self.transform(self.load(index + k)) for k in range(4)]
        return torch.stack(frames, dim=1), index


class TwoViews(Base):
    """For contrastive learning: one image, transformed twice."""

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        return self.transform(image), self.transform(image)


class TwoCropTransform:
    """Two crops of one image, in a transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, x: Any) -> Any:
        return [self.transform(x), self.transform(x)]


class OneView(Base):
    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index)), label_of(self.paths[index])


class SuperResolution(Base):
    """The small image is made from the large one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.hr = transforms.Compose([transforms.CenterCrop(48), transforms.ToTensor()])
        self.lr = transforms.Compose([transforms.ToPILImage(), transforms.Resize(12), transforms.ToTensor()])

    def __getitem__(self, index: int) -> Any:
        hr = self.hr(self.load(index))
        return self.lr(hr), hr


class WithDepth(Base):
    """An image and a depth map that is an array."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.depths = folder / "depths"
        self.depths.mkdir(exist_ok=True)
        for path in self.paths:
            np.save(self.depths / path.stem, np.full((4, 4), int(path.stem) / 3, dtype=np.float32))

    def __getitem__(self, index: int) -> Any:
        depth = np.load(self.depths / f"{self.paths[index].stem}.npy")
        return {"image": self.transform(self.load(index)), "depth": torch.from_numpy(depth)[None], "valid": depth > 2}


class SometimesTwo(Base):
    """A few samples have a reference beside them."""

    def __getitem__(self, index: int) -> Any:
        sample = {"image": self.transform(self.load(index)), "index": index}
        if index in (5, 17):
            sample["reference"] = self.transform(self.load(index + 1))
        return sample


class WithReference(Base):
    """One image of reference, opened and transformed at the start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reference = self.transform(self.load(0))

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index)), self.reference


MASKS = transforms.Compose([transforms.Resize((32, 32)), transforms.PILToTensor()])
JOINTLY = v2.Compose([v2.RandomHorizontalFlip(p=1.0), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
TWO_CROPS = TwoCropTransform(augmented())

CASES = (
    Case("siamese pair", Siamese, images=2, unsent=SEVERAL),
    Case("triplet", Triplet, random=True, images=3, unsent=SEVERAL),
    Case("image and mask", lambda folder: Segmentation(folder, fixed(), MASKS), images=2, unsent=SEVERAL),
    Case(
        "detection with masks",
        lambda folder: PennFudan(folder, JOINTLY),
        "grey",
        ONLY_DECODED,
        unsent=either(TWO_IMAGES, JOINT, PIXELS),
        collate=as_list,
    ),
    Case(
        "detection with boxes",
        lambda folder: Boxes(folder, JOINTLY),
        "grey",
        ONLY_DECODED,
        unsent=JOINT,
        collate=as_list,
    ),
    Case("clip of four frames", Clip, images=4, unsent=SEVERAL),
    Case("two views by hand", lambda folder: TwoViews(folder, augmented()), random=True, unsent=SEVERAL),
    Case(
        "two views by a transform",
        lambda folder: OneView(folder, TWO_CROPS),
        with_workers=DECODES_ONLY,
        random=True,
        note="A transform that gives a list runs on decoded images like any other.",
        unsent=SEVERAL,
    ),
    Case("super-resolution", SuperResolution, unsent=SEVERAL),
    Case("depth as an array beside the image", WithDepth),
    Case("a second image now and then", SometimesTwo, "fallback", TWO_IMAGES, collate=as_list, odd=2),
    Case("reference opened at the start", WithReference),
)
