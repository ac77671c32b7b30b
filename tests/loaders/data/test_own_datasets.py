"""Hand-written data sets through `switchable`: on `torchvision` as plain torch has them, on DALI the same samples.

All that is asserted of each data set of the corpus is asserted of one loader: to examine it takes most of the time.
"""

from __future__ import annotations

import builtins
import dataclasses
import os
import random
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1

from kernel_monitor import switchable
from kernel_monitor.errors import BackendUnavailable
from kernel_monitor.loaders.engines.worker_pickle import why_not_remote

from ..conftest import on_both, set_cores, switch_to
from ..photos import Photos
from .datasets import RUNNABLE, Case, as_written, equal, reasons
from .datasets.arrays import Turned, arrays
from .datasets.folder import photos
from .datasets.hugging_face import table
from .datasets.side_effects import CacheByDecorator, CacheOfImages, CacheOfTensors, load_cached
from .elsewhere import SEED, Elsewhere, slots

MEAN = 2.0  # greatest mean difference of an image's pixel values (0 to 255) between the engines
DALI = "dali-cpu"


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


def same_objects(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


def state_of(dataset: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """The attributes of a data set but for functions, and the sizes of those that can grow."""
    held = {name: value for name, value in vars(dataset).items() if not callable(value)}
    return held, {name: len(value) for name, value in held.items() if isinstance(value, dict | list | set)}


def delivered_elsewhere(case: Case, elsewhere: Elsewhere) -> list[Any] | None:
    """Return an epoch of a worker that does not see the files; None if it cannot be, for the reason that is given."""
    if why_not_remote(elsewhere.keyed) is not None:
        return None  # `ray` is grey
    refusal = elsewhere.keyed.source.unsendable
    assert not (refusal is None and case.unsent)
    if refusal is None:
        return [elsewhere.delivery(slot) for slot in slots(len(elsewhere.keyed))]
    assert case.unsent or case.expect == "grey", refusal
    assert re.search(case.unsent or case.reason, f"The data set {refusal}"), refusal
    return None


@as_written
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_every_engine_gives_what_plain_torch_gives_or_says_why_not(case: Case, root: Path) -> None:
    # Plain torch first: what its data set opens may be open once in a process. What keeps images by their paths, in
    # the process or beside them, is given others, so that it is empty again when `switchable` looks at it.
    keeps = case.reason == reasons.CACHED
    first = shutil.copytree(root, root.with_name("first"), copy_function=os.link) if keeps else root
    plain = list(DataLoader(case.make(first), batch_size=4, collate_fn=case.collate))
    wrapped = DataLoader(case.make(root), batch_size=4, collate_fn=case.collate)
    before, sizes = state_of(wrapped.dataset)
    elsewhere = Elsewhere(wrapped, root, name=case.name[:40])
    loader = elsewhere.loader
    after, sizes_after = state_of(wrapped.dataset)
    assert same_objects(before, after)  # the dry run leaves nothing behind
    assert sizes == sizes_after
    assert builtins.open is open
    backend = loader.backends["dali-cpu"]
    assert backend.available == (case.expect != "grey"), backend.reason

    sent = delivered_elsewhere(case, elsewhere)
    expected = list(loader)
    assert loader.history == []
    assert len(expected) == len(plain)
    if not case.random:
        assert equal(expected, plain)
    if sent is not None:
        assert [delivery.error for delivery in sent] == [None] * len(expected)
        assert all(equal(one.batch, other) for one, other in zip(sent, expected, strict=True))

    if not backend.available:
        assert re.search(case.reason, str(backend.reason)), backend.reason
        with pytest.raises(BackendUnavailable):
            loader.switch("dali-cpu")
        return
    switch_to(loader, "dali-cpu").set_epoch(0)
    found = list(loader)
    assert loader.backend == "dali-cpu"
    assert len(found) == len(expected)
    assert all(map(near, found, expected))
    fallbacks = loader.fallbacks()
    assert len(fallbacks) == case.odd, fallbacks
    assert all(re.search(case.reason, fallback.reason) for fallback in fallbacks), fallbacks


class Described(Photos):
    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(photos(root), transform)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        noise = random.random()
        return {"file": self.paths[index].name, "image": self.transform(image), "noise": noise, "rest": torch.rand(2)}


CROPPED = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])
LEFT = v1.Compose([v1.RandomResizedCrop(24), v1.RandAugment(), v1.ToTensor()])


@pytest.mark.parametrize(("chain", "cores"), [(CROPPED, 2), (LEFT, 8)], ids=["all in DALI", "the rest in workers"])
def test_with_workers(root: Path, monkeypatch: pytest.MonkeyPatch, chain: Any, cores: int) -> None:
    set_cores(monkeypatch, cores)
    loader = switchable(DataLoader(Described(root, chain), batch_size=4, num_workers=2), seed=SEED)
    expected, found = on_both(loader, list)
    assert loader.decoded() == {"dali-cpu": 24}
    for one, other in zip(found, expected, strict=True):
        assert one["file"] == other["file"]
        assert torch.equal(one["noise"], other["noise"])
        assert torch.equal(one["rest"], other["rest"])
        assert float((one["image"] - other["image"]).abs().median()) <= 4 / 255
    assert len({float(value) for batch in found for value in batch["noise"]}) == 24


