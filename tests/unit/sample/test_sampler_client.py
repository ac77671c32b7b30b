"""The sampler process and the kernel's half: steady, and restarted when it dies."""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from kernel_monitor.sample import sampler_client as client_module
from tests.unit.checks import not_none, threads, wait_for
from tests.unit.sampler_taken import Taken, gone, running

THREAD = "kernel-monitor-sampler"


def spin(stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        for _ in range(1000):
            number = (number * 1103515245 + 12345) % 2147483648


def test_it_says_hello_and_then_samples() -> None:
    with running(0.05, frames=26) as taken:
        command = Path(f"/proc/{taken.pid}/cmdline").read_bytes().split(b"\0")
        assert command[2:4] == [b"-m", b"kernel_monitor.sample"]
    assert (taken.order[0], taken.notices) == ("hello", [])
    hello = taken.hellos[0]
    names = [series["name"] for series in hello["series"]]
    cores = [int(word[3:]) for word in Path("/proc/stat").read_text().split() if re.fullmatch(r"cpu\d+", word)]
    assert (hello["cpus"], hello["interval"]) == (cores, 0.05)
    assert len(set(names)) == len(names)
    assert names[: 2 * len(cores)] == [f"cpu/{core}/{part}" for core in cores for part in ("busy", "iowait")]
    assert {*names} >= {
        "memory/percent", "process/kernel/cpu", "sample/interval", "sample/cpu/age", "sample/memory/window",
    }  # fmt: skip
    assert (hello["gpu_reason"] is None) == bool(hello["gpus"])
    facts = {"cpu_model", "logical_cpus", "memory_total", "platform", "topology", "limits", "reasons"}
    assert set(hello["host"]) == facts
    stamp, _, found = taken.frames[-1]
    assert isinstance(taken.newest, array)
    # All rates have a window: of an interval for what is read with each frame.
    assert not any(
        math.isnan(found[name]) for name in names if name.startswith(("cpu/", "memory/", "disk/", "network/"))
    )
    assert found["process/kernel/count"] == 1
    assert found["sample/interval"] == pytest.approx(0.05)
    assert found["sample/cpu/age"] < 0.05
    assert abs(time.monotonic() - stamp) < 2


@pytest.mark.alone
def test_it_keeps_its_deadlines_beside_threads_that_hold_the_gil_and_is_cheap() -> None:
    stop = threading.Event()
    with threads(*[lambda: spin(stop)] * 2):
        try:
            with running(0.1) as taken:
                process = psutil.Process(taken.pid)
                before, began, first = sum(process.cpu_times()[:2]), time.monotonic(), len(taken.frames)
                time.sleep(6.0)
                share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
                frames = taken.frames[first:]
        finally:
            stop.set()
    stamps = [stamp for stamp, _, _ in frames]
    intervals = sorted(b - a for a, b in itertools.pairwise(stamps))
    assert intervals[math.ceil(0.99 * len(intervals)) - 1] <= 0.303
    assert intervals[0] >= 0.02  # never bunched: half an interval, less what the stamp itself came late
    # The clock is absolute: what was not missed lies on one grid, which does not drift.
    slots = round((stamps[-1] - stamps[0]) / 0.1)
    assert slots == pytest.approx(len(frames) - 1 + sum(missed for _, missed, _ in frames[1:]), abs=1)
    assert share <= 0.03


def test_a_sampler_that_is_stopped_for_a_while_counts_what_it_missed() -> None:
    with running(0.05, frames=3) as taken:
        os.kill(taken.pid, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(taken.pid, signal.SIGCONT)
        taken.more(6)
    at = max(range(1, len(taken.frames)), key=lambda i: taken.frames[i][0] - taken.frames[i - 1][0])
    gap = taken.frames[at][0] - taken.frames[at - 1][0]
    assert gap >= 0.5
    assert taken.frames[at][1] == pytest.approx(gap / 0.05 - 1, abs=1)
    after = [frame[0] for frame in taken.frames[at:]]
    assert min(b - a for a, b in itertools.pairwise(after)) >= 0.01


def test_a_sampler_that_is_killed_is_restarted_and_the_gap_stays() -> None:
    with running(0.05, frames=3) as taken:
        first = taken.pid
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(taken.hellos) == 2 and taken.order[-1] == "frame")
        assert (taken.client.restarts, taken.exits) == (1, ["killed by SIGKILL"])
        assert taken.pid != first
        at = taken.order.index("exit")
        assert taken.order[at + 1] == "hello"
        frames = taken.order[:at].count("frame")
        assert taken.frames[frames][0] - taken.frames[frames - 1][0] > client_module.BACK_OFF_S[0]
        assert gone(first)


def test_a_sampler_that_cannot_live_is_not_restarted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.01, 0.02))
    broken = {**os.environ, "PYTHONPATH": "", "PYTHONHOME": "/nowhere"}
    monkeypatch.setattr(client_module, "child_environment", lambda: broken)
    with running(frames=0) as taken:
        wait_for(lambda: taken.notices)
        assert (taken.client.restarts, taken.client.pid, len(taken.exits)) == (2, None, 3)
        assert taken.exits[0].startswith("ended with status 1: ")
        assert taken.notices[0]["level"] == "error"
        assert "is not restarted" in taken.notices[0]["message"]


