"""Work beside training: as `python -m`, but stopped most of the time while the cores are contended; nothing stays."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_monitor.stream.aside import NICENESS, REST_S, RUN_S, wanting

ROOT = Path(__file__).resolve().parents[2]
BURN = "while True: pass"
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


Start = Callable[[str | None], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Runs a module of a text aside; none of them outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str | None) -> subprocess.Popen[str]:
        if text is not None:
            (tmp_path / "a_module.py").write_text(text, encoding="utf-8")
        started.append(
            subprocess.Popen(
                [sys.executable, "-S", "-P", str(ROOT / "kernel_monitor/stream/aside.py"), "a_module"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,
                env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            )
        )
        return started[-1]

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        with contextlib.suppress(ChildProcessError):  # what this process inherited of it
            while True:
                os.waitpid(-process.pid, 0)


def group(number: int) -> set[int]:
    """The processes of a process group."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_text("ascii", "replace").rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended meanwhile
        if int(words[2]) == number and words[0] != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.mark.parametrize(
    ("ending", "status", "told"),
    [
        ("", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('no such session')", 1, "no such session\n"),
        ("raise ValueError('broken')", 1, "ValueError: broken\n"),
    ],
)
def test_it_reads_writes_and_ends_as_a_module_does(start: Start, ending: str, status: int, told: str) -> None:
    process = start(
        f"import sys\nif __name__ == '__main__':\n    print(sys.stdin.read() * 2, sys.argv[1:])\n    {ending}\n",
    )
    out, error = process.communicate("abc", timeout=30)
    assert (process.returncode, out) == (status, "abcabc []\n")
    assert error.endswith(told)
    assert bool(error) == bool(told)
    assert group(process.pid) == set()


def test_a_module_that_is_not_there_fails(start: Start) -> None:
    process = start(None)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "No module named a_module" in error


def test_one_that_ends_by_a_signal_is_said_to(start: Start) -> None:
    process = start("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("how", ["sys.stdout.buffer.write(b'x' * 1_000_000)", "print('x' * 1_000_000, end='')"])
def test_a_stop_in_the_middle_of_a_write_loses_nothing(start: Start, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as in many containers
    process = start(f"import sys\nsys.stderr.write('now\\n')\n{how}\n")
    assert process.stderr is not None
    assert process.stderr.readline() == "now\n"
    (worker,) = group(process.pid) - {process.pid}
    time.sleep(0.5)  # the pipe is full: it waits for its reader
    for _ in range(3):
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.05)
        os.kill(worker, signal.SIGCONT)
        time.sleep(0.05)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, len(out), error) == (0, 1_000_000, "")


@pytest.fixture
def reaper() -> Iterator[None]:
    """An orphan becomes this process's child, as it becomes a container's first process's.

    Both are in the orphan's session, so the system does not end it of itself, as it ends a stopped group that nobody
    of its session could let go on.
    """
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


@pytest.mark.usefixtures("reaper")
@pytest.mark.parametrize("which", ["both", "the first alone"])
def test_one_that_is_killed_leaves_nothing_behind(start: Start, which: str) -> None:
    process = start("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    both = group(process.pid)
    assert len(both) == 2
    (worker,) = both - {process.pid}
    if which == "both":
        os.killpg(process.pid, signal.SIGKILL)
    else:  # while the other rests
        process.send_signal(signal.SIGSTOP)  # it shall not let it go on in between
        os.kill(worker, signal.SIGSTOP)
        process.kill()
    process.communicate(timeout=30)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGKILL
    assert group(process.pid) == set()


SPENT = """
import time  # its processor time, s, of two seconds
until = time.monotonic() + 2
while time.monotonic() < until:
    pass
print(time.process_time())
"""


@pytest.fixture
def burning() -> Iterator[None]:
    """Every core is wanted by somebody else."""
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in os.sched_getaffinity(0)]
    yield
    for one in others:
        one.kill()
        one.wait()


@pytest.mark.usefixtures("burning")
def test_it_rests_most_of_the_time_while_others_want_every_core(start: Start) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGCHLD, lambda *_: calls.append(1))
    try:
        process = start(SPENT)
        out, error = process.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGCHLD, before)
    # A third of the time at most, and half of that if it shares its core; 0.1 s for what it takes to start.
    assert 0 < float(out) < 2 * RUN_S / (RUN_S + REST_S) + 0.3, error
    assert len(calls) <= 2, "who started it hears of its end alone, not of each stop"


def test_it_runs_freely_where_a_core_is_left(start: Start) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    spent = []
    for _ in range(5):  # others may use the machine now and then
        out, _ = start(SPENT).communicate(timeout=60)
        spent.append(float(out))
        if spent[-1] > 1.4:
            return
    raise AssertionError(spent)


def test_where_nobody_tells_how_many_want_to_run_it_is_done_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a_module.py").write_text("import os, time\ntime.sleep(0.5)\nprint(os.nice(0))\n")
    code = (
        "import sys; from kernel_monitor.stream import aside\n"
        "aside.LOAD = '/nowhere/loadavg'; sys.argv.append('a_module'); aside.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{min(19, os.nice(0) + NICENESS)}\n", "")


def test_what_the_system_says_is_read() -> None:
    assert wanting(b"0.20 0.18 0.12 3/80 11206\n") == 3
