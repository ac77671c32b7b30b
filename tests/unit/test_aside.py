"""Work beside training: as `python -m`, but on its way as long as the cores are contended; nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernel_monitor.stream.aside import core, wanting

ROOT = Path(__file__).resolve().parents[2]
BURN = "while True: pass"


def start(folder: Path, text: str) -> subprocess.Popen[str]:
    """A module of that text, run aside."""
    (folder / "a_module.py").write_text(text, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-S", "-P", str(ROOT / "kernel_monitor/stream/aside.py"), "a_module"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )


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
def test_it_reads_writes_and_ends_as_a_module_does(tmp_path: Path, ending: str, status: int, told: str) -> None:
    process = start(
        tmp_path,
        f"import sys\nif __name__ == '__main__':\n    print(sys.stdin.read() * 2, sys.argv[1:])\n    {ending}\n",
    )
    out, error = process.communicate("abc", timeout=30)
    assert (process.returncode, out) == (status, "abcabc []\n")
    assert error.endswith(told)
    assert bool(error) == bool(told)
    assert group(process.pid) == set()


def test_a_module_that_is_not_there_fails(tmp_path: Path) -> None:
    process = start(tmp_path, "")
    (tmp_path / "a_module.py").unlink()
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "No module named a_module" in error


def test_one_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    process = start(tmp_path, "import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    assert len(group(process.pid)) == 2
    process.kill()
    process.communicate(timeout=30)
    until = time.monotonic() + 10
    while group(process.pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_it_never_stays_on_a_core_that_others_want(tmp_path: Path) -> None:
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(os.cpu_count() or 1)]
    try:
        process = start(
            tmp_path,
            "import os, time\nmoves, last, until = 0, None, time.monotonic() + 4\n"
            "while time.monotonic() < until:\n"
            "    allowed = os.sched_getaffinity(0)\n    moves += allowed != last\n    last = allowed\n"
            "print(moves)\n",
        )
        out, error = process.communicate(timeout=60)
    finally:
        for one in others:
            one.kill()
            one.wait()
    # A thousand times in four seconds, if the machine lets both run whenever they want to.
    assert int(out) > 50, error


def test_what_the_system_says_is_read() -> None:
    assert wanting(b"0.20 0.18 0.12 3/80 11206\n") == 3
    stat = Path("/proc/self/stat").read_bytes()
    assert core(stat) in os.sched_getaffinity(0)
    name, rest = stat.rsplit(b")", 1)
    assert core(name + b") 1 2 3)" + rest) == core(stat)
