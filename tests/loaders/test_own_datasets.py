"""Hand-written data sets through `switchable`: on `torchvision` as plain torch has them, on DALI the same samples."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from kernel_monitor import switchable
from kernel_monitor.errors import BackendUnavailable

from .conftest import settle
from .datasets import RUNNABLE, Case, as_written, equal, write_images

MEAN = 2.0  # greatest mean difference of an image's pixel values (0 to 255) between the engines
SEED = 11


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def folder(images: Path, tmp_path: Path) -> Path:
    return shutil.copytree(images, tmp_path / "images")


def near(one: Any, other: Any) -> bool:
    """Equal but for images, whose pixels may differ by what the engines differ in."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.ndim < 3 or torch.equal(one, other):
            return torch.equal(one, other)
        unit = 1.0 if one.dtype == torch.uint8 else 255.0
        return float((one.double() - other.double()).abs().mean()) * unit <= MEAN
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(near, one, other))
    if dataclasses.is_dataclass(one):
        return all(near(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if hasattr(one, "tobytes") and hasattr(one, "size") and not isinstance(one, np.ndarray):
        difference = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
        return float(np.abs(difference).mean()) <= MEAN
    return equal(one, other)


def loader_of(case: Case, folder: Path, **options: Any) -> Any:
    plain = DataLoader(case.make(folder), batch_size=4, collate_fn=case.collate, **options)
    return switchable(plain, seed=SEED, name=case.name[:40])


@as_written
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_torchvision_gives_what_plain_torch_gives(case: Case, folder: Path) -> None:
    loader = loader_of(case, folder)
    ours = list(loader)
    record = loader.history
    assert record == []
    plain = list(DataLoader(case.make(folder), batch_size=4, collate_fn=case.collate))
    assert len(ours) == len(plain)
    if not case.random:
        assert equal(ours, plain)
    loader.release()


@as_written
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_dali_gives_the_same_samples_or_says_why_not(case: Case, folder: Path) -> None:
    loader = loader_of(case, folder)
    backend = loader.backends["dali-cpu"]
    assert backend.available == (case.expect != "grey"), backend.reason
    if not backend.available:
        assert re.search(case.reason, str(backend.reason)), backend.reason
        with pytest.raises(BackendUnavailable):
            loader.switch("dali-cpu")
        return
    expected = list(loader)
    loader.switch("dali-cpu")
    settle(loader)
    loader.set_epoch(0)
    found = list(loader)
    assert loader.backend == "dali-cpu"
    assert len(found) == len(expected)
    assert all(map(near, found, expected))
    fallbacks = loader.fallbacks()
    assert len(fallbacks) == case.odd, fallbacks
    assert all(re.search(case.reason, fallback.reason) for fallback in fallbacks), fallbacks
    loader.release()
