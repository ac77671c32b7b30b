"""Frameworks that make a DataLoader anew from the attributes of one: they get the loader itself, or a sentence."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from accelerate import Accelerator, data_loader
from accelerate import skip_first_batches as skip_by_another_name
from accelerate.data_loader import DataLoaderShard, SkipBatchSampler, prepare_data_loader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import SwitchableLoader, switchable

from .conftest import Make, augmented, deliver, run_python, settle

KEPT: list[Callable[..., Any]] = [skip_by_another_name]  # accelerate's own for ever: no module has it by a name


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    yield Accelerator(cpu=True)
    Accelerator().free_memory()


def seeded(make: Make, **options: Any) -> SwitchableLoader:
    return make(shuffle=True, generator=torch.Generator().manual_seed(3), **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_skipped_batches_are_drawn_and_the_rest_is_as_in_a_whole_epoch(make: Make, workers: int) -> None:
    whole = list(seeded(make, num_workers=workers))
    loader = seeded(make, num_workers=workers)
    rest = skip_by_another_name(loader, 20)
    assert len(rest) == 31 - 20
    assert len(loader) == 31
    delivered = list(rest)
    assert len(delivered) == 11
    for (images, targets), (expected, others) in zip(delivered, whole[20:], strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(targets, others)
    state = loader.state()
    assert (state["batch"], state["batches"], state["samples"], state["planned"]) == (11, 11, 83, 83)
    assert (state["lost"], state["doubled"], state["epoch"]) == (0, 0, 0)
    assert len(loader.plan()) == 243
    assert len(loader.decoders()) == 83
    assert len(deliver(loader)[1]) == 243  # the loader's own next epoch is a whole one
    assert loader.state()["planned"] == 243


def test_a_click_reaches_what_accelerate_returns(make: Make) -> None:
    whole = list(seeded(make))
    loader = seeded(make)
    rest = accelerate.skip_first_batches(loader, num_batches=10)
    rest.set_epoch(0)
    delivered = []
    for number, (_, targets) in enumerate(rest):
        delivered.append(targets.tolist())
        if number == 2:
            rest.switch("dali-cpu")
            settle(loader)
    assert delivered == [targets.tolist() for _, targets in whole[10:]]
    assert loader.backend == rest.backend == "dali-cpu"
    assert [click.outcome for click in loader.clicks] == ["done"]
    assert loader.meter.totals().images == 243 - 80


@pytest.mark.parametrize("batches", [0, 31, 40])
def test_all_or_none_may_be_skipped(make: Make, batches: int) -> None:
    loader = seeded(make, num_workers=0)
    rest = loader.skip(batches)
    begun: Any = iter(rest)
    assert len(rest) == len(begun) == len(list(rest)) == (31 if batches == 0 else 0)
    assert (loader.state()["lost"], loader.state()["samples"]) == (0, 243 if batches == 0 else 0)
    assert len(loader.skip(3).skip(4)) == 24
    with pytest.raises(ValueError, match="not -1"):
        loader.skip(-1)


def test_a_state_of_what_was_skipped_to_goes_on_there(make: Make) -> None:
    whole = [targets.tolist() for _, targets in seeded(make, num_workers=0)]
    loader = seeded(make, num_workers=0)
    iterator: Any = iter(loader.skip(10))
    assert len(iterator) == 21
    delivered = [next(iterator)[1].tolist() for _ in range(5)]
    state = json.loads(json.dumps(loader.state_dict()))
    other = seeded(make, num_workers=0)
    other.load_state_dict(state)
    with pytest.raises(MonitorError, match="use one of the two"):
        iter(other.skip(10))
    delivered += [targets.tolist() for _, targets in other]
    assert delivered == whole[10:]
    assert (other.state()["samples"], other.state()["planned"], other.state()["batches"]) == (163, 163, 21)


def test_accelerate_hands_on_the_loader_itself(make: Make, accelerator: Accelerator) -> None:
    loader = make(num_workers=0)
    assert accelerator.prepare(loader) is loader
    assert accelerator.prepare_data_loader(loader) is loader
    assert prepare_data_loader(loader) is loader
    (moved, _), *_ = prepare_data_loader(loader, device=torch.device("meta"), put_on_device=True)
    assert moved.device.type == "meta"
    rest = accelerator.skip_first_batches(prepare_data_loader(loader, torch.device("meta"), put_on_device=True), 30)
    ((moved, _),) = rest
    assert moved.shape == (3, 3, 32, 32)
    assert moved.device.type == "meta"
    assert loader.state()["samples"] == 3
    for options in ({"num_processes": 2, "process_index": 0}, {"dispatch_batches": True, "put_on_device": True}):
        with pytest.raises(MonitorError, match=r"cannot be prepared .*: give its DataLoader a DistributedSampler"):
            prepare_data_loader(loader, **options)


def test_dataloaders_of_others_are_prepared_as_ever(make: Make, folder: Path, accelerator: Accelerator) -> None:
    make()
    plain = DataLoader(ImageFolder(folder, augmented()), batch_size=81)
    prepared: Any = accelerator.prepare(plain)
    assert type(prepared) is DataLoaderShard
    assert [len(targets) for _, targets in accelerate.skip_first_batches(prepared, num_batches=2)] == [81]
    assert len(skip_by_another_name(plain, 1)) == 2
    with pytest.raises(TypeError):
        skip_by_another_name(plain, 1, wrong=2)
    assert data_loader.skip_first_batches is skip_by_another_name is not KEPT[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_made_from_the_attributes_says_so_when_it_is_iterated(make: Make, workers: int) -> None:
    loader = make(num_workers=workers, shuffle=True)
    copies = [
        DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, num_workers=workers),
        DataLoader(loader.dataset, batch_sampler=SkipBatchSampler(loader.batch_sampler, 3), num_workers=workers),
        DataLoaderShard(loader.dataset, batch_sampler=loader.batch_sampler, num_workers=workers),
        KEPT[0](loader, 3),
    ]
    for anew in copies:
        with pytest.raises(MonitorError, match=f"attributes of the switchable loader {loader.name}.*loader.skip"):
            list(anew)
    assert sorted(index for batch in loader.batch_sampler for index in batch) == list(range(243))  # a person may look
    assert len(next(iter(DataLoader(loader.dataset, batch_size=5)))[1]) == 5
    assert len(deliver(loader)[1]) == 243


class Halves(BatchSampler):
    share = 0.5

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_the_batch_sampler_shown_is_the_users_own_in_every_other_way(folder: Path) -> None:
    data = ImageFolder(folder, augmented())
    own = Halves(RandomSampler(data), 10, drop_last=True)
    loader = switchable(DataLoader(data, batch_sampler=own))
    shown = loader.batch_sampler
    assert isinstance(shown, Halves)
    assert shown == own
    assert own == shown
    assert hash(shown) == hash(own)
    assert repr(shown) == repr(own)
    assert (len(shown), shown.share, shown.batch_size) == (24, 0.5, 10)
    assert isinstance(shown.sampler, RandomSampler)
    shown.share = 0.25
    shown.set_epoch(4)
    assert (own.share, own.epoch) == (0.25, 4)
    del shown.share
    assert own.share == 0.5
    assert type(copy.copy(shown)) is Halves
    assert loader.dataset.classes == ["class_0", "class_1", "class_2"]
    listed: Any = switchable(DataLoader(data, batch_sampler=[[3, 1], [2]]))
    assert listed.batch_sampler[0] == [3, 1]


def test_copies_of_a_loader_are_refused_in_a_sentence(make: Make) -> None:
    loader = make()
    for one in (loader, loader.skip(2)):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(MonitorError, match="cannot be copied or sent to another process"):
                duplicate(one)


def test_a_view_is_the_loader_in_all_else(make: Make) -> None:
    loader = make(num_workers=0)
    rest = loader.skip(30)
    rest.fused_decode = False
    assert not loader.fused_decode
    assert (rest.id, rest.batch_size, len(rest.dataset)) == (loader.id, 8, 243)
    assert "after 30 batches" in repr(rest)
    with pytest.raises(AttributeError):
        rest.no_such_attribute  # noqa: B018
    with pytest.raises(AttributeError):
        rest._no_such_attribute  # noqa: B018


LATER = """
import sys
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from kernel_monitor import switchable

chain = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
loader = switchable(DataLoader(ImageFolder(sys.argv[1], chain), batch_size=50))
assert "accelerate" not in sys.modules
from accelerate import skip_first_batches
try:
    list(skip_first_batches(loader, 2))
except Exception as error:
    print(type(error).__name__, "loader.skip(n)" in str(error))
print(len(list(skip_first_batches(loader, 2))), loader.state()["samples"])
"""


def test_accelerate_may_be_imported_later(folder: Path, tmp_path: Path) -> None:
    """What is called with no loader used in between is refused at first; nothing ever goes on without a word."""
    script = tmp_path / "later.py"
    script.write_text(LATER)
    done = run_python("-W", "ignore", script, folder)
    assert (done.returncode, done.stdout) == (0, "MonitorError True\n3 143\n"), done.stderr
