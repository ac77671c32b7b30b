"""The order that a loop sees where accelerate or Transformers' Trainer prepares the loader: that of a DataLoader.

Both replace the sampler of a shuffled DataLoader by one that is seeded, and number its epochs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler
from torchvision.datasets import ImageFolder

from kernel_monitor.loaders import SwitchableLoader, switchable

from ..combinations import combinations
from .conftest import augmented, run_python, settle

os.environ["HF_HUB_OFFLINE"] = "1"

from transformers import Trainer, TrainingArguments

SAMPLES, BATCH, STEPS = 22, 4, 6  # batches of an epoch

Wrap = Callable[[DataLoader[Any]], Any]
WRAPS: tuple[Wrap, Wrap] = (lambda loader: loader, switchable)


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def collated(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Of numbers, or of images with their numbers."""
    images = torch.stack([sample[0].mean() if isinstance(sample, tuple) else torch.tensor(0.5) for sample in samples])
    return {"x": images[:, None], "index": torch.tensor([s[1] if isinstance(s, tuple) else s for s in samples])}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []
        self.after: Callable[[int], None] = lambda step: None

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        self.after(len(self.seen))
        return {"loss": self.layer(x).mean()}


def train(make: Callable[[], Any], folder: Path, model: Model, resume: str | None = None, **options: Any) -> None:
    """Train for three epochs on the loader made, with a checkpoint in the second."""

    class Training(Trainer):
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(make())

    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="steps",
        save_steps=STEPS + 2,
        num_train_epochs=3,
        **options,
    )
    Training(model, arguments, train_dataset=Numbers()).train(resume_from_checkpoint=resume)


OPTIONS: list[dict[str, Any]] = [{}, {"data_seed": 7}, {"accelerator_config": {"use_seedable_sampler": False}}]


@pytest.mark.parametrize("options", OPTIONS, ids=["seed", "data_seed", "not seedable"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_sees_the_order_of_a_dataloader(tmp_path: Path, workers: int, options: dict[str, Any]) -> None:
    seen = []
    for number, wrap in enumerate(WRAPS):
        folder = tmp_path / str(number)
        whole, rest = Model(), Model()

        def make(wrap: Wrap = wrap) -> Any:
            return wrap(DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers, collate_fn=collated))

        train(make, folder, whole, **options)
        train(make, folder, rest, resume=str(folder / f"checkpoint-{STEPS + 2}"), **options)
        seen.append((whole.seen, rest.seen))
    assert seen[0] == seen[1]
    whole_seen, rest_seen = seen[1]
    epochs = [list(chain(*whole_seen[first : first + STEPS])) for first in (0, STEPS, 2 * STEPS)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    if "accelerator_config" not in options:
        assert rest_seen == whole_seen[STEPS + 2 :]


def test_a_click_in_the_middle_keeps_the_order_of_a_trainer(tmp_path: Path, folder: Path) -> None:
    seen, loaders = [], []
    for number, wrap in enumerate(WRAPS):
        dataset = ImageFolder(folder, augmented())
        dataset.samples = [(path, place) for place, (path, _) in enumerate(dataset.samples[:SAMPLES])]
        dataset.imgs, dataset.targets = dataset.samples, list(range(SAMPLES))
        model = Model()

        def make(wrap: Wrap = wrap, dataset: Any = dataset) -> Any:
            loaders.append(wrap(DataLoader(dataset, BATCH, shuffle=True, num_workers=2, collate_fn=collated)))
            return loaders[-1]

        def click(step: int) -> None:
            if step == STEPS + 2 and isinstance(loaders[-1], SwitchableLoader):
                loaders[-1].switch("dali-cpu")
                settle(loaders[-1])

        model.after = click
        train(make, tmp_path / str(number), model)
        seen.append(model.seen)
    assert seen[0] == seen[1]
    assert loaders[-1].backend == "dali-cpu"


@pytest.fixture
def accelerators() -> Iterator[Callable[..., Accelerator]]:
    def make(**options: Any) -> Accelerator:
        return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))

    yield make
    make().free_memory()


def batches(loader: Any, most: int = SAMPLES) -> list[list[int]]:
    """What an iteration gives, or its first batches."""
    iterator = iter(loader)
    return [batch.tolist() for _, batch in zip(range(most), iterator, strict=False)]


def left_and_skipped(loader: Any, accelerator: Accelerator) -> Iterator[list[list[int]]]:
    """Iterations that end, are left early or are begun later, with and without a number of their own."""
    yield batches(loader, 1)
    yield batches(loader)
    yield batches(loader, 3)
    yield batches(loader, STEPS)  # left after the last batch, before the end is met
    yield batches(loader)
    yield batches(accelerator.skip_first_batches(loader, 2))
    yield batches(loader)
    loader.set_epoch(5)
    yield batches(loader, 2)
    yield batches(loader)
    yield batches(loader)
    rest = accelerator.skip_first_batches(loader, 3)
    rest.set_epoch(1)
    yield batches(rest)
    loader.set_epoch(2)
    yield batches(loader)


