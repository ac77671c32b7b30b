"""The magics in a plain IPython shell: no kernel, no page, text only."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from kernel_monitor import monitor
from kernel_monitor.ipython.answers import summary_rows
from kernel_monitor.ipython.magics import COMMANDS
from tests.unit.checks import contains


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
    contains(text, "kernel_monitor", "CPU", "samples")
    shell.run_line_magic("monitor", "status")
    assert "running" in capsys.readouterr().out
    shell.run_line_magic("monitor", "stop")
    shell.run_line_magic("monitor", "status")
    assert "stopped" in capsys.readouterr().out


def test_without_a_page_there_is_no_sidebar(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    shell.run_line_magic("monitor", "sidebar")
    assert time.monotonic() - begun < 1.5, "nobody is waited for"
    assert capsys.readouterr().out == "There is no page here that has a sidebar: %monitor shows what is measured.\n"
    assert monitor.running
    shell.run_line_magic("monitor", "help")
    assert "%monitor sidebar " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("dance", "There is no %monitor dance. %monitor help names all commands."),
        ("sidbar", "There is no %monitor sidbar: did you mean %monitor sidebar\\?"),
        ("exprt run.html", "did you mean %monitor export\\?"),
        ("export --opn run.html", "there is no '--opn' here. It is called as %monitor export PATH"),
        ("export", "required: path. It is called as %monitor export PATH"),
        ("switch dali --loadr train", "there is no '--loadr': did you mean --loader\\?"),
        ("start --intervall 1", "did you mean --interval\\?"),
        ("start --interval 0.001", "between 0.05 and 60"),
        ("start --interval soon", "invalid float"),
        ("start --history 5", "between 60 and 3600"),
        ("start --charts weather", "'weather'"),
        ("show", "required"),
        ("show weather", "'weather'"),
        ("record maybe", "invalid choice"),
        ("open nowhere", "nowhere"),
        ("switch dali-cpu", "no switchable loader"),
        ("switch", "required"),
        ("set workers=4", "no switchable loader"),
        ("set", "required"),
        ("set workers=many", "workers is a whole number, not 'many'"),
        ("set wrokers=4", "'wrokers=4' is none of workers=N, prefetch=N, threads=N: did you mean workers=4\\?"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(shell: InteractiveShell, line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        shell.run_line_magic("monitor", line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_usage(shell: InteractiveShell, command: str) -> None:
    with pytest.raises(UsageError, match=f"^%monitor {command}|did you mean"):
        shell.run_line_magic("monitor", f"{command} --zzz")


def test_an_interval_can_be_changed_while_running(shell: InteractiveShell) -> None:
    shell.run_line_magic("monitor", "start --interval 0.1")
    wait_for_samples()
    session = monitor.session
    shell.run_line_magic("monitor", "start --interval 0.05")
    wait_for_samples()
    assert (monitor.session, monitor.store.schema.interval) == (session, 0.05)
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


def test_a_loader_that_has_ended_is_told_of_in_the_past_tense(
    shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch.utils.data import DataLoader

    from kernel_monitor import watch_loader

    shell.run_line_magic("monitor", "start --interval 0.05")
    loop = watch_loader(DataLoader([*range(8)], batch_size=2), name="short")  # type: ignore[arg-type]
    for _ in loop:
        pass
    wait_for_samples()
    del loop
    gc.collect()
    wait_for_samples()
    capsys.readouterr()
    shell.run_line_magic("monitor", "status")
    assert re.search(r"^short: has ended, was on \S+$", capsys.readouterr().out, re.MULTILINE)
    assert "has ended, was on" in str(summary_rows(monitor))


def test_the_summary_tells_of_replaced_samples(shell: InteractiveShell, train: Any) -> None:
    shell.run_line_magic("monitor", "start --interval 0.05")
    wait_for_samples()
    train.switch("synthetic")
    for _ in range(3):
        for _batch in train:
            pass
    state = train.state()
    assert state["replaced"] > 0
    assert f"{state['replaced']} replaced by synthetic" in str(summary_rows(monitor))


def test_charts_and_settings_are_chosen_by_magics(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("monitor", "start --interval 0.05 --history 120 --charts cpu,io")
    assert monitor.settings["charts"] == ["cpu", "io"]
    assert (monitor.settings["interval"], monitor.settings["history"]) == (0.05, 120.0)
    wait_for_samples()
    capsys.readouterr()
    shell.run_line_magic("monitor", "show memory default")
    assert capsys.readouterr().out == "charts: cpu, gpu, images, wait, memory\n"
    assert monitor.store.page_schema.charts == ("cpu", "gpu", "images", "wait", "memory")
    shell.run_line_magic("monitor", "show default")
    shell.run_line_magic("monitor", "start --interval 0.1 --history 600")


def test_the_status_tells_the_cost_and_the_recording(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_line_magic("monitor", "start --interval 0.05 --no-record")
    wait_for_samples()
    capsys.readouterr()
    shell.run_line_magic("monitor", "status")
    status = capsys.readouterr().out
    assert "not recording: Recording is off." in status
    cost = re.search(r"^cost: sampler [0-9.]+ % of a core, in the kernel [0-9.]+ %$", status, re.MULTILINE)
    assert cost is not None, status
    assert set(monitor.cost()["threads"]) >= {"kernel-monitor-sampler"}
    shell.run_line_magic("monitor", "record on")
    assert f"recording to {monitor.recording['path']}" in capsys.readouterr().out
    shell.run_line_magic("monitor", "start --interval 0.1")


def test_a_recorded_session_is_shown_as_text_without_a_page(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shell.run_line_magic("monitor", "start --interval 0.05")
    monitor.configure(record=tmp_path)
    wait_for_samples()
    path = monitor.recording["path"]
    shell.run_line_magic("monitor", "stop")
    capsys.readouterr()
    shell.run_line_magic("monitor", f"open {path}")
    text = capsys.readouterr().out
    assert text.startswith("Recorded session of ")
    assert text.endswith(f"ended: {path}\n")
    shell.run_line_magic("monitor", "sessions")


def test_the_workers_of_a_live_loader_are_known(tmp_path: Path) -> None:
    import psutil
    from PIL import Image
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from kernel_monitor import switchable

    (tmp_path / "a").mkdir()
    for index in range(8):
        Image.new("RGB", (40, 30), (index * 30, 90, 120)).save(tmp_path / "a" / f"{index}.jpg")
    transform = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
    loader = switchable(DataLoader(ImageFolder(str(tmp_path), transform), batch_size=2, num_workers=2))
    assert loader.worker_pids == []
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    iterator = iter(loader)
    next(iterator)
    new = {child.pid for child in psutil.Process().children(recursive=True)} - before
    assert len(loader.worker_pids) == 2
    assert set(loader.worker_pids) <= new
    for _ in iterator:
        pass
    loader.release()
    assert loader.worker_pids == []
