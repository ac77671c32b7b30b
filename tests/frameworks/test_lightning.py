"""Lightning's Trainer and Fabric, unmodified, with the monitor."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from .script_runs import SWAPS, Trainings, check_parity
from .table import Click, row
from .training import EPOCHS, PHOTOS, STEPS

TRAIN, VAL = "train_dataloader", "val_dataloader"
DONE = ["done", "done", "done"]


def test_a_trainer_with_a_data_module(trainings: Trainings, photos: Path) -> None:
    """Its sanity check is not counted as an epoch; an epoch ends with its last batch, which Lightning counts."""
    plain, swapped = trainings.pair("lightning_trainer", photos, clicks=SWAPS, loader=TRAIN)
    check_parity(swapped, plain)
    assert row("Lightning `Trainer.fit`").click is Click.MID_EPOCH
    assert swapped.backends[4:6] == ["torchvision", "dali-cpu"]
    assert swapped.loader(TRAIN)["clicks"] == DONE
    assert len(swapped.of("check")) == 2
    for name in (TRAIN, VAL):
        loader = swapped.loader(name)
        assert loader["kind"] == "attached"
        assert [(epoch["samples"], epoch["finished"]) for epoch in loader["epochs"]] == [(PHOTOS, True)] * EPOCHS
        assert loader["images"] == EPOCHS * PHOTOS


def test_a_trainer_with_workers_and_random_transforms(trainings: Trainings, photos: Path) -> None:
    plain = trainings.run("lightning_trainer", photos, "workers")
    unclicked = trainings.run("lightning_trainer", photos, "workers", clicks={})
    assert unclicked.steps == plain.steps
    swapped = trainings.run("lightning_trainer", photos, "workers", clicks=SWAPS, loader=TRAIN)
    check_parity(swapped, plain, same_images=False)
    assert swapped.loader(TRAIN)["clicks"] == DONE
    assert mean(swapped.losses()) == pytest.approx(mean(plain.losses()), rel=0.1)
    assert mean(swapped.losses()[-STEPS:]) < swapped.losses()[0] / 20


@pytest.mark.parametrize("mode", ["overfit", "limits"])
def test_a_trainer_with_limits(trainings: Trainings, photos: Path, mode: str) -> None:
    """`overfit_batches`; and `limit_train_batches`, `val_check_interval`, `reload_dataloaders_every_n_epochs`."""
    steps = {"overfit": 6, "limits": 8}[mode]
    clicks = {3: "dali-cpu", steps + 3: "torchvision", 2 * steps + 3: "dali-cpu"}
    plain, swapped = trainings.pair("lightning_trainer", photos, mode, clicks=clicks, loader=TRAIN)
    assert swapped.samples() == plain.samples()
    assert swapped.losses() == pytest.approx(plain.losses(), rel=0.02, abs=0.005)
    assert len(plain.of()) == EPOCHS * steps
    assert swapped.samples("validation") == plain.samples("validation")
    assert swapped.backends[-steps + 4 :] == ["dali-cpu"] * (steps - 4)
    assert swapped.backends[steps + 1] == "dali-cpu"  # the choice is kept where the loader is made anew
    assert swapped.loader(TRAIN)["kind"] == "attached"


def test_a_combined_loader(trainings: Trainings, photos: Path) -> None:
    """Two loaders over one data set are two, and each is switched by itself."""
    plain, swapped = trainings.pair("lightning_trainer", photos, "combined", clicks=SWAPS, loader=TRAIN)
    check_parity(swapped, plain)
    assert swapped.samples("more") == plain.samples("more")
    assert swapped.loader(TRAIN)["clicks"] == DONE
    assert swapped.loader(f"{TRAIN}_2")["state"]["backend"] == "torchvision"
    assert row("Lightning `CombinedLoader`").click is Click.MID_EPOCH


def test_two_ranks_of_a_trainer(trainings: Trainings, photos: Path) -> None:
    """Each sample once over both, of the DistributedSampler that Lightning makes."""
    steps = STEPS // 2
    clicks = {2: "dali-cpu", steps + 2: "torchvision", 2 * steps + 2: "dali-cpu"}
    plain = trainings.run_ranks(2, "lightning_trainer", photos, "ranks")
    swapped = trainings.run_ranks(2, "lightning_trainer", photos, "ranks", clicks=clicks, loader=TRAIN)
    half = PHOTOS // 2
    for ours, theirs in zip(swapped, plain, strict=True):
        assert ours.samples() == theirs.samples()
        assert ours.losses() == pytest.approx(theirs.losses(), rel=0.02, abs=0.005)
        assert ours.backends[2:4] == ["torchvision", "dali-cpu"]
        assert ours.backends[-1] == "dali-cpu"
    for first in range(0, EPOCHS * half, half):
        both = [number for rank in swapped for number in rank.samples()[first : first + half]]
        assert sorted(both) == list(range(PHOTOS))
    assert row("Lightning `Trainer.fit`, two processes").click is Click.MID_EPOCH


def test_fabric(trainings: Trainings, photos: Path) -> None:
    plain, swapped = trainings.pair("lightning_fabric", photos, clicks=SWAPS, loader="train_loader")
    check_parity(swapped, plain)
    assert swapped.loader("train_loader")["clicks"] == DONE
    assert swapped.backends[-1] == "dali-cpu"
    assert row("Lightning Fabric `setup_dataloaders`").click is Click.MID_EPOCH
