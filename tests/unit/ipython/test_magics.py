"""The magics in a plain IPython shell: no kernel, no page, text only."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor import monitor, switchable, watch_loader
from kernel_monitor.ipython.answers import summary_rows
from kernel_monitor.ipython.magics import COMMANDS
from tests.loaders.conftest import augmented, make_folder
from tests.unit.checks import contains
from tests.unit.ipython.conftest import Magic, wait_for_samples


def test_the_dashboard_is_text_without_a_page(magic: Magic) -> None:
    magic("start --interval 0.05")
    wait_for_samples()
    contains(magic(""), "kernel_monitor", "CPU", "samples")
    assert "running" in magic("status")
    magic("stop")
    assert "stopped" in magic("status")


def test_without_a_page_there_is_no_sidebar(magic: Magic) -> None:
    begun = time.monotonic()
    assert magic("sidebar") == "There is no page here that has a sidebar: %monitor shows what is measured.\n"
    assert time.monotonic() - begun < 1.5, "nobody is waited for"
    assert monitor.running
    assert "%monitor sidebar " in magic("help")


@pytest.mark.parametrize("line", ["", "start", "sidebar"])
def test_whatever_fails_in_showing_the_dashboard_ends_no_cell(
    magic: Magic, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RecursionError("deep")

    monkeypatch.setattr(type(monitor), "start", fail)
    assert "Nothing can be shown here: RecursionError: deep." in magic(line)


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
        ("switch dali-cpu", "no loader to switch"),
        ("switch", "required"),
        ("set workers=4", "no loader to switch"),
        ("set", "required"),
        ("set workers=many", "workers is a whole number, not 'many'"),
        ("set wrokers=4", "'wrokers=4' is none of workers=N, prefetch=N, threads=N: did you mean workers=4\\?"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(magic: Magic, line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        magic(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_usage(magic: Magic, command: str) -> None:
    with pytest.raises(UsageError, match=f"^%monitor {command}|did you mean"):
        magic(f"{command} --zzz")


def test_an_interval_can_be_changed_while_running(magic: Magic) -> None:
    magic("start --interval 0.1")
    wait_for_samples()
    session = monitor.session
    magic("start --interval 0.05")
    wait_for_samples()
    assert (monitor.session, monitor.store.schema.interval) == (session, 0.05)
    newest = monitor.store.rows(monitor.store.last_seq - 4).time
    assert newest[-1] - newest[0] < 0.6


def test_loading_twice_registers_once(shell: InteractiveShell) -> None:
    shell.run_line_magic("reload_ext", "kernel_monitor")
    assert len([one for one in shell.events.callbacks["pre_run_cell"] if "Extension" in repr(one)]) == 1


@pytest.fixture
def images(tmp_path: Path) -> ImageFolder:
    return ImageFolder(str(make_folder(tmp_path, 8)), augmented(16))


@pytest.fixture
def train(images: ImageFolder) -> Iterator[Any]:
    """A switchable loader named `my train`; others that other tests left behind are collected first."""
    gc.collect()
    loader = switchable(DataLoader(images, batch_size=2), name="my train")
    yield loader
    loader.release()


def test_knobs_are_set_by_the_magic(magic: Magic, train: Any) -> None:
    assert "my train: workers 1, prefetch 3" in magic("set workers=1 prefetch=3 --loader 'my train'")
    assert (train.knobs.workers, train.knobs.prefetch) == (1, 3)
    with pytest.raises(UsageError, match="workers=-2"):
        magic("set workers=-2 --loader 'my train'")
    assert train.knobs.workers == 1


def test_synthetic_needs_a_yes(magic: Magic, train: Any) -> None:
    said = magic("switch synthetic --loader 'my train'")
    assert said.startswith(f"Warning: {train.backends['synthetic'].confirm}")
    assert train.state()["wanted"] is None
    command = said.strip().rpartition("%monitor ")[2]
    assert command == "switch synthetic --loader 'my train' --yes"
    assert "my train: switching to synthetic" in magic(command)
    assert train.state()["wanted"] == "synthetic"


def test_a_loader_that_has_ended_is_told_of_in_the_past_tense(magic: Magic) -> None:
    magic("start --interval 0.05")
    loop = watch_loader(DataLoader([*range(8)], batch_size=2), name="short")  # type: ignore[arg-type]
    for _ in loop:
        pass
    wait_for_samples()
    del loop
    gc.collect()
    wait_for_samples()
    assert re.search(r"^short: has ended, was on \S+$", magic("status"), re.MULTILINE)
    assert "has ended, was on" in str(summary_rows(monitor))


def test_the_summary_tells_of_replaced_samples(magic: Magic, train: Any) -> None:
    magic("start --interval 0.05")
    wait_for_samples()
    train.switch("synthetic")
    for _ in range(3):
        for _batch in train:
            pass
    state = train.state()
    assert state["replaced"] > 0
    assert f"{state['replaced']} replaced by synthetic" in str(summary_rows(monitor))


def test_charts_and_settings_are_chosen_by_magics(magic: Magic) -> None:
    magic("start --interval 0.05 --history 120 --charts cpu,io")
    assert monitor.settings["charts"] == ["cpu", "io"]
    assert (monitor.settings["interval"], monitor.settings["history"]) == (0.05, 120.0)
    wait_for_samples()
    assert magic("show memory default") == "charts: cpu, gpu, images, wait, memory\n"
    assert monitor.store.page_schema.charts == ("cpu", "gpu", "images", "wait", "memory")
    magic("show default")
    magic("start --interval 0.1 --history 600")


def test_the_status_tells_the_cost_and_the_recording(magic: Magic) -> None:
    magic("start --interval 0.05 --no-record")
    wait_for_samples()
    status = magic("status")
    assert "not recording: Recording is off." in status
    cost = re.search(r"^cost: sampler [0-9.]+ % of a core, in the kernel [0-9.]+ %$", status, re.MULTILINE)
    assert cost is not None, status
    assert set(monitor.cost()["threads"]) >= {"kernel-monitor-sampler"}
    said = magic("record on")
    assert f"recording to {monitor.recording['path']}" in said
    magic("start --interval 0.1")


def test_a_recorded_session_is_shown_as_text_without_a_page(magic: Magic, tmp_path: Path) -> None:
    magic("start --interval 0.05")
    monitor.configure(record=tmp_path)
    wait_for_samples()
    path = monitor.recording["path"]
    magic("stop")
    text = magic(f"open {path}")
    assert text.startswith("Recorded session of ")
    assert text.endswith(f"ended: {path}\n")
    magic("sessions")


def test_the_workers_of_a_live_loader_are_known(images: ImageFolder) -> None:
    loader = switchable(DataLoader(images, batch_size=2, num_workers=2))
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
