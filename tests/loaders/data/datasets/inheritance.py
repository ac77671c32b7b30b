"""Data sets made of others: subclasses, mixins, wrappers, proxies, views."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, random_split
from torchvision import transforms
from torchvision.datasets import ImageFolder, VisionDataset

from ...conftest import augmented
from .case import Case
from .folder import fixed, label_of, photos
from .plain import MyDataset
from .reasons import OWN_BATCHES


class ImageFolderWithPaths(ImageFolder):
    """What everybody writes once who wants to know which file it was."""

    def __getitem__(self, index: int) -> Any:
        original = super().__getitem__(index)
        path = self.imgs[index][0]
        return (*original, path)


class ImageFolderAsDict(ImageFolder):
    """`__getitem__` is written anew."""

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return {"image": sample, "label": target, "class": self.classes[target]}


class Merged(ImageFolder):
    """Only what classes there are is written anew: its `__getitem__` is torchvision's."""

    def find_classes(self, directory: Any) -> Any:
        classes, _ = super().find_classes(directory)
        return classes, {name: int(name == "owl") for name in classes}


class Birds(VisionDataset):
    """As a data set of torchvision's is written."""

    def __init__(self, root: Path, transform: Any, target_transform: Any = None) -> None:
        super().__init__(str(root), transform=transform, target_transform=target_transform)
        self._samples = [(path, label_of(path)) for path in photos(root)]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        path, target = self._samples[index]
        img = Image.open(path).convert("RGB")
        if self.transforms is not None:
            img, target = self.transforms(img, target)
        return img, target


class BaseDataset(Dataset[Any], ABC):
    """The frame of a paper's repository."""

    def __init__(self, opt: dict[str, Any]) -> None:
        self.opt = opt
        self.files = photos(opt["dataroot"])

    @abstractmethod
    def annotation(self, index: int) -> Any: ...

    def __len__(self) -> int:
        return min(len(self.files), int(self.opt.get("max_dataset_size", 10**9)))

    def __getitem__(self, index: int) -> Any:
        return {"A": self.get_image(index), "A_paths": str(self.files[index]), **self.annotation(index)}

    def get_image(self, index: int) -> Any:
        raise NotImplementedError


class PilMixin:
    files: list[Path]
    opt: dict[str, Any]

    def get_image(self, index: int) -> Any:
        return self.opt["transform"](Image.open(self.files[index]).convert("RGB"))


class SingleDataset(PilMixin, BaseDataset):
    def annotation(self, index: int) -> Any:
        return {"y": label_of(self.files[index]), "weight": torch.tensor(1.0 / (index + 1))}


class DatasetFromSubset(Dataset[Any]):
    """A transform for a part of a data set that has none."""

    def __init__(self, subset: Any, transform: Any = None) -> None:
        self.subset = subset
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        x, y = self.subset[index]
        if self.transform:
            x = self.transform(x)
        return x, y

    def __len__(self) -> int:
        return len(self.subset)


class WithIndex(Dataset[Any]):
    """In front of what another data set gives."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> Any:
        return (index, *self.dataset[index])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not there yet while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Balanced(Dataset[Any]):
    """Classes in turn, each file as often as needed."""

    def __init__(self, dataset: Any, labels: list[int]) -> None:
        self.dataset = dataset
        self.by_class = [[i for i, label in enumerate(labels) if label == k] for k in sorted(set(labels))]

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        members = self.by_class[index % len(self.by_class)]
        return self.dataset[members[(index // len(self.by_class)) % len(members)]]


class Dispatching(Dataset[Any]):
    """Which method gives the samples is decided at the start."""

    def __init__(self, folder: Path, split: str) -> None:
        self.paths = photos(folder)
        self.tf = fixed()
        self._get = self._train_item if split == "train" else self._test_item

    def __len__(self) -> int:
        return len(self.paths)

    def _train_item(self, index: int) -> Any:
        return self._test_item(index), label_of(self.paths[index])

    def _test_item(self, index: int) -> Any:
        return self.tf(Image.open(self.paths[index]).convert("RGB"))

    def __getitem__(self, index: int) -> Any:
        return self._get(index)


class WholeBatches(MyDataset):
    """Batches are asked for at once."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Explicit(MyDataset):
    """With the method of kernel_monitor's protocol, which wins."""

    def image_file(self, index: int) -> tuple[Path, int]:
        return self.paths[index], self.labels[index]


def _my(folder: Path, kind: Callable[..., Any] = MyDataset, transform: Any = None) -> Any:
    paths = photos(folder)
    return kind(paths, [label_of(path) for path in paths], fixed() if transform is None else transform)


def _shared(folder: Path) -> Dataset[Any]:
    chain = augmented()
    return ConcatDataset([_my(folder, transform=chain), Subset(_my(folder, transform=chain), [0, 5])])


def _apart(folder: Path) -> Dataset[Any]:
    return ConcatDataset(
        [_my(folder), _my(folder, transform=transforms.Compose([*fixed(40).transforms, transforms.CenterCrop(32)]))]
    )


def _from_subset(folder: Path) -> Dataset[Any]:
    part = random_split(ImageFolder(folder / "photos"), [16, 8], generator=torch.Generator().manual_seed(1))[0]
    return DatasetFromSubset(part, fixed())


def _single(folder: Path) -> Dataset[Any]:
    return SingleDataset({"dataroot": folder, "transform": fixed(), "max_dataset_size": 20})


def _balanced(folder: Path) -> Dataset[Any]:
    return Balanced(_my(folder), [label_of(path) for path in photos(folder)])


CASES = (
    Case("ImageFolder with paths", lambda folder: ImageFolderWithPaths(folder / "photos", augmented()), random=True),
    Case("ImageFolder as dict", lambda folder: ImageFolderAsDict(folder / "photos", fixed())),
    Case(
        "ImageFolder, classes merged",
        lambda folder: Merged(folder / "photos", fixed(), lambda t: t + 1),
        picklable=False,
    ),
    Case("VisionDataset", lambda folder: Birds(folder, fixed(), str), note="StandardTransform takes image and target."),
    Case("base class and mixin", _single, samples=20),
    Case("transform for a part", _from_subset, samples=16),
    Case("index in front, by a proxy", lambda folder: WithIndex(_my(folder))),
    Case("index in front, twice", lambda folder: WithIndex(WithIndex(_my(folder)))),
    Case("classes in turn", _balanced, samples=30),
    Case(
        "method chosen at the start",
        lambda folder: Dispatching(folder, "train"),
        note="A bound method in an attribute: in a copy of the data set it still belongs to the original.",
    ),
    Case("Subset of MyDataset", lambda folder: Subset(_my(folder), [23, 0, 5, 5, 1]), samples=5),
    Case("ConcatDataset, one transform", _shared, samples=26, random=True),
    Case("ConcatDataset, two transforms", _apart, samples=48),
    Case("__getitems__", lambda folder: _my(folder, WholeBatches), "grey", OWN_BATCHES),
    Case("image_file", lambda folder: _my(folder, Explicit)),
)
