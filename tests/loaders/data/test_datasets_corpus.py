"""The hand-written data sets of `datasets/`: each works with a plain DataLoader and is what its entry says of it.

This is about the corpus and about plain torch, not about the package: CORPUS=long tries every entry, `make test` one of
eight. Run it after a change of an entry.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, UnidentifiedImageError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from kernel_monitor.loaders.data.file_check import check_bytes

from ..conftest import seed_all
from .datasets import CASES, RUNNABLE, Case, arrays, as_written, equal, reasons
from .datasets.folder import photos

TRIED = RUNNABLE if os.environ.get("CORPUS") == "long" else RUNNABLE[::8]
KNOWN = {value for name, value in vars(reasons).items() if name.isupper()}


class Counting:
    """A collate function that counts the samples on their way."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate, self.samples, self.dropped = collate, 0, 0

    def __call__(self, batch: list[Any]) -> Any:
        self.samples += len(batch)
        self.dropped += sum(sample is None for sample in batch)
        return self.collate(batch)


class Decodes(TorchDispatchMode):
    """Counts the images that torchvision decodes to tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.namespace in ("image", "torchcodec_ns") and func.__name__.startswith("decode")
        return func(*args, **(kwargs or {}))


@contextmanager
def opened() -> Iterator[Callable[[], int]]:
    """How many images have been opened, whichever name the opener goes by."""
    kind = ImageFile.ImageFile
    spying = patch.object(kind, "__init__", autospec=True, side_effect=kind.__init__)
    with spying as spy, Decodes() as decodes, ExitStack() as patches:
        opencv = [
            patches.enter_context(patch.object(module, name, side_effect=getattr(module, name)))
            for module, name in ((cv2, "imread"), (cv2, "imdecode"), (arrays, "imread"))
        ]
        yield lambda: spy.call_count + decodes.count + sum(one.call_count for one in opencv)


def epoch(case: Case, dataset: Any, seed: int) -> tuple[list[Any], Counting]:
    seed_all(seed)
    collate = Counting(case.collate)
    return list(DataLoader(dataset, batch_size=5, collate_fn=collate)), collate


def check_pickling(case: Case, dataset: Any) -> None:
    """As it is before the first sample, when workers are started."""
    if case.picklable:
        assert len(pickle.loads(pickle.dumps(dataset))) == case.samples  # noqa: S301 - our own
    else:
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            pickle.dumps(dataset)


@as_written
@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.name)
def test_a_data_set_works_with_a_plain_loader(case: Case, root: Path) -> None:
    dataset: Any = case.make(root)
    check_pickling(case, dataset)
    with opened() as count:
        first, counted = epoch(case, dataset, 0)
        images = count()
    assert len(dataset) == counted.samples == case.samples
    assert counted.dropped == case.dropped
    other, _ = epoch(case, dataset, 1)
    assert equal(first, other) != case.random
    if case.random:  # its own seeds are all that it depends on, but for what no seed reaches
        again, _ = epoch(case, case.make(root), 0)
        assert equal(first, again) == (case.reason != reasons.NOT_THE_SAME)
    if case.expect == "offered":
        assert images == case.samples * case.images
    elif case.reason == reasons.NO_IMAGE:
        assert images == 0
    elif reasons.TWO_IMAGES in case.reason:
        assert images > case.samples
    if case.expect == "fallback":
        gc.collect()  # closes files that are cut off here, where the warning is expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_entry_does_not_contradict_itself(case: Case) -> None:
    assert set(filter(None, case.reason.split("|"))) <= KNOWN
    assert (case.reason == "") == (case.expect == "offered")
    assert (case.odd > 0) == (case.expect == "fallback")
    assert case.dropped <= case.odd <= case.samples / 10
    assert not case.with_workers or (case.expect == "offered" and case.with_workers in KNOWN)


def test_dali_may_be_given_the_photos_and_not_the_odd_files(images: Path) -> None:
    assert {check_bytes(path.read_bytes()).reason for path in photos(images)} == {None}
    odd = {path.stem: check_bytes(path.read_bytes()).reason or "" for path in images.glob("odd/*")}
    assert odd["gray"] == ""
    assert re.search(reasons.CUT_OFF, odd["cut"])
    assert re.search(reasons.CMYK, odd["cmyk"])
    with pytest.raises(UnidentifiedImageError):
        Image.open(images / "odd" / "text.jpg")


def test_the_corpus_is_large_and_every_reason_occurs() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert len(RUNNABLE) >= 45
    for kind in ("offered", "fallback", "grey"):
        assert sum(case.expect == kind for case in RUNNABLE) >= 8
    used = {reason for case in CASES for reason in f"{case.reason}|{case.with_workers}|{case.unsent}".split("|")}
    assert used - {""} == KNOWN


@dataclass
class Held:
    what: Any


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        ((1,), [1]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(1, 2)),
        (np.zeros(2), np.ones(2)),
        (float("nan"), 0.0),
        (Image.new("RGB", (2, 2)), Image.new("RGB", (2, 2), "red")),
        (Held(torch.zeros(2)), Held(torch.ones(2))),
        (SimpleNamespace(x=torch.zeros(2)), SimpleNamespace(x=torch.ones(2))),
        (Path("a"), "a"),
    ],
)
def test_samples_are_compared_all_the_way_down(one: Any, other: Any) -> None:
    for value in (one, other):
        assert equal([value, {"in": (value,)}], [value, {"in": (value,)}])
    assert not equal([one], [other])
    assert not equal({"in": (1, one)}, {"in": (1, other)})
