"""timm, MONAI and torchvision's reference scripts, unmodified, with the monitor."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from .script_runs import SWAPS, Trained, Trainings, check_parity
from .table import Click, row
from .training import EPOCHS, PHOTOS, STEPS

DONE = ["done", "done", "done"]
ENGINES = ["dali-cpu", "synthetic", "ray"]


def reasons(trained: Trained, name: str) -> list[str]:
    """Return why the engines of a loader cannot be chosen, each reason once."""
    backends = trained.loader(name)["state"]["backends"]
    return list(dict.fromkeys(one["reason"] for one in backends if not one["available"] and one["name"] in ENGINES))


def counts(trained: Trained, name: str) -> list[tuple[int, int, bool]]:
    """Return samples, lost samples and whether the end was reached, of each epoch of a loader."""
    epochs: list[dict[str, Any]] = trained.loader(name)["epochs"]
    return [(epoch["samples"], epoch["lost"], epoch["finished"]) for epoch in epochs]


def check_random(trained: Trained, plain: Trained) -> None:
    """Assert that each sample came once an epoch, and that the loss fell as in the plain training.

    Without workers, what the transforms draw decides on the order of the next epoch, in plain torch, too: from the
    click on they draw other numbers.
    """
    samples = trained.samples()
    assert samples[:PHOTOS] == plain.samples()[:PHOTOS]
    for first in range(0, EPOCHS * PHOTOS, PHOTOS):
        assert sorted(samples[first : first + PHOTOS]) == list(range(PHOTOS))
    assert mean(trained.losses()[STEPS:]) < mean(trained.losses()[:STEPS])
    assert mean(plain.losses()[STEPS:]) < mean(plain.losses()[:STEPS])


@pytest.mark.parametrize("mode", ["plain", "prefetcher"])
def test_timm(vision: Trainings, photos: Path, mode: str) -> None:
    """Its DataLoader, and its PrefetchLoader around it, which computes on the batches of every engine."""
    plain = vision.run("timm_loader", photos, mode)
    swapped = vision.run("timm_loader", photos, mode, clicks=SWAPS, loader="loader")
    check_parity(swapped, plain)
    assert swapped.loader("loader")["clicks"] == DONE
    assert swapped.backends[4:6] == ["torchvision", "dali-cpu"]
    assert counts(swapped, "loader") == [(PHOTOS, 0, True)] * EPOCHS
    assert row("timm `create_loader`").click is Click.MID_EPOCH


@pytest.mark.parametrize("mode", ["augmented", "mixed"])
def test_timm_with_its_augmentation(vision: Trainings, photos: Path, mode: str) -> None:
    """Crop and flip are DALI's; RandAugment, AutoAugment and RandomErasing run after it, and Mixup on the batch."""
    plain = vision.run("timm_loader", photos, mode)
    swapped = vision.run("timm_loader", photos, mode, clicks=SWAPS, loader="loader")
    check_random(swapped, plain)
    assert swapped.loader("loader")["clicks"] == DONE
    decoded = swapped.loader("loader")["state"]["decoded"]
    assert decoded["dali-cpu"] >= PHOTOS // 2
    (note,) = [one["note"] for one in swapped.loader("loader")["state"]["backends"] if one["name"] == "dali-cpu"]
    assert "DALI decodes and does RandomResizedCropAndInterpolation, RandomHorizontalFlip" in note
    assert row("timm RandAugment, AutoAugment, RandomErasing, Mixup").click is Click.MID_EPOCH


def test_timm_with_workers(vision: Trainings, photos: Path) -> None:
    """With persistent workers, and Mixup in the collate function."""
    plain = vision.run("timm_loader", photos, "workers")
    swapped = vision.run("timm_loader", photos, "workers", clicks=SWAPS, loader="loader")
    check_parity(swapped, plain, same_images=False)
    assert swapped.loader("loader")["clicks"] == DONE


def test_timm_repeated_augmentation(vision: Trainings, photos: Path) -> None:
    """Each sample comes as often as its sampler draws it."""
    plain = vision.run("timm_loader", photos, "repeated")
    swapped = vision.run("timm_loader", photos, "repeated", clicks=SWAPS, loader="loader")
    assert swapped.samples() == plain.samples()
    assert len(set(plain.samples()[:PHOTOS])) == PHOTOS // 3
    assert swapped.losses() == pytest.approx(plain.losses(), rel=0.02, abs=0.005)
    assert swapped.loader("loader")["clicks"] == DONE
    assert counts(swapped, "loader") == [(PHOTOS, 0, True)] * EPOCHS
    assert row("timm `num_aug_repeats`").click is Click.MID_EPOCH


def test_timm_with_one_iterator_for_all_epochs(vision: Trainings, photos: Path) -> None:
    plain = vision.run("timm_loader", photos, "multi-epochs")
    measured = vision.run("timm_loader", photos, "multi-epochs", clicks={})
    assert measured.steps == plain.steps
    assert counts(measured, "loader") == [(PHOTOS, 0, True)] * EPOCHS
    (reason,) = reasons(measured, "loader")
    assert row("timm `use_multi_epochs_loader`")[2:] == (Click.NEVER, reason)


@pytest.mark.parametrize("mode", ["plain", "cached", "workers"])
def test_monai(vision: Trainings, photos: Path, mode: str) -> None:
    """Its transforms read the files themselves. The click finds that out, and the training goes on unchanged."""
    plain = vision.run("monai_loader", photos, mode)
    clicked = vision.run("monai_loader", photos, mode, clicks={4: "dali-cpu"}, loader="train_loader")
    assert clicked.steps == plain.steps
    assert counts(clicked, "train_loader") == [(PHOTOS, 0, True)] * EPOCHS
    (reason,) = reasons(clicked, "train_loader")
    assert clicked.loader("train_loader")["state"]["status"].startswith(f"dali-cpu cannot be used: {reason[:-1]}")
    rows = row("MONAI `Dataset` and `DataLoader`"), row("MONAI `CacheDataset` and `DataLoader`")
    known = rows[mode == "cached"]
    assert known[2:] == (Click.NEVER, reason)


@pytest.mark.parametrize("mode", ["plain", "repeated", "mixed"])
def test_the_classification_reference(vision: Trainings, photos: Path, mode: str) -> None:
    """Its RASampler, its collate function with MixUp and CutMix, and its preset for training."""
    plain = vision.run("classification", photos, mode)
    swapped = vision.run("classification", photos, mode, clicks=SWAPS, loader="data_loader")
    if mode == "mixed":
        check_random(swapped, plain)
    else:
        assert swapped.samples() == plain.samples()
        assert swapped.losses() == pytest.approx(plain.losses(), rel=0.02, abs=0.005)
    assert swapped.loader("data_loader")["clicks"] == DONE
    for name in ("data_loader", "data_loader_test"):
        assert counts(swapped, name) == [(PHOTOS, 0, True)] * EPOCHS
    assert row("torchvision's references/classification").click is Click.MID_EPOCH


def test_the_segmentation_reference(vision: Trainings, photos: Path) -> None:
    """Image and mask, transformed together: from the click on the plan seeds what is drawn."""
    plain = vision.run("segmentation", photos)
    swapped = vision.run("segmentation", photos, clicks=SWAPS, loader="data_loader")
    check_random(swapped, plain)
    assert swapped.loader("data_loader")["clicks"] == DONE
    assert swapped.loader("data_loader")["state"]["decoded"]["dali-cpu"] >= PHOTOS // 2
    assert counts(swapped, "data_loader") == [(PHOTOS, 0, True)] * EPOCHS
    assert row("torchvision's references/segmentation").click is Click.MID_EPOCH
