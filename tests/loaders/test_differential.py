"""Switchable loaders against plain torch, on random settings: data sets, samplers, workers, collates and targets that
draw, default dtypes, engines and switches. The same for DataLoaders that are only attached to, without and with clicks.

`make test-long` plays 10,000 cases, with a seed that it prints and that `CASES=long:SEED` plays again;
`CASES=3000:SEED` plays that many.
"""

from __future__ import annotations

import math
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.random_streams import Apart, Defaults

from .attached_loops import attaching, click, engines_of
from .conftest import seed_all, set_cores, settle
from .photos import Located

COUNT, LONG = 180, 10_000
COUNT_ATTACHED = 60  # without clicks, and as many with them
MOST = 12  # samples in a data set
SIDE, CROP = 40, 16  # of the images, pixels
BRIGHTER = 6  # of the red channel, for each column
KINDS = ("random", "numpy", "torch", "held")
SAMPLERS = ("sequential", "shuffle", "generator", "replacement", "weighted", "subset", "distributed", "batches", "lazy")
TRANSFORMS = ("fixed", "crops", "typed", "unknown")
TARGETS = ("none", "text", "pair", "nested", "noise")
COLLATES = ("default", "list", "drawing", "mixup")


@dataclass(frozen=True)
class Case:
    """One loader, and what is done with it. `engines` are switched to in turn, one for each batch."""

    seed: int
    files: str
    size: int
    sampler: str
    batch_size: int
    drop_last: bool
    workers: int
    prefetch: int
    persistent: bool
    transform: str
    target: str
    collate: str
    kind: str
    double: bool
    engines: tuple[str, ...]

    @property
    def number(self) -> int:
        """Another one for each case, or the distributions would be of the same draws again and again."""
        return zlib.crc32(repr(self).encode())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dali = draw(st.integers(0, 2)) == 0
    engines = ("torchvision", "dali-cpu", "threads") if dali else ("torchvision",)
    return Case(
        seed=draw(st.integers(0, 2**32)),
        files=draw(st.sampled_from(("folder", "folder", "subset", "concat", "own", "joint"))),
        size=draw(st.integers(4, MOST)),
        sampler=draw(st.sampled_from(SAMPLERS)),
        batch_size=draw(st.integers(2, 4)),
        drop_last=draw(st.booleans()),
        workers=draw(st.sampled_from((0,) * 18 + (1, 2))),
        prefetch=draw(st.integers(1, 3)),
        persistent=draw(st.booleans()),
        transform=draw(st.sampled_from(TRANSFORMS)),
        target=draw(st.sampled_from(TARGETS)),
        collate=draw(st.sampled_from(COLLATES)),
        kind=draw(st.sampled_from(KINDS)),
        double=draw(st.integers(0, 3)) == 0,
        engines=tuple(draw(st.lists(st.sampled_from(engines), min_size=1, max_size=3))),
    )


# -- what is wrapped --------------------------------------------------------------------------------------------------


class Draw:
    """A number in [0, 1) from one of the process's generators, or from one of its own."""

    def __init__(self, case: Case) -> None:
        self.kind = case.kind
        self.own = np.random.default_rng(case.number)

    def __call__(self) -> float:
        if self.kind == "random":
            return random.random()
        if self.kind == "numpy":
            return float(np.random.rand())  # noqa: NPY002 - what people's code draws from
        return float(torch.rand((), dtype=torch.float64)) if self.kind == "torch" else float(self.own.random())


class Target:
    """A target transform: the sample's number, in some form."""

    def __init__(self, case: Case) -> None:
        self.form, self.draw = case.target, Draw(case)

    def __call__(self, number: int) -> Any:
        forms: dict[str, Callable[[], Any]] = {
            "none": lambda: number,
            "text": lambda: f"sample {number}",
            "pair": lambda: (number, str(number)),
            "nested": lambda: {"number": number, "more": [float(number), (number,)]},
            "noise": lambda: (number, self.draw()),
        }
        return forms[self.form]()


