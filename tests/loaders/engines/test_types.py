"""What the loop and a collate function of the user's get has the types of plain torch, whichever engine computes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor.loaders import switchable

from ..conftest import make_folder, set_cores, settle, violent, wait_for

# Neither a crop nor a flip by chance: both decide how memory is laid out.
EXACT: dict[str, Any] = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}  # the largest square
CROP = v1.RandomResizedCrop(24, **EXACT)
NORM = ([0.5] * 3, [0.25] * 3)

WRAPPERS: dict[str, Any] = {
    "PIL": CROP,
    "ToTensor": v1.Compose([CROP, v1.RandomHorizontalFlip(1.0), v1.ToTensor(), v1.Normalize(*NORM)]),
    "ToImage": v2.Compose([v2.ToImage(), v2.RandomResizedCrop(24, **EXACT), v2.RandomHorizontalFlip(1.0)]),
    "ToImage and ToDtype": v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(24, **EXACT), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORM)]
    ),
    "ToDtype, pure": v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(24, **EXACT), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    ),
    "PILToTensor": v1.Compose([CROP, v1.PILToTensor()]),
    "PILToTensor first": v1.Compose([v1.PILToTensor(), CROP, v1.RandomHorizontalFlip(1.0)]),
    "ConvertImageDtype": v1.Compose([CROP, v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "CenterCrop of a tensor": v1.Compose([v1.ToTensor(), v1.CenterCrop(24)]),
    "the rest": v1.Compose([CROP, v1.ColorJitter(hue=0.1), v1.ToTensor()]),
}


class Pair(NamedTuple):
    label: int
    name: str


def everything(label: int) -> dict[str, Any]:
    return {
        "float": float(label),
        "name": str(label),
        "box": torch.ones(4) * label,
        "nested": [label, [str(label), bytes([label])], {"pair": Pair(label, "x")}],
        "array": np.full(3, label, dtype=np.float32),
    }


TARGETS: dict[str, Callable[[int], Any] | None] = {
    "int": None,
    "string": str,
    "tuple": lambda label: (label, str(label)),
    "named tuple": lambda label: Pair(label, str(label)),
    "everything": everything,
}


def as_list(batch: list[Any]) -> Any:
    return batch


def as_described(batch: list[Any]) -> Any:
    """What the collate function itself sees, in the process where it runs."""
    images = [sample[0] for sample in batch]
    storages = {image.untyped_storage().data_ptr() for image in images if isinstance(image, torch.Tensor)}
    # Not how one image is laid out: where torchvision resizes tensors, that depends on the size of the crop.
    return repr(described(batch, layout=False)), len(storages), default_collate([sample[1] for sample in batch])


COLLATES: dict[str, Any] = {"default": default_collate, "list": as_list, "described": as_described}


def described(value: Any, *, resizable: bool = True, layout: bool = True) -> Any:
    """Types and properties of memory, all the way down.

    `layout`: whether strides are among them. `resizable`: whether that is told; what a worker sends lies in shared
    memory, which cannot be resized, and more does no harm.
    """
    inside = partial(described, resizable=resizable, layout=layout)
    if isinstance(value, torch.Tensor):
        value.add_(0)  # writable
        return {
            "type": type(value).__name__,
            "dtype": value.dtype,
            "shape": tuple(value.shape),
            "contiguous": layout and value.is_contiguous(),
            "channels last": layout and value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last),
            "pinned": value.is_pinned(),
            "resizable": resizable and value.untyped_storage().resizable(),
            "gradient": value.requires_grad,
        }
    if isinstance(value, Image.Image):
        return type(value).__name__, value.mode, value.size
    if isinstance(value, dict):
        return type(value).__name__, {key: inside(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [inside(inner) for inner in value]
    return value if isinstance(value, str) else type(value).__name__


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("few"), 8, seed=3)


@pytest.fixture
def default_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


def plain(few: Path, workers: int, wrapper: str, target: str, collate: str) -> DataLoader[Any]:
    dataset = ImageFolder(few, WRAPPERS[wrapper], TARGETS[target])
    return DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=COLLATES[collate])


def check(few: Path, workers: int, wrapper: str, target: str, collate: str) -> None:
    """Compare every engine's batches with the plain loader's."""
    told = partial(described, resizable=workers == 0)
    expected = [told(batch) for batch in plain(few, workers, wrapper, target, collate)]
    loader = switchable(plain(few, workers, wrapper, target, collate))
    try:
        for backend in ("torchvision", "dali-cpu", "synthetic"):
            loader.switch(backend)
            if backend == "synthetic":
                list(loader)  # keeps what it is to hand out
            else:
                settle(loader)
            got = [told(batch) for batch in loader]
            assert loader.backend == backend
            assert got == expected, f"{backend} of {wrapper}, {target}, {collate}, {workers} workers"
    finally:
        loader.release()


def cases() -> list[Any]:
    """Every wrapper with every way to collate, in both default types; every kind of target once."""
    both = [("default", dtype) for dtype in (torch.float32, torch.float64)] + [("described", torch.float32)]
    found = [
        pytest.param(workers, wrapper, "int", collate, dtype, id=f"{wrapper}-{collate}-{dtype}-{workers}")
        for wrapper, (collate, dtype), workers in itertools.product(WRAPPERS, both, (0, 2))
        if not (wrapper == "PIL" and collate == "default")
        and not (wrapper == "the rest" and workers and dtype is torch.float32)  # its workers take long to start
    ]
    found += [
        pytest.param(workers, "ToTensor", target, collate, torch.float32, id=f"{target}-{collate}-{workers}")
        for target, collate, workers in itertools.product(TARGETS, ("default", "list"), (0, 2))
    ]
    return found


@pytest.mark.parametrize(
    ("workers", "wrapper", "target", "collate", "default_dtype"), cases(), indirect=["default_dtype"]
)
def test_every_engine_delivers_the_types_of_plain_torch(
    few: Path,
    workers: int,
    wrapper: str,
    target: str,
    collate: str,
    default_dtype: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_cores(monkeypatch, 8)  # enough for DALI beside workers
    check(few, workers, wrapper, target, collate)


@pytest.mark.parametrize("default_dtype", [torch.float64], indirect=True)
@violent
def test_workers_that_replace_forked_ones_have_the_settings_of_this_process(
    few: Path, default_dtype: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = few.parent / "cut" / "class"
    cut.mkdir(parents=True)
    for path in sorted(few.glob("*/*.jpg"))[:4]:
        data = path.read_bytes()
        (cut / path.name).write_bytes(data[: len(data) * 2 // 3])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    loader = switchable(DataLoader(ImageFolder(cut.parent, WRAPPERS["ToTensor"]), batch_size=2, num_workers=1))
    try:
        (before, _), _ = loader
        loader.switch("dali-cpu")  # from here on nothing is forked
        settle(loader)
        loader.set(workers=2)
        loader.switch("torchvision")
        wait_for(lambda: len(loader.worker_pids) >= 2)
        (after, _), _ = loader  # the new ones take over
        assert loader.decoded() == {"torchvision": 4}
        assert before.dtype == after.dtype == torch.float64
    finally:
        loader.release()
