"""Image and target together: what people are told of such loaders, and what they do with them beside training."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler
from torchvision.transforms.v2 import functional

from kernel_monitor import switchable
from kernel_monitor.errors import BackendUnavailable, SampleError

from ..conftest import switch_to

SEED, COUNT, BATCH = 5, 12, 4
NEAREST = functional.InterpolationMode.NEAREST


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Photos, each with a mask of class numbers."""
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        height, width = 40 + number, 48
        pixels = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)[..., None] + rng.integers(0, 60, 3)
        Image.fromarray((pixels % 256).astype(np.uint8)).save(tmp_path / f"{number:02}.jpg")
        Image.fromarray(rng.integers(0, 9, (height, width), dtype=np.uint8)).save(tmp_path / f"{number:02}.png")
    return tmp_path


def paths(root: Path) -> list[Path]:
    return sorted(root.rglob("*.jpg"))[:COUNT]


class Pairs:
    """An image and its mask, with one crop and one coin for both."""

    def __init__(self, root: Path) -> None:
        self.paths = paths(root)

    def __len__(self) -> int:
        return len(self.paths)

    def opened(self, index: int) -> tuple[Any, Any]:
        path = self.paths[index]
        return Image.open(path).convert("RGB"), Image.open(path.with_suffix(".png"))

    def cropped(self, image: Any, mask: Any) -> tuple[Any, Any]:
        top, left = torch.randint(0, 8, (2,)).tolist()
        return (
            functional.resized_crop(image, top, left, 24, 24, [20, 20]),
            functional.resized_crop(mask, top, left, 24, 24, [20, 20], interpolation=NEAREST),
        )

    def finished(self, index: int, image: Any, mask: Any) -> Any:
        return functional.to_dtype(functional.to_image(image), torch.float32, scale=True), np.array(mask), index

    def __getitem__(self, index: int) -> Any:
        return self.finished(index, *self.cropped(*self.opened(index)))


class Whole(Pairs):
    """Nothing is cut."""

    def cropped(self, image: Any, mask: Any) -> Any:
        return (functional.hflip(image), functional.hflip(mask)) if torch.rand(()) < 0.5 else (image, mask)


class Turned(Pairs):
    """Something that DALI does not do comes first."""

    def opened(self, index: int) -> Any:
        image, mask = super().opened(index)
        return image.rotate(10), mask.rotate(10)


class Looked(Pairs):
    """The pixels are read before the crop."""

    def opened(self, index: int) -> Any:
        image, mask = super().opened(index)
        return Image.fromarray(np.array(image) | 1), mask


CALLS = itertools.count()


class Restless(Pairs):
    """Each call goes on where the last one ended."""

    def finished(self, index: int, image: Any, mask: Any) -> Any:
        return super().finished(next(CALLS), image, mask)


def loader_of(dataset: Any, **options: Any) -> Any:
    given = {name: options.pop(name) for name in ("on_error", "dry_run") if name in options}
    return switchable(DataLoader(dataset, batch_size=BATCH, **options), seed=SEED, **given)


def same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert float((one[0] - other[0]).abs().mean()) * 255 < 1.5
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[2], other[2])


# ---- Why an engine is grey.


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Whole, r"Whole neither resizes nor crops its images, and all that DALI would do is decode\."),
        (Turned, r"Turned calls Image\.rotate on whole images, and all that DALI would do is decode; resize or crop "),
        (Looked, r"Looked calls .+ on whole images, and all that DALI would do is decode; resize or crop "),
        (Restless, r"Restless (is not the same twice|changes its own attributes)"),
    ],
)
def test_the_reason_is_the_first_operation_that_dali_cannot_do(root: Path, kind: type, reason: str) -> None:
    loader = loader_of(kind(root))
    told = str(loader.backends["dali-cpu"].reason)
    assert re.match(reason, told), told
    assert told.count(".") <= 2
    with pytest.raises(BackendUnavailable, match=re.escape(told)):
        loader.switch("dali-cpu")


def test_parts_that_differ_are_refused_with_a_remedy(root: Path) -> None:
    class Views(Pairs):
        def __getitem__(self, index: int) -> Any:
            image, mask = self.opened(index)
            return self.finished(index, self.cropped(image, mask)[0], self.cropped(image, mask)[1])

        def cropped(self, image: Any, mask: Any) -> Any:
            return functional.resize(image, [16, 16]), functional.resize(mask, [16, 16], interpolation=NEAREST)

    mixed: Any = ConcatDataset([Pairs(root), Views(root)])  # type: ignore[list-item]
    backend = loader_of(mixed, collate_fn=list).backends["dali-cpu"]
    assert backend.available or "use a loader for each kind" in str(backend.reason)


# ---- What DALI does, and how near it is.


def test_the_note_says_what_dali_does(root: Path) -> None:
    note = loader_of(Pairs(root)).backends["dali-cpu"].note
    assert note == (
        "For each sample DALI decodes 2 files and resizes and cuts 1 image; your own code draws the random "
        "numbers and does the rest on the thread of the training loop."
    )


