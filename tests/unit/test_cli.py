"""The command line: what it prints, where, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import demo_decoding
from benchmarks.demo_decoding import Comparison, Measured
from kernel_monitor import cli
from kernel_monitor.record.reader import open_session
from kernel_monitor.runtime import Monitor
from tests.unit.checks import contains, wait_for
from tests.unit.commands import called, refusal, run


def test_help_names_the_commands() -> None:
    assert "demo-data" in run("--help").stdout
    assert "--images" in run("demo-data", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "COMMAND"),
        (["bake"], "there is no command 'bake': there are demo-data, sessions"),
        (["swep", "workers"], "did you mean sweep?"),
        (["demo-data"], "DIR"),
        (["demo-data", "x", "--images", "many"], "many"),
        (["demo-data", "x", "--images", "5"], "5 images"),
        (["demo-data", "x", "--images", "0"], "0 images"),
        (["demo-data", "x", "--classes", "61"], "61"),
        (["demo-data", "x", "--sugar"], "--sugar"),
        (["demo-data", "/dev/null/x"], "/dev/null"),
        (["report", "nowhere.kmsession"], "-o"),
        (["report", "nowhere.kmsession", "-o", "x.html"], "nowhere.kmsession"),
        (["sessions", "--copy", "nowhere.kmsession"], "nowhere.kmsession"),
        (["sessions", "--copy", "a", "b", "c"], "one destination"),
    ],
)
def test_bad_input_is_one_sentence_on_stderr_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, error = called(capsys, *arguments)
    assert (status, out) == (2, "")
    assert word in refusal(error)
    assert not list(tmp_path.iterdir())


def test_demo_data_makes_a_set_once(tmp_path: Path) -> None:
    root = tmp_path / "a set"
    first = run("demo-data", str(root), "--images", "12", "--classes", "3", "--seed", "5")
    assert (first.returncode, first.stdout) == (0, f"12 images in 3 classes: {root}\n")
    assert first.stderr == ""  # the progress bar is for terminals
    paths = sorted(root.glob("*/*.jpg"))
    assert len(paths) == 12
    again = run("demo-data", str(root), "--images", "12", "--classes", "3", "--seed", "5")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    other = run("demo-data", str(root), "--images", "12", "--classes", "3")
    assert other.returncode == 2
    assert "seed 5" in other.stderr


def test_check_prints_the_comparison_and_its_status_is_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "set"
    assert cli.main(["demo-data", str(root), "--images", "12", "--classes", "3"]) == 0
    demo_decoding.check(root)
    printed = capsys.readouterr().out
    contains(printed, "china.jpg", "decode time per megapixel")

    # the verdict itself, with times that do not depend on this machine
    def measured(decode: float) -> Comparison:
        file, photograph = (Measured("x", 500, 400, 125_000, (time,)) for time in (decode, 8.0))
        return Comparison((file,), (photograph,), 1, (125_000,))

    monkeypatch.setattr(demo_decoding, "compare", lambda root: measured(9.0))
    assert demo_decoding.check(root) == 0
    assert "decodes like photographs" in capsys.readouterr().out
    monkeypatch.setattr(demo_decoding, "compare", lambda root: measured(11.0))
    assert demo_decoding.check(root) == 1
    assert "not within 25%" in capsys.readouterr().err


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernel_monitor.demo.demo_data", interrupted)
    assert cli.main(["demo-data", "x"]) == 130
    assert capsys.readouterr().err == "kernel-monitor: interrupted\n"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a session that was recorded just now."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # others keep sessions in the machine's temporary folder
    monkeypatch.setenv("KERNEL_MONITOR_SESSIONS", str(tmp_path / "sessions"))
    monitor = Monitor()
    monitor.start(interval=0.05)
    wait_for(lambda: monitor.store.last_seq >= 30)
    monitor.stop()
    return Path(str(monitor.recording["path"]))


def test_recorded_sessions_are_listed_copied_and_reported(recorded: Path, tmp_path: Path) -> None:
    listed = run("sessions")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert str(recorded) in listed.stdout
    assert listed.stdout.count("\n") == 1
    assert "without goodbye" not in listed.stdout
    (entry,) = json.loads(run("sessions", "--json").stdout)
    assert (entry["path"], entry["live"], entry["goodbye"]) == (str(recorded), False, True)

    copied = run("sessions", "--copy", entry["id"][:8], str(tmp_path))
    copy = tmp_path / recorded.name
    assert (copied.returncode, copied.stdout, copied.stderr) == (0, f"{copy}\n", "")
    assert open_session(copy).check() == open_session(recorded).check()
    assert len(open_session(copy).rows()) == len(open_session(recorded).rows()) >= 25
    again = run("sessions", "--copy", entry["id"], str(copy))
    assert again.returncode == 2
    assert "exists already" in again.stderr

    html = tmp_path / "run.html"
    report = run("report", str(copy), "-o", str(html))
    assert (report.returncode, report.stdout, report.stderr) == (0, f"wrote {html}\n", "")
    assert html.read_text("utf-8").lstrip().lower().startswith("<!doctype html>")


def test_no_sessions_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("KERNEL_MONITOR_SESSIONS", str(tmp_path / "none"))
    assert run("sessions").stdout == "No session is recorded yet.\n"
