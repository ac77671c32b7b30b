"""Sweeps from Python: a loader and a step of one's own, and the presets in the process of a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import kernel_monitor
from kernel_monitor import monitor, switchable
from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import SwitchableLoader

QUICK: dict[str, Any] = {"seconds": 0.3, "progress": False}
CHAIN = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]


@pytest.fixture
def loader(pictures: Path) -> Any:
    images = ImageFolder(pictures, transforms.Compose(CHAIN))
    made = switchable(
        DataLoader(images, batch_size=8, shuffle=True, num_workers=1, persistent_workers=True), name="mine"
    )
    yield made
    made.release()


def train(batch: Any) -> None:
    images, _ = batch
    images.mean()


def test_the_loader_is_given_back_as_it_was(loader: SwitchableLoader, tmp_path: Path) -> None:
    before = loader.knobs
    swept = kernel_monitor.sweep(
        loader=loader, step=train, engines=["torchvision", "dali", "synthetic"], passes=1, output=tmp_path,
        knobs=[{"threads": 1, "prefetch": 3}, {"threads": 2}], **QUICK,
    )  # fmt: skip
    assert [cell.problem for cell in swept.cells()] == [None] * 6
    assert {cell.row for cell in swept.cells()} == {"prefetch 3, threads 1", "threads 2"}
    replayed = [cell for cell in swept.cells() if cell.engine == "synthetic"]
    assert all(cell.replaced == 8 * cell.batches > cell.samples for cell in replayed)
    assert all(cell.ceiling > 0 for cell in swept.cells())
    for _ in loader:
        pass
    assert loader.backend == "torchvision"
    assert loader.knobs == before
    assert not monitor.running
    assert swept.page.exists()


def test_a_step_that_fails_with_one_engine_is_named_and_the_others_go_on(
    loader: SwitchableLoader, tmp_path: Path
) -> None:
    def step(batch: Any) -> None:
        if loader.backend == "dali-cpu":
            raise torch.OutOfMemoryError("out of memory. Tried to allocate 2 GiB")

    swept = kernel_monitor.sweep(
        loader=loader, step=step, engines=["torchvision", "dali-cpu", "synthetic"], output=tmp_path, **QUICK
    )
    problems = {cell.engine: cell.problem for cell in swept.cells()}
    assert problems == {
        "torchvision": None, "dali-cpu": "out of memory. Tried to allocate 2 GiB", "synthetic": None
    }  # fmt: skip
    assert all(len(cell.rates) == 2 for cell in swept.cells() if cell.problem is None)


def test_an_interrupt_keeps_what_is_measured(loader: SwitchableLoader, tmp_path: Path) -> None:
    engines = ["torchvision", "synthetic"]
    steps = 0

    def interrupted(batch: Any) -> None:
        nonlocal steps
        steps += 1
        if loader.backend == "synthetic" and len(done()) == 1:
            raise KeyboardInterrupt

    def done() -> list[Any]:
        from kernel_monitor.sweeps.sweep_file import read

        return read(tmp_path).passes

    with pytest.raises(KeyboardInterrupt):
        kernel_monitor.sweep(loader=loader, step=interrupted, engines=engines, output=tmp_path, **QUICK)
    (kept,) = done()
    assert (tmp_path / "index.html").exists()
    assert not monitor.running
    swept = kernel_monitor.sweep(loader=loader, step=train, engines=engines, output=tmp_path, **QUICK)
    assert done()[0] == kept
    assert [one["number"] for one in done()] == [1, 2]
    assert [cell.problem for cell in swept.cells()] == [None, None]


def test_whole_epochs_are_measured_from_their_beginning(loader: SwitchableLoader, tmp_path: Path) -> None:
    swept = kernel_monitor.sweep(
        loader=loader, step=train, engines=["torchvision", "dali"], epochs=2, output=tmp_path, progress=False
    )
    for cell in swept.cells():
        assert cell.whole
        assert (cell.samples, cell.batches) == (2 * 2 * 48, 2 * 2 * 6)
        assert cell.epoch == pytest.approx(cell.seconds / 4)
    assert "Whole epochs were measured" in swept.page.read_text("utf-8")


def test_the_fused_decode_is_an_engine_of_its_own(pictures: Path, tmp_path: Path) -> None:
    swept = kernel_monitor.sweep(
        "resnet50-case-study", data=pictures, models=["resnet18"], batch=4, workers=1, short=True, passes=1,
        output=tmp_path, **QUICK,
    )  # fmt: skip
    dali = "dali-gpu" if torch.cuda.is_available() else "dali-cpu"
    assert [cell.engine for cell in swept.cells()] == ["torchvision", dali, "synthetic", f"{dali} fused"]
    assert [cell.problem for cell in swept.cells()] == [None] * 4
    assert {cell.engine: cell.decoded for cell in swept.cells() if cell.engine.startswith("dali")} == {
        cell.engine: {dali: cell.samples} for cell in swept.cells() if cell.engine.startswith("dali")
    }
    page = swept.page.read_text("utf-8")
    assert "10,738" in page
    assert "of synthetic" in page


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "needs the loader"),
        ({"name": "workers", "loader": 1}, "its own loaders"),
        ({"name": "workers", "data": "nowhere"}, "nowhere"),
        ({"name": "workers", "price": "dear"}, "price"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match=word):
        kernel_monitor.sweep(**arguments, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_loader_needs_a_step(loader: SwitchableLoader, tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match="step="):
        kernel_monitor.sweep(loader=loader, output=tmp_path)
    with pytest.raises(MonitorError, match="no knob 'speed'"):
        kernel_monitor.sweep(loader=loader, step=train, knobs=[{"speed": 9}], output=tmp_path)
