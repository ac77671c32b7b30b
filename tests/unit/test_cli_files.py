"""What the command line, `monitor.export` and a session's export do with the file that they are told to write."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

import kernel_monitor
from kernel_monitor import cli
from kernel_monitor.demo import demo_data
from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.runtime import Monitor, open_session
from tests.record.recorded import session
from tests.unit.commands import called, refusal, run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return session(tmp_path_factory.mktemp("recorded") / "original.kmsession").path


@pytest.fixture
def recording(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a recorded session; the working folder holds it and nothing else."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Path(shutil.copy(original, folder / "run.kmsession"))


def test_the_package_is_a_command_too() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kernel-monitor {kernel_monitor.__version__}\n", "")
    failed = run("demo-data")
    assert failed.returncode == 2
    assert failed.stderr == (
        "kernel-monitor demo-data: the following arguments are required: DIR (see kernel-monitor demo-data --help)\n"
    )


def test_a_report_is_written_through_what_is_no_file(recording: Path) -> None:
    # A terminal: devpts, other than /dev, lets nobody put a file in a device's place, should this ever fail as root.
    master, terminal = os.openpty()
    device = Path(os.ttyname(terminal))
    screen: list[bytes] = []

    def look() -> None:
        while not b"".join(screen).endswith(b"}\r\n"):
            screen.append(os.read(master, 4096))

    viewer = threading.Thread(target=look, daemon=True)
    viewer.start()
    done = run("report", str(recording), "--json", "-o", str(device))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {device}\n", "")
    assert stat.S_ISCHR(device.stat().st_mode)
    viewer.join(20)
    assert json.loads(b"".join(screen))["session"]
    os.close(terminal)
    os.close(master)

    pipe = recording.with_name("pipe")
    os.mkfifo(pipe)
    alone = run("report", str(recording), "--json", "-o", str(pipe))
    assert alone.returncode == 2
    assert "it is a named pipe without a reader: start the reader first" in refusal(alone.stderr)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    done = run("report", str(recording), "--json", "-o", str(pipe))
    reader.join(20)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"wrote {pipe}\n", "")
    assert json.loads(read[0])["session"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)

    for name in ("-", "/dev/stdout"):
        said = run("report", str(recording), "--json", "-o", name)
        assert (said.returncode, json.loads(said.stdout)["session"]) == (0, json.loads(read[0])["session"])
        assert said.stderr == ("" if name == "-" else "wrote /dev/stdout\n")


def test_a_report_never_replaces_a_recording(
    recording: Path, original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copy(recording, "page.html"))
    for target in (recording, other, Path("run.kmsession-wal"), Path("page.html-wal")):
        assert cli.main(["report", str(recording), "-o", str(target)]) == 2
        assert "is a recorded session, or belongs to one, and would be lost" in refusal(capsys.readouterr().err)
    link = Path("link.html")
    link.symlink_to(recording)
    with pytest.raises(MonitorError, match="is a recorded session"):
        open_session(recording).export(link)
    assert recording.read_bytes() == other.read_bytes() == original.read_bytes()


def test_a_report_goes_where_links_point(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site").mkdir()
    page = Path("site", "page.json")
    page.write_text("old")
    page.chmod(0o640)
    link = Path("latest")
    link.symlink_to(page)
    assert cli.main(["report", str(recording), "--json", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(page.read_text("utf-8"))["session"]
    assert page.stat().st_mode & 0o777 == 0o640
    assert list(Path("site").iterdir()) == [page]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "run.kmsession", "-o", "gone/x.html"], "gone does not exist: name a file in another folder."),
        (["report", "run.kmsession", "-o", "."], "it is a folder. Name a file in it, such as run.html."),
        (["report", "run.kmsession", "-o", "run.kmsession/x"], "run.kmsession is not a folder"),
        (["report", "run.kmsession", "--json", "-o", "/proc/x"], "no file can be created in /proc"),
        (["sessions", "--copy", "run.kmsession", "gone/x"], "gone does not exist: name a file in another folder."),
        (["sessions", "--copy", "run.kmsession", "/proc/x"], "Cannot write /proc/x: no file can be created in /proc"),
        (["sessions", "--copy", "run.kmsession", "run.kmsession"], "exists already: name another file"),
        (["demo-data", "run.kmsession"], "run.kmsession: it is not a folder: name another one."),
        (["demo-data", "run.kmsession/set"], "run.kmsession is not a folder"),
        (["demo-data", "/proc/set"], "no file can be created in /proc"),
        (["report", "", "-o", "x.html"], "argument SESSION: it is empty, and must name something"),
        (["report", "run.kmsession", "-o", ""], "argument -o/--output: it is empty"),
        (["report", "run.kmsession", "--json", "--price", ""], "argument --price: it is empty"),
        (["compare", "", "run.kmsession"], "argument A: it is empty"),
        (["compare", "run.kmsession", ""], "argument B: it is empty"),
        (["compare", "run.kmsession", "run.kmsession", "--loader", ""], "argument --loader: it is empty"),
        (["compare", "run.kmsession", "run.kmsession", "--segment", ""], "argument --segment: it is empty"),
        (["sessions", "--copy", ""], "argument --copy: it is empty"),
        (["sessions", "--copy", "run.kmsession", ""], "argument --copy: it is empty"),
        (["demo-data", ""], "argument DIR: it is empty"),
    ],
)
def test_what_cannot_be_written_or_has_no_name_is_a_sentence(
    recording: Path, original: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    status, out, error = called(capsys, *arguments)
    assert (status, out) == (2, "")
    assert said in refusal(error)
    assert list(recording.parent.iterdir()) == [recording]
    assert recording.read_bytes() == original.read_bytes()


def test_a_session_without_a_name_is_not_the_newest_here(recording: Path) -> None:
    assert open_session(".").path == recording
    with pytest.raises(SessionError, match="A session without a name cannot be opened"):
        open_session("")
    with pytest.raises(MonitorError, match="A demo set needs a folder with a name"):
        demo_data("")


def test_an_export_says_that_it_cannot_be_written_before_it_is_made(tmp_path: Path) -> None:
    monitor = Monitor()  # never started: what it says first is what it looks at first
    told = {"": "without a name", str(tmp_path / "gone" / "x"): "does not exist", str(tmp_path): "a folder"}
    for target, said in told.items():
        with pytest.raises(MonitorError, match=said):
            monitor.export(target)
    with pytest.raises(SessionError, match="Nothing was measured yet"):
        monitor.export(tmp_path / "run.html")
    assert list(tmp_path.iterdir()) == []
