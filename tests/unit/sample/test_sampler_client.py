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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernel_monitor.sample import sampler_client
from kernel_monitor.sample import sampler_client as client_module
from kernel_monitor.sample.clock import SessionClock
from kernel_monitor.sample.sampler_client import SamplerClient

THREAD = "kernel-monitor-sampler"


class Recorder:
    """Takes what a client calls back."""

    def __init__(self) -> None:
        self.hellos: list[dict[str, Any]] = []
        self.frames: list[tuple[float, int, array[float]]] = []
        self.notices: list[dict[str, Any]] = []
        self.exits: list[str] = []
        self.order: list[str] = []

    def on_hello(self, hello: dict[str, Any]) -> None:
        self.order.append("hello")
        self.hellos.append(hello)

    def on_frame(self, stamp: float, missed: int, values: array[float]) -> None:
        self.order.append("frame")
        self.frames.append((stamp, missed, values))

    def on_notice(self, notice: dict[str, Any]) -> None:
        self.notices.append(notice)

    def on_exit(self, reason: str) -> None:
        self.order.append("exit")
        self.exits.append(reason)


@contextmanager
def running(interval: float = 0.05, recorder: Recorder | None = None) -> Iterator[tuple[SamplerClient, Recorder]]:
    taken = recorder or Recorder()
    client = SamplerClient(interval, taken.on_hello, taken.on_frame, taken.on_notice, taken.on_exit)
    client.start()
    try:
        yield client, taken
    finally:
        client.stop()


def wait_for(done: Callable[[], object], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, f"it did not come about in {seconds:g} s"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pid_of(client: SamplerClient) -> int:
    wait_for(lambda: client.pid)
    assert client.pid is not None
    return client.pid


def spin(stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        for _ in range(1000):
            number = (number * 1103515245 + 12345) % 2147483648


def test_it_says_hello_and_then_samples() -> None:
    with running() as (client, taken):
        wait_for(lambda: len(taken.frames) >= 26)
        assert Path(f"/proc/{client.pid}/cmdline").read_bytes().split(b"\0")[2:4] == [b"-m", b"kernel_monitor.sample"]
    assert taken.order[0] == "hello"
    hello = taken.hellos[0]
    names = [series["name"] for series in hello["series"]]
    cores = [int(word[3:]) for word in Path("/proc/stat").read_text().split() if re.fullmatch(r"cpu\d+", word)]
    assert hello["cpus"] == cores
    assert len(set(names)) == len(names)
    assert names[: 2 * len(cores)] == [f"cpu/{core}/{part}" for core in cores for part in ("busy", "iowait")]
    assert {"memory/percent", "process/kernel/cpu", "sample/interval", "sample/cpu/age", "sample/memory/window"} <= {
        *names
    }
    assert hello["interval"] == 0.05
    assert (hello["gpu_reason"] is None) == bool(hello["gpus"])
    facts = {"cpu_model", "logical_cpus", "memory_total", "platform", "topology", "limits", "reasons"}
    assert set(hello["host"]) == facts
    stamp, _, values = taken.frames[-1]
    assert isinstance(values, array)
    assert len(values) == len(names)
    found = dict(zip(names, values, strict=True))
    # All rates have a window: of an interval for what is read with each frame.
    assert not any(
        math.isnan(found[name]) for name in names if name.startswith(("cpu/", "memory/", "disk/", "network/"))
    )
    assert found["sample/interval"] == pytest.approx(0.05)
    assert found["sample/cpu/age"] < 0.05
    assert found["process/kernel/count"] == 1
    assert abs(time.monotonic() - stamp) < 2
    assert taken.notices == []


@pytest.mark.alone
def test_it_keeps_its_deadlines_beside_threads_that_hold_the_gil_and_is_cheap() -> None:
    stop = threading.Event()
    spinners = [threading.Thread(target=spin, args=(stop,)) for _ in range(2)]
    for spinner in spinners:
        spinner.start()
    try:
        with running(0.1) as (client, taken):
            wait_for(lambda: len(taken.frames) >= 5)
            process = psutil.Process(pid_of(client))
            before, began, first = sum(process.cpu_times()[:2]), time.monotonic(), len(taken.frames)
            time.sleep(6.0)
            share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
            frames = taken.frames[first:]
    finally:
        stop.set()
        for spinner in spinners:
            spinner.join()
    stamps = [stamp for stamp, _, _ in frames]
    intervals = sorted(b - a for a, b in itertools.pairwise(stamps))
    assert intervals[math.ceil(0.99 * len(intervals)) - 1] <= 0.303
    assert intervals[0] >= 0.02  # never bunched: half an interval, less what the stamp itself came late
    # The clock is absolute: what was not missed lies on one grid, which does not drift.
    slots = round((stamps[-1] - stamps[0]) / 0.1)
    assert slots == pytest.approx(len(frames) - 1 + sum(missed for _, missed, _ in frames[1:]), abs=1)
    assert share <= 0.03


def test_a_sampler_that_is_stopped_for_a_while_counts_what_it_missed() -> None:
    with running() as (client, taken):
        wait_for(lambda: len(taken.frames) >= 3)
        pid = pid_of(client)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.6)
        seen = len(taken.frames)
        os.kill(pid, signal.SIGCONT)
        wait_for(lambda: len(taken.frames) >= seen + 6)
    at = max(range(1, len(taken.frames)), key=lambda i: taken.frames[i][0] - taken.frames[i - 1][0])
    gap = taken.frames[at][0] - taken.frames[at - 1][0]
    assert gap >= 0.5
    assert taken.frames[at][1] == pytest.approx(gap / 0.05 - 1, abs=1)
    after = [frame[0] for frame in taken.frames[at:]]
    assert min(b - a for a, b in itertools.pairwise(after)) >= 0.01


def test_a_sampler_that_is_killed_is_restarted_and_the_gap_stays() -> None:
    with running() as (client, taken):
        wait_for(lambda: len(taken.frames) >= 3)
        first = pid_of(client)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(taken.hellos) == 2 and taken.order[-1] == "frame")
        assert client.restarts == 1
        assert pid_of(client) != first
        assert taken.exits == ["killed by SIGKILL"]
        at = taken.order.index("exit")
        assert taken.order[at + 1] == "hello"
        frames = taken.order[:at].count("frame")
        assert taken.frames[frames][0] - taken.frames[frames - 1][0] > client_module.BACK_OFF_S[0]
        assert gone(first)


