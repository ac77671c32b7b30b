"""Data sets of Hugging Face's `datasets` in a plain DataLoader, with the monitor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .script_runs import SWAPS, Trainings, check_parity
from .table import Click, row
from .test_vision import DONE, counts, reasons
from .training import BATCH, EPOCHS, PHOTOS


@pytest.fixture(scope="module")
def hugging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """Return a runner of scripts, in forks of a process that has imported `datasets`; nothing is downloaded."""
    runs = Trainings(tmp_path_factory.mktemp("hugging"), "datasets")
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_HOME", str(folder))
        patch.setenv("HF_DATASETS_CACHE", str(folder))
        yield runs
        runs.close()


@pytest.mark.parametrize(
    ("mode", "workers"), [("with_transform", 0), ("with_transform", 2), ("set_transform", 0), ("undecoded", 0)]
)
def test_map_style(hugging: Trainings, photos: Path, mode: str, workers: int) -> None:
    plain, swapped = hugging.pair("hugging_face_loader", photos, mode, workers, clicks=SWAPS, loader="loader")
    check_parity(swapped, plain)
    assert swapped.loader("loader")["clicks"] == DONE
    assert swapped.loader("loader")["state"]["decoded"]["dali-cpu"] >= BATCH
    assert row("Hugging Face `Dataset.with_transform`, `set_transform`").click is Click.MID_EPOCH


def test_a_function_that_draws_for_a_batch(hugging: Trainings, photos: Path) -> None:
    """The training goes on unchanged: what one draw makes of a batch cannot be had row by row."""
    plain, clicked = hugging.pair("hugging_face_loader", photos, "batches", clicks={4: "dali-cpu"}, loader="loader")
    assert clicked.steps == plain.steps
    (reason,) = reasons(clicked, "loader")
    assert clicked.loader("loader")["state"]["status"].startswith(f"dali-cpu cannot be used: {reason[:-1]}")


@pytest.mark.parametrize("mode", ["iterable", "streaming"])
def test_iterable_style(hugging: Trainings, photos: Path, mode: str) -> None:
    plain, measured = hugging.pair("hugging_face_loader", photos, mode, clicks={})
    assert measured.steps == plain.steps
    assert counts(measured, "loader") == [(PHOTOS, 0, True)] * EPOCHS
    (reason,) = reasons(measured, "loader")
    assert row("Hugging Face `IterableDataset`, streaming")[2:] == (Click.NEVER, reason)
