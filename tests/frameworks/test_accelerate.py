"""accelerate and Transformers' Trainer with the monitor: the order of the samples is the same as without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .script_runs import SWAPS, Trainings, check_parity
from .table import Click, row
from .training import EPOCHS, PHOTOS, STEPS


@pytest.mark.parametrize("workers", ["plain", "workers"])
def test_prepared_loaders(trainings: Trainings, photos: Path, workers: str) -> None:
    """`prepare` fetches one batch ahead, and `gather_for_metrics` counts those of the last step."""
    plain, swapped = trainings.pair("accelerate_loop", photos, workers, clicks=SWAPS, loader="batches")
    check_parity(swapped, plain)
    assert swapped.samples("validation") == plain.samples("validation") == list(range(PHOTOS)) * EPOCHS
    loader = swapped.loader("batches")
    assert loader["clicks"] == ["done", "done", "done"]
    assert [(epoch["samples"], epoch["planned"], epoch["finished"]) for epoch in loader["epochs"]] == [
        (PHOTOS, PHOTOS, True)
    ] * EPOCHS
    assert {"torchvision", "dali-cpu"} == set(loader["epochs"][1]["decoded"])
    assert row("accelerate `prepare`, `gather_for_metrics`").click is Click.MID_EPOCH


def test_the_rest_of_an_epoch(trainings: Trainings, photos: Path) -> None:
    """`skip_first_batches` makes another loader for the rest of the second epoch: the choice is kept."""
    plain, swapped = trainings.pair(
        "accelerate_loop", photos, "skip", clicks={4: "dali-cpu", 23: "torchvision", 28: "dali-cpu"}, loader="batches"
    )
    assert swapped.samples() == plain.samples()
    assert swapped.losses() == pytest.approx(plain.losses(), rel=0.02, abs=0.005)
    assert "dali-cpu" in swapped.backends[STEPS : 2 * STEPS - 3]
    assert swapped.backends[-1] == "dali-cpu"
    loader = swapped.loader("batches")
    assert [(epoch["samples"], epoch["finished"]) for epoch in loader["epochs"]] == [(48, True), (36, True), (48, True)]
    assert row("accelerate `skip_first_batches`").click is Click.MID_EPOCH


@pytest.mark.parametrize("arguments", [(), ("table",)], ids=["own data set", "of datasets"])
def test_a_trainer_of_transformers(trainings: Trainings, photos: Path, arguments: tuple[str, ...]) -> None:
    plain, swapped = trainings.pair("transformers_trainer", photos, *arguments, clicks=SWAPS, loader="train_dataloader")
    check_parity(swapped, plain)
    assert swapped.loader("train_dataloader")["clicks"] == ["done", "done", "done"]
    assert swapped.samples("validation") == plain.samples("validation")
    assert swapped.loader("eval_dataloader")["images"] == EPOCHS * PHOTOS
    assert row("Transformers `Trainer`").click is Click.MID_EPOCH


def test_evaluations_of_transformers_make_a_loader_each(trainings: Trainings, photos: Path) -> None:
    """The monitor shows them as one loader, and the engine chosen in one evaluation is used in the next ones."""
    clicks = {3: "dali-cpu", STEPS + 4: "torchvision", 2 * STEPS + 4: "dali-cpu"}
    plain, swapped = trainings.pair(
        "transformers_trainer", photos, clicks=clicks, loader="eval_dataloader", kind="validation"
    )
    assert [(step.kind, step.samples) for step in swapped.steps] == [(step.kind, step.samples) for step in plain.steps]
    assert swapped.losses("validation") == pytest.approx(plain.losses("validation"), rel=0.02, abs=0.005)
    kept = [swapped.backends[number] for number in (STEPS - 1, STEPS + 3, 2 * STEPS - 1, 2 * STEPS, 3 * STEPS - 1)]
    assert kept == ["dali-cpu", "dali-cpu", "torchvision", "torchvision", "dali-cpu"]
    assert row("Transformers `Trainer.evaluate`").click is Click.MID_EPOCH
