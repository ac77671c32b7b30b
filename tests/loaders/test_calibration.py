"""What an engine takes of the processor for some of the files, measured in a process beside the training."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor import loaders
from kernel_monitor.loaders import SwitchableLoader, calibration, calibration_process, switchable
from kernel_monitor.runtime import Monitor

from .conftest import wait_for

END = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
LONG = [v2.Resize(500), *[v2.RandomRotation(20)] * 60, v2.CenterCrop(32)]
"""Some seconds of processor time."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(calibration, "_known", {})
    yield
    loaders.stop_calibrations()
    assert processes() == []


def wrapped(dataset: Any, workers: int = 1, **others: Any) -> SwitchableLoader:
    return switchable(DataLoader(dataset, batch_size=4, num_workers=workers), **others)


def images(folder: Path, *chain: Any) -> ImageFolder:
    return ImageFolder(str(folder), v2.Compose([*chain, *END]))


def processes() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any("calibration_process" in word for word in child.cmdline()):
                found.append(child)
    return found


def begun() -> psutil.Process:
    wait_for(processes)
    return processes()[0]


def result(loader: SwitchableLoader) -> dict[str, Any]:
    wait_for(lambda: loader.state()["calibration"]["dali-cpu"]["state"] != "running")
    return dict(loader.state()["calibration"]["dali-cpu"])


def test_some_files_are_measured_once_at_low_priority_and_no_generator_is_drawn_from(folder: Path) -> None:
    loader, again = (wrapped(images(folder, v2.RandomResizedCrop(32))) for _ in range(2))
    assert loader.state()["calibration"] == {}
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    loader.calibrate()
    assert loader.state()["calibration"]["dali-cpu"]["state"] == "running"
    process = begun()
    wait_for(lambda: process.nice() != psutil.Process().nice())
    assert process.nice() == min(19, psutil.Process().nice() + calibration_process.NICENESS)
    limit = calibration_process.CPU_LIMIT_S
    wait_for(lambda: process.rlimit(psutil.RLIMIT_CPU) == (limit, limit))
    again.calibrate()
    found = result(loader)
    assert processes() == []
    assert (found["state"], found["files"], found["reason"]) == ("done", 32, None)
    assert 1e-4 < found["seconds"] < 0.1
    assert 0 < found["error"] < found["seconds"]
    assert result(again) == found
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index] # noqa: NPY002
    loader.fused_decode = False
    assert loader.state()["calibration"] == {}, "another chain"


class InMemory(Dataset[Any]):
    """Encoded files, which only this class knows; counts how often it is asked."""

    transform = v2.Compose([v2.RandomResizedCrop(32), *END])
    asked = 0

    def __init__(self, folder: Path) -> None:
        self.files = [file.read_bytes() for file in sorted(folder.rglob("*.jpg"))]

    def __len__(self) -> int:
        return len(self.files)

    def image_file(self, index: int) -> tuple[bytes, int]:
        self.asked += 1
        return self.files[index], 0

    __getitem__ = image_file


def test_a_data_set_of_ones_own_is_not_asked_for_more_files(folder: Path) -> None:
    dataset = InMemory(folder)
    loader = wrapped(dataset)
    before = dataset.asked
    loader.calibrate()
    found = result(loader)
    assert dataset.asked == before
    assert (found["state"], found["files"]) == ("done", 6)


def test_what_is_not_measured_has_a_reason(folder: Path) -> None:
    def pipeline(sample: Any) -> Any:
        return sample.image

    partly = wrapped(images(folder, v2.CenterCrop(32), v2.RandomPosterize(3)), workers=0)
    own = wrapped(images(folder, v2.CenterCrop(32)), dali=pipeline)
    few = wrapped(torch.utils.data.Subset(images(folder, v2.CenterCrop(32)), [0, 1]))
    for loader, words in (
        (partly, "leaves a part"),
        (own, "pipeline of your own"),
        (few, "DALI can read 2 of 2 files"),
    ):
        loader.pool.calibrate()
        found = result(loader)
        assert found["state"] == "failed"
        assert words in found["reason"]


