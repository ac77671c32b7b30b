"""Data sets of three tasks, written as their users write them: segmentation, detection and multi-crop.

Nothing in these classes knows of `kernel_monitor`. `street_scenes` makes the files of the first; the others have the
photographs of a demo set.
"""

from __future__ import annotations

import io
import random
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F  # noqa: N812 - as everybody imports it
from torchvision.transforms import v2

from kernel_monitor.demo import scene

from .common import MEAN, STD

HEIGHT, WIDTH, CROP = 512, 1024, 512  # pixels, of street scenes and of what is trained on
CLASSES, IGNORED = 19, 255
FILL = (124, 116, 104)  # the mean colour
FILE_SIZE = 130_000  # bytes, of a street scene's JPEG
_QUALITIES = range(50, 97)


# ---- Files of street scenes: a JPEG for each image, and a PNG of class numbers for each mask.


def street_scenes(root: Path, count: int) -> Path:
    """Write `count` images of 512 x 1024 and their masks into `root`/image and `root`/label; return `root`.

    The pixels are those of the demo set, which decode like a photograph; the qualities are chosen so that all files
    have about the size that a photograph of these measures has.
    """
    for part in ("image", "label"):
        (root / part).mkdir(parents=True, exist_ok=True)
    scene.jpeg(0, 0, 0)  # makes the textures, before two threads do
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda index: _write_scene(root, index), range(count)))
    return root


def _write_scene(root: Path, index: int) -> None:
    rng = np.random.default_rng([0x57EE7, index])
    image = scene._image(scene._paint(rng, WIDTH, HEIGHT, int(rng.integers(scene.MOST_CLASSES))))
    image = image.filter(ImageFilter.GaussianBlur(0.5))  # as after shrinking, which takes most of the sensor's noise
    files: dict[int, bytes] = {}

    def size(quality: int) -> int:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        files[quality] = buffer.getvalue()
        return len(files[quality])

    bisect_left(_QUALITIES, FILE_SIZE, key=size)
    (root / "image" / f"{index:05d}.jpg").write_bytes(min(files.values(), key=lambda data: abs(len(data) - FILE_SIZE)))
    _mask(rng).save(root / "label" / f"{index:05d}.png")


def _mask(rng: np.random.Generator) -> Image.Image:
    """Return class numbers as a street has them: road, buildings and sky; cars, poles and people before them."""
    mask = Image.new("L", (WIDTH, HEIGHT), 10)
    draw = ImageDraw.Draw(mask)
    horizon = int(rng.integers(200, 280))
    roofs = np.clip(horizon - rng.gamma(2.0, 60.0, 24), 0, HEIGHT)
    for number, roof in enumerate(roofs.tolist()):
        draw.rectangle((number * WIDTH / 24, roof, (number + 1) * WIDTH / 24, horizon + 40), fill=2)
    draw.polygon(
        [(0, HEIGHT), (0, horizon + 90), (WIDTH // 2, horizon), (WIDTH, horizon + 90), (WIDTH, HEIGHT)], fill=0
    )
    for _ in range(90):
        x, side = rng.uniform(0, WIDTH), rng.gamma(1.5, 14.0) + 3
        y = horizon + rng.gamma(1.5, 40.0) - 40
        number = int(rng.integers(1, CLASSES))
        ragged = rng.uniform(0.6, 1.0, 16) * side
        angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        outline = np.stack([x + ragged * np.cos(angles), y + 1.6 * ragged * np.sin(angles)], axis=1)
        draw.polygon([(float(across), float(down)) for across, down in outline], fill=number)
    draw.rectangle((0, HEIGHT - 24, WIDTH, HEIGHT), fill=IGNORED)  # the bonnet of the car with the camera
    return mask


# ---- Segmentation, with torchvision's transforms v2.


class StreetScenes(Dataset[Any]):
    """Images with their masks, which are transformed together."""

    def __init__(self, root: Path, transforms: Callable[..., Any]) -> None:
        self.images = sorted((root / "image").glob("*.jpg"))
        self.labels = [root / "label" / f"{path.stem}.png" for path in self.images]
        self.transforms = transforms

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB")
        mask = tv_tensors.Mask(Image.open(self.labels[index]))
        image, mask = self.transforms(image, mask)
        return image, mask.squeeze(0)


def segmentation_v2() -> Any:
    """Return scale jitter, crop, flip and normalisation for an image and its mask."""
    return v2.Compose(
        [
            v2.ScaleJitter((WIDTH, HEIGHT), scale_range=(0.5, 2.0)),  # the width first, as torchvision reads it
            v2.RandomCrop(CROP, pad_if_needed=True, fill={tv_tensors.Mask: IGNORED, "others": FILL}),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            v2.Normalize(list(MEAN), list(STD)),
        ]
    )


# ---- Segmentation, with transforms of one's own on Pillow images.


class StreetScenesByHand(StreetScenes):
    """The same files, with transforms that take and return an image and a mask."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB")
        mask = Image.open(self.labels[index])
        return self.transforms(image, mask)


class Joint:
    """Transforms of image and mask, one after another."""

    def __init__(self, steps: list[Callable[..., Any]]) -> None:
        self.steps = steps

    def __call__(self, image: Any, mask: Any) -> Any:
        for step in self.steps:
            image, mask = step(image, mask)
        return image, mask


class RandomScale:
    """A resize of image and mask by one random factor."""

    def __init__(self, least: float, most: float) -> None:
        self.least = least
        self.most = most

    def __call__(self, image: Any, mask: Any) -> Any:
        factor = random.uniform(self.least, self.most)
        size = (round(image.width * factor), round(image.height * factor))
        return image.resize(size, Image.Resampling.BILINEAR), mask.resize(size, Image.Resampling.NEAREST)


class RandomCropPair:
    """A crop of image and mask at one random place, after padding where they are smaller."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Any, mask: Any) -> Any:
        width, height = image.size
        missing = (0, 0, max(0, self.side - width), max(0, self.side - height))
        if any(missing):
            image = ImageOps.expand(image, missing, fill=FILL)
            mask = ImageOps.expand(mask, missing, fill=IGNORED)
        left = random.randint(0, image.width - self.side)
        top = random.randint(0, image.height - self.side)
        box = (left, top, left + self.side, top + self.side)
        return image.crop(box), mask.crop(box)


class RandomFlipPair:
    """A horizontal flip of both, half of the time."""

    def __call__(self, image: Any, mask: Any) -> Any:
        if random.random() < 0.5:
            return ImageOps.mirror(image), ImageOps.mirror(mask)
        return image, mask


class ToTensors:
    """The image as float32 [3, height, width] from 0 to 1, the mask as int64 [height, width]."""

    def __call__(self, image: Any, mask: Any) -> Any:
        return F.to_tensor(image), torch.as_tensor(np.array(mask), dtype=torch.int64)


class NormalizeImage:
    """The image less the mean, over the deviation."""

    def __call__(self, image: Any, mask: Any) -> Any:
        return F.normalize(image, list(MEAN), list(STD)), mask


def segmentation_by_hand() -> Callable[..., Any]:
    """Return the same augmentation as `segmentation_v2`, written by hand."""
    return Joint([RandomScale(0.5, 2.0), RandomCropPair(CROP), RandomFlipPair(), ToTensors(), NormalizeImage()])


# ---- Detection: photographs of several sizes, with boxes.


class Boxes(Dataset[Any]):
    """Photographs with boxes and labels, in the form that torchvision's detection models take."""

    def __init__(self, files: list[str], transforms: Callable[..., Any]) -> None:
        rng = np.random.default_rng(0)
        self.samples = []
        for file in files:
            with Image.open(file) as image:
                size = image.size
            corners = np.sort(rng.uniform(0.02, 0.98, (int(rng.integers(1, 12)), 2, 2)), axis=1) * size
            self.samples.append((file, corners.reshape(-1, 4).round(1).tolist(), rng.integers(1, 91, len(corners))))
        self.transforms = transforms

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        file, boxes, labels = self.samples[index]
        image = Image.open(file).convert("RGB")
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(image.height, image.width)),
            "labels": torch.as_tensor(labels),
            "image_id": index,
        }
        return self.transforms(image, target)


