"""The copy of a data set that an epoch works on, and the digest that shows whether it has changed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from kernel_monitor.loaders.data.fingerprint import fingerprint, snapshot


class Images(Dataset[Any]):
    def __init__(self, transform: Any = None, **more: Any) -> None:
        self.samples = [(f"{n}.jpg", n) for n in range(3000)]
        self.imgs = self.samples
        self.transform = transform
        self.__dict__.update(more)

    def __len__(self) -> int:
        return len(self.samples)


class Closing(Images):
    closed = 0

    def __del__(self) -> None:
        type(self).closed += 1


class Enhance:
    def __init__(self, strength: float) -> None:
        self.strength = strength

    def __call__(self, image: Any) -> Any:
        return image * self.strength


class Stuck(Enhance):
    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")


def fixed(size: int) -> Any:
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor()])


def scaled(by: float) -> Callable[[Any], Any]:
    return lambda image: image * by


def changed(dataset: Any, change: Callable[[Any], Any]) -> bool:
    """Whether a change in place shows in a digest of a later state, and not in the state of before."""
    before = snapshot(dataset)
    digest = fingerprint(before)
    assert fingerprint(snapshot(dataset)) == digest
    change(dataset)
    return fingerprint(snapshot(dataset)) != digest


def assign(**values: Any) -> Callable[[Any], None]:
    return lambda dataset: dataset.__dict__.update(values)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "transform": (lambda: Images(fixed(8)), assign(transform=fixed(9))),
    "transform in place": (
        lambda: Images(fixed(8)),
        lambda data: setattr(data.transform.transforms[0], "size", (9, 9)),
    ),
    "transform inserted": (
        lambda: Images(fixed(8)),
        lambda data: data.transform.transforms.insert(0, v1.RandomHorizontalFlip()),
    ),
    "v2 in place": (
        lambda: Images(v2.Compose([v2.RandomResizedCrop(8)])),
        lambda data: setattr(data.transform.transforms[0], "scale", (0.1, 1.0)),
    ),
    "Sequential": (lambda: Images(nn.Sequential(v1.Resize(8))), lambda data: setattr(data.transform[0], "size", 9)),
    "lambda": (
        lambda: Images(v1.Lambda(lambda image: image * 2)),
        assign(transform=v1.Lambda(lambda image: image * 3)),
    ),
    "closure": (lambda: Images(scaled(2)), assign(transform=scaled(3))),
    "object": (lambda: Images(Enhance(2)), lambda data: setattr(data.transform, "strength", 3)),
    "one sample": (Images, lambda data: data.samples.__setitem__(2500, ("x.jpg", 1))),
    "target": (Images, lambda data: data.samples.__setitem__(2500, ("2500.jpg", 1))),
    "one fewer": (Images, lambda data: data.samples.pop()),
    "paths": (
        lambda: Images(paths=[Path(str(n)) for n in range(2000)]),
        lambda data: data.paths.__setitem__(7, Path("x")),
    ),
    "array": (lambda: Images(labels=np.arange(5000)), lambda data: data.labels.__setitem__(4000, 1)),
    "tensor": (lambda: Images(labels=torch.arange(5000)), lambda data: data.labels.__setitem__(4000, 1)),
    "bytes": (
        lambda: Images(data=[bytes([n % 7]) * 999 for n in range(2000)]),
        lambda data: data.data.__setitem__(7, b"x"),
    ),
    "settings": (lambda: Images(config=SimpleNamespace(size=3)), lambda data: setattr(data.config, "size", 4)),
    "seed": (lambda: Images(generator=torch.Generator()), lambda data: data.generator.manual_seed(3)),
    "handle": (lambda: Images(lock=threading.Lock()), assign(lock=threading.Lock())),
    "part": (
        lambda: ConcatDataset([Images(fixed(8)), Images(fixed(8))]),
        lambda data: setattr(data.datasets[1], "transform", fixed(9)),
    ),
    "subset": (lambda: Subset(Images(), list(range(2000))), lambda data: data.indices.__setitem__(3, 5)),
    "class attribute": (
        lambda: Images(type("Local", (), {"size": 3})()),
        lambda data: setattr(type(data.transform), "size", 4),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_show(name: str) -> None:
    make, change = CHANGES[name]
    assert changed(make(), change)


def test_what_is_only_made_anew_is_no_change() -> None:
    data = Images(fixed(8), hook=scaled(2))
    assert not changed(data, assign(transform=fixed(8), hook=scaled(2), samples=list(data.samples)))


@pytest.mark.parametrize("name", ["transform in place", "one sample", "part", "subset", "object", "Sequential"])
def test_a_snapshot_stays_as_it_was(name: str) -> None:
    make, change = CHANGES[name]
    data = make()
    kept = snapshot(data)
    before = fingerprint(kept)
    change(data)
    assert fingerprint(data) != before
    assert fingerprint(kept) == before


def test_what_is_shared_stays_shared() -> None:
    transform, generator, array = fixed(8), torch.Generator(), np.zeros(9)
    parts = [Images(transform, generator=generator, array=array), Images(transform, generator=generator)]
    copy = snapshot(ConcatDataset(parts))
    first, second = copy.datasets
    assert first is not parts[0]
    assert first.imgs is first.samples
    assert first.transform is second.transform
    assert first.transform is not transform
    assert first.generator is second.generator is generator
    assert first.array is array


def test_objects_that_do_something_at_their_end_are_not_copied() -> None:
    data = Closing(fixed(8))
    copy = snapshot(data)
    assert copy is data
    del copy
    assert Closing.closed == 0


def recursive(n: int) -> int:
    return 1 if n < 2 else n * recursive(n - 1)


def test_circles_and_hostile_objects_end() -> None:
    class Hostile:
        def __reduce_ex__(self, _: Any) -> Any:
            raise RuntimeError("no")

    class Endless:
        def __reduce_ex__(self, _: Any) -> Any:
            return Enhance, (Endless(),)

    circle: list[Any] = [random.Random(1)]
    circle.append(circle)
    inner: Callable[[int], int] = lambda n: inner(n - 1) if n else 0  # noqa: E731
    for value in (Hostile(), circle, inner, recursive, Endless(), (n for n in range(3)), Images(circle=circle)):
        assert fingerprint(value) == fingerprint(value)