def test_files_that_dali_is_not_given_are_a_reason(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for number in range(8):
        (tmp_path / "one" / f"{number}.jpg").write_text("no image")
    loader = wrapped(images(tmp_path, v2.CenterCrop(32)))
    loader.calibrate()
    found = result(loader)
    assert found["state"] == "failed"
    assert found["reason"].startswith("DALI can read 0 of 8 files: ")
    assert str(tmp_path) not in found["reason"]


def test_it_ends_when_the_monitor_stops_and_is_begun_anew_afterwards(folder: Path) -> None:
    monitor = Monitor()
    monitor.start(record=False)
    loader = wrapped(images(folder, *LONG))
    monitor.live_session.calibrate(loader.id)
    process = begun()
    monitor.stop()
    assert not process.is_running()
    assert loader.state()["calibration"] == {}
    monitor.live_session.calibrate(loader.id)
    assert loader.state()["calibration"] == {}, "nothing is measured"
    monitor.start(record=False)
    monitor.live_session.calibrate(loader.id)
    assert loader.state()["calibration"]["dali-cpu"]["state"] == "running"
    begun()
    monitor.stop()


def test_it_ends_after_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "LIMIT_S", 0.1)
    loader = wrapped(images(folder, v2.CenterCrop(32)))
    loader.calibrate()
    found = result(loader)
    assert (found["state"], found["reason"]) == ("failed", "32 files were not measured within 0.1 s")
    assert processes() == []


def test_it_ends_with_the_process_of_the_training(folder: Path, tmp_path: Path) -> None:
    program = wrapped(images(folder, *LONG)).pool.setting.program
    files = [os.fspath(file) for file in sorted(folder.rglob("*.jpg"))[:32]]
    (tmp_path / "request").write_bytes(pickle.dumps((program, files, True)))
    script = f"""if True:
        import os, subprocess, sys, time
        command = [sys.executable, "-P", {calibration_process.__file__!r}, str(os.getpid())]
        print(subprocess.Popen(command, stdin=open({str(tmp_path / "request")!r}, "rb")).pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        measuring = psutil.Process(int(training.stdout.readline()))
        wait_for(lambda: measuring.nice() != psutil.Process().nice())
        training.send_signal(signal.SIGKILL)
    psutil.wait_procs([measuring], timeout=5)
    assert not measuring.is_running()


def test_without_workers_and_with_another_engine_nothing_is_measured(folder: Path) -> None:
    inline = wrapped(images(folder, v2.CenterCrop(32)), workers=0)
    inline.calibrate()
    assert inline.state()["calibration"] == {}


def test_the_process_imports_no_torch_and_keeps_to_its_budget(folder: Path) -> None:
    """With every operation that DALI does: torch alone would take seconds of processor time."""
    chain = [
        v2.ColorJitter(0.2, 0.2, 0.2),
        v2.GaussianBlur(3),
        v2.RandomGrayscale(),
        v2.RandomAffine(10),
        v2.Pad(4),
        v2.RandomResizedCrop(32),
        v2.RandomVerticalFlip(),
        *END,
        v2.Normalize([0.5] * 3, [0.2] * 3),
        v2.RandomErasing(),
    ]
    loader = wrapped(ImageFolder(str(folder), v2.Compose(chain)))
    program = loader.pool.setting.program
    assert program is not None
    assert program.rest is None, program.reason
    files = [os.fspath(file) for file in sorted(folder.rglob("*.jpg"))[:8]]
    script = f"""if True:
        import pickle, runpy, sys
        module = runpy.run_path({calibration_process.__file__!r})
        module["without_torch"]()
        module["measure"].__globals__["CPU_BUDGET_S"] = 0.0
        found = module["measure"](*pickle.load(sys.stdin.buffer))
        assert found["files"] == 2, found
        assert not {{"torch", "torchvision"}} & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-P", "-c", script], input=pickle.dumps((program, files, True)), check=True)
