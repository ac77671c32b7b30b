"""`synthetic`: copies of real batches in the plan's places; the counters tell, and the way back is exact."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import default_collate

from kernel_monitor.loaders import SwitchableLoader
from kernel_monitor.loaders.engines.synthetic import KEPT, SyntheticEngine
from kernel_monitor.ray.cluster import ASK

from ..conftest import Make, settle

BATCH = 8  # what `make` uses; 243 images: 30 whole batches and one of 3


class Step(NamedTuple):
    batch: Any
    replaced: bool


def steps(loader: SwitchableLoader, at: Mapping[int, Callable[[], None]] | None = None) -> Iterator[Step]:
    """One epoch, each batch with whether it was replaced; `at` is called before the batch of that number."""
    before = 0
    batches = iter(loader)
    for number in range(10_000):
        (at or {}).get(number, lambda: None)()
        batch = next(batches, None)
        if batch is None:
            return
        replaced = loader.epochs()[-1]["replaced"]
        yield Step(batch, replaced > before)
        before = replaced


def engine(loader: SwitchableLoader) -> SyntheticEngine:
    found = loader.pool["synthetic"].engine
    assert type(found) is SyntheticEngine
    return found


def account(loader: SwitchableLoader, planned: int = 243) -> tuple[int, int]:
    """Samples delivered and replaced in the newest epoch, after checking that nothing else became of any."""
    counts = loader.epochs()[-1]
    assert (counts["lost"], counts["doubled"], counts["skipped"]) == (0, 0, 0)
    assert counts["samples"] + counts["replaced"] == planned == len(loader.plan())
    return counts["samples"], counts["replaced"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", ["torchvision", "dali-cpu"])
def test_takes_the_places_of_the_plan(make: Make, source: str, workers: int) -> None:
    torch.manual_seed(11)
    plain = make(shuffle=True, num_workers=workers)
    truth = [step.batch for step in steps(plain)]
    torch.manual_seed(11)
    loader = make(shuffle=True, num_workers=workers)
    loader.switch(source)
    if not workers:  # else torchvision's workers would first be started on the way back
        settle(loader)
    seen = list(steps(loader, {5: lambda: loader.switch("synthetic"), 20: lambda: loader.switch("torchvision")}))
    assert len(seen) == len(truth) == len(loader)
    samples, replaced = account(loader)
    assert replaced == BATCH * sum(step.replaced for step in seen) > 0
    assert loader.plan() == plain.plan()
    assert loader.decoded().get("synthetic", 0) == 0
    assert sum(loader.decoded().values()) == samples
    first = next(number for number, step in enumerate(seen) if step.replaced)
    kept = [images for images, _ in (step.batch for step in seen[5 : 5 + KEPT])]
    assert first >= 5 + KEPT
    for number, (step, (images, targets)) in enumerate(zip(seen, truth, strict=True)):
        if step.replaced:
            assert any(torch.equal(step.batch[0], one) for one in kept), number
        else:  # the real ones before and after are those of a run that was never switched
            assert torch.equal(step.batch[1], targets), number
            if source == "torchvision":
                assert torch.equal(step.batch[0], images), number
    assert not seen[-1].replaced
    assert [(switch.source, switch.target) for switch in loader.history][-2:] == [
        (source, "synthetic"),
        ("synthetic", "torchvision"),
    ]


def test_the_loop_may_modify_what_it_gets(make: Make) -> None:
    loader = make(shuffle=True)
    loader.switch("synthetic")
    handed: list[torch.Tensor] = []
    replaced: list[torch.Tensor] = []
    for step in steps(loader):
        images, targets = step.batch
        (replaced if step.replaced else handed).append(images.clone())
        images.zero_()
        targets.fill_(-1)
    assert len(replaced) > KEPT
    for images in replaced[:-1]:
        assert any(torch.equal(images, one) for one in handed[:KEPT])


def test_every_batch_is_memory_of_its_own(make: Make) -> None:
    loader = make()
    loader.switch("synthetic")
    batches = [step.batch for step in steps(loader)]
    places = [tensor.untyped_storage().data_ptr() for batch in batches for tensor in batch]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("workers", [0, 2])
def test_asked_for_before_any_iteration(make: Make, workers: int) -> None:
    loader = make(num_workers=workers)
    loader.switch("synthetic")
    assert loader.state()["status"] == "switching to synthetic…"
    seen = list(steps(loader))
    assert not any(step.replaced for step in seen[:KEPT])
    assert seen[-1].replaced
    assert account(loader)[1] > 100
    assert loader.backend == "synthetic"
    assert loader.clicks[-1].outcome == "done"


def test_epoch_after_epoch(make: Make) -> None:
    loader = make(shuffle=True)
    loader.switch("synthetic")
    orders = []
    for epoch in range(3):
        seen = list(steps(loader))
        assert len(seen) == 31
        assert len(seen[-1].batch[0]) == len(seen[-1].batch[1]) == 3  # as long as the plan's last batch
        orders.append(loader.plan())
        assert sorted(orders[-1]) == list(range(243))
        if epoch:
            assert account(loader) == (0, 243)
    assert orders[0] != orders[1] != orders[2]


def test_an_epoch_too_short_to_keep_four(make: Make) -> None:
    loader = make(batch_size=100)
    loader.switch("synthetic")
    assert not any(step.replaced for step in steps(loader))
    assert engine(loader).kept == 3
    sizes = [len(step.batch[0]) for step in steps(loader)]
    assert sizes == [100, 100, 43]
    assert account(loader) == (0, 243)


class Pair(NamedTuple):
    images: torch.Tensor
    extra: Any


def as_dict(samples: list[Any]) -> dict[str, Any]:
    images, targets = default_collate(samples)
    numbers = torch.arange(len(samples))
    names = [f"class {int(target)}" for target in targets]
    return {"images": images, "pair": Pair(targets, (numbers, [numbers + 1])), "names": names, "note": {"of": "batch"}}


def test_the_structure_of_the_batch_is_kept(make: Make) -> None:
    loader = make(collate_fn=as_dict)
    loader.switch("synthetic")
    list(steps(loader))
    seen = list(steps(loader))
    assert all(step.replaced for step in seen)
    for number, (batch, _) in enumerate(seen):
        length = 3 if number == 30 else BATCH
        assert list(batch) == ["images", "pair", "names", "note"]
        assert type(batch["pair"]) is Pair
        assert type(batch["pair"].extra) is tuple
        assert len(batch["images"]) == len(batch["pair"].images) == len(batch["names"]) == length
        assert batch["pair"].extra[0].tolist() == list(range(length))
        assert (batch["pair"].extra[1][0] - batch["pair"].extra[0]).unique().tolist() == [1]
        assert batch["names"] == [f"class {target}" for target in batch["pair"].images.tolist()]
        assert batch["note"] == {"of": "batch"}
        batch["names"].clear()
        batch["note"]["of"] = "the loop"


def with_a_scalar(samples: list[Any]) -> list[Any]:
    images, targets = default_collate(samples)
    return [images, targets, targets.float().mean()]


def test_what_cannot_be_cut_is_handed_out_whole(make: Make) -> None:
    loader = make(collate_fn=with_a_scalar)
    loader.switch("synthetic")
    list(steps(loader))
    last = list(steps(loader))[-1].batch
    assert [len(last[0]), len(last[1]), last[2].ndim] == [BATCH, BATCH, 0]
    assert account(loader) == (0, 243)


class Unfit:
    """Something that can be made in a worker and not be copied."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("these batches are not for copying")


