"""The loop: commands while it runs, the grid of its deadlines, what is read beside it, and a machine that sleeps."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fakehost import FakeHost
from kernel_monitor.record.reader import open_session
from kernel_monitor.sample import wire
from kernel_monitor.sample.background import Background
from kernel_monitor.sample.client import SamplerClient
from kernel_monitor.sample.clock import SessionClock
from kernel_monitor.sample.commands import Commands
from kernel_monitor.sample.loop import Loop, Notices
from kernel_monitor.sample.outbox import BACKLOG, Outbox
from kernel_monitor.sample.pipes import Input, Output

ROOT = Path(__file__).resolve().parents[2]


def wait_for(done: Callable[[], object], seconds: float = 15.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, f"it did not come about in {seconds:g} s"
        time.sleep(0.01)


class Taken:
    """What a sampler sent, in its order, and the client that read it."""

    def __init__(self, interval: float, **options: Any) -> None:
        self.hellos: list[dict[str, Any]] = []
        self.frames: list[tuple[float, int, dict[str, float]]] = []
        self.notices: list[dict[str, Any]] = []
        self.exits: list[str] = []
        self.client = SamplerClient(
            interval, self.hellos.append, self._frame, self.notices.append, self.exits.append, **options
        )

    def _frame(self, stamp: float, missed: int, values: Sequence[float]) -> None:
        names = [series["name"] for series in self.hellos[-1]["series"]]
        self.frames.append((stamp, missed, dict(zip(names, values, strict=True))))

    def more(self, frames: int) -> None:
        wanted = len(self.frames) + frames
        wait_for(lambda: len(self.frames) >= wanted)


@contextmanager
def running(interval: float = 0.1, **options: Any) -> Iterator[Taken]:
    taken = Taken(interval, **options)
    taken.client.start()
    try:
        taken.more(5)
        yield taken
    finally:
        taken.client.stop()


def test_the_interval_changes_while_it_runs() -> None:
    zero = time.monotonic() - 3.21
    with running(0.1, zero=zero) as taken:
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
        assert taken.client.pid == pid
        assert (taken.client.restarts, taken.exits, taken.notices) == (0, [], [])
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
        pid = taken.client.pid
        assert pid is not None
        os.kill(pid, 9)
        wait_for(lambda: taken.client.restarts == 1 and taken.client.pid not in (None, pid))
        taken.more(3)
        assert taken.hellos[-1]["interval"] == 0.05


def test_the_workers_that_are_named_are_workers() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            with running(0.1) as taken:
                wait_for(lambda: taken.frames[-1][2]["process/others/count"] == 1)
                taken.client.send({"do": "roles", "workers": [child.pid]})
                wait_for(lambda: taken.frames[-1][2]["process/workers/count"] == 1)
                assert taken.frames[-1][2]["process/others/count"] == 0
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"do": "dance"}', "no such command: 'dance'"),
        (b'{"command": "interval"}', "KeyError: 'do'"),
        (b'{"do": "interval", "seconds": 0.001}', "between 0.01 and 60"),
        (b'{"do": "interval"}', "KeyError"),
        (b'{"do": "roles", "workers": [null]}', "TypeError"),
        (b'{"do": "record", "path": 3}', "TypeError"),
        (b"[]", "TypeError"),
        (b"{", "JSONDecodeError"),
        (b"\xff", "UnicodeDecodeError"),
    ],
)
def test_what_makes_no_sense_is_told_once_and_harms_nothing(line: bytes, words: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kernel_monitor.sample", "--interval=0.05"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + b"\n")
        decoder, notices, frames = wire.Decoder(), [], 0
        while frames < 8:
            for kind, payload in decoder.feed(os.read(process.stdout.fileno(), 1 << 16)):
                frames += kind == wire.FRAME
                notices += [wire.decode_json(payload)] if kind == wire.NOTICE else []
        process.stdin.close()
        assert process.wait(5) == 0
    assert [notice["level"] for notice in notices] == ["warning"]
    assert words in notices[0]["message"]


def test_a_core_that_comes_later_and_one_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeHost(tmp_path, sockets=2, cores=8)
    machine.offline(5)
    monkeypatch.setenv("KERNEL_MONITOR_ROOT", str(tmp_path))
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.05):
            machine.tick(0.05)

    mover = threading.Thread(target=run)
    with running(0.1) as taken:
        assert taken.hellos[-1]["cpus"] == [0, 1, 2, 3, 4, 6, 7]
        assert taken.hellos[-1]["host"]["topology"]["sockets"] == [[0, 1, 2, 3], [4, 6, 7]]
        machine.online(5)
        machine.offline(2)
        mover.start()
        try:
            wait_for(lambda: 5 in taken.hellos[-1]["cpus"])
            wait_for(lambda: not math.isnan(taken.frames[-1][2].get("cpu/5/busy", math.nan)))
            # Before each change of the series there was a hello, or _frame() would have failed.
            assert math.isnan(taken.frames[-1][2]["cpu/2/busy"])
            assert not math.isnan(taken.frames[-1][2]["cpu/3/busy"])
            assert taken.hellos[-1]["cpus"] == list(range(8))
            wait_for(lambda: taken.hellos[-1]["host"]["topology"]["sockets"] == [[0, 1, 2, 3], [4, 5, 6, 7]])
        finally:
            stop.set()
            mover.join()
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
        list,
        _NoRecording(),  # type: ignore[arg-type]
        notices,
        None,
    )
    loop.on_replan(lambda interval, base: grids.append([interval, base]))
    thread = threading.Thread(target=loop.run, args=(_commands(loop),))
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
        list,
        _NoRecording(),  # type: ignore[arg-type]
        Notices(),
        None,
    )
    os.write(commands_end[1], b'{"do": "roles", "workers": [1]}\n{"do": "roles", "workers": [2]}\n')
    os.close(frames_end[0])
    commands = Commands(loop.set_interval, heard.append, _NoRecording(), print)  # type: ignore[arg-type]
    assert loop.run(commands) == "nobody reads the frames"
    assert heard == [[1], [2]]
    for end in (*commands_end, frames_end[1]):
        os.close(end)


def test_a_hello_that_finds_the_pipe_full_comes_before_the_frames_it_describes() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kernel_monitor.sample", "--interval=0.02"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        decoder = wire.Decoder()
        messages: list[tuple[int, bytes]] = []
        while len(messages) < 5:
            messages += decoder.feed(os.read(process.stdout.fileno(), 1 << 16))
        for interval in (0.03, 0.05, 0.02, 0.04):  # nobody reads meanwhile
            process.stdin.write(json.dumps({"do": "interval", "seconds": interval}).encode() + b"\n")
            time.sleep(0.3)
        interval, at_last = 0.02, 0
        names: list[str] = []
        until = time.monotonic() + 10
        while at_last < 5:
            assert time.monotonic() < until
            messages += decoder.feed(os.read(process.stdout.fileno(), 1 << 16))
            while messages:
                kind, payload = messages.pop(0)
                if kind == wire.HELLO:
                    hello = wire.decode_json(payload)
                    interval, names = hello["interval"], [series["name"] for series in hello["series"]]
                elif kind == wire.FRAME:
                    values = dict(zip(names, wire.decode_frame(payload).values, strict=True))
                    assert values["sample/interval"] == pytest.approx(interval)
                    at_last += interval == 0.04
        process.kill()


class _Frames:
    """Two series, and the stamps of the frames."""

    series = (("sample/interval", "s"), ("memory/used", "B"))

    def __init__(self, stamps: list[float]) -> None:
        self._stamps = stamps

    def prime(self, now: float) -> None: ...

    def lay_out(self) -> None: ...

    def set_interval(self, interval: float) -> None: ...

    def read(self, now: float) -> bool:
        self._stamps.append(now)
        return False

    def news(self, now: float) -> bool:
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


def _commands(loop: Loop) -> Commands:
    return Commands(loop.set_interval, lambda pids: None, _NoRecording(), lambda words: None)  # type: ignore[arg-type]


# -- what is read beside the frames -----------------------------------------------------------------------------------


class Steps:
    """A probe that counts its reads, and fails while it is told to."""

    def __init__(self, group: str, period: float) -> None:
        self.group = group
        self.period = period
        self.series: tuple[tuple[str, str], ...] = ((f"{group}/reads", "1"),)
        self.reasons: dict[str, str] = {}
        self.reads: list[float] = []
        self.broken = False

    def read(self, now: float, /) -> list[float]:
        self.reads.append(now)
        if self.broken:
            raise OSError("the file has gone")
        return [float(len(self.reads))]


def test_slow_probes_keep_their_periods_and_one_that_fails_stops_no_other() -> None:
    often, seldom = Steps("often", 0.1), Steps("seldom", 0.3)
    complaints: list[tuple[str, str]] = []
    background = Background(
        [often, seldom], [], lambda name, error: complaints.append((name, str(error))), 0.05, time.monotonic()
    )
    background.start()
    first = background.readings()[0]
    assert (list(first.values), math.isnan(first.window)) == ([1.0], True)  # read once before any frame
    wait_for(lambda: len(often.reads) >= 12)
    seldom.broken = True
    count = len(often.reads)
    wait_for(lambda: complaints and len(often.reads) >= count + 6)
    assert math.isnan(background.readings()[1].values[0])
    seldom.broken = False
    wait_for(lambda: not math.isnan(background.readings()[1].values[0]))
    background.stop()
    assert set(complaints) == {("seldom", "the file has gone")}
    for probe in (often, seldom):
        gaps = [b - a for a, b in itertools.pairwise(probe.reads[1:])]
        assert statistics.median(gaps) == pytest.approx(probe.period, rel=0.3)
    assert background.readings()[0].window == pytest.approx(0.1, rel=0.9)


def test_slow_probes_follow_another_interval() -> None:
    probe = Steps("often", 0.1)
    zero = time.monotonic()
    background = Background([probe], [], lambda name, error: None, 0.05, zero)
    background.start()
    wait_for(lambda: len(probe.reads) >= 5)
    background.replan(0.4, zero)
    time.sleep(0.1)
    before = len(probe.reads)
    wait_for(lambda: len(probe.reads) >= before + 4)
    background.stop()
    late = probe.reads[before:]
    assert statistics.median(b - a for a, b in itertools.pairwise(late)) == pytest.approx(0.4, rel=0.25)
    # Shortly before the frame, which is taken in the middle of the interval.
    assert statistics.median(((stamp - zero) / 0.4) % 1 for stamp in late) == pytest.approx(0.25, abs=0.2)


# -- the kernel's side of the commands --------------------------------------------------------------------------------


def read_lines(pipe: int, wanted: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    data = b""
    until = time.monotonic() + 10
    while True:
        assert time.monotonic() < until
        data += os.read(pipe, 1 << 16)
        if data.endswith(b"\n"):
            lines = [json.loads(line) for line in data.splitlines()]
            if wanted(lines):
                return lines


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    box = Outbox()
    box.start()
    yield box
    box.close()


def test_what_is_sent_arrives_in_order_from_any_thread(outbox: Outbox) -> None:
    reader, writer = os.pipe()
    assert outbox.put({"do": "facts", "facts": {}})  # before there is a sampler
    outbox.connect(writer)
    threads = [
        threading.Thread(target=lambda n=n: [outbox.put({"do": "event", "event": [n, k]}) for k in range(200)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    lines = read_lines(reader, lambda lines: len(lines) == 801)
    for thread in threads:
        thread.join()
    assert lines[0]["do"] == "facts"
    for number in range(4):
        assert [line["event"][1] for line in lines[1:] if line["event"][0] == number] == list(range(200))
    assert outbox.flush(5)
    outbox.connect(None)
    os.close(writer)
    os.close(reader)


def test_a_sampler_that_does_not_read_loses_the_oldest_values_and_no_event(outbox: Outbox) -> None:
    reader, writer = os.pipe()
    outbox.connect(writer)
    rows = [[0.0, {"loader/a/images": 1.0}]] * 500
    began = time.monotonic()
    for number in range(200):
        outbox.put({"do": "values", "number": number, "rows": rows})
        if number % 10 == 0:
            outbox.put({"do": "event", "number": number})
    assert time.monotonic() - began < 3.0  # nobody waited: the pipe is full all the time
    wait_for(lambda: outbox.dropped > 50)
    outbox.put({"do": "goodbye"})
    lines = read_lines(reader, lambda lines: lines[-1]["do"] == "goodbye")
    assert [line["number"] for line in lines if line["do"] == "event"] == list(range(0, 200, 10))
    kept = [line["number"] for line in lines if line["do"] == "values"]
    assert kept == sorted(kept)
    assert kept[-1] == 199
    assert len(kept) + outbox.dropped == 200
    assert sum(len(json.dumps(line)) for line in lines) < 2 * BACKLOG
    outbox.connect(None)
    os.close(writer)
    os.close(reader)


def test_a_line_that_was_begun_is_whole_for_the_next_sampler(outbox: Outbox) -> None:
    first_reader, first_writer = os.pipe()
    outbox.connect(first_writer)
    long = {"do": "facts", "facts": "x" * 200_000}
    outbox.put(long)
    wait_for(lambda: len(os.read(first_reader, 1000)) == 1000)
    os.close(first_reader)  # it was killed
    time.sleep(0.15)
    outbox.connect(None)
    os.close(first_writer)
    second_reader, second_writer = os.pipe()
    outbox.connect(second_writer)
    assert read_lines(second_reader, lambda lines: len(lines) == 1) == [long]
    outbox.connect(None)
    os.close(second_writer)
    os.close(second_reader)


def test_what_cannot_be_sent_is_refused(outbox: Outbox) -> None:
    with pytest.raises(TypeError):
        outbox.put({"do": "facts", "facts": object()})
    assert not outbox.put({"do": "facts", "facts": "x" * BACKLOG})
    outbox.close()
    assert not outbox.put({"do": "facts", "facts": {}})
    client = SamplerClient(0.1, print, print, print, print)
    with pytest.raises(ValueError, match="between"):
        client.send({"do": "interval", "seconds": 0.0})


FORK = """
import os, sys
from kernel_monitor.sample.client import SamplerClient
frames = []
client = SamplerClient(0.05, lambda hello: None, lambda *frame: frames.append(frame), print, print)
client.start()
while len(frames) < 3:
    pass
