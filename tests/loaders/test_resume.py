"""An epoch that was saved in its middle goes on with exactly what was left of it, crops and flips included."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import SwitchableLoader, switchable

from .conftest import augmented, seed_all, switch_to

SIZE = 243
Batches = list[tuple[torch.Tensor, torch.Tensor]]
Options = Callable[[Any], dict[str, Any]]


class Shuffled(Sampler[int]):
    """Draws its order by Python's or numpy's own generator, as many a hand-written sampler does."""

    def __init__(self, by: str) -> None:
        self._by = by

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        order = list(range(60))
        if self._by == "python":
            random.shuffle(order)
        else:
            np.random.shuffle(order)  # noqa: NPY002 - what such samplers use
        return iter(order)


class OneByOne(Sampler[int]):
    """Draws each index from torch's default generator only when it is asked for."""

    def __len__(self) -> int:
        return 50

    def __iter__(self) -> Iterator[int]:
        for _ in range(50):
            yield int(torch.randint(SIZE, ()))


class Stateful(Sampler[int]):
    """A sampler whose order depends on what came in earlier epochs, with torchdata's two methods.

    Like torchdata's StatefulDistributedSampler it says that everything was yielded until its next epoch begins.
    """

    def __init__(self) -> None:
        self.turn = 0
        self.yielded = 0
        self.skip = 0

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        skip, self.skip = self.skip, 0
        self.yielded = skip
        for index in range(skip, 40):
            self.yielded += 1
            yield (index * 3 + self.turn * 7) % SIZE
        if not skip:
            self.turn += 1

    def state_dict(self) -> dict[str, int]:
        return {"turn": self.turn, "yielded": self.yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.turn, self.skip = state["turn"], state["yielded"]


CASES: dict[str, Options] = {
    "sequential": lambda _: {"batch_size": 20},
    "shuffle": lambda _: {"batch_size": 20, "shuffle": True},
    "drop_last": lambda _: {"batch_size": 20, "shuffle": True, "drop_last": True},
    "generator": lambda _: {"batch_size": 20, "shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "replacement": lambda data: {"batch_size": 20, "sampler": RandomSampler(data, True, 90)},
    "weighted": lambda _: {"batch_size": 20, "sampler": WeightedRandomSampler([1.0, 9.0] * 100, 70)},
    "subset": lambda _: {
        "batch_size": 20,
        "sampler": SubsetRandomSampler(range(0, SIZE, 3), torch.Generator().manual_seed(8)),
    },
    "distributed": lambda data: {"batch_size": 20, "sampler": DistributedSampler(data, 2, 1, seed=4)},
    "batch_sampler": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 30, False)},
    "python": lambda _: {"batch_size": 20, "sampler": Shuffled("python")},
    "numpy": lambda _: {"batch_size": 20, "sampler": Shuffled("numpy")},
    "one by one": lambda _: {"batch_size": 20, "sampler": OneByOne()},
    "stateful": lambda _: {"batch_size": 12, "sampler": Stateful()},
}


@pytest.fixture
def build(folder: Path) -> Callable[..., SwitchableLoader]:
    def build(case: str, *, seed: int | None = 5, **options: Any) -> SwitchableLoader:
        data = ImageFolder(folder, augmented(16))
        return switchable(DataLoader(data, **{**CASES[case](data), **options}), seed=seed)

    return build


def same(left: Batches, right: Batches) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(left, right, strict=True)
    )


def left(loader: Any, batches: int) -> tuple[dict[str, Any], Batches]:
    """The state after so many batches, and the rest of the epoch."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict(), [tuple(batch) for batch in iterator]


def through_a_file(state: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """By all three ways on which checkpoints travel."""
    state = json.loads(json.dumps(state))
    state = pickle.loads(pickle.dumps(state))  # noqa: S301 - its own
    torch.save(state, tmp_path / "checkpoint.pt")
    loaded: dict[str, Any] = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    return loaded


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_rest_of_an_epoch_and_the_next_one(build: Any, tmp_path: Path, case: str, workers: int) -> None:
    seed_all(1)
    undisturbed = build(case, num_workers=workers)
    expected: list[Batches] = []
    for epoch in range(3):
        if case == "distributed":
            undisturbed.set_epoch(epoch)
        expected.append([tuple(batch) for batch in undisturbed])

    seed_all(1)
    first = build(case, num_workers=workers)
    state: dict[str, Any] = {}
    for epoch in range(2):
        if case == "distributed":
            first.set_epoch(epoch)
        for number, _ in enumerate(first):
            if (epoch, number) == (1, 1):
                state = through_a_file(first.state_dict(), tmp_path)
                break

    seed_all(99)  # as a new process has it
    second = build(case, num_workers=workers, seed=None)
    second.load_state_dict(state)
    assert second.state_dict() == state
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    rest = [tuple(batch) for batch in second]
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert same(rest, expected[1][2:])
    counts = second.epochs()[-1]
    assert counts["epoch"] == 1
    assert counts["batches"] == len(expected[1])
    assert counts["samples"] == counts["planned"] == sum(len(targets) for _, targets in expected[1])
    assert (counts["lost"], counts["doubled"]) == (0, 0)
    assert len(second.decoders()) == counts["samples"]
    assert second.plan() == undisturbed.plan(1)
    assert len(second) == len(undisturbed)
    if case == "distributed":
        second.set_epoch(2)
    if case in ("sequential", "generator", "subset", "distributed", "stateful"):  # do not draw from the process's
        assert same([tuple(batch) for batch in second], expected[2])


@pytest.mark.parametrize("case", ["shuffle", "stateful", "distributed"])
def test_a_state_of_an_epochs_end_or_of_before_the_first_one_starts_the_next(build: Any, case: str) -> None:
    seed_all(1)
    first = build(case)
    states = [first.state_dict()]
    expected: list[Batches] = []
    for _ in range(3):
        expected.append([tuple(batch) for batch in first])
        states.append(first.state_dict())
    for epoch in (0, 1, 2):
        seed_all(50)
        second = build(case, seed=None)
        second.load_state_dict(states[epoch])
        assert same([tuple(batch) for batch in second], expected[epoch])
        assert second.epochs()[-1]["epoch"] == epoch


def test_after_the_last_batch_nothing_is_left_and_then_comes_the_next_epoch(build: Any) -> None:
    first = build("generator")
    state, rest = left(first, len(first))
    assert rest == []
    following = [tuple(batch) for batch in first]
    second = build("generator")
    second.load_state_dict(state)
    assert list(second) == []
    assert second.state()["samples"] == second.state()["planned"] == SIZE
    assert same([tuple(batch) for batch in second], following)


def test_a_training_that_restores_the_generators_too_goes_on_in_every_respect(build: Any) -> None:
    """Dropout and the like draw from torch's generator between the batches."""
    torch.manual_seed(1)
    first = build("shuffle", num_workers=2)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
        torch.rand(7)
    state, generator = first.state_dict(), torch.get_rng_state()
    rest = [tuple(batch) for batch in iterator]
    drawn, following = float(torch.rand(())), [tuple(batch) for batch in first]

    second = build("shuffle", num_workers=2)
    second.load_state_dict(state)
    torch.set_rng_state(generator)
    assert same([tuple(batch) for batch in second], rest)
    assert float(torch.rand(())) == drawn
    assert same([tuple(batch) for batch in second], following)


