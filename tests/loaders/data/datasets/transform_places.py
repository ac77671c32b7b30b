"""Where a data set has its transform, and what kind of transform that is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms as T  # noqa: N812 - as people write it
from torchvision.transforms import functional as TF  # noqa: N812
from torchvision.transforms import v2

from ...conftest import augmented
from .case import Case, as_list
from .folder import fixed, label_of, photos
from .reasons import DECODES_ONLY, SEVERAL

TRAIN_TRANSFORM = T.Compose([T.Resize((36, 36)), T.CenterCrop(32), T.ToTensor()])


class Base(Dataset[Any]):
    """What the data sets of this module share: subclasses transform."""

    def __init__(self, folder: Path) -> None:
        self.paths = photos(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.apply(image), label_of(self.paths[index])

    def apply(self, image: Any) -> Any:
        raise NotImplementedError


class Given(Base):
    """As an attribute."""

    def __init__(self, folder: Path, transform: Any) -> None:
        super().__init__(folder)
        self.transform = transform

    def apply(self, image: Any) -> Any:
        return self.transform(image)


class ByProperty(Base):
    """Another one for training than for evaluation, chosen when it is asked for."""

    def __init__(self, folder: Path, *, training: bool) -> None:
        super().__init__(folder)
        self.training = training
        self._train, self._eval = augmented(), fixed()

    @property
    def transform(self) -> Any:
        return self._train if self.training else self._eval

    def apply(self, image: Any) -> Any:
        return self.transform(image)


class ByName(Base):
    """data_transforms of the transfer learning tutorial."""

    def __init__(self, folder: Path, phase: str) -> None:
        super().__init__(folder)
        self.phase = phase
        self.data_transforms = {"train": [augmented()], "val": [fixed(40), "unused"]}

    def apply(self, image: Any) -> Any:
        return self.data_transforms[self.phase][0](image)


class OfTheModule(Base):
    """A global of the notebook."""

    def apply(self, image: Any) -> Any:
        return TRAIN_TRANSFORM(image)


class OfTheClass(Base):
    """Shared by all objects of the class."""

    tf = v2.Compose(
        [v2.ToImage(), v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
    )

    def apply(self, image: Any) -> Any:
        return type(self).tf(image)


class ByMethods(Base):
    """Some methods away from `__getitem__`."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder)
        self.cfg = {"pipeline": options}

    def apply(self, image: Any) -> Any:
        return self._run(image, "tfm")

    def _run(self, image: Any, which: str) -> Any:
        return self.cfg["pipeline"][which](image)


class OneAfterTheOther(Base):
    """A list of transforms, called in a loop."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.transforms: list[Any] = [T.Resize((32, 32)), T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)]

    def apply(self, image: Any) -> Any:
        for t in self.transforms:
            image = t(image)
        return image


class InThreeAttributes(Base):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.resize, self.to_tensor, self.normalize = T.Resize((32, 32)), T.ToTensor(), T.Normalize([0.5], [0.5])

    def apply(self, image: Any) -> Any:
        return self.normalize(self.to_tensor(self.resize(image)))


class MadeEachTime(Base):
    """A Compose in `__getitem__`, as beginners write it."""

    def apply(self, image: Any) -> Any:
        tf = T.Compose([T.Resize((32, 32)), T.ToTensor()])
        return tf(image)


class Functional(Base):
    """torchvision's functions instead of its classes."""

    def apply(self, image: Any) -> Any:
        image = TF.resize(image, [40, 40])
        image = TF.center_crop(image, [32, 32])
        return TF.normalize(TF.to_tensor(image), [0.5] * 3, [0.5] * 3)


class ToTensorOnly(Base):
    """One transform of torchvision's, without a Compose; the images have many sizes."""

    to_tensor = T.ToTensor()

    def apply(self, image: Any) -> Any:
        return self.to_tensor(image)


class Preset:
    """As the references of torchvision have it: an object that holds a chain."""

    def __init__(self, crop_size: int) -> None:
        self.transforms = T.Compose([T.RandomResizedCrop(crop_size), T.ToTensor()])

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class HuggingFaceLike:
    """A processor that is no chain of torchvision's."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, images: Image.Image) -> Any:
        small = images.resize((self.side, self.side), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1) / 255


def preprocess(image: Image.Image) -> torch.Tensor:
    """A function of one's own, without torchvision."""
    small = np.asarray(image.resize((32, 32)), dtype=np.float32)
    return torch.from_numpy(small.transpose(2, 0, 1) / 127.5 - 1)


def scaled(image: Any, transform: Callable[[Any], Any]) -> Any:
    return transform(image)


def make_in_a_function(folder: Path) -> Dataset[Any]:
    """A class within a function, with the transform in its closure, as notebooks end up with."""
    transform = fixed()
    files = photos(folder)

    class Local(Dataset[Any]):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> Any:
            return transform(Image.open(files[i]).convert("RGB")), files[i].name

    return Local()


def _lambda(folder: Path) -> Dataset[Any]:
    chain = fixed()
    return Given(folder, lambda image: chain(image))  # noqa: PLW0108 - as people write it


def _noisy(folder: Path) -> Dataset[Any]:
    chain = fixed()
    return Given(folder, lambda image: chain(image) + torch.randn(3, 32, 32) * 0.05)


V2 = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(32, antialias=True), v2.ToDtype(torch.float32, scale=True)])

CASES = (
    Case("transform in a property", lambda folder: ByProperty(folder, training=False)),
    Case("training by a property", lambda folder: ByProperty(folder, training=True), random=True),
    Case("transforms by phase", lambda folder: ByName(folder, "val")),
    Case("transform of the module", OfTheModule),
    Case("transform of the class", OfTheClass),
    Case("transform in a configuration", lambda folder: ByMethods(folder, tfm=fixed(), n=3)),
    Case("transform in a closure", make_in_a_function, picklable=False),
    Case("nn.Sequential", lambda folder: Given(folder, nn.Sequential(v2.Resize((32, 32)), v2.PILToTensor()))),
    Case("version 2", lambda folder: Given(folder, V2), random=True),
    Case("preset object", lambda folder: Given(folder, Preset(32)), random=True),
    Case(
        "lambda around a Compose",
        _lambda,
        with_workers=DECODES_ONLY,
        picklable=False,
        note="Opaque: DALI decodes, and the lambda runs after it.",
    ),
    Case(
        "partial around a Compose",
        lambda folder: Given(folder, partial(scaled, transform=fixed())),
        with_workers=DECODES_ONLY,
    ),
    Case(
        "lambda that adds noise",
        _noisy,
        with_workers=DECODES_ONLY,
        picklable=False,
        random=True,
        note="As a whole it is a transform like any other, which runs on decoded images.",
        unsent=SEVERAL,
    ),
    Case("function of one's own", lambda folder: Given(folder, preprocess), with_workers=DECODES_ONLY, unsent=SEVERAL),
    Case(
        "object of one's own",
        lambda folder: Given(folder, HuggingFaceLike(32)),
        with_workers=DECODES_ONLY,
        unsent=SEVERAL,
    ),
    Case("list of transforms in a loop", OneAfterTheOther, unsent=SEVERAL),
    Case("three attributes", InThreeAttributes, unsent=SEVERAL),
    Case("Compose made in each call", MadeEachTime, unsent=SEVERAL),
    Case("torchvision.transforms.functional", Functional, unsent=SEVERAL),
    Case(
        "ToTensor without a Compose",
        ToTensorOnly,
        with_workers=DECODES_ONLY,
        note="Images of many sizes.",
        collate=as_list,
    ),
)
