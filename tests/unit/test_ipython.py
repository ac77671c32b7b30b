"""The magics in a plain IPython shell: no kernel, no page, text only."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from kernel_monitor import monitor
from kernel_monitor.ipython.summary import summary_text


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "kernel_monitor")
    yield shell
    shell.run_line_magic("unload_ext", "kernel_monitor")
    InteractiveShell.clear_instance()
    assert not [one for one in threading.enumerate() if one.name.startswith("kernel-monitor")]
    assert not monitor.running


def wait_for_samples() -> None:
    until = time.monotonic() + 20
    before = monitor.store.last_seq
    while monitor.store.last_seq < before + 5:
        assert time.monotonic() < until, monitor.status()
        time.sleep(0.05)


def test_the_dashboard_is_text_without_a_page(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("monitor", "start --interval 0.05")
    wait_for_samples()
    shell.run_line_magic("monitor", "")
    text = capsys.readouterr().out
    assert "kernel_monitor" in text
    assert "CPU" in text
    assert "samples" in text
    shell.run_line_magic("monitor", "status")
    assert "running" in capsys.readouterr().out
    shell.run_line_magic("monitor", "stop")
    shell.run_line_magic("monitor", "status")
    assert "stopped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("dance", "invalid choice"),
        ("start --interval 0.001", "between 0.05 and 60"),
        ("start --interval soon", "invalid float"),
        ("switch dali-cpu", "no switchable loader"),
        ("switch", "required"),
        ("set workers=4", "no switchable loader"),
        ("set", "required"),
        ("set workers=many", "workers is a whole number, not 'many'"),
        ("set wrokers=4", "'wrokers=4' is none of workers=N, prefetch=N, threads=N"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(shell: InteractiveShell, line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        shell.run_line_magic("monitor", line)


def test_an_interval_can_be_changed_while_running(shell: InteractiveShell) -> None:
    shell.run_line_magic("monitor", "start --interval 0.1")
    wait_for_samples()
    session = monitor.session
    shell.run_line_magic("monitor", "start --interval 0.05")
    wait_for_samples()
    assert monitor.session == session
    assert monitor.store.schema.interval == 0.05
    newest = monitor.store.rows(monitor.store.last_seq - 4).time
    assert newest[-1] - newest[0] < 0.6


def test_loading_twice_registers_once(shell: InteractiveShell) -> None:
    shell.run_line_magic("reload_ext", "kernel_monitor")
    assert len([one for one in shell.events.callbacks["pre_run_cell"] if "Extension" in repr(one)]) == 1


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Any]:
    """A switchable loader named `my train`; others that other tests left behind are collected first."""
    from PIL import Image
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from kernel_monitor import switchable

    gc.collect()
    (tmp_path / "a").mkdir()
    for index in range(8):
        Image.new("RGB", (40, 30), (index * 30, 90, 120)).save(tmp_path / "a" / f"{index}.jpg")
    transform = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
    loader = switchable(DataLoader(ImageFolder(str(tmp_path), transform), batch_size=2), name="my train")
    yield loader
    loader.release()


def test_knobs_are_set_by_the_magic(shell: InteractiveShell, train: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("monitor", "set workers=1 prefetch=3 --loader 'my train'")
    assert "my train: workers 1, prefetch 3" in capsys.readouterr().out
    assert (train.knobs.workers, train.knobs.prefetch) == (1, 3)
    with pytest.raises(UsageError, match="workers=-2"):
        shell.run_line_magic("monitor", "set workers=-2 --loader 'my train'")
    assert train.knobs.workers == 1


def test_synthetic_needs_a_yes(shell: InteractiveShell, train: Any, capsys: pytest.CaptureFixture[str]) -> None:
    question = train.backends["synthetic"].confirm
    shell.run_line_magic("monitor", "switch synthetic --loader 'my train'")
    said = capsys.readouterr().out
    assert said.startswith(f"Warning: {question}")
    assert train.state()["wanted"] is None
    command = said.strip().rpartition("%monitor ")[2]
    assert command == "switch synthetic --loader 'my train' --yes"
    shell.run_line_magic("monitor", command)
    assert "my train: switching to synthetic" in capsys.readouterr().out
    assert train.state()["wanted"] == "synthetic"


def test_the_summary_tells_of_replaced_samples(shell: InteractiveShell, train: Any) -> None:
    shell.run_line_magic("monitor", "start --interval 0.05")
    wait_for_samples()
    train.switch("synthetic")
    for _ in range(3):
        for _batch in train:
            pass
    state = train.state()
    assert state["replaced"] > 0
    assert f"{state['replaced']} replaced by synthetic" in summary_text(monitor)
