"""Switches, interruptions and resumed states over hand-written data sets, and data sets that nobody wrote by hand.

`SWAPS` says how many swaps are made beside other threads: 50, in `make test-long` 1,000.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import tempfile
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy import asarray
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchcodec import decoders as torchcodec_decoders
from torchvision import transforms as v1
from torchvision.io import ImageReadMode, decode_image, read_file, read_image
from torchvision.transforms import v2

from kernel_monitor import switchable

from ..conftest import switch_to
from ..photos import Photos
from .datasets import RUNNABLE, Case, as_written, equal
from .datasets.folder import photos
from .test_dry_run import is_lazy
from .test_own_datasets import near

SWAPS = int(os.environ.get("SWAPS", "50"))
EXAMPLES = 250 if SWAPS >= 1000 else 15
SEED = 11
SERVED = [case for case in RUNNABLE if case.expect != "grey"]
ACTIONS = ("dali-cpu", "torchvision", "next", "next", "next", "break", "resume", "prefetch")

pytestmark = as_written


def wrapped(case: Case, folder: Path) -> Any:
    return switchable(DataLoader(case.make(folder), batch_size=4, collate_fn=case.collate), seed=SEED)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=st.sampled_from(SERVED), actions=st.lists(st.sampled_from(ACTIONS), min_size=4, max_size=16))
def test_whatever_is_done_the_samples_are_those_of_torchvision(images: Path, case: Case, actions: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = shutil.copytree(images, Path(name, "images"))
        reference = wrapped(case, folder)
        expected = list(reference)
        reference.release()
        loader = wrapped(case, folder)
        loader.set_epoch(0)
        iterator, found = iter(loader), list[Any]()
        for action in actions:
            if action == "next":
                batch = next(iterator, None)
                found += [] if batch is None else [batch]
            elif action == "break":
                del iterator
                loader.load_state_dict({})  # an iterator that delivered nothing gives its state back
                loader.set_epoch(0)
                iterator, found = iter(loader), []
            elif action == "resume":
                state = loader.state_dict()
                del iterator
                loader.load_state_dict(state)
                iterator = iter(loader)
                if len(found) == len(expected):
                    found = []
            elif action == "prefetch":
                loader.set(prefetch=3)
            else:
                switch_to(loader, action)
        if loader.state()["epoch"] == 0:
            found += list(iterator)
            assert len(found) == len(expected)
            assert all(map(near, found, expected))
            assert (loader.state()["lost"], loader.state()["doubled"]) == (0, 0)
        loader.release()
        loader.release()


Sample = namedtuple("Sample", ["picture", "label"])


@dataclass
class Record:
    label: int
    picture: Any


def _from_file(path: Path) -> Any:
    with path.open("rb") as file:
        return Image.open(file).convert("RGB")


OPENERS: dict[str, Callable[[Any], Any]] = {
    "path": lambda path: Image.open(path).convert("RGB"),
    "as stored": Image.open,
    "file": _from_file,
    "bytes": lambda path: Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB"),
    "read_image": lambda path: read_image(str(path), ImageReadMode.RGB),
    "decode_image": lambda path: decode_image(read_file(str(path)), mode=ImageReadMode.RGB),
    "torchcodec": torchcodec_decoders.decode_image,
    "cv2": lambda path: cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB),
    "cv2 of bytes": lambda path: asarray(cv2.imdecode(np.fromfile(path, dtype=np.uint8), cv2.IMREAD_COLOR))[..., ::-1],
    "array": lambda path: np.array(Image.open(path).convert("RGB")),
    "cv2 as PIL": lambda path: Image.fromarray(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)),
}
TENSORS = ("read_image", "decode_image", "torchcodec")
ARRAYS = ("cv2", "cv2 of bytes", "array")
STRUCTURES: dict[str, Callable[[Any, int, Path], Any]] = {
    "pair": lambda image, label, _: (image, label),
    "dict": lambda image, label, path: {"file": path.name, "image": image, "label": label},
    "named": lambda image, label, _: Sample(image, label),
    "nested": lambda image, label, path: {"in": [{"image": image}, label], "of": (path.name, [label, 0.5])},
    "alone": lambda image, _label, _path: image,
}
CHAINS = {
    "crop": [v2.RandomResizedCrop(24, antialias=True), v2.RandomHorizontalFlip()],
    "resize": [v2.Resize((20, 28), antialias=True)],
    "jitter": [v2.Resize((16, 16), antialias=True), v2.RandomGrayscale(0.5)],
    "unknown": [v2.Resize((16, 16), antialias=True), lambda image: image],
}
OF_ARRAYS = {
    "crop": [albumentations.RandomResizedCrop((24, 24)), albumentations.HorizontalFlip()],
    "resize": [albumentations.Resize(20, 28)],
    "jitter": [albumentations.Resize(16, 16), albumentations.RandomBrightnessContrast(p=0.7)],
    "unknown": [albumentations.Resize(16, 16), albumentations.InvertImg(p=1.0)],
}
QUIRKS = ("none", "other index", "noise", "second image", "pixels", "size", "retry", "cache", "counter", "twice")


class Composed(Dataset[Any]):
    """A data set put together from the habits of several."""

    def __init__(self, folder: Path, opener: str, structure: str, chain: str, quirk: str, odd: int) -> None:
        self.paths = photos(folder)
        self.open, self.structure, self.quirk, self.odd = OPENERS[opener], STRUCTURES[structure], quirk, odd
        kind: list[Any] = [] if opener in TENSORS else [v2.PILToTensor()]
        self.transform: Any = v1.Compose([*CHAINS[chain], *kind])
        self.named = opener in ARRAYS
        if self.named:
            self.transform = albumentations.Compose([*OF_ARRAYS[chain], ToTensorV2()])
        self.seen: dict[int, Any] = {}
        self.count = 0

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        if self.quirk == "other index":
            index = random.randrange(len(self))
        path, label = self.paths[index], index % 5
        if self.quirk == "retry":
            try:
                image = self.open(path)
            except Exception:  # noqa: BLE001 - as people write
                return self[index + 1]
        elif self.quirk == "cache":
            image = self.seen[index] = self.seen[index] if index in self.seen else self.open(path)
        else:
            image = self.open(path)
        if self.quirk == "counter":
            self.count += 1
        if self.quirk == "noise" and torch.rand(()) < 0.3:
            label = int(np.random.randint(5))  # noqa: NPY002 - as people write
        if index == self.odd and self.quirk == "second image":
            image = self.open(self.paths[(index + 1) % len(self)])
        if index == self.odd and self.quirk == "pixels":
            label = int(np.asarray(image).max()) % 5
        if self.quirk == "size" and isinstance(image, Image.Image):
            label = image.size[0]
        if self.quirk == "size" and self.named:
            label = image.shape[0]
        picture = self.transform(image=image)["image"] if self.named else self.transform(image)
        if index == self.odd and self.quirk == "twice":
            picture = self.transform(image=image)["image"] if self.named else self.transform(image)
        return self.structure(picture, label, path)


@settings(max_examples=2 * EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    opener=st.sampled_from(sorted(OPENERS)),
    structure=st.sampled_from(sorted(STRUCTURES)),
    chain=st.sampled_from(sorted(CHAINS)),
    quirk=st.sampled_from(QUIRKS),
    odd=st.integers(0, 23),
)
def test_a_composed_data_set_is_never_silently_different(
    images: Path, opener: str, structure: str, chain: str, quirk: str, odd: int
) -> None:
    def make() -> Composed:
        return Composed(images, opener, structure, chain, quirk, odd)

    collate: Any = list if chain == "unknown" and structure == "alone" else None
    loader = switchable(DataLoader(make(), batch_size=4, collate_fn=collate), seed=SEED)
    expected = list(loader)
    if quirk not in ("other index", "noise") and chain in ("resize", "unknown"):
        assert equal(expected, list(DataLoader(make(), batch_size=4, collate_fn=collate)))
    assert loader.backends["dali-cpu"].available == (quirk not in ("cache", "counter"))
    if loader.backends["dali-cpu"].available:
        switch_to(loader, "dali-cpu")
        loader.set_epoch(0)
        found = list(loader)
        assert all(map(near, found, expected))
        fallbacks = {fallback.index for fallback in loader.fallbacks()}
        assert fallbacks == ({odd} if quirk in ("second image", "pixels", "twice") else set())
    loader.release()


def test_swaps_beside_threads_that_open_images_of_their_own(images: Path) -> None:
    chain = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
    loader = switchable(DataLoader(Photos(photos(images), chain), batch_size=2), seed=SEED)
    path, done, wrong, opened = photos(images)[0], threading.Event(), list[Any](), [0, 0]
    expected = np.asarray(Image.open(path).convert("RGB"))

    def look(number: int) -> None:
        while not done.is_set():
            with Image.open(path) as image:
                if is_lazy(image) or not (np.asarray(image.convert("RGB")) == expected).all():
                    wrong.append(image)
            opened[number] += 1

    threads = [threading.Thread(target=look, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        engines = ("dali-cpu", "torchvision")
        while len(loader.history) < SWAPS:
            seen: list[int] = []
            for _, indices in loader:
                seen += indices.tolist()
                if loader.switch_state.preparing is None:
                    loader.switch(engines[loader.switch_state.active == engines[0]])
            assert seen == list(range(len(loader.dataset)))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert min(opened) > SWAPS