@pytest.mark.parametrize(
    ("workers", "generator", "options"), combinations([0, 2], [False, True], [{}, {"data_seed": 3}])
)
def test_a_prepared_loader_has_the_order_of_a_prepared_dataloader(
    accelerators: Callable[..., Accelerator], workers: int, generator: bool, options: dict[str, Any]
) -> None:
    seen = []
    for wrap in WRAPS:
        accelerator = accelerators(use_seedable_sampler=True, **options)
        torch.manual_seed(11)
        own = torch.Generator().manual_seed(4) if generator else None
        plain = DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers, generator=own)
        loader = accelerator.prepare(wrap(plain))
        seen.append(list(left_and_skipped(loader, accelerator)))
    assert seen[0] == seen[1]


class Numbered(Sampler[int]):
    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist())


@pytest.mark.parametrize("seedable", [False, True])
def test_a_sampler_of_somebodys_own_gets_the_same_epochs(
    accelerators: Callable[..., Accelerator], seedable: bool
) -> None:
    seen = []
    for wrap in WRAPS:
        accelerator = accelerators(use_seedable_sampler=seedable)
        loader = accelerator.prepare(wrap(DataLoader(Numbers(), BATCH, sampler=Numbered())))
        seen.append(list(left_and_skipped(loader, accelerator)))
    assert seen[0] == seen[1]


class NumberedSamples(Numbers):
    """A data set whose samples say the number of the epoch, too."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_gets_the_same_epochs(accelerators: Callable[..., Accelerator], workers: int) -> None:
    seen = []
    for wrap in WRAPS:
        torch.manual_seed(11)
        accelerator = accelerators(use_seedable_sampler=True)
        plain = DataLoader(NumberedSamples(), BATCH, shuffle=True, num_workers=workers)
        loader = accelerator.prepare(wrap(plain))
        seen.append([batches(loader, most) for most in (1, SAMPLES, 3, SAMPLES, SAMPLES)])
        loader.set_epoch(7)
        seen[-1] += [batches(loader), batches(loader)]
    assert seen[0] == seen[1]


def test_an_order_that_is_drawn_at_once_may_be_drawn_early(accelerators: Callable[..., Accelerator]) -> None:
    """Else an engine without workers could not compute more than one batch in advance."""
    data = Numbers()
    for sampler, expected in (
        (RandomSampler(data), True),
        (RandomSampler(data, replacement=True), False),
        (RandomSampler(data, num_samples=2 * SAMPLES), False),
        (Numbered(), False),
    ):
        loader: Any = switchable(DataLoader(data, BATCH, sampler=sampler))
        accelerators(use_seedable_sampler=True).prepare(loader)
        assert loader._orders._prepared.draws_at_once is expected


FRESH = """
import sys, torch
from torch.utils.data import DataLoader
from kernel_monitor import switchable

def plain():
    torch.manual_seed(3)
    return DataLoader(list(range(22)), 4, shuffle=True)

def seen(loader):
    return [batch.tolist() for batch in loader]

early = switchable(plain()) if sys.argv[1] == "early" else None
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
expected = seen(accelerator.prepare(plain()))
if early is None:
    print(seen(accelerator.prepare(switchable(plain()))) == expected)
else:
    accelerator.prepare(early)
    other = seen(early)
    print(other == expected, "prepare it again" in early.state()["status"])
    torch.manual_seed(3)
    print(seen(accelerator.prepare(early)) == expected)
"""


@pytest.mark.parametrize(("when", "printed"), [("late", "True\n"), ("early", "False True\nTrue\n")])
def test_the_first_loader_of_a_process(tmp_path: Path, when: str, printed: str) -> None:
    """`prepare` is looked up before the loader is made; and one that was made before the import is not silent."""
    script = tmp_path / "fresh.py"
    script.write_text(FRESH)
    done = run_python("-W", "ignore", script, when)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_the_function_prepares_as_the_accelerator_does() -> None:
    seen = []
    for wrap in WRAPS:
        torch.manual_seed(5)
        plain = DataLoader(Numbers(), BATCH, shuffle=True)
        loader = prepare_data_loader(wrap(plain), use_seedable_sampler=True, data_seed=9)
        seen.append([batches(loader) for _ in range(2)])
    assert seen[0] == seen[1]


def test_a_state_of_a_prepared_loader(accelerators: Callable[..., Accelerator]) -> None:
    """In the middle of an epoch and between two; the epochs that come after it are those that would have come."""

    def make() -> SwitchableLoader:
        torch.manual_seed(11)
        prepared: SwitchableLoader = accelerators(use_seedable_sampler=True).prepare(
            switchable(DataLoader(Numbers(), BATCH, shuffle=True))
        )
        return prepared

    loader = make()
    whole = [batches(loader) for _ in range(4)]
    for steps in (STEPS, 2):
        loader, other = make(), make()
        batches(loader)
        iterator = iter(loader)
        begun = [next(iterator).tolist() for _ in range(steps)]
        if steps == STEPS:
            assert next(iterator, None) is None
            begun = []
        other.load_state_dict(loader.state_dict())
        following = whole[2:] if steps == STEPS else whole[1:]
        assert [*begun, *batches(other)] == following[0]
        assert [batches(other) for _ in following[1:]] == following[1:]