@pytest.mark.parametrize("workers", [0, 2])
def test_on_another_engine_with_workers_that_exist_already(build: Any, workers: int) -> None:
    torch.manual_seed(1)
    first = build("replacement", num_workers=workers, seed=7)
    state, rest = left(first, 1)

    second = build("replacement", num_workers=workers, seed=1234)  # the workers learn of the state's seed
    for _ in second:
        pass
    second.load_state_dict(state)
    assert same([tuple(batch) for batch in second], rest)

    switch_to(second, "dali-cpu")
    second.load_state_dict(state)
    on_dali, again = [], {}
    for number, batch in enumerate(second):
        on_dali.append(tuple(batch))
        if number == 1:
            again = second.state_dict()
    assert second.backend == "dali-cpu"
    assert second.decoded() == {"torchvision": 20, "dali-cpu": 70}
    for ours, expected in zip(on_dali, rest, strict=True):
        assert torch.equal(ours[1], expected[1])
        difference = (ours[0] - expected[0]).abs().mean(dim=(1, 2, 3)) * 255 * 0.226
        assert difference.max() < 2

    second.switch("torchvision")  # saved on DALI, resumed on torchvision
    second.load_state_dict(again)
    assert same([tuple(batch) for batch in second], rest[2:])
    assert second.decoded() == {"torchvision": 50, "dali-cpu": 40}


def test_resumed_with_another_number_of_workers(build: Any) -> None:
    torch.manual_seed(1)
    first = build("shuffle", num_workers=2)
    state, rest = left(first, 1)
    second = build("shuffle", num_workers=0)
    second.load_state_dict(state)
    assert same([tuple(batch) for batch in second], rest)


def test_no_sample_of_before_is_computed_again(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = build("generator")
    state, _ = left(loader, 5)
    second = build("generator")
    second.load_state_dict(state)
    opened: list[str] = []
    real = second.dataset.loader

    def noted(path: str) -> Any:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(second.dataset, "loader", noted)
    assert len(list(second)) == 8
    assert len(opened) == SIZE - 5 * 20


def test_a_sampler_that_draws_something_else_is_told(build: Any) -> None:
    class Moody(Sampler[int]):
        turn = 0

        def __len__(self) -> int:
            return 30

        def __iter__(self) -> Iterator[int]:
            Moody.turn += 1
            return iter(range(Moody.turn, Moody.turn + 30))

    loader = build("sequential", sampler=Moody())
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    for _ in range(2):  # the state stays loaded: to try again must not begin another epoch unnoticed
        with pytest.raises(MonitorError, match=r"Epoch 0 cannot be resumed.*torch\.Generator"):
            iter(loader)
    loader.load_state_dict({})
    assert len(list(loader)) == 2


def test_states_that_do_not_fit_are_refused_in_a_sentence(build: Any) -> None:
    loader = build("generator")
    next(iter(loader))
    state = loader.state_dict()
    refusals: list[tuple[Any, str]] = [
        ({**state, "length": 7}, "length 7, and this loader has 243"),
        ({**state, "batch_size": 3}, "batch size 3, and this loader has 20"),
        ({**state, "drop_last": True}, "drop last True, and this loader has False"),
        ({**state, "version": 99}, "format 99"),
        ({"epoch": 1}, "not the state of a switchable loader"),
        (None, "not the state of a switchable loader"),
    ]
    for wrong, message in refusals:
        with pytest.raises(MonitorError, match=message):
            loader.load_state_dict(wrong)
    with pytest.raises(MonitorError, match=r"generators at .*generator, and this loader has them at none"):
        build("sequential").load_state_dict(state)
    assert len(list(loader)) == 13  # a refused state changes nothing
