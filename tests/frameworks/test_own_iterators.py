"""Loaders that iterate in ways of their own: fastai's, Ultralytics', webdataset's and torchdata's, as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from .script_runs import SWAPS, Trainings, check_parity
from .table import Click, row
from .test_vision import DONE, counts, reasons
from .training import BATCH, EPOCHS, PHOTOS, STEPS


def test_fastai(vision: Trainings, photos: Path) -> None:
    """`one_batch` is not counted as an epoch."""
    plain = vision.run("fastai_learner", photos, "workers")
    measured = vision.run("fastai_learner", photos, "workers", clicks={})
    assert measured.steps == plain.steps
    kept = PHOTOS * 3 // 4
    assert counts(measured, "dls.train") == [(kept, 0, True)] * EPOCHS
    assert counts(measured, "dls.valid") == [(PHOTOS - kept, 0, True)] * EPOCHS
    assert [loader["name"] for loader in measured.loaders] == ["dls.train", "dls.valid"]
    (reason,) = reasons(measured, "dls.train")
    assert row("fastai `Learner.fit`")[2:] == (Click.NEVER, reason)


def test_fastai_over_dataloaders_of_torch(vision: Trainings, photos: Path) -> None:
    plain = vision.run("fastai_learner", photos, "torch")
    swapped = vision.run("fastai_learner", photos, "torch", clicks=SWAPS, loader="dls.train")
    check_parity(swapped, plain)
    assert swapped.loader("dls.train")["clicks"] == DONE
    assert row("fastai `Learner.fit` over torch's DataLoaders").click is Click.MID_EPOCH


def test_ultralytics(vision: Trainings, photos: Path) -> None:
    """One endless iterator, made anew where mosaic is closed: epochs of as many batches as the loader's length."""
    measured = vision.run("ultralytics_train", photos, 2, clicks={})
    assert len(measured.samples()) == 16 * EPOCHS
    for first in range(0, 16 * EPOCHS, 16):
        assert len(set(measured.samples()[first : first + 16])) == 16
    assert counts(measured, "train_loader") == [(16, 0, True)] * EPOCHS
    assert counts(measured, "val_loader") == [(4, 0, True)] * (EPOCHS + 1)  # once more after the training
    (reason,) = reasons(measured, "train_loader")
    assert row("Ultralytics `YOLO.train`")[2:] == (Click.NEVER, reason)


def test_webdataset(vision: Trainings, photos: Path) -> None:
    plain = vision.run("webdataset_loader", photos)
    measured = vision.run("webdataset_loader", photos, clicks={})
    assert measured.steps == plain.steps
    assert measured.loader("loader")["images"] == PHOTOS * EPOCHS
    (reason,) = reasons(measured, "loader")
    assert row("webdataset `WebLoader`")[2:] == (Click.NEVER, reason)


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader(vision: Trainings, photos: Path, workers: int) -> None:
    """An epoch that goes on from a state has lost nothing."""
    plain = vision.run("stateful_loader", photos, workers)
    measured = vision.run("stateful_loader", photos, workers, clicks={})
    assert measured.steps == plain.steps
    rest = PHOTOS - 5 * BATCH
    assert measured.samples("resumed") == measured.samples()[5 * BATCH : PHOTOS]
    assert counts(measured, "train_loader") == [(PHOTOS, 0, True)] * 2
    assert counts(measured, "resumed_loader") == [(rest, 0, True)]
    assert measured.loader("resumed_loader")["state"]["planned"] == rest == (STEPS - 5) * BATCH
    (reason,) = reasons(measured, "train_loader")
    assert row("torchdata `StatefulDataLoader`")[2:] == (Click.NEVER, reason)