def as_unfit(samples: list[Any]) -> Unfit:
    return Unfit(default_collate(samples))


def test_what_cannot_be_copied_does_not_harm_the_loop(make: Make) -> None:
    loader = make(collate_fn=as_unfit)
    seen = list(steps(loader, {3: lambda: loader.switch("synthetic")}))
    assert len(seen) == 31
    assert not any(step.replaced for step in seen)
    assert account(loader) == (243, 0)
    assert loader.state()["status"] == ("synthetic failed: these batches are not for copying; torchvision goes on")
    assert loader.clicks[-1].outcome == "failed"


def test_memory_is_given_back(make: Make) -> None:
    loader = make()
    kept: list[weakref.ref[torch.Tensor]] = []

    def note() -> None:
        assert engine(loader).kept == KEPT
        kept.extend(weakref.ref(one.batch[0]) for one in engine(loader)._kept)
        loader.switch("torchvision")

    seen = list(steps(loader, {2: lambda: loader.switch("synthetic"), 16: note}))
    assert [step.replaced for step in seen].count(True) > 0
    assert not seen[-1].replaced
    gc.collect()
    assert engine(loader).kept == 0
    assert [one() for one in kept] == [None] * KEPT


def test_a_click_away_before_it_is_ready(make: Make) -> None:
    loader = make()
    seen = list(steps(loader, {3: lambda: loader.switch("synthetic"), 5: lambda: loader.switch("torchvision")}))
    assert not any(step.replaced for step in seen)
    assert engine(loader).kept == 0
    assert loader.clicks[0].outcome == "superseded"
    assert loader.history == []


