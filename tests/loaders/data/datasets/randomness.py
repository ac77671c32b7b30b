"""Data sets that draw: another index, another transform, another label.

A draw in `__getitem__` itself is seeded for the sample, so the user's own code gives the same on every engine. Such a
sample is not DALI's: where all of them draw, DALI is grey. A draw at the start, or from a generator that is made for
the sample, is none of this.
"""

# ruff: noqa: NPY002 - np.random.rand(), as people write it

from __future__ import annotations

import json
import random
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

from ...conftest import augmented
from .base import Base
from .case import Case
from .folder import fixed
from .reasons import DIFFERENT, NOT_THE_SAME, SEVERAL


class RandomView(Base):
    """An identity has several photos, one of which is drawn: as for re-identification."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.of_class: dict[int, list[int]] = defaultdict(list)
        for index, label in enumerate(self.labels):
            self.of_class[label].append(index)

    def __getitem__(self, index: int) -> Any:
        label = self.labels[index]
        drawn = random.choice(self.of_class[label])
        return self.transform(self.load(drawn)), label, drawn


class RandomCaption(Base):
    """One of several captions."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, augmented())
        self.captions = list(json.loads((folder / "captions.json").read_text()).values())

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index)), random.choice(self.captions[index])


class AnyIndex(Base):
    """The index is not even looked at."""

    def __getitem__(self, _: int) -> Any:
        index = int(torch.randint(len(self), ()))
        return self.transform(self.load(index)), self.labels[index]


class ByLabel(Base):
    """The rare classes are augmented more."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.by_label = {0: augmented(), 1: fixed(), 2: fixed()}

    def __getitem__(self, index: int) -> Any:
        label = self.labels[index]
        return self.by_label[label](self.load(index)), label


class HardOnes(Base):
    """A few samples that the network gets wrong have a transform of their own."""

    hard = frozenset({3, 14})

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gentle = transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()])

    def __getitem__(self, index: int) -> Any:
        tf = self.gentle if index in self.hard else self.transform
        return tf(self.load(index)), index in self.hard


class CoinForTheTransform(Base):
    def __init__(self, folder: Path, p: float = 0.5) -> None:
        super().__init__(folder)
        self.p, self.strong = p, augmented()

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        image = self.strong(image) if random.random() < self.p else self.transform(image)
        return image, self.labels[index]


class FlipByHand(Base):
    """The flip is not in the transform."""

    def __getitem__(self, index: int) -> Any:
        image = self.load(index)
        flip = random.random() > 0.5
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return self.transform(image), flip


class MixupInside(Base):
    def __getitem__(self, index: int) -> Any:
        other = np.random.randint(len(self))
        lam = np.random.beta(0.4, 0.4)
        mixed = lam * self.transform(self.load(index)) + (1 - lam) * self.transform(self.load(other))
        return mixed, torch.tensor([self.labels[index], self.labels[other]]), lam


class OwnGenerator(Base):
    """With a generator of its own, from which each sample draws."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        noise = self.rng.normal(0, 0.1)
        return self.transform(self.load(index)), self.labels[index] + noise


class GeneratorPerSample(Base):
    """Noise that belongs to the index: always the same."""

    def __getitem__(self, index: int) -> Any:
        rng = random.Random(1000 + index)
        label = rng.randrange(3) if rng.random() < 0.2 else self.labels[index]
        return self.transform(self.load(index)), label, rng.gauss(0, 1)


class NoisyLabels(Base):
    """A draw after the transform."""

    def __getitem__(self, index: int) -> Any:
        image = self.transform(self.load(index))
        label = self.labels[index]
        if np.random.rand() < 0.3:
            label = np.random.randint(3)
        return image, label


class UnknownLabels(Base):
    """The label of a few is not known, and is drawn."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.labels[4] = self.labels[20] = -1

    def __getitem__(self, index: int) -> Any:
        label = self.labels[index]
        if label < 0:
            label = random.randrange(3)
        return self.transform(self.load(index)), label


class ShuffledOnce(Base):
    """A draw at the start only."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder)
        order = np.random.RandomState(seed).permutation(len(self.paths))
        self.paths = [self.paths[k] for k in order]

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index)), self.paths[index].name


class Timed(Base):
    """How long each sample took is kept in it."""

    def __getitem__(self, index: int) -> Any:
        start = time.perf_counter()
        image = self.transform(self.load(index))
        return {"image": image, "seconds": time.perf_counter() - start}


class Named(Base):
    """A new name for each sample, from the operating system's randomness, which no seed reaches."""

    def __getitem__(self, index: int) -> Any:
        return {"id": uuid.uuid4().hex, "image": self.transform(self.load(index))}


CASES = (
    Case(
        "random photo of an identity",
        RandomView,
        random=True,
        note="With the seeds of the plan the dry run draws the file that the user's code would.",
    ),
    Case("random caption", RandomCaption, random=True),
    Case("index not looked at", AnyIndex, random=True),
    Case("transform by label", ByLabel, random=True, unsent=SEVERAL),
    Case("hard samples have their own transform", HardOnes, "fallback", DIFFERENT, odd=2),
    Case("coin for the transform", CoinForTheTransform, random=True, unsent=SEVERAL),
    Case("flip by hand", FlipByHand, random=True, unsent=SEVERAL),
    Case("mixup inside", MixupInside, random=True, images=2, unsent=SEVERAL),
    Case("generator of its own", OwnGenerator, random=True),
    Case("generator per sample", GeneratorPerSample),
    Case("noisy labels", NoisyLabels, random=True),
    Case("unknown labels are drawn", UnknownLabels, random=True),
    Case("shuffled at the start", lambda folder: ShuffledOnce(folder, 7)),
    Case("time in the sample", Timed, "grey", NOT_THE_SAME, random=True),
    Case("new name for each sample", Named, "grey", NOT_THE_SAME, random=True),
)
