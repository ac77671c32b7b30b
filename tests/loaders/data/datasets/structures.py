"""What a sample looks like: where in it the image stands, and what else it holds."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from .base import Base
from .case import Case, as_list
from .folder import CLASSES, label_of
from .reasons import AFTERWARDS, DERIVED, NOT_FOUND, SEVERAL


class AsDict(Base):
    """As the models of transformers take it."""

    def __getitem__(self, index: int) -> Any:
        return {"pixel_values": self.image(index), "labels": label_of(self.paths[index])}


class Item(NamedTuple):
    idx: int
    image: Any
    path: str


class AsNamedTuple(Base):
    def __getitem__(self, index: int) -> Any:
        return Item(idx=index, image=self.image(index), path=self.paths[index].name)


Old = namedtuple("Old", "img lbl")


class AsOldNamedTuple(Base):
    def __getitem__(self, index: int) -> Any:
        return Old(self.image(index), CLASSES[label_of(self.paths[index])])


@dataclass
class Sample:
    image: torch.Tensor
    label: int
    path: Path
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FrozenSample:
    uid: str
    image: torch.Tensor


class AsDataclass(Base):
    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        return Sample(self.image(index), label_of(path), path, scores=[index / 7, -1.0])


class AsFrozenDataclass(Base):
    def __getitem__(self, index: int) -> Any:
        return FrozenSample(self.paths[index].stem, self.image(index))


class Nested(Base):
    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        target = OrderedDict(label=label_of(path), onehot=np.eye(3, dtype=np.float32)[label_of(path)])
        return {
            "inputs": {"vision": [self.image(index)], "text": {"ids": torch.arange(4) + index, "mask": None}},
            "target": target,
            "meta": (str(path), b"raw", {"split": ("train", index % 2 == 0)}),
        }


class OnlyTheImage(Base):
    """For a GAN."""

    def __getitem__(self, index: int) -> Any:
        return self.image(index)


class TupleOfOne(Base):
    def __getitem__(self, index: int) -> Any:
        return (self.image(index),)


class ImageLast(Base):
    def __getitem__(self, index: int) -> Any:
        return index, torch.tensor([index * 0.5]), self.image(index)


class AutoEncoder(Base):
    """The image is its own target."""

    def __getitem__(self, index: int) -> Any:
        x = self.image(index)
        return x, x


class SometimesMore(Base):
    """Samples of two shapes."""

    def __getitem__(self, index: int) -> Any:
        out = {"image": self.image(index), "id": self.paths[index].stem}
        if label_of(self.paths[index]) == 2:
            out["box"] = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return out


class AsNamespace(Base):
    def __getitem__(self, index: int) -> Any:
        return SimpleNamespace(x=self.image(index), y=label_of(self.paths[index]))


class Record:
    """A sample with methods of its own, as geometric libraries have."""

    def __init__(self, x: torch.Tensor, y: int) -> None:
        self.x, self.y = x, y

    def to(self, device: str) -> Record:
        return Record(self.x.to(device), self.y)


class AsRecord(Base):
    def __getitem__(self, index: int) -> Any:
        return Record(self.image(index), label_of(self.paths[index]))


class WithText(Base):
    """A text file beside the image, tokenised here."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts = folder / "texts"
        self.vocabulary = {word: n for n, word in enumerate(["a", "photo", "of", "a", "cat,", "number"], 1)}

    def __getitem__(self, index: int) -> Any:
        with open(self.texts / f"{self.paths[index].stem}.txt", encoding="utf-8") as f:  # noqa: PTH123
            text = f.read().strip()
        tokens = torch.zeros(8, dtype=torch.long)
        ids = [self.vocabulary.get(word, 0) for word in text.split()][:8]
        tokens[: len(ids)] = torch.tensor(ids)
        return self.image(index), tokens, text


class Unsqueezed(Base):
    """A dimension of time is put in front."""

    def __getitem__(self, index: int) -> Any:
        return self.image(index).unsqueeze(0), label_of(self.paths[index])


class ToMinusOneToOne(Base):
    def __getitem__(self, index: int) -> Any:
        image = self.image(index)
        image = image * 2 - 1
        return {"image": image, "caption": CLASSES[label_of(self.paths[index])]}


class TellsItsShape(Base):
    """What the transform gave is asked for its shape and its mean."""

    def __getitem__(self, index: int) -> Any:
        image = self.image(index)
        return image, tuple(image.shape), image.mean()


class AsTensorAgain(Base):
    def __getitem__(self, index: int) -> Any:
        image = torch.as_tensor(np.asarray(self.image(index)), dtype=torch.float32)
        return image, label_of(self.paths[index])


CASES = (
    Case("dict", AsDict),
    Case("typing.NamedTuple", AsNamedTuple),
    Case("collections.namedtuple", AsOldNamedTuple),
    Case("dataclass", AsDataclass, collate=as_list),
    Case("frozen dataclass with slots", AsFrozenDataclass, collate=as_list),
    Case("nested, with None", Nested, collate=as_list),
    Case("only the image", OnlyTheImage),
    Case("tuple of one", TupleOfOne),
    Case("image last", ImageLast),
    Case(
        "image twice in the sample",
        AutoEncoder,
        note="One tensor at two places: both are the image, and with collate_fn=list the same object.",
    ),
    Case("samples of two shapes", SometimesMore, collate=as_list),
    Case("SimpleNamespace", AsNamespace, "grey", NOT_FOUND, collate=as_list),
    Case("object of a class of one's own", AsRecord, "grey", NOT_FOUND, collate=as_list),
    Case("text file beside the image", WithText),
    Case("unsqueezed after the transform", Unsqueezed, unsent=SEVERAL),
    Case("scaled after the transform", ToMinusOneToOne, unsent=SEVERAL),
    Case(
        "mean of the transformed image",
        TellsItsShape,
        "grey",
        DERIVED,
        unsent=AFTERWARDS,
        note="Its pixels are needed for the rest.",
    ),
    Case("made a tensor again", AsTensorAgain, unsent=SEVERAL),
)