class Collate:
    """Where the loop gets what was drawn for the batch, beside the batch."""

    def __init__(self, case: Case) -> None:
        self.form, self.draw = case.collate, Draw(case)
        self.mix = v2.MixUp(num_classes=MOST)

    def __call__(self, samples: list[Any]) -> Any:
        if self.form == "list":
            return samples
        if self.form == "drawing":
            return {"batch": default_collate(samples), "drawn": self.draw()}
        labels = torch.arange(len(samples))
        images = torch.stack([torch.as_tensor(image).as_subclass(torch.Tensor) for image, _ in samples]).float()
        mixed, labels = self.mix(images, labels)
        return {"batch": mixed, "targets": [target for _, target in samples], "drawn": float(labels[0, 0])}


class Noisy:
    def __init__(self, case: Case) -> None:
        self.draw = Draw(case)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        image = image.clone()
        image[2, 0, 0] = self.draw()
        return image


class Uneven(Sampler[list[int]]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        for size in (2, 1, 3, 2):
            yield torch.randint(self.length, (size,)).tolist()


class Lazy(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length, self.told = length, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            yield (number + self.told) % self.length

    def __len__(self) -> int:
        return self.length


def transform_of(case: Case) -> Any:
    chains: dict[str, list[Any]] = {
        "fixed": [v1.Resize((CROP, CROP)), v1.ToTensor()],
        "crops": [v1.RandomCrop(CROP), v1.RandomHorizontalFlip(0.0), v1.PILToTensor()],
        "typed": [v2.Resize((CROP, CROP)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
        "unknown": [v1.Resize((CROP, CROP)), v1.ToTensor(), Noisy(case)],
    }
    return v1.Compose(chains[case.transform])


class Both:
    """Transforms an image and its mask alike; where it draws, the mask becomes the image's fourth channel."""

    def __init__(self, case: Case) -> None:
        self.form, self.noisy = case.transform, Noisy(case)
        types = {tv_tensors.Image: torch.get_default_dtype(), "others": None}
        self.typed = v2.Compose([v2.Resize((CROP, CROP)), v2.ToImage(), v2.ToDtype(types, scale=True)])

    def __call__(self, image: Any, mask: Any) -> tuple[Any, Any]:
        if self.form == "crops":
            place = v1.RandomCrop.get_params(image, (CROP, CROP))
            return torch.cat([functional.pil_to_tensor(functional.crop(one, *place)) for one in (image, mask)]), None
        if self.form == "typed":
            image, mask = self.typed(image, tv_tensors.Mask(mask))
            return image, mask.flatten()
        image, mask = image.resize((CROP, CROP)), mask.resize((CROP, CROP), Image.Resampling.NEAREST)
        image, mask = functional.to_tensor(image), functional.pil_to_tensor(mask).flatten()
        return (self.noisy(image) if self.form == "unknown" else image), mask


class Joint(Dataset[Any]):
    """Images with their masks, written by hand."""

    def __init__(self, paths: Sequence[Path], transform: Any, target_transform: Any) -> None:
        self.paths, self.transform, self.target_transform = list(paths), transform, target_transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image, mask = Image.open(self.paths[index]).convert("RGB"), Image.open(mask_of(self.paths[index]))
        image, mask = self.transform(image, mask)
        target = self.target_transform(index)
        return image, target if mask is None else (target, mask)


def mask_of(path: Path) -> Path:
    root = path.parent.parent
    return root.with_name(f"{root.name}-masks") / f"{path.stem}.png"


class Guarded:
    """Calls what draws with generators of its own that go on: the loop.s are left alone."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.apart = Apart(Defaults.now())

    def __call__(self, *given: Any) -> Any:
        with self.apart:
            return self.call(*given)


def made(case: Case, files: list[Path], *, guards: str) -> tuple[DataLoader[Any], Any]:
    """A DataLoader, and what is told of the training (None where nobody is).

    `guards`: which calls leave the loop's generators alone where there are no workers: all, those that `draw`, or none.
    """

    def guarded(call: Any, draws: bool) -> Any:
        wanted = guards == "all" or (guards == "draw" and draws)
        return Guarded(call) if wanted and case.workers == 0 else call

    transform = guarded(
        Both(case) if case.files == "joint" else transform_of(case), case.transform in ("crops", "unknown")
    )
    target = guarded(Target(case), case.target == "noise")
    collate = None if case.collate == "default" else guarded(Collate(case), case.collate in ("drawing", "mixup"))
    folder = ImageFolder(files[0].parent.parent, transform, target)
    folder.samples = folder.imgs = [(str(file), number) for number, file in enumerate(files)]
    dataset: Any = Subset(folder, range(case.size))
    if case.files == "concat":
        dataset = ConcatDataset([Subset(folder, range(3)), Subset(folder, range(3, case.size))])
    elif case.files == "joint":
        dataset = Joint(files[: case.size], transform, target)
    elif case.files == "own":
        dataset = Located(files[: case.size], transform, target)
    elif case.files == "folder":
        folder.samples = folder.imgs = folder.samples[: case.size]
        dataset = folder
    samplers: dict[str, Callable[[], Any]] = {
        "sequential": lambda: SequentialSampler(dataset),
        "shuffle": lambda: RandomSampler(dataset),
        "generator": lambda: RandomSampler(dataset, generator=torch.Generator().manual_seed(case.seed)),
        "replacement": lambda: RandomSampler(dataset, replacement=True, num_samples=case.size + 3),
        "weighted": lambda: WeightedRandomSampler(list(range(1, case.size + 1)), case.size),
        "subset": lambda: SubsetRandomSampler(range(0, case.size, 2)),
        "distributed": lambda: DistributedSampler(dataset, num_replicas=2, rank=1, seed=case.seed % 1000),
        "batches": lambda: Uneven(case.size),
        "lazy": lambda: Lazy(case.size),
    }
    sampler = samplers[case.sampler]()
    options: dict[str, Any] = {"batch_sampler": sampler}
    if case.sampler != "batches":
        options = {"sampler": sampler, "batch_size": case.batch_size, "drop_last": case.drop_last}
    if case.workers:
        options |= {"prefetch_factor": case.prefetch, "persistent_workers": case.persistent}
    if collate is not None:
        options["collate_fn"] = collate
    return DataLoader(dataset, num_workers=case.workers, **options), sampler


# -- what is compared -------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What a run delivered: `exact` in everything but pixels and draws; those, for their distribution."""

    exact: list[Any] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)  # in a collate function or for a target; uniform
    mixed: list[float] = field(default_factory=list)  # MixUp's share of the first image
    crops: list[float] = field(default_factory=list)  # where a crop begins
    images: list[torch.Tensor] = field(default_factory=list)  # of what is not random


def described(value: Any, case: Case, seen: Seen) -> Any:
    """Type, shape and all that is not random of what the loop was given; what is random goes to `seen`."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        if value.ndim >= 3:
            for image in value if value.ndim == 4 else [value]:
                measured(image, case, seen)
        elif value.dtype == torch.float64 and case.target == "noise":
            seen.drawn += value.tolist()
            return kind, str(value.dtype), tuple(value.shape)
        pixels = () if value.ndim >= 3 else tuple(value.tolist())
        return kind, str(value.dtype), tuple(value.shape), value.is_contiguous(), pixels
    if isinstance(value, dict):
        drawn = value.pop("drawn", None)
        if drawn is not None:
            (seen.mixed if case.collate == "mixup" else seen.drawn).append(drawn)
        return kind, [(key, described(inner, case, seen)) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return kind, [described(inner, case, seen) for inner in value]
    if isinstance(value, float) and case.target == "noise":
        seen.drawn.append(value)
        return kind
    return kind, value


def measured(image: torch.Tensor, case: Case, seen: Seen) -> None:
    if case.collate == "mixup":
        return
    if len(image) == 4:  # with the mask, whose pixels are the numbers of their columns
        assert float((image[0] / BRIGHTER - image[3]).abs().max()) < 1
    if case.transform == "crops":
        seen.crops.append(float(image[0].double().mean()))
    elif case.transform == "unknown":
        seen.drawn.append(float(image[2, 0, 0]))
    else:
        seen.images.append(image.detach().clone())


def run(case: Case, loader: Any, sampler: Any, click: Callable[[Any, str], None] | None = None) -> Seen:
    """Two epochs of a loop that draws, too, and tells the sampler of it.

    `click` is called with a DataLoader and an engine after each batch, or after each epoch, or both.
    """
    seen = Seen()
    clicks_at = case.number % 3
    for epoch in range(2):
        if case.sampler == "distributed":
            (loader if isinstance(loader, SwitchableLoader) else sampler).set_epoch(epoch)
        for number, batch in enumerate(loader):
            seen.exact.append(described(batch, case, seen))
            seen.exact.append((float(torch.rand(())), random.random(), float(np.random.rand())))  # noqa: NPY002
            sampler.told = number * 5 + int(torch.randint(9, ()))
            if isinstance(loader, SwitchableLoader):
                wanted = case.engines[number % len(case.engines)]
                if loader.backends[wanted].available:  # grey where it would be slower
                    loader.switch(wanted)
                if number == 0:
                    settle(loader)
            elif click is not None and clicks_at != 0:
                click(loader, case.engines[number % len(case.engines)])
        if click is not None and clicks_at != 1:
            click(loader, case.engines[epoch % len(case.engines)])
    seen.exact.append(Defaults.now().plain())
    return seen


@contextmanager
def begun(case: Case) -> Iterator[None]:
    seed_all(case.number % 2**31)
    torch.set_default_dtype(torch.float64 if case.double else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def distance(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Kolmogorov and Smirnov's distance of two samples, and the one that fewer than 1 in 100,000 true pairs exceed."""
    points = np.unique([*ours, *theirs])
    at = [np.searchsorted(np.sort(one), points, side="right") / len(one) for one in (ours, theirs)]
    bound = math.sqrt(math.log(2 / 1e-5) / 2 * (1 / len(ours) + 1 / len(theirs)))
    return float(np.abs(at[0] - at[1]).max()), bound


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images that are brighter in red from left to right, in several formats."""
    root = tmp_path_factory.mktemp("differential")
    found = []
    for number in range(MOST):
        pixels = np.zeros((SIDE, SIDE, 3), dtype=np.uint8)
        pixels[:, :, 0] = np.arange(SIDE) * BRIGHTER
        pixels[:, :, 1] = number * 20
        path = root / "all" / f"{number:02d}{('.png', '.bmp', '.jpg')[number % 3]}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=98)
        mask_of(path).parent.mkdir(exist_ok=True)
        Image.fromarray(np.tile(np.arange(SIDE, dtype=np.uint8), (SIDE, 1))).save(mask_of(path))
        found.append(path)
    return found


def play(capsys: pytest.CaptureFixture[str], count: int, compare: Callable[[Case], None]) -> list[Case]:
    """Compare that many cases, or as many as `CASES` says; returns them."""
    kind, _, seed = os.environ.get("CASES", "").partition(":")
    count = {"": count, "long": LONG}.get(kind) or int(kind)
    tried = []

    @hypothesis.settings(
        max_examples=count,
        derandomize=not kind,
        database=None,
        deadline=None,
        print_blob=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(cases())
    def played(case: Case) -> None:
        tried.append(case)
        compare(case)

    if kind:
        number = int(seed) if seed else int.from_bytes(os.urandom(4), "little")
        with capsys.disabled():
            print(f"\nto play these cases again: CASES={kind}:{number}", flush=True)
        played = hypothesis.seed(number)(played)
    played()
    assert len(tried) >= count
    return tried


def assert_same_images(seen: Seen, plain: Seen) -> None:
    for image, other in zip(seen.images, plain.images, strict=True):
        assert image.dtype == other.dtype
        unit = 255 if image.dtype == torch.uint8 else 1
        assert float((image.double() - other.double()).abs().mean()) <= 0.01 * unit


@dataclass
class Distributions:
    """What was drawn in all cases."""

    ours: Seen = field(default_factory=Seen)
    theirs: Seen = field(default_factory=Seen)

    def add(self, seen: Seen, plain: Seen) -> None:
        for all_of, one in ((self.ours, seen), (self.theirs, plain)):
            for name in ("drawn", "mixed", "crops"):
                getattr(all_of, name).extend(getattr(one, name))

    def compare(self, capsys: pytest.CaptureFixture[str], tried: list[Case]) -> None:
        figures = {
            name: distance(getattr(self.ours, name), getattr(self.theirs, name)) for name in ("drawn", "mixed", "crops")
        }
        switched = sum(len(set(case.engines)) > 1 or case.engines != ("torchvision",) for case in tried)
        workers = sum(case.workers > 0 for case in tried)
        with capsys.disabled():
            shown = ", ".join(f"{name} {found:.3f} (bound {bound:.3f})" for name, (found, bound) in figures.items())
            print(
                f"\n{len(tried):,} cases, {switched:,} of them on DALI, {workers:,} with workers; "
                f"Kolmogorov-Smirnov distance from plain torch: {shown}",
                flush=True,
            )
        assert all(found <= bound for found, bound in figures.values())


def test_random_loaders_deliver_what_plain_torch_delivers(
    files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cores(monkeypatch, 2)  # the same engines on every machine
    drawn = Distributions()

    def compare(case: Case) -> None:
        with begun(case):
            plain = run(case, *made(case, files, guards="all"))
        with begun(case):
            wrapped, sampler = made(case, files, guards="none")
            loader = switchable(wrapped)
            seen = run(case, loader, sampler)
            loader.release()
        assert seen.exact == plain.exact
        assert_same_images(seen, plain)
        drawn.add(seen, plain)
        assert len(set(seen.drawn)) == len(seen.drawn) or case.kind == "held"

    drawn.compare(capsys, play(capsys, COUNT, compare))


def test_random_loaders_that_are_attached_to_are_plain_torch_s(
    files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a click each bit is the same, while another thread reads all that a page reads."""

    def compare(case: Case) -> None:
        with begun(case):
            plain = run(case, *made(case, files, guards="none"))
        with begun(case), attaching(polled=True):
            loader, sampler = made(case, files, guards="none")
            before = dict(vars(loader))
            seen = run(case, loader, sampler)
            assert len(engines_of(loader).epochs()) == 2
            assert type(loader) is DataLoader
            assert {name: value for name, value in vars(loader).items() if name != "_iterator"} == {
                name: value for name, value in before.items() if name != "_iterator"
            }
        assert seen.exact == plain.exact
        for name in ("drawn", "mixed", "crops"):
            assert getattr(seen, name) == getattr(plain, name)
        for image, other in zip(seen.images, plain.images, strict=True):
            assert image.dtype == other.dtype
            assert torch.equal(image, other)

    play(capsys, COUNT_ATTACHED, compare)


def test_random_loaders_that_are_clicked_deliver_what_plain_torch_delivers(
    files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cores(monkeypatch, 2)
    drawn, decoded = Distributions(), Counter[str]()

    def compare(case: Case) -> None:
        with begun(case):
            plain = run(case, *made(case, files, guards="all"))
        with begun(case), attaching():
            loader, sampler = made(case, files, guards="draw")
            seen = run(case, loader, sampler, click)
            for record in engines_of(loader).records():
                decoded.update(record.decoded)
            engines_of(loader).release()
        assert seen.exact == plain.exact
        assert_same_images(seen, plain)
        drawn.add(seen, plain)

    drawn.compare(capsys, play(capsys, COUNT_ATTACHED, compare))
    assert decoded["dali-cpu"] > 10
    assert decoded["torchvision"] > 10