def test_a_sampler_that_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.01,))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with running(frames=0) as taken:
        wait_for(lambda: taken.notices)
    assert "/nowhere/python" in taken.notices[0]["message"]
    assert "could not be started" in caplog.text


def test_stop_leaves_no_thread_no_process_and_no_pipe() -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with running(0.05, frames=1) as taken:
        pid, client = taken.pid, taken.client
        began = time.monotonic()
        client.stop()
        assert time.monotonic() - began < 1.9
        assert not psutil.pid_exists(pid)  # ended and waited for
        assert client.pid is None
        client.stop()
    assert THREAD not in [thread.name for thread in threading.enumerate()]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert (taken.exits, client.restarts) == ([], 0)
    with pytest.raises(RuntimeError, match="once"):
        client.start()


def test_stop_ends_a_sampler_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "GRACE_S", 0.3)
    with running(0.05, frames=1) as taken:
        pid = taken.pid
        os.kill(pid, signal.SIGSTOP)
        taken.client.stop()
        wait_for(lambda: not psutil.pid_exists(pid), 2)
        wait_for(lambda: THREAD not in [thread.name for thread in threading.enumerate()], 2)


class StopsAtOnce(Taken):
    """Stops its client in the first frame's callback."""

    def frame(self, stamp: float, missed: int, values: Sequence[float]) -> None:
        super().frame(stamp, missed, values)
        self.client.stop()


def test_stop_right_after_start_and_from_a_callback() -> None:
    with running(frames=0) as started:
        started.client.stop()
        assert started.client.pid is None
    taken = StopsAtOnce(0.05)
    taken.client.start()
    wait_for(lambda: taken.frames)
    wait_for(lambda: THREAD not in [thread.name for thread in threading.enumerate()])
    assert (taken.client.pid, taken.exits) == (None, [])


class Fails(Taken):
    """Fails in every frame's callback."""

    def frame(self, stamp: float, missed: int, values: Sequence[float]) -> None:
        super().frame(stamp, missed, values)
        raise ZeroDivisionError("in the kernel's own code")


def test_a_callback_that_fails_is_told_once_and_the_frames_go_on(caplog: pytest.LogCaptureFixture) -> None:
    taken = Fails(0.02)
    with caplog.at_level(logging.ERROR):
        taken.client.start()
        taken.more(5)
        taken.client.stop()
    (told,) = [record for record in caplog.records if "on_frame" in record.getMessage()]
    assert not_none(told.exc_info)[0] is ZeroDivisionError
    assert taken.client.restarts == 0


@pytest.mark.parametrize("interval", [0.0, -1.0, 61.0, math.nan])
def test_an_interval_out_of_range_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="between"):
        Taken(interval)
