"""`%%monitor` on a cell: the cell runs as any other, and a summary stands under it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from kernel_monitor import monitor
from kernel_monitor.ipython.answers import html_table, label_of, leave_out, machine
from tests.unit.ipython.conftest import Magic, wait_for_samples
from tests.unit.sessions import build, rows_of


@pytest.fixture
def shell(shell: InteractiveShell) -> InteractiveShell:
    """One whose monitor samples."""
    monitor.start(interval=0.05, record=False)
    wait_for_samples()
    return shell


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("%%monitor\n", ""),
        ("%%monitor  train it \n", "train it"),
        ("%%monitor", ""),
        ("%%monitored\n", None),
        ("%monitor\n", None),
        (" %%monitor\n", None),
        ("%%monitor?\n", None),
        ("x = 1\n", None),
    ],
)
def test_a_first_line_says_what_the_cell_is_called(line: str, label: str | None) -> None:
    assert label_of(line) == label


def test_every_other_line_stays_where_it_was() -> None:
    assert leave_out(["%%monitor a\n", "x = 1\n", "y"]) == ["# %%monitor a\n", "x = 1\n", "y"]
    assert leave_out(["%%monitor a\n", "%%time\n", "y"]) == ["%%time\n", "y"]
    assert leave_out(["x = 1\n", "%%monitor a\n"]) == ["x = 1\n", "%%monitor a\n"]
    assert leave_out(["%%monitor\n"]) == ["# %%monitor\n"]
    assert leave_out([]) == []


def test_the_summary_stands_under_the_cell(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    done = shell.run_cell("%%monitor warm up\nimport time\ntime.sleep(0.8)\n6 * 7")
    said = capsys.readouterr().out
    assert done.success
    assert done.result == 42
    assert said.index("42") < said.index("%%monitor")
    seconds, samples = re.search(r"Time +(\d+ ms|[\d.]+ s), (\d+) samples", said).groups()  # type: ignore[union-attr]
    assert float(seconds.split()[0]) * (1e-3 if "ms" in seconds else 1) >= 0.8
    assert int(samples) >= 3
    assert re.search(r"CPU, \d+ cores +mean \d+ %, p95 \d+ %; busiest core \d+: \d+ %", said)
    assert re.search(r"Memory, most +host [\d.]+ GB", said)
    event = [one for one in monitor.store.events() if one["kind"] == "cell"][-1]
    assert event["label"] == "warm up"
    assert event["ended"] - event["began"] >= 0.8


def test_a_cell_of_50_ms_is_too_short(magic: Magic, cell: Magic) -> None:
    magic("start --interval 0.5")
    assert "too short to say how busy it was" in cell("%%monitor\nimport time\ntime.sleep(0.05)")


def test_an_exception_passes_unchanged(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    done = shell.run_cell("%%monitor\nx = 1\nraise KeyError('gone')\n")
    said = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert isinstance(done.error_in_exec, KeyError)
    assert said.count("KeyError: 'gone'") == 1, said
    assert "line 3" in said
    assert said.index("KeyError") < said.rindex("Time ")


def test_a_cell_with_await_and_one_with_another_magic(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shell.run_cell("%%monitor\nimport asyncio\nawait asyncio.sleep(0.05)\n'woke'")
    assert (done.success, done.result) == (True, "woke")
    assert capsys.readouterr().out.count("%%monitor\n  Time") == 1
    shell.run_cell("%%monitor\n%%time\nz = 9")
    said = capsys.readouterr().out
    assert "Wall time" in said
    assert said.count("%%monitor\n  Time") == 1
    assert shell.user_ns["z"] == 9


def test_other_cells_have_none_and_the_magic_can_be_called(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("a = 1")
    assert "%%monitor" not in capsys.readouterr().out
    shell.run_cell_magic("monitor", "called", "b = a + 1")
    assert shell.user_ns["b"] == 2
    assert capsys.readouterr().out.count("%%monitor\n  Time") == 1
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("monitor", "", "1 / 0")


def test_the_monitor_is_started_for_it(cell: Magic) -> None:
    monitor.stop()
    assert "Time " in cell("%%monitor\nimport time\ntime.sleep(0.3)")
    assert monitor.running


def test_a_loop_is_counted(cell: Magic) -> None:
    cell("from kernel_monitor import watch_loader\ndata = watch_loader([[0] * 8] * 30, name='my train')")
    cell("for _ in data:\n    pass")
    said = cell("%%monitor\nimport time\nfor _ in data:\n    time.sleep(0.02)")
    assert re.search(r"Loader my train +240 images, [\d,]+ images/s, 30 steps", said), said
    assert "waiting for data" in said
    assert "my train" not in cell("%%monitor\nx = 1")
    cell("del data")


def test_the_verdict_of_a_cell_that_ends_with_an_evaluation_is_that_of_its_training(cell: Magic) -> None:
    cell("import time, torch; from kernel_monitor import watch_loader")
    cell("fit, val = (watch_loader([[0] * 8] * 20, name=name) for name in ('fit', 'val'))")
    loops = "for _ in fit:\n    time.sleep(0.02)\nwith torch.no_grad():\n    for _ in val:\n        time.sleep(0.03)"
    said = cell(f"%%monitor\n{loops}")
    assert re.search(r"Loader val +160 images", said), said
    assert re.search(r"Verdict +fit: ", said), said
    said = cell("%%monitor\nfor _ in fit:\n    time.sleep(0.02)")
    assert re.search(r"Verdict +(undetermined|\w+-bound)", said)
    cell("del fit, val")


def test_the_machine_s_figures_are_those_of_the_rows() -> None:
    snapshot = build(
        10,
        cpus=4,
        gpus=1,
        busy=50.0,
        gpu=lambda time: np.where(time > 5, 80.0, 20.0),
        series={"cpu/2/busy": 90.0, "memory/used": lambda time: time * 1e9},
        limits={"cpus": [1, 2], "cpu_quota": None},
    )
    rows = rows_of(snapshot)
    lines = dict(machine(rows, snapshot.time > 5))
    assert lines["CPU, 2 cores"] == "mean 70 %, p95 70 %; busiest core 2: 90 % (this process may use 2 of 4 cores)"
    assert (lines["of it"], lines["GPU 0"]) == ("kernel 90 %, workers 150 % of one core", "mean 80 %, p50 80 %")
    assert lines["Memory, most"].startswith("host 10.0 GB")
    assert "of it" not in dict(machine(rows, snapshot.time > 5, processes=False))


def test_names_are_text_in_html() -> None:
    assert "<b>" not in html_table("x", [("Loader <b>x</b>", "1 & 2")])
