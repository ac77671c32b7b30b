"""The random numbers of the user's own code: they advance, do not depend on the engine, and leave the loop's alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import v2

from kernel_monitor.loaders import SwitchableLoader, random_streams, switchable
from kernel_monitor.loaders.random_streams import Defaults, held_generators

from .conftest import augmented, make_folder, seed_all, set_cores, switch_to

SAMPLES, BATCH = 24, 4
MODULE_S_OWN = np.random.default_rng(7)


class Draw:
    """Draws a number in [0, 1) from one kind of generator, of the process's or its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        # Not beside the others: torch itself cannot give one to workers that are not forked.
        self.generators = [torch.Generator().manual_seed(1)] if kind == "torch, held" else []
        self.newer = {"numpy": np.random.default_rng(2)}
        self.own = random.Random(3)
        self.legacy = np.random.RandomState(4)

    def __call__(self) -> float:
        match self.kind:
            case "random":
                return random.random()
            case "numpy":
                return float(np.random.rand())  # noqa: NPY002 - what people's code draws from
            case "torch":
                return float(torch.rand((), dtype=torch.float64))
            case "torch, held":
                return float(torch.rand((), dtype=torch.float64, generator=self.generators[0]))
            case "numpy, held":
                return float(self.newer["numpy"].random())
            case "random, held":
                return self.own.random()
            case "numpy's older one, held":
                return float(self.legacy.rand())
            case _:
                return float(MODULE_S_OWN.random())


KINDS = (
    "random",
    "numpy",
    "torch",
    "torch, held",
    "numpy, held",
    "random, held",
    "numpy's older one, held",
    "numpy, of the module",
)


class Drawing(Dataset[Any]):
    """A data set that draws wherever the user's own code may: for its file, in its transform, for its target."""

    def __init__(self, files: list[Path], kind: str, *, marks: bool = False) -> None:
        self.files = files
        self.draw = Draw(kind)
        self.in_transform = Draw(kind)
        self.in_target = Draw(kind)
        last = [self.marked] if marks else []
        self.transform = v1.Compose([v1.Resize((16, 16)), v1.ToTensor(), *last])

    def __len__(self) -> int:
        return len(self.files)

    def image_file(self, index: int) -> tuple[Path, tuple[int, float]]:
        return self.files[index], (index, self.draw())

    def target_transform(self, target: tuple[int, float]) -> tuple[int, float, float]:
        return *target, self.in_target()

    def marked(self, image: torch.Tensor) -> torch.Tensor:
        image = image.double()
        image[0, 0, 0] = self.in_transform()
        return image


class Collate:
    """Also draws, once for each batch."""

    def __init__(self, kind: str) -> None:
        self.draw = Draw(kind)

    def __call__(self, samples: list[Any]) -> tuple[list[float], list[Any], float]:
        return [float(image[0, 0, 0]) for image, _ in samples], [target for _, target in samples], self.draw()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_folder(tmp_path_factory.mktemp("drawing"), SAMPLES).glob("*/*.jpg"))


def wrapped(dataset: Any, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, **options)


def two_epochs(loader: SwitchableLoader, engines: list[str]) -> list[Any]:
    """What two epochs deliver, with the engines in turn, batch by batch."""
    delivered: list[Any] = []
    for _ in range(2):
        for number, batch in enumerate(loader):
            delivered.append(batch)
            switch_to(loader, engines[number % len(engines)])
    loader.release()
    return delivered


ENGINES = (["torchvision"], ["dali-cpu"], ["torchvision", "dali-cpu"], ["threads"])


def drawn_by(files: list[Path], kind: str, workers: int, engines: list[str], *, marks: bool) -> list[Any]:
    """What two epochs deliver; everything drawn is asserted to be another number."""
    seed_all()
    dataset, collate = Drawing(files, kind, marks=marks), Collate(kind)
    loader = switchable(wrapped(dataset, workers, collate_fn=collate))
    held = held_generators([dataset, collate])
    before = [repr(one.get_state()) if isinstance(one, torch.Generator) else None for one in held]
    delivered = two_epochs(loader, engines)
    assert before == [repr(one.get_state()) if isinstance(one, torch.Generator) else None for one in held]
    draws = {
        "data set": [draw for _, targets, _ in delivered for _, draw, _ in targets],
        "target": [draw for _, targets, _ in delivered for _, _, draw in targets],
        "collate": [draw for _, _, draw in delivered],
    }
    if marks:
        draws["transform"] = [draw for images, _, _ in delivered for draw in images]
    for place, numbers in draws.items():
        assert len(set(numbers)) == len(numbers), f"{place}: {len(set(numbers))} distinct of {len(numbers)}"
    assert len({number for numbers in draws.values() for number in numbers}) == sum(map(len, draws.values()))
    return [(images if marks else None, targets, draw) for images, targets, draw in delivered]


