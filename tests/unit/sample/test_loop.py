"""The loop: commands while it runs, the grid of its deadlines, and a machine that sleeps."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fakehost import FakeHost
from kernel_monitor.sample import pipes as wire
from kernel_monitor.sample.clock import SessionClock
from kernel_monitor.sample.loop import Loop, Notices
from kernel_monitor.sample.pipes import Input, Output
from tests.unit.checks import not_none, threads, wait_for
from tests.unit.sampler_taken import Messages, running, sampler


@pytest.mark.alone
def test_the_interval_changes_while_it_runs() -> None:
    zero = time.monotonic() - 3.21
    with running(0.1, clock=SessionClock(zero, time.time())) as taken:
        pid = taken.client.pid
        for interval in (0.03, 0.25, 0.05):
            before = len(taken.frames)
            assert taken.client.send({"do": "interval", "seconds": interval})
            wait_for(lambda interval=interval: taken.hellos[-1]["interval"] == interval)  # type: ignore[misc]
            taken.more(10)
            stamps = [
                stamp
                for stamp, _, values in taken.frames[before:]
                if values["sample/interval"] == pytest.approx(interval)
            ]
            phases = [((stamp - zero) / interval) % 1 for stamp in stamps]
            assert statistics.median(phases) == pytest.approx(0.5, abs=0.15)
            assert statistics.median(b - a for a, b in itertools.pairwise(stamps)) == pytest.approx(interval, rel=0.2)
        assert (taken.client.pid, taken.client.restarts, taken.exits, taken.notices) == (pid, 0, [], [])
        assert taken.client.interval == 0.05
    gaps = [
        (b - a, min(first["sample/interval"], second["sample/interval"]))
        for (a, _, first), (b, _, second) in itertools.pairwise(taken.frames)
    ]
    assert all(gap >= 0.4 * smaller for gap, smaller in gaps)  # half, less what a stamp itself comes late


def test_a_sampler_that_is_started_again_knows_what_it_was_told() -> None:
    with running(0.1) as taken:
        worker = os.getppid()
        taken.client.send({"do": "interval", "seconds": 0.05})
        taken.client.send({"do": "roles", "workers": [worker]})
        wait_for(lambda: taken.hellos[-1]["interval"] == 0.05)
        pid = not_none(taken.client.pid)
        os.kill(pid, 9)
        wait_for(lambda: taken.client.restarts == 1 and taken.client.pid not in (None, pid))
        taken.more(3)
        assert taken.hellos[-1]["interval"] == 0.05


def test_the_workers_that_are_named_are_workers() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            with running(0.1) as taken:
                taken.client.send({"do": "roles", "workers": [child.pid]})
                wait_for(lambda: taken.frames[-1][2]["process/workers/count"] == 1)
                # Other tests may have left the fork server and multiprocessing's tracker in this process.
                others = taken.frames[-1][2]["process/others/count"]
                taken.client.send({"do": "roles", "workers": []})
                wait_for(lambda: taken.frames[-1][2]["process/workers/count"] == 0)
                wait_for(lambda: taken.frames[-1][2]["process/others/count"] == others + 1)
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"do": "dance"}', "the sampler knows no such command: 'dance'"),
        (b'{"command": "interval"}', "KeyError: 'do'"),
        (b'{"do": "interval", "seconds": 0.001}', "between 0.01 and 60"),
        (b'{"do": "interval"}', "KeyError"),
        (b'{"do": "roles", "workers": [null]}', "TypeError"),
        (b'{"do": "record", "path": 3}', "TypeError"),
        (b"[]", "TypeError"),
        (b"{", "JSONDecodeError"),
        (b"nonsense", "the sampler does not understand b'nonsense'"),
        (b"\xff", "UnicodeDecodeError"),
    ],
)
def test_what_makes_no_sense_is_told_once_and_harms_nothing(line: bytes, words: str) -> None:
    with sampler("--interval=0.05") as process:
        messages = Messages(process)
        messages.stdin.write(line + b"\n")
        messages.listen(8)
        messages.stdin.close()
        assert process.wait(5) == 0
    assert [notice["level"] for notice in messages.notices] == ["warning"]
    assert words in messages.notices[0]["message"]


def test_a_core_that_comes_later_and_one_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeHost(tmp_path, sockets=2, cores=8)
    machine.offline(5)
    monkeypatch.setenv("KERNEL_MONITOR_ROOT", str(tmp_path))
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.05):
            machine.tick(0.05)

    with running(0.1) as taken:
        assert taken.hellos[-1]["cpus"] == [0, 1, 2, 3, 4, 6, 7]
        assert taken.hellos[-1]["host"]["topology"]["sockets"] == [[0, 1, 2, 3], [4, 6, 7]]
        machine.online(5)
        machine.offline(2)
        with threads(run):
            try:
                wait_for(lambda: 5 in taken.hellos[-1]["cpus"])
                wait_for(lambda: not math.isnan(taken.frames[-1][2].get("cpu/5/busy", math.nan)))
                # Before each change of the series there was a hello, or frame() would have failed.
                assert math.isnan(taken.frames[-1][2]["cpu/2/busy"])
                assert not math.isnan(taken.frames[-1][2]["cpu/3/busy"])
                assert taken.hellos[-1]["cpus"] == list(range(8))
                wait_for(lambda: taken.hellos[-1]["host"]["topology"]["sockets"] == [[0, 1, 2, 3], [4, 5, 6, 7]])
            finally:
                stop.set()
    assert (taken.exits, taken.notices) == ([], [])


def test_the_loop_goes_over_to_the_new_grid_after_the_machine_slept() -> None:
    offset = [0.0]
    zero = time.monotonic()
    clock = SessionClock(zero, time.time(), asleep=lambda: time.monotonic() + offset[0])
    commands_end, frames_end = os.pipe(), os.pipe()
    notices = Notices()
    grids: list[list[float]] = []
    stamps: list[float] = []
    loop = Loop(
        0.1,
        clock,
        Input(commands_end[0]),
        Output(frames_end[1]),
        _Frames(stamps),  # type: ignore[arg-type]
        _Gpus(),  # type: ignore[arg-type]
        _Tree([]),  # type: ignore[arg-type]
        _NoRecording(),  # type: ignore[arg-type]
        notices,
        lambda interval, base: grids.append([interval, base]),
        None,
    )
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        wait_for(lambda: len(stamps) >= 5)
        offset[0] = 1234.567
        wait_for(lambda: grids)
        seen = len(stamps)
        wait_for(lambda: len(stamps) >= seen + 8)
    finally:
        os.close(commands_end[1])
        thread.join(5)
    received = os.read(frames_end[0], 1 << 20)
    for end in (commands_end[0], *frames_end):
        os.close(end)
    assert len(grids) == 1
    assert grids[0] == pytest.approx([0.1, zero - 1234.567], abs=0.01)
    phases = [(clock.time(stamp) / 0.1) % 1 for stamp in stamps[seen + 1 :]]
    assert statistics.median(phases) == pytest.approx(0.5, abs=0.15)  # in the middle of a column again
    messages = list(wire.Decoder().feed(received))
    told = [wire.decode_json(payload)["message"] for kind, payload in messages if kind == wire.NOTICE]
    assert len(told) == 1
    assert told[0].startswith("the machine slept for 1234.")
    # It is a gap on the axis, and no deadline was missed: there was nobody to miss it.
    assert sum(wire.decode_frame(payload).missed for kind, payload in messages if kind == wire.FRAME) == 0


def test_the_last_words_are_heard_of_a_kernel_that_closed_the_frames_pipe_first() -> None:
    commands_end, frames_end = os.pipe(), os.pipe()
    heard: list[list[int]] = []
    loop = Loop(
        0.1,
        SessionClock(time.monotonic(), time.time()),
        Input(commands_end[0]),
        Output(frames_end[1]),
        _Frames([]),  # type: ignore[arg-type]
        _Gpus(),  # type: ignore[arg-type]
        _Tree(heard),  # type: ignore[arg-type]
        _NoRecording(),  # type: ignore[arg-type]
        Notices(),
        print,
        None,
    )
    os.write(commands_end[1], b'{"do": "roles", "workers": [1]}\n{"do": "roles", "workers": [2]}\n')
    os.close(frames_end[0])
    assert loop.run() == "nobody reads the frames"
    assert heard == [[1], [2]]
    for end in (*commands_end, frames_end[1]):
        os.close(end)


def test_a_hello_that_finds_the_pipe_full_comes_before_the_frames_it_describes() -> None:
    with sampler("--interval=0.02") as process:
        messages = Messages(process)
        fcntl.fcntl(messages.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        messages.listen(5)
        for interval in (0.03, 0.05, 0.02, 0.04):  # nobody reads meanwhile
            messages.stdin.write(json.dumps({"do": "interval", "seconds": interval}).encode() + b"\n")
            time.sleep(0.3)
        while sum(hello["interval"] == 0.04 for hello in messages.described) < 5:
            messages.read()
    for hello, values in zip(messages.described, messages.values, strict=True):
        assert values["sample/interval"] == pytest.approx(hello["interval"])


class _Frames:
    """Two series, and the stamps of the frames."""

    series = (("sample/interval", "s"), ("memory/used", "B"))

    def __init__(self, stamps: list[float]) -> None:
        self._stamps = stamps

    def prime(self, now: float) -> None: ...

    def set_interval(self, interval: float) -> None: ...

    def read(self, now: float) -> bool:
        self._stamps.append(now)
        return False

    def facts_changed(self, now: float) -> bool:
        return False

    def values(self, now: float) -> list[float]:
        return [0.1, 1.0]

    def hello(self) -> dict[str, Any]:
        return {"series": self.series}


class _Gpus:
    """None."""

    def set_processes(self, pids: object) -> None: ...

    def set_interval(self, interval: float) -> None: ...

    def notices(self) -> list[dict[str, Any]]:
        return []

    def refresh(self, now: float) -> list[str]:
        return []


class _NoRecording:
    def hello(self, hello: object) -> None: ...

    def frame(self, *frame: object) -> None: ...


class _Tree:
    pids = frozenset[int]()

    def __init__(self, heard: list[list[int]]) -> None:
        self.set_workers = heard.append


# -- what is read beside the frames -----------------------------------------------------------------------------------