def test_parity_compares_whole_samples(root: Path) -> None:
    loader = loader_of(Pairs(root))
    parity = loader.parity(6)
    assert (parity.backends, parity.samples, parity.skipped) == (("torchvision", "dali-cpu"), 6, 0)
    assert parity.steps == ()
    assert parity.parameters_equal
    assert parity.others_equal
    assert 0 < parity.mean < 1.5
    assert parity.mean < parity.greatest
    assert str(parity) == (
        f"dali-cpu and torchvision on 6 samples: images differ by {parity.mean:.2f} of 255 on average and by "
        f"{parity.greatest:.0f} at most. All else is equal, bit for bit."
    )
    assert loader.state()["samples"] == 0  # no batch of the loop's


def test_parity_draws_nothing_from_the_loops_generators(root: Path) -> None:
    loader = loader_of(Pairs(root))
    before = torch.get_rng_state()
    loader.parity(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_parity_leaves_out_what_dali_does_not_decode(root: Path) -> None:
    Image.open(paths(root)[3]).convert("CMYK").save(paths(root)[3])
    parity = loader_of(Pairs(root)).parity(COUNT)
    assert (parity.samples, parity.skipped) == (COUNT - 1, 1)
    assert str(parity).endswith(" 1 more not compared: dali-cpu leaves them to the data set's own code.")


# ---- Files that cannot be read.


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:60])
    return path


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_file_that_cannot_be_read_is_named(root: Path, backend: str, suffix: str) -> None:
    loader, skipping = loader_of(Pairs(root)), loader_of(Pairs(root), on_error="skip")
    bad = cut(paths(root)[5].with_suffix(suffix))
    with pytest.raises(SampleError) as caught:
        list(switch_to(loader, backend))
    assert (caught.value.path, caught.value.index) == (str(bad), 5)
    left = [int(index) for batch in switch_to(skipping, backend) for index in batch[2]]
    assert left == [index for index in range(COUNT) if index != 5]
    assert [(skipped.index, skipped.path) for skipped in skipping.skipped()] == [(5, str(bad))]


def test_a_sample_of_another_form_is_listed_with_its_reason(root: Path) -> None:
    loader = switch_to(loader_of(Pairs(root)), "dali-cpu")
    Image.open(paths(root)[5]).convert("L").save(paths(root)[5])
    expected = list(loader_of(Pairs(root)))
    same(list(loader), expected)
    (listed,) = loader.fallbacks() or [None]
    assert listed is None or (listed.index == 5 and listed.reason)


# ---- Loaders as people make them.


def epochs(loader: Any, count: int = 2) -> list[Any]:
    return [batch for _ in range(count) for batch in loader]


def test_workers_that_persist(root: Path) -> None:
    made: Callable[[], Any] = lambda: loader_of(  # noqa: E731
        Pairs(root), num_workers=1, persistent_workers=True, shuffle=True, generator=torch.Generator().manual_seed(2)
    )
    expected = epochs(made())
    loader = switch_to(made(), "dali-cpu")
    same(epochs(loader), expected)
    state = loader.state()
    assert (state["samples"], state["lost"], state["doubled"]) == (COUNT, 0, 0)  # of the second epoch


@pytest.mark.parametrize("rank", [0, 1])
def test_the_share_of_a_rank(root: Path, rank: int) -> None:
    def made() -> Any:
        data: Any = Pairs(root)
        return loader_of(data, sampler=DistributedSampler(data, num_replicas=2, rank=rank, seed=3))

    expected = list(made())
    same(list(switch_to(made(), "dali-cpu")), expected)
    shared: Any = DistributedSampler(Pairs(root), num_replicas=2, rank=rank, seed=3)  # type: ignore[arg-type]
    assert [int(index) for batch in expected for index in batch[2]] == list(shared)


def test_it_goes_on_in_mid_epoch_from_its_state(root: Path) -> None:
    expected = list(loader_of(Pairs(root)))
    first = switch_to(loader_of(Pairs(root)), "dali-cpu")
    iterator = iter(first)
    found = [next(iterator)]
    state = json.loads(json.dumps(first.state_dict()))
    second = loader_of(Pairs(root))
    second.load_state_dict(state)
    same([*found, *switch_to(second, "dali-cpu")], expected)
    assert (second.state()["lost"], second.state()["doubled"]) == (0, 0)


def test_synthetic_batches_have_the_samples_structure(root: Path) -> None:
    data: Any = Pairs(root)
    loader = switchable(DataLoader(data, batch_size=1), seed=SEED)
    switch_to(loader, "dali-cpu")
    found = list[Any]()
    for batch in loader:
        found.append(batch)
        if len(found) == 1:
            loader.switch("synthetic")
    assert len(found) == COUNT
    assert loader.state()["replaced"] > 0
    for batch in found:
        assert [type(part) for part in batch] == [type(part) for part in found[0]]
        assert [part.shape for part in batch] == [part.shape for part in found[0]]


def test_files_are_not_sent_to_other_machines(root: Path) -> None:
    source = loader_of(Pairs(root)).pool.setting.keyed.source
    assert source.unsendable == (
        "opens several images for a sample, or transforms one more than once, and one file is sent for each"
    )


def test_nothing_is_measured_in_advance_and_the_reason_is_known(root: Path) -> None:
    from kernel_monitor.loaders.calibration import calibrate

    state = calibrate(loader_of(Pairs(root)).pool.setting).state
    assert state["state"] == "failed"
    assert state["reason"] == "what DALI takes beside code of your own is not measured in advance"