@pytest.mark.parametrize("kind", KINDS)
def test_what_user_code_draws_advances_and_does_not_depend_on_the_engine(files: list[Path], kind: str) -> None:
    # Where a transform is not known to DALI, and there are workers, it is left to some: see the next test.
    without = [(workers, engines) for workers in (2, 0) for engines in (ENGINES if workers else ENGINES[2:3])]
    for marks, ways in ((False, without), (True, [(0, engines) for engines in ENGINES])):
        runs = [drawn_by(files, kind, workers, engines, marks=marks) for workers, engines in ways]
        assert all(run == runs[0] for run in runs)


def test_so_it_is_where_dali_leaves_transforms_to_workers(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(monkeypatch, 64)
    expected = drawn_by(files, "numpy, held", 1, ["torchvision"], marks=True)
    assert drawn_by(files, "numpy, held", 1, ["dali-cpu", "dali-cpu", "torchvision"], marks=True) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ["torchvision", "dali-cpu"])
def test_the_loop_s_own_generators_are_left_as_plain_torch_leaves_them(
    files: list[Path], engine: str, workers: int
) -> None:
    def loops_own(epochs: list[Any]) -> list[Any]:
        """What a loop draws between its batches, and the states at the end."""
        drawn = []
        for epoch in epochs:
            for _ in epoch:
                drawn += [torch.rand(1).item(), random.random(), np.random.rand()]  # noqa: NPY002
        return [*drawn, Defaults.now().plain()]

    seed_all()
    plain = wrapped(ImageFolder(files[0].parent.parent, augmented()), 2)  # with workers: its samples draw elsewhere
    expected = loops_own([plain, plain])
    seed_all()
    loader = switchable(wrapped(Drawing(files, "numpy"), workers, collate_fn=Collate("torch")))
    switch_to(loader, engine)
    assert loops_own([loader, loader]) == expected
    assert loader.decoded()


@pytest.mark.parametrize("mixing", [v2.MixUp, v2.CutMix])
@pytest.mark.parametrize(
    ("engine", "workers"), [("torchvision", 0), ("torchvision", 2), ("dali-cpu", 0), ("dali-cpu", 2)]
)
def test_mixing_in_the_collate_function_draws_anew_for_each_batch(
    files: list[Path], mixing: Any, engine: str, workers: int
) -> None:
    mix = mixing(num_classes=BATCH)

    def collate(samples: list[Any]) -> Any:
        return mix(*default_collate([(image, place) for place, (image, _) in enumerate(samples)]))

    def shares(batches: Any) -> list[float]:
        return [round(float(labels[0, 0]), 9) for _, labels in batches]

    torch.manual_seed(3)
    plain = shares(wrapped(ImageFolder(files[0].parent.parent, augmented()), workers, collate_fn=collate))
    loader = switchable(wrapped(ImageFolder(files[0].parent.parent, augmented()), workers, collate_fn=collate))
    switch_to(loader, engine)
    ours = shares(loader)
    assert len(ours) == len(plain) == SAMPLES // BATCH
    most = len(plain) - (mixing is v2.CutMix)  # whose share is of whole pixels, so that two may be equal
    assert len(set(plain)) >= most
    assert len(set(ours)) >= most, f"{len(set(ours))} distinct of {len(ours)}"


def images_of(batches: Any) -> list[bytes]:
    return [image.numpy().tobytes() for images, _ in batches for image in images]


@pytest.mark.parametrize("engine", ["torchvision", "dali-cpu"])
def test_two_loaders_over_one_data_set_do_not_repeat_each_other(files: list[Path], engine: str) -> None:
    dataset = ImageFolder(files[0].parent.parent, augmented())

    def made() -> SwitchableLoader:
        loader = switchable(DataLoader(dataset, batch_size=BATCH, num_workers=0))
        switch_to(loader, engine)
        return loader

    def run() -> list[bytes]:
        torch.manual_seed(4)
        one, other = made(), made()
        pairs = list(zip(one, other, strict=True))
        again = made()
        seen = images_of(pair[0] for pair in pairs) + images_of(pair[1] for pair in pairs) + images_of(again)
        for loader in (one, other, again):
            loader.release()
        return seen

    seen = run()
    assert len(seen) == 3 * SAMPLES
    assert len(set(seen)) == len(seen), f"{len(seen) - len(set(seen))} images came again, bit for bit"
    assert run() == seen, "manual_seed must reproduce a run"


