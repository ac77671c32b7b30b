"""A control group with a known quota and limit, made for the test where that is permitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kernel_monitor.sample.host.process_limits import Groups

from ..waiting import until
from .watch import watching

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[2]
QUOTA = 0.5  # cores
LIMIT = 300 << 20  # bytes
TAKEN = 100 << 20

KERNEL = f"""
import json, os, sys, threading, time
from pathlib import Path
usage = sys.argv[1]
for folder in sys.argv[2:]:
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))
from tests.truth.watch import Beside, total, watching
taken = bytearray({TAKEN})
taken[::4096] = b"x" * len(range(0, {TAKEN}, 4096))
def seconds():
    text = Path(usage).read_text()
    if text.startswith("usage_usec"):
        return int(text.split()[1]) / 1e6
    return int(text) / 1e9
with watching() as watch, Beside(seconds) as used:
    pid = os.fork()
    if pid == 0:
        while True:
            pass
    try:
        begun = time.monotonic()
        watch.wait(begun + 5.0, "container/cpu")
        time.sleep(0.2)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    found = {{"limits": watch.host["limits"], "reasons": watch.host["reasons"]}}
    readings = watch.readings("container/cpu", begun)
    found["cores"] = used.growth(readings) / (readings[-1].end - readings[0].begin)
    for name in ("cpu", "throttled", "memory", "memory_percent"):
        readings = watch.readings("container/" + name, begun)
        found[name] = total(readings) / sum(reading.end - reading.begin for reading in readings)
print(json.dumps(found))
"""


@contextmanager
def limited() -> Iterator[list[Path]]:
    """The folders of a group with `QUOTA` and `LIMIT`; none where this process may not make it."""
    made: list[Path] = []
    try:
        try:
            _make(made)
        except OSError:
            for folder in reversed(made):
                folder.rmdir()
            made.clear()
        yield made
    finally:
        for folder in made:
            _remove(folder)


def _make(made: list[Path]) -> None:
    """Raises OSError: this process may not."""
    groups = Groups(os.getpid()).find()
    if not groups.keys() >= {"cpu", "cpuacct", "memory"}:
        raise OSError("no control groups to make one in")
    for controller in ("cpu", "cpuacct", "memory"):
        # In the outermost group: one that holds processes may not limit its inner groups in version 2.
        folder = Path(groups[controller].folders[-1]) / f"kernel_monitor-test-{os.getpid()}"
        if folder not in made:
            folder.mkdir()
            made.append(folder)
    if groups["cpu"].version == 1:
        cpu = made[0]
        (cpu / "cpu.shares").write_text("262144")  # others on this machine leave it what it may use
        (cpu / "cpu.cfs_period_us").write_text("100000")
        (cpu / "cpu.cfs_quota_us").write_text(str(round(QUOTA * 100_000)))
        (made[-1] / "memory.limit_in_bytes").write_text(str(LIMIT))
    else:
        (made[0] / "cpu.weight").write_text("10000")
        (made[0] / "cpu.max").write_text(f"{round(QUOTA * 100_000)} 100000")
        (made[0] / "memory.max").write_text(str(LIMIT))


def _remove(folder: Path) -> None:
    def removed() -> bool:
        with suppress(OSError):  # the last of its processes has not quite gone
            folder.rmdir()
        return not folder.exists()

    until(removed)


def _tells(path: Path) -> bool:
    """Whether the file holds the group's CPU time."""
    return path.exists() and (path.name != "cpu.stat" or "usage_usec" in path.read_text())


def test_a_group_with_a_known_quota_and_limit() -> None:
    with limited() as folders:
        if not folders:  # the made-up groups of tests/unit/sample/host/test_process_limits.py stand for it
            assert_limits_of_this_machine()
            return
        usage = next(
            path for folder in folders for path in (folder / "cpuacct.usage", folder / "cpu.stat") if _tells(path)
        )
        command = [sys.executable, "-c", KERNEL, str(usage), *map(str, folders)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        assert found["limits"]["cpu_quota"] == QUOTA
        assert found["limits"]["memory"] == LIMIT
        assert found["limits"]["cpus"] == sorted(os.sched_getaffinity(0))
        assert found["limits"]["source"] in ("cgroup v1", "cgroup v2")
        assert not any(name.startswith("container") for name in found["reasons"])
        assert found["cpu"] == pytest.approx(100 * found["cores"] / QUOTA, abs=3.0)
        assert found["cpu"] == pytest.approx(100.0, abs=9.0)
        assert found["throttled"] > 50.0
        assert found["memory_percent"] == pytest.approx(100 * found["memory"] / LIMIT, abs=0.1)
        assert TAKEN < found["memory"] < LIMIT


def assert_limits_of_this_machine() -> None:
    with watching() as watch:
        limits, reasons = watch.host["limits"], watch.host["reasons"]
        assert limits["cpus"] == sorted(os.sched_getaffinity(0))
        for limit, series in ((limits["cpu_quota"], "container/cpu"), (limits["memory"], "container/memory")):
            assert (series in watch.names()) == (limit is not None)
            assert (series in reasons or "container" in reasons) == (limit is None)