def test_a_sampler_that_cannot_live_is_not_restarted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.01, 0.02))
    monkeypatch.setattr(
        sampler_client, "child_environment", lambda: {**os.environ, "PYTHONPATH": "", "PYTHONHOME": "/nowhere"}
    )
    with running() as (client, taken):
        wait_for(lambda: taken.notices)
        assert client.restarts == 2
        assert len(taken.exits) == 3
        assert taken.exits[0].startswith("ended with status 1: ")
        assert taken.notices[0]["level"] == "error"
        assert "is not restarted" in taken.notices[0]["message"]
        assert client.pid is None


def test_a_sampler_that_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.01,))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with running() as (_, taken):
        wait_for(lambda: taken.notices)
    assert "/nowhere/python" in taken.notices[0]["message"]
    assert "could not be started" in caplog.text


def test_stop_leaves_no_thread_no_process_and_no_pipe() -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with running() as (client, taken):
        wait_for(lambda: taken.frames)
        pid = pid_of(client)
        began = time.monotonic()
        client.stop()
        assert time.monotonic() - began < 1.9
        assert not psutil.pid_exists(pid)  # ended and waited for
        assert client.pid is None
        client.stop()
    assert THREAD not in [thread.name for thread in threading.enumerate()]
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert taken.exits == []
    assert client.restarts == 0
    with pytest.raises(RuntimeError, match="once"):
        client.start()


def test_stop_ends_a_sampler_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "GRACE_S", 0.3)
    with running() as (client, taken):
        wait_for(lambda: taken.frames)
        pid = pid_of(client)
        os.kill(pid, signal.SIGSTOP)
        client.stop()
        wait_for(lambda: not psutil.pid_exists(pid), 2)
        wait_for(lambda: THREAD not in [thread.name for thread in threading.enumerate()], 2)


def test_stop_right_after_start_and_from_a_callback() -> None:
    with running() as (client, _):
        client.stop()
        assert client.pid is None
    taken = Recorder()

    def stop_at_once(stamp: float, missed: int, values: array[float]) -> None:
        taken.on_frame(stamp, missed, values)
        client.stop()

    client = SamplerClient(0.05, taken.on_hello, stop_at_once, taken.on_notice, taken.on_exit)
    client.start()
    wait_for(lambda: taken.frames)
    wait_for(lambda: THREAD not in [thread.name for thread in threading.enumerate()])
    assert client.pid is None
    assert taken.exits == []


def test_a_callback_that_fails_is_told_once_and_the_frames_go_on(caplog: pytest.LogCaptureFixture) -> None:
    taken = Recorder()

    def fails(stamp: float, missed: int, values: array[float]) -> None:
        taken.on_frame(stamp, missed, values)
        raise ZeroDivisionError("in the kernel's own code")

    client = SamplerClient(0.02, taken.on_hello, fails, taken.on_notice, taken.on_exit)
    with caplog.at_level(logging.ERROR):
        client.start()
        wait_for(lambda: len(taken.frames) >= 5)
        client.stop()
    told = [record for record in caplog.records if "on_frame" in record.getMessage()]
    assert len(told) == 1
    assert told[0].exc_info is not None
    assert told[0].exc_info[0] is ZeroDivisionError
    assert client.restarts == 0


@pytest.mark.parametrize("interval", [0.0, -1.0, 61.0, math.nan])
def test_an_interval_out_of_range_is_refused(interval: float) -> None:
    taken = Recorder()
    with pytest.raises(ValueError, match="between"):
        SamplerClient(interval, taken.on_hello, taken.on_frame, taken.on_notice, taken.on_exit)


def test_samples_are_due_in_the_middle_of_the_intervals_counted_from_zero() -> None:
    zero = time.monotonic() - 1.2345
    recorder = Recorder()
    client = SamplerClient(
        0.1, recorder.on_hello, recorder.on_frame, recorder.on_notice, recorder.on_exit, clock=SessionClock(zero, 0.0)
    )
    client.start()
    try:
        until = time.monotonic() + 10
        while len(recorder.frames) < 15 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        client.stop()
    phases = sorted(((stamp - zero) / 0.1) % 1 for stamp, _, _ in recorder.frames)
    assert len(phases) >= 15
    assert phases[len(phases) // 2] == pytest.approx(0.5, abs=0.1)