def test_a_seed_that_is_given_is_of_every_loader_that_has_it(files: list[Path]) -> None:
    dataset = ImageFolder(files[0].parent.parent, augmented())
    one, other = (images_of(switchable(DataLoader(dataset, batch_size=BATCH), seed=9)) for _ in range(2))
    assert one == other


def test_an_iterator_that_never_delivers_costs_neither_an_epoch_nor_a_draw(files: list[Path]) -> None:
    def order(looks: int, workers: int, drawn_between: bool = False) -> tuple[list[Any], list[int], Any]:
        torch.manual_seed(5)
        loader = switchable(wrapped(ImageFolder(files[0].parent.parent, augmented()), workers))
        for _ in range(looks):
            iter(loader)
        if drawn_between:
            torch.rand(1)
        epochs = [[images_of([batch])[0] for batch in loader] for _ in range(2)]
        numbers = [counts["epoch"] for counts in loader.epochs()]
        loader.release()
        return epochs, numbers, Defaults.now().plain()["torch"]

    for workers in (0, 2):
        plain = order(0, workers)
        assert plain[1] == [0, 1]
        assert order(3, workers) == plain
        assert order(3, workers, drawn_between=True) == order(0, workers, drawn_between=True)


def test_a_look_does_not_use_up_a_loaded_state(files: list[Path]) -> None:
    def made() -> SwitchableLoader:
        return switchable(wrapped(ImageFolder(files[0].parent.parent, augmented()), 0))

    torch.manual_seed(6)
    loader = made()
    batches: Iterator[Any] = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = images_of(batches)
    resumed = made()
    resumed.load_state_dict(state)
    iter(resumed)
    assert images_of(resumed) == rest


def test_a_generator_is_found_wherever_it_is_held() -> None:
    one, two, three = torch.Generator(), random.Random(), np.random.default_rng()

    class Slotted:
        __slots__ = ("rng",)

        def __init__(self, rng: Any) -> None:
            self.rng = rng

    def closing(value: Any = two) -> Any:
        return one, value

    cases: list[tuple[Any, Any]] = [
        ({"deep": [(one,)]}, [one]),
        (closing, [one, two]),
        (Slotted(three), [three]),
        (v1.Compose([v1.Lambda(closing)]), [one, two]),
        (Draw("torch, held").__call__, 4),
        ([torch.default_generator, random.SystemRandom()], []),
        ([[0] * 10_000, "text", np.zeros(3)], []),
    ]
    for root, expected in cases:
        found = held_generators([root])
        if isinstance(expected, int):
            assert len(found) == expected + 1  # and that of this module, which it draws from as well
        else:
            assert {id(generator) for generator in found} == {id(generator) for generator in expected}


@pytest.mark.parametrize("own", [False, True])
def test_only_the_loop_s_thread_touches_the_generators(
    files: list[Path], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    touching: set[str] = set()

    def noting(function: Any) -> Any:
        def noted(*given: Any) -> Any:
            touching.add(threading.current_thread().name)
            return function(*given)

        return noted

    for kind, name in (
        (Defaults, "restore"),
        (random_streams.Streams, "seed"),
        (random_streams.ApartFromTransforms, "__enter__"),
        (random_streams.ApartFromTransforms, "__exit__"),
    ):
        monkeypatch.setattr(kind, name, noting(getattr(kind, name)))
    dataset: Any = Drawing(files, "torch") if own else ImageFolder(files[0].parent.parent, augmented())
    for workers in (0, 2):
        loader = switchable(wrapped(dataset, workers))
        for number, _ in enumerate(loader):  # DALI is prepared beside the loop
            switch_to(loader, ["dali-cpu", "torchvision"][number % 2])
        loader.set(threads=2, prefetch=3)
        switch_to(loader, "dali-cpu")
        list(loader)
        loader.release()
    assert touching == {threading.main_thread().name}


@pytest.mark.parametrize("what", ["transform", "loader"])
def test_code_that_draws_and_comes_in_the_middle_of_an_epoch_leaves_the_loop_s_alone(
    files: list[Path], what: str
) -> None:
    def noisy(given: Any) -> Any:
        np.random.rand()  # noqa: NPY002
        return pil_loader(given) if what == "loader" else v1.functional.to_tensor(given.resize((16, 16)))

    dataset = ImageFolder(files[0].parent.parent, v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
    loader = switchable(DataLoader(dataset, batch_size=BATCH))
    np.random.seed(5)  # noqa: NPY002
    expected = [float(number) for number in np.random.rand(SAMPLES // BATCH)]  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    drawn = []
    for number, _ in enumerate(loader):
        drawn.append(float(np.random.rand()))  # noqa: NPY002
        if number == 1:
            setattr(dataset, what, noisy)
    assert drawn == expected