def test_release_in_the_middle(make: Make) -> None:
    loader = make(shuffle=True)
    seen = list(steps(loader, {2: lambda: loader.switch("synthetic"), 20: loader.release}))
    assert seen[19].replaced
    assert not seen[20].replaced
    assert len(seen) == 31
    account(loader)
    assert "switch to synthetic again" in loader.state()["status"]
    assert engine(loader).kept == 0
    # And again from the beginning.
    loader.switch("synthetic")
    assert [step.replaced for step in steps(loader)].count(True) > 10
    account(loader)


def test_break_and_the_next_epoch(make: Make) -> None:
    loader = make()
    for number, _ in enumerate(steps(loader, {1: lambda: loader.switch("synthetic")})):
        if number == 2:
            break  # two of four were kept
    assert engine(loader).kept == 2
    seen = list(steps(loader))
    assert not any(step.replaced for step in seen[:2])
    assert seen[-1].replaced
    account(loader)


def test_what_a_page_is_told(make: Make) -> None:
    loader = make()
    assert list(loader.backends)[-2:] == ["synthetic", "ray"]
    backend = loader.backends["synthetic"]
    assert backend.available
    assert backend.reason is None
    assert backend.confirm == (
        "Replay 4 real batches instead of loading new ones? The model trains on repeated samples until you switch back."
    )
    assert [one["confirm"] for one in loader.state()["backends"]] == [None, None, None, None, backend.confirm, ASK]
    loader.switch("synthetic")
    list(steps(loader))
    state = loader.state()
    assert state["samples"] + state["replaced"] == state["planned"] == 243
    assert state["replaced"] > 0


def test_many_switches_between_all(make: Make) -> None:
    rng = random.Random(7)
    torch.manual_seed(3)
    plain = make(shuffle=True)
    truth = [[targets for _, targets in plain] for _ in range(5)]
    torch.manual_seed(3)
    loader = make(shuffle=True)
    list(loader)
    loader.switch("dali-cpu")
    settle(loader)  # loading DALI takes longer than all that follows
    for targets in truth[1:]:
        clicks = {
            number: partial(loader.switch, rng.choice(["torchvision", "dali-cpu", "synthetic"]))
            for number in rng.sample(range(31), 10)
        }
        seen = list(steps(loader, clicks))
        assert len(seen) == 31
        account(loader)
        for step, wanted in zip(seen, targets, strict=True):
            assert step.replaced or torch.equal(step.batch[1], wanted)
    assert {switch.target for switch in loader.history} == {"torchvision", "dali-cpu", "synthetic"}