def test_the_engines_pixels_are_compared(root: Path) -> None:
    loader = switchable(DataLoader(Described(root, CROPPED), batch_size=4))
    parity = loader.parity(8)
    assert (parity.samples, parity.skipped, parity.parameters_equal) == (8, 0, True)
    assert parity.mean <= MEAN


@pytest.mark.parametrize("workers", [0, 2])
def test_another_transform_is_set_on_a_table(root: Path, workers: int) -> None:
    """As in plain torch: at once, or with the loader's workers from the next epoch on."""
    pytest.importorskip("datasets")

    def to(side: int) -> Any:
        chain = v1.Compose([v1.Resize((side, side)), v1.ToTensor()])
        return lambda examples: {"x": [chain(image.convert("RGB")) for image in examples["image"]]}

    rows = table(root)
    rows.set_transform(to(16))
    loader = switchable(DataLoader(rows, 4, num_workers=workers), seed=SEED)
    switch_to(loader, DALI)
    assert {batch["x"].shape[2] for batch in loader} == {16}
    rows.set_transform(to(32))
    batches = iter(loader)
    assert next(batches)["x"].shape[2] == 32
    rows.set_transform(to(16))
    assert [batch["x"].shape[2] for batch in batches] == [16 if workers == 0 else 32] * 5
    assert loader.decoded() == {DALI: 24}
    loader.release()


@pytest.mark.parametrize("make", [CacheOfImages, CacheOfTensors, CacheByDecorator])
def test_a_cache_of_images_is_named_by_how_long_it_lasts(root: Path, make: Any) -> None:
    """With the loader's workers, each has a cache of its own; they are new in each epoch, or kept."""
    load_cached.cache_clear()
    reasons = [
        str(switchable(DataLoader(make(root), 4, num_workers=workers, persistent_workers=kept)).backends[DALI].reason)
        for workers, kept in ((0, False), (2, False), (2, True))
    ]
    assert "after the first epoch nothing is decoded any more, and a switch would make it slower" in reasons[0]
    assert "workers are new in each epoch: set persistent_workers=True" in reasons[1]
    assert "once each worker keeps all nothing is decoded any more, and a switch would make it slower" in reasons[2]
    dataset = make(root)
    assert len([dataset[index] for index in range(24)]) == 24
    reason = str(switchable(DataLoader(dataset, 4)).backends[DALI].reason)
    assert "nothing is decoded in an epoch, and a switch would make it slower" in reason
    load_cached.cache_clear()


class Worse(Described):
    """After a while it looks at its pixels."""

    looks = False

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if self.looks:
            with Image.open(self.paths[index]) as image:
                sample["noise"] = float(np.asarray(image).mean())
        return sample


def test_an_engine_is_given_up_where_most_samples_cannot_be_read(root: Path) -> None:
    dataset = Worse(root, CROPPED)
    loader = switchable(DataLoader(dataset, batch_size=4), seed=SEED)
    switch_to(loader, "dali-cpu")
    assert sum(len(batch["file"]) for batch in loader) == 24
    dataset.looks = True
    for _ in range(4):
        assert sum(len(batch["file"]) for batch in loader) == 24
    assert loader.backend == "torchvision"
    reason = str(loader.backends["dali-cpu"].reason)
    assert re.search(r"Worse cannot be read without its own code in \d+ of \d+ samples", reason), reason
    assert (loader.state()["lost"], loader.state()["doubled"]) == (0, 0)


def test_nothing_is_called_dry_where_that_is_turned_off(root: Path) -> None:
    class Refusing(Described):
        def __getitem__(self, index: int) -> Any:
            called.append(index)
            return super().__getitem__(index)

    called: list[int] = []
    loader = switchable(DataLoader(Refusing(root, CROPPED), batch_size=4), dry_run=False)
    assert called == []
    assert "dry_run=False" in str(loader.backends["dali-cpu"].reason)
    assert sum(len(batch["file"]) for batch in loader) == 24
    assert called == list(range(24))


class Rarely(Described):
    """One sample, behind those that are looked at first, has another structure; all draw."""

    def __init__(self, root: Path, transform: Any) -> None:
        super().__init__(root, transform)
        self.paths = self.paths * 2

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return {**sample, "rare": random.random()} if index == 41 else sample


def test_a_structure_that_is_first_met_in_the_loop_keeps_the_plans_draws(root: Path) -> None:
    loader = switchable(DataLoader(Rarely(root, CROPPED), batch_size=1), seed=SEED)
    expected, found = on_both(loader, list)
    assert loader.decoded() == {"dali-cpu": 48}
    assert [sorted(batch) for batch in found] == [sorted(batch) for batch in expected]
    assert [float(batch["noise"]) for batch in found] == [float(batch["noise"]) for batch in expected]
    assert float(found[41]["rare"]) == float(expected[41]["rare"])


def test_parity_leaves_out_what_the_data_set_turns(root: Path) -> None:
    found = switchable(DataLoader(Turned(root, arrays), batch_size=4)).parity(25)
    assert (found.samples, found.skipped) == (24, 1)
    assert found.mean <= 0.5