def detection() -> Any:
    """Return a resize of the shorter side to one of eleven lengths, and a flip."""
    return v2.Compose(
        [
            v2.RandomShortestSize(list(range(480, 801, 32)), max_size=1333),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.SanitizeBoundingBoxes(),
        ]
    )


def as_lists(batch: list[Any]) -> Any:
    """Return images and targets of a batch as two tuples: images have several sizes."""
    return tuple(zip(*batch, strict=True))


# ---- Multi-crop: two large views of a photograph and eight small ones.


class MultiCrop:
    """Two views of 224 pixels and eight of 96, each with a crop and a flip of its own.

    Args:
        interpolation: of the crops: bilinear is torchvision's default and SwAV's, bicubic is DINO's.
        colours: whether views also have colour jitter, grey, blur and solarisation, as in DINO's recipe.
    """

    def __init__(
        self, interpolation: v1.InterpolationMode = v1.InterpolationMode.BILINEAR, colours: bool = False
    ) -> None:
        jitter: list[Any] = []
        if colours:
            jitter = [
                v1.RandomApply([v1.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8),
                v1.RandomGrayscale(p=0.2),
            ]
        end = [v1.ToTensor(), v1.Normalize(list(MEAN), list(STD))]

        def view(side: int, scale: tuple[float, float], *effects: Any) -> Any:
            return v1.Compose(
                [
                    v1.RandomResizedCrop(side, scale=scale, interpolation=interpolation),
                    v1.RandomHorizontalFlip(p=0.5),
                    *jitter,
                    *(effects if colours else ()),
                    *end,
                ]
            )

        self.first = view(224, (0.4, 1.0), Blur(1.0))
        self.second = view(224, (0.4, 1.0), Blur(0.1), v1.RandomSolarize(128, p=0.2))
        self.small = view(96, (0.05, 0.4), Blur(0.5))

    def __call__(self, image: Any) -> list[torch.Tensor]:
        views = [self.first(image), self.second(image)]
        for _ in range(8):
            views.append(self.small(image))  # noqa: PERF401 - as people write it
        return views


class Blur:
    """A Gaussian blur of a random radius, in a share of the cases."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, image: Any) -> Any:
        if random.random() > self.share:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def multi_crop(root: Path, interpolation: v1.InterpolationMode, colours: bool) -> Any:
    """Return a data set of the views of the photographs in `root`, each with its label."""
    return ImageFolder(root, MultiCrop(interpolation, colours))
