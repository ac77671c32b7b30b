"""Data sets that remember or write something while they give samples."""

from __future__ import annotations

import threading
from collections import Counter
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image

from ...conftest import augmented
from .base import Base
from .case import Case
from .folder import label_of
from .reasons import CACHED, CHANGES, FORGETS, IN_MEMORY, KEEPS, WRITES, either


class CacheOfImages(Base):
    """Decoded images stay in RAM, augmentation is new each time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, augmented())
        self.cache: dict[int, Image.Image] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = self.load(index)
        return self.transform(self.cache[index]), label_of(self.paths[index])


class CacheOfTensors(Base):
    """A list of what was made already."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ready: list[Any] = [None] * len(self.paths)

    def __getitem__(self, index: int) -> Any:
        if self.ready[index] is None:
            self.ready[index] = self.transform(self.load(index))
        return self.ready[index], index


class CacheOfBytes(Base):
    """Files are read once; a decoder runs each time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.raw: dict[str, bytes] = {}

    def __getitem__(self, index: int) -> Any:
        import io

        key = str(self.paths[index])
        if key not in self.raw:
            self.raw[key] = self.paths[index].read_bytes()
        return self.transform(Image.open(io.BytesIO(self.raw[key])).convert("RGB")), key


@lru_cache(maxsize=64)
def load_cached(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


class CacheByDecorator(Base):
    """Nothing of the data set changes: the cache is in the function."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(load_cached(self.paths[index])), index


@lru_cache(maxsize=5)
def load_recent(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


class SmallCache(Base):
    """The cache is too small: each image is decoded in every epoch."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(load_recent(self.paths[index])), index


class CacheByMethod(Base):
    """The cache is in the class, behind a method that another one calls."""

    @lru_cache  # noqa: B019 - what people write
    def cached(self, index: int) -> Image.Image:
        return self.load(index)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.cached(index)), index


CACHE: dict[Path, torch.Tensor] = {}


class CacheInTheModule(Base):
    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        if path not in CACHE:
            CACHE[path] = self.transform(self.load(index))
        return CACHE[path], index


class LastImage(Base):
    """Crops of one image come one after the other: it is decoded once for these."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.last: tuple[int, Any] = (-1, None)

    def __getitem__(self, index: int) -> Any:
        if self.last[0] != index:
            self.last = index, self.load(index)
        return self.transform(self.last[1]), index


class Preloaded(Base):
    """All images are opened at the start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.images = [self.load(index) for index in range(len(self.paths))]

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index]), label_of(self.paths[index])


class PreloadedByPath(Base):
    """All tensors are made at the start, in a dictionary."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ready = {path: self.transform(self.load(number)) for number, path in enumerate(self.paths)}

    def __getitem__(self, index: int) -> Any:
        return self.ready[self.paths[index]], index


class PreloadedByDecorator(Base):
    """The function's cache is filled at the start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for path in self.paths:
            load_cached(path)

    def __getitem__(self, index: int) -> Any:
        return self.transform(load_cached(self.paths[index])), index


class Counting(Base):
    """How often each class was seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seen: Counter[int] = Counter()

    def __getitem__(self, index: int) -> Any:
        label = label_of(self.paths[index])
        self.seen[label] += 1
        return self.transform(self.load(index)), label


class CountingInTheClass(Base):
    opened: ClassVar[int] = 0

    def __getitem__(self, index: int) -> Any:
        type(self).opened += 1
        return self.transform(self.load(index)), index


class Remembering(Base):
    """For messages elsewhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.current: Path | None = None

    def __getitem__(self, index: int) -> Any:
        self.current = self.paths[index]
        return self.transform(Image.open(self.current).convert("RGB")), self.current.name


class CacheOnDisk(Base):
    """What was made already is read from disk, in this run and the next."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache = folder / "cache"
        self.cache.mkdir(exist_ok=True)

    def __getitem__(self, index: int) -> Any:
        cached = self.cache / f"{index}.pt"
        if cached.exists():
            return torch.load(cached), index
        image = self.transform(self.load(index))
        torch.save(image, cached)
        return image, index


class AccessLog(Base):
    """A line in a file for each sample."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.log = folder / "accesses.csv"

    def __getitem__(self, index: int) -> Any:
        with self.log.open("a") as file:
            file.write(f"{index},{self.paths[index].name}\n")
        return self.transform(self.load(index)), index


class ComputedOnce(Base):
    """An attribute that is computed when it is first asked for, and stays as it is."""

    @cached_property
    def names(self) -> dict[str, int]:
        return {path.stem: label_of(path) for path in self.paths}

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.load(index)), self.names[self.paths[index].stem]


class Locked(Base):
    """A lock around what is not safe between threads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            image = self.load(index)
        return self.transform(image), index


CASES = (
    Case(
        "decoded images in RAM",
        CacheOfImages,
        "grey",
        CACHED,
        random=True,
        note="The dry run must not leave its stand-in in the cache.",
    ),
    Case("tensors in RAM", CacheOfTensors, "grey", CACHED),
    Case("files in RAM, read when needed", CacheOfBytes, "grey", CHANGES),
    Case(
        "lru_cache",
        CacheByDecorator,
        "grey",
        CACHED,
        note="The stand-in stays in the function's cache, where the user's own code would meet it: it must still be "
        "the image then.",
    ),
    Case("lru_cache that is too small", SmallCache, "grey", FORGETS),
    Case("lru_cache of a method", CacheByMethod, "grey", CACHED),
    Case("tensors in a global", CacheInTheModule, "grey", CACHED),
    Case("the last image", LastImage, "grey", either(KEEPS, CHANGES)),
    Case("opened at the start", Preloaded, "grey", IN_MEMORY),
    Case("transformed at the start, by path", PreloadedByPath, "grey", IN_MEMORY),
    Case("cached at the start", PreloadedByDecorator, "grey", IN_MEMORY),
    Case("counter", Counting, "grey", CHANGES),
    Case("counter of the class", CountingInTheClass, "grey", CHANGES),
    Case("remembers the last path", Remembering, "grey", CHANGES),
    Case(
        "tensors on disk",
        CacheOnDisk,
        "grey",
        CACHED,
        note="No marker and no half-written file may be left on the disk: the next run would read it.",
    ),
    Case("log of accesses", AccessLog, "grey", WRITES),
    Case(
        "computed at the first sample",
        ComputedOnce,
        note="An attribute that only the first sample sets is no side effect.",
    ),
    Case("lock", Locked, picklable=False),
)
