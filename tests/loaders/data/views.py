"""Several views of one image, as self-supervised and semi-supervised learning have them, and transforms by hand.

In: an empty folder. Out: `CASES`, as in `torchvision_joint.py`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

from ..conftest import MEAN, STD, augmented
from .torchvision_joint import UNIT, JointCase, names_of, photo


def folder_of(root: Path) -> Path:
    """Two classes of photos."""
    for number, name in enumerate(names_of()):
        photo(root / ("cat", "dog")[number % 2] / f"{name}.jpg", number)
    return root


# ---- Transforms that give several views.


class TwoCropsTransform:
    """SimCLR: a query and a key."""

    def __init__(self, base_transform: Any) -> None:
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class MultiCrop:
    """DINO: two global crops with their own chains, and local ones."""

    def __init__(self, local_crops: int = 8) -> None:
        flip_and_jitter = v1.Compose(
            [
                v1.RandomHorizontalFlip(p=0.5),
                v1.RandomApply([v1.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2)], p=0.8),
                v1.RandomGrayscale(p=0.2),
            ]
        )
        normalize = v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])
        wide, bicubic = {"scale": (0.4, 1.0)}, {"interpolation": v1.InterpolationMode.BICUBIC}
        blur = v1.GaussianBlur(5, sigma=(0.1, 2.0))
        self.global_1 = v1.Compose([v1.RandomResizedCrop(48, **wide, **bicubic), flip_and_jitter, blur, normalize])
        self.global_2 = v1.Compose(
            [
                v1.RandomResizedCrop(48, **wide, **bicubic),
                flip_and_jitter,
                v1.RandomApply([blur], p=0.1),
                v1.RandomSolarize(threshold=128, p=0.2),
                normalize,
            ]
        )
        self.local = v1.Compose(
            [
                v1.RandomResizedCrop(24, scale=(0.05, 0.4), **bicubic),
                flip_and_jitter,
                v1.RandomApply([blur], 0.5),
                normalize,
            ]
        )
        self.local_crops = local_crops

    def __call__(self, image: Any) -> Any:
        crops = [self.global_1(image), self.global_2(image)]
        for _ in range(self.local_crops):
            crops.append(self.local(image))  # noqa: PERF401 - as it is published
        return crops


class WeakAndStrong:
    """FixMatch: an image that is only flipped and moved, and one that is changed much."""

    def __init__(self, strong: Sequence[Any]) -> None:
        moved = [v1.Resize((40, 40)), v1.RandomHorizontalFlip(), v1.RandomCrop(40, padding=5)]
        self.weak = v1.Compose(moved)
        self.strong = v1.Compose([*moved, *strong])
        self.normalize = v1.Compose([v1.ToTensor(), v1.Normalize(mean=MEAN, std=STD)])

    def __call__(self, x: Any) -> Any:
        weak = self.weak(x)
        strong = self.strong(x)
        return self.normalize(weak), self.normalize(strong)


class TeacherAndStudent:
    """One crop at two sizes: the teacher sees more."""

    def __init__(self) -> None:
        self.crop = v2.RandomResizedCrop(64, scale=(0.5, 1.0), antialias=True)
        self.small = v2.Resize(32, antialias=True)
        self.end = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])

    def __call__(self, image: Any) -> Any:
        crop = self.crop(image)
        return {"teacher": self.end(crop), "student": self.end(self.small(crop))}


class Tiles:
    """The corners of an image, for a vote."""

    def __call__(self, image: Any) -> Any:
        image = functional.resize(image, [48, 48])
        return torch.stack([functional.to_tensor(tile) for tile in functional.five_crop(image, [24, 24])])


# ---- Transforms of one view, by hand.


class Whimsical:
    """What is done is drawn by Python's generator."""

    def __call__(self, image: Any) -> Any:
        image = functional.resize(image, [48, 48])
        if random.random() < 0.5:
            image = functional.hflip(image)
        if random.random() < 0.3:
            image = functional.adjust_brightness(image, random.uniform(0.6, 1.4))
        if random.random() < 0.5:
            left, top = random.randint(0, 8), random.randint(0, 8)
            image = functional.crop(image, top, left, 40, 40)
        return functional.normalize(functional.to_tensor(functional.resize(image, [40, 40])), MEAN, STD)


def closure(size: int, p: float) -> Callable[[Any], Any]:
    """A function over a chain and a number."""
    crop = v1.RandomResizedCrop(size, scale=(0.4, 1.0))

    def apply(image: Any) -> Any:
        image = crop(image)
        if torch.rand(()) < p:
            image = functional.vflip(image)
        return functional.to_tensor(image)

    return apply


def turned(image: Any, size: int, angles: Sequence[int]) -> Any:
    """Turn by a drawn multiple of a quarter."""
    image = functional.resize(image, [size, size])
    return functional.to_tensor(functional.rotate(image, random.choice(angles)))


def sometimes() -> v1.Compose:
    return v1.Compose(
        [
            v1.RandomApply([v1.RandomResizedCrop(40)], p=0.5),
            v1.Resize((40, 40)),
            v1.RandomApply(torch.nn.ModuleList([v1.ColorJitter(0.3, 0.3), v1.RandomHorizontalFlip()]), p=0.5),
            v1.ToTensor(),
        ]
    )


def masked_autoencoder() -> v1.Compose:
    return v1.Compose(
        [
            v1.RandomResizedCrop(40, scale=(0.2, 1.0), interpolation=v1.InterpolationMode.BICUBIC),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(mean=MEAN, std=STD),
        ]
    )


def contrasted() -> v1.Compose:
    return v1.Compose(
        [
            v1.RandomResizedCrop(40, scale=(0.2, 1.0)),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4)], p=0.8),
            v1.RandomGrayscale(p=0.2),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )


# ---- Data sets that make the views themselves.


class Photos(Dataset[Any]):
    def __init__(self, root: Path, transform: Any) -> None:
        self.paths = sorted(folder_of(root).glob("*/*.jpg"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, index: int) -> Any:
        return Image.open(self.paths[index]).convert("RGB")


class ManyViews(Photos):
    """The same chain several times."""

    n_views = 3

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        return [self.transform(image) for _ in range(self.n_views)], index


class ChainForEach(Photos):
    """SwAV: a chain for each size of crop, in a list."""

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        return index, list(map(lambda trans: trans(image), self.transform))  # noqa: C417 - as it is published


class WithOriginal(Photos):
    """An augmented view beside one that is only resized."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.plain = v1.Compose([v1.Resize((40, 40)), v1.ToTensor(), v1.Normalize(MEAN, STD)])

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        return {"view": self.transform(image), "original": self.plain(image), "file": self.paths[index].name}


class Aligned(Photos):
    """pix2pix: input and output are the halves of one file, cropped and flipped alike."""

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        width, height = image.size
        halves = [image.crop((0, 0, width // 2, height)), image.crop((width // 2, 0, width // 2 * 2, height))]
        left, top, flip = random.randint(0, 8), random.randint(0, 8), random.random() > 0.5
        chain = [v1.Lambda(lambda half: half.resize((48, 48), Image.Resampling.BICUBIC))]
        chain.append(v1.Lambda(lambda half: half.crop((left, top, left + 40, top + 40))))
        if flip:
            chain.append(v1.Lambda(lambda half: half.transpose(Image.Transpose.FLIP_LEFT_RIGHT)))
        transform = v1.Compose([*chain, v1.ToTensor(), v1.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
        return {"A": transform(halves[0]), "B": transform(halves[1]), "path": str(self.paths[index].name)}


class LowAndHigh(Photos):
    """Super-resolution: a crop, and the same crop a quarter as large."""

    def __getitem__(self, index: int) -> Any:
        high = v1.RandomCrop(48)(self.load(index))
        low = high.resize((12, 12), Image.Resampling.BICUBIC)
        return functional.to_tensor(low), functional.to_tensor(high)


class Rotations(Photos):
    """Which of four turns was it?"""

    def __getitem__(self, index: int) -> Any:
        image = functional.center_crop(functional.resize(self.load(index), 40), 40)
        turned = [functional.to_tensor(functional.rotate(image, angle)) for angle in (0, 90, 180, 270)]
        return torch.stack(turned), torch.arange(4)


class Colourless(Photos):
    """The colours are to be found from the grey image."""

    def __getitem__(self, index: int) -> Any:
        image = v1.RandomResizedCrop(40)(self.load(index))
        return functional.to_tensor(image.convert("L")), functional.to_tensor(image)


def of_folder(transform: Callable[[], Any]) -> Callable[[Path], Any]:
    return lambda root: ImageFolder(folder_of(root), transform())


def crops_of_sizes() -> list[Any]:
    """Two chains for large crops, which are one object, and three for small ones."""

    def chain(size: int, *scale: float) -> Any:
        return v1.Compose([v1.RandomResizedCrop(size, scale), v1.RandomHorizontalFlip(), v1.ToTensor()])

    return [chain(40, 0.4, 1.0)] * 2 + [chain(24, 0.1, 0.4)] * 3


def with_size(image: Any) -> Any:
    """An image and its size before."""
    return functional.to_tensor(image.resize((32, 32))), image.size


JITTERED = (v1.ColorJitter(0.5, 0.5), v1.RandomGrayscale(0.3))

CASES = (
    JointCase("SimCLR", of_folder(lambda: TwoCropsTransform(contrasted())), draws="transform"),
    JointCase("DINO", of_folder(MultiCrop), draws="transform"),
    JointCase("FixMatch", of_folder(lambda: WeakAndStrong(JITTERED)), draws="transform"),
    JointCase("FixMatch, RandAugment", of_folder(lambda: WeakAndStrong([v1.RandAugment(2, 10)])), draws="transform"),
    JointCase("MAE", of_folder(masked_autoencoder), draws="transform"),
    JointCase("teacher and student", of_folder(TeacherAndStudent), scale=UNIT, draws="transform"),
    JointCase("five tiles", of_folder(Tiles), scale=UNIT, draws="transform"),
    JointCase("views in a list", lambda root: ManyViews(root, augmented(40))),
    JointCase("a chain for each view", lambda root: ChainForEach(root, crops_of_sizes()), ((1,),), UNIT),
    JointCase("view and original", lambda root: WithOriginal(root, augmented(40)), (("view",), ("original",))),
    JointCase("halves of one file", lambda root: Aligned(root, None), (("A",), ("B",)), UNIT / 2),
    JointCase("low and high resolution", lambda root: LowAndHigh(root, None), ((0,), (1,)), UNIT),
    JointCase("four turns", lambda root: Rotations(root, None), scale=UNIT),
    JointCase("grey and coloured", lambda root: Colourless(root, None), ((0,), (1,)), UNIT),
    JointCase("by hand, with coins", of_folder(Whimsical), draws="transform"),
    JointCase("RandomApply", of_folder(sometimes), scale=UNIT, draws="transform"),
    JointCase("closure", of_folder(lambda: closure(40, 0.5)), scale=UNIT, draws="transform"),
    JointCase(
        "partial",
        of_folder(lambda: functools.partial(turned, size=40, angles=(0, 90, 180, 270))),
        scale=UNIT,
        draws="transform",
    ),
    JointCase("view and size", of_folder(lambda: with_size), ((0, 0),), UNIT, draws="transform"),
)