child = os.fork()
if child == 0:
    os._exit(int(client.send({"do": "facts", "facts": {}})))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, client.send({"do": "facts", "facts": {}}))
"""


def test_a_forked_child_sends_nothing() -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, cwd=ROOT, timeout=30, check=True
    )
    assert found.stdout == "0 True\n"


# -- recording --------------------------------------------------------------------------------------------------------


def states(taken: Taken) -> list[str]:
    return [notice["state"] for notice in taken.notices if notice.get("kind") == "recorder"]


def test_recording_begins_ends_and_goes_on_as_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "one.kmsession"
    with running(0.05, session="a" * 32) as taken:
        assert states(taken) == []
        taken.client.send({"do": "record", "path": str(file)})
        wait_for(lambda: states(taken) == ["recording"])
        assert taken.notices[-1]["path"] == str(file)
        taken.more(20)
        taken.client.send({"do": "record", "path": None})
        wait_for(lambda: states(taken) == ["recording", "off"])
        paused = taken.frames[-1][0]
        time.sleep(0.5)
        taken.client.send({"do": "record", "path": str(file)})
        wait_for(lambda: states(taken) == ["recording", "off", "recording"])
        taken.more(20)
        taken.client.send({"do": "goodbye", "reason": "stopped"})
    session = open_session(file)
    rows = session.rows()
    assert session.id == "a" * 32
    assert session.ended is not None
    assert session.ended["goodbye"]
    assert len(rows.time) >= 30
    recorded_gap = max(b - a for a, b in itertools.pairwise(rows.time))
    assert recorded_gap >= 0.4  # the pause, in which sampling went on
    assert any(stamp > paused + 0.1 for stamp, _, _ in taken.frames)
    # The recording's rows are the frames that the kernel got, to the bit.
    names = [series.name for series in session.schema.series]
    busy = names.index("cpu/0/busy")
    stored = {
        round(float(moment), 6): float(value) for moment, value in zip(rows.time, rows.values[:, busy], strict=True)
    }
    matched = 0
    for stamp, _, values in taken.frames:
        moment = round(taken.client.clock.time(stamp), 6)
        if moment in stored:
            matched += 1
            assert stored[moment] == values["cpu/0/busy"] or math.isnan(stored[moment])
    assert matched >= 25


def test_a_kernel_that_goes_without_a_word_is_recorded_as_such(tmp_path: Path) -> None:
    file = tmp_path / "two.kmsession"
    with running(0.05, session="b" * 32, record=file) as taken:
        wait_for(lambda: states(taken) == ["recording"])
        taken.more(15)
    session = open_session(file)
    assert session.ended is not None
    assert not session.ended["goodbye"]
    assert "without goodbye" in session.ended["reason"]
