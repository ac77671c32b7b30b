"""What reaches the TCP port, with or without a key, harms neither the training nor the dashboard."""

from __future__ import annotations

import itertools
import json
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from kernel_monitor.rank import Row
from kernel_monitor.ranks import session_files
from kernel_monitor.ranks.rank_frames import STEP, Chunk, Frame, Identity, Machine, packed, unpacked
from kernel_monitor.ranks.rank_server import RankServer

from ..waiting import until
from .conftest import ROOT
from .peers import Client, frame

IDLE = 2000  # connections
ANSWERED_S = 60.0  # how long a report may take
FEWEST_ROWS = 10 / 3  # a second: a third of what is wanted, as machines under test are busy
MOST_GROWN = 100 << 20  # bytes
DEEP: Any = 0
for _ in range(500):
    DEEP = [DEEP]
VALUES: dict[str, str] = {
    "null": "null",
    "bool": "true",
    "int": "7",
    "huge int": "1" + "0" * 30,
    "unreadable int": "1" * 5000,
    "negative": "-1",
    "float": "0.5",
    "huge float": "1e400",
    "NaN": "NaN",
    "infinity": "-Infinity",
    "string": '"x\\ud800\\u202e"',
    "long string": json.dumps("x" * 20_000),
    "list": "[1]",
    "long list": json.dumps([1] * 5000),
    "dict": '{"x": 1}',
    "deep": json.dumps(DEEP),
    "too deep": "[" * 40_000 + "]" * 40_000,
}
HOLE = "the value goes here"


def full(number: int = 0, host: str = "far", cores: int = 2) -> Frame:
    """A frame that has every field."""
    engine = {"name": "torchvision", "available": True, "reason": None, "confirm": None, "note": "fast"}
    state = {
        "id": "loader-1", "name": "train", "backend": "torchvision", "wanted": None, "status": "torchvision",
        "backends": [engine], "knobs": {"workers": 2, "prefetch": 2, "threads": None},
        "epoch": 0, "batch": 1, "batches": 5, "samples": 2, "planned": 20, "lost": 0, "doubled": 0,
        "skipped": 0, "replaced": 0, "decoded": {"torchvision": 2},
    }  # fmt: skip
    chunk = Chunk("loader-1", 0, 0, 0, 2, 20, 40, True, False, 2, 0, 0, 0)
    values = {f"cpu/{core}/busy": 20.5 for core in range(cores)} | {"memory": 1e9, "gpu/0/utilisation": 91.0}
    row: Row = (time.monotonic(), 0, number, 4, 0.01, 0.05, math.nan, 0.01, 0.01, 0.01, 1)
    return Frame(
        Identity(host, f"{host}-name", 4000 + number, 1.0, 1, number % 8, 8, f"job {number // 8}"),
        time.monotonic(), 10.0, 80.0, 0, 0, 0.0, 0.001, None, [row],
        device="GPU-1", machine=Machine(list(range(cores)), ["H100"], ["1"], values), loaders=[state], chunks=[chunk],
        indices=(1).to_bytes(4, "little") * 2, handled={1: "why"},
    )  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each field of a frame's head stands, nested ones too."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from places(entry, (*path, key))


def with_value(head: Any, path: tuple[Any, ...], words: str) -> bytes:
    """The head's JSON with this text in place of a field."""
    if not path:
        return words.encode()
    changed = json.loads(json.dumps(head))
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = HOLE
    return json.dumps(changed).replace(json.dumps(HOLE), words).encode()


def odd_messages() -> Iterator[tuple[str, bytes]]:
    """Each field of a frame with each kind of value, and steps that are none."""
    head, _, rest = packed(full()).partition(b"\n")
    known = json.loads(head)
    for path in places(known):
        for kind, words in VALUES.items():
            yield f"{'.'.join(map(str, path))}: {kind}", with_value(known, path, words) + b"\n" + rest
    whole = list(full().steps[0])
    for place, values in {0: (math.nan, math.inf, -1.0, 1e300), 4: (math.inf, -5.0, 1e30), 9: (-math.inf, 1e9)}.items():
        for value in values:
            step = STEP.pack(*[*whole[:place], value, *whole[place + 1 :]])
            yield f"steps[{place}]: {value}", head + b"\n" + step + rest[STEP.size :]


def plain(value: Any) -> Iterator[Any]:
    """Every value in a frame that was taken."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield key
            yield from plain(entry)
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from plain(entry)
    else:
        yield value


def test_each_field_with_each_kind_of_value_is_refused_or_is_what_it_must_be() -> None:
    good = unpacked(packed(full()))
    kinds = {path: type(_at(good, path)) for path in places(json.loads(packed(full()).partition(b"\n")[0])) if path}
    taken = refused = 0
    for what, message in odd_messages():
        try:
            found = unpacked(message)
        except ValueError:
            refused += 1
            continue
        taken += 1
        for value in plain(found._asdict()):
            assert type(value) in (int, float, str, bool, bytes, type(None)), (what, value)
            assert not isinstance(value, float) or not math.isinf(value), (what, value)
            assert not isinstance(value, int) or abs(value) < 1 << 41, (what, value)
            assert not isinstance(value, str) or (len(value) <= 500 and value.isprintable()), (what, value)
        for path, kind in kinds.items():
            now = type(_at(found, path))
            assert now in (kind, type(None)) or kind in (type(None), float), (what, path, now)
    assert refused > 800 > 400 > taken > 50, (refused, taken)
    # Parsing these would hold the GIL for a tenth of a second.
    with pytest.raises(ValueError, match="too many lists and objects"):
        unpacked(b'{"version": 1, "loaders": [' + b"[]," * 40_000 + b"[]]}\n")


def _at(found: Frame, path: tuple[Any, ...]) -> Any:
    """What a frame has where its head has something; None where it has nothing."""
    value: Any = found
    for key in path:
        try:
            if isinstance(value, dict):
                value = value[int(key)] if int in map(type, value) else value[key]
            else:
                value = value[key] if isinstance(key, int) else getattr(value, key)
        except (LookupError, AttributeError, ValueError, TypeError):
            return None
    return value


class Training:
    """A loop in a process of its own whose session listens on TCP."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ranks.attacked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.join = session_files.read(self._line())
        self.address = self.join.addresses[1]
        self.place = ("127.0.0.1", int(self.address.rpartition(":")[2]))

    def report(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def steady(self) -> dict[str, Any]:
        """The report of a time after its first epochs."""
        for _ in range(3):
            until(lambda: self.report()["epochs"] > 0, ANSWERED_S)
        return self.report()

    def _line(self) -> str:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], ANSWERED_S)[0], "the training says nothing"
        return self._process.stdout.readline().strip()

    def gateways(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.pid).children():
            with suppress(psutil.Error):  # it has just ended
                if "kernel_monitor.ranks.tcp_gateway" in child.cmdline():
                    found.append(child)
        return found

    def kill(self) -> None:
        with self._process:  # closes the pipes
            self._process.kill()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    found = Training(tmp_path)
    yield found
    found.kill()
    with suppress(ProcessLookupError):  # a worker of the DataLoader may outlive it
        os.killpg(found.pid, signal.SIGKILL)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unharmed(found: dict[str, Any], before: dict[str, Any]) -> None:
    assert (found["error"], found["wrong"], found["hears"], found["restarts"]) == (None, 0, True, 0), found
    assert found["epochs"] > 0, found
    assert found["rate"] > FEWEST_ROWS, found["rate"]
    assert found["memory"] - before["memory"] < MOST_GROWN, (found["memory"] - before["memory"]) / 2**20


def test_connections_without_a_key_cost_the_training_nothing(training: Training, many_descriptors: None) -> None:
    before = training.steady()
    rank = Client(training.address, training.join)
    rank.send(packed(frame()))
    assert rank.answered(10)
    idle: list[socket.socket] = []
    began = time.monotonic()
    try:
        for _ in range(IDLE):
            made = socket.socket()
            made.setblocking(False)
            made.connect_ex(training.place)
            idle.append(made)
        for _ in range(8):
            time.sleep(0.5)
            rank.socket.recv()
            rank.send(packed(frame()))
            assert rank.answered(10)  # who was there before is heard
        late = Client(training.address, training.join)
        late.send(packed(frame(1)))
        assert late.answered(60)
        print(f"a rank joined after {time.monotonic() - began:.1f} s beside {IDLE} connections")
        found = training.report()
        unharmed(found, before)
        assert found["most_open"] < before["most_open"] + 20, found
        (gateway,) = training.gateways()
        assert gateway.memory_info().rss < 200 << 20
        assert [alive for _, alive in found["ranks"]] == [True, True]
        assert f"ranks over TCP at {training.address}:" in found["status"]
        late.close()
    finally:
        rank.close()
        for made in idle:
            made.close()


def test_messages_of_all_kinds_with_a_key_are_refused_and_counted(training: Training) -> None:
    before = training.steady()
    client = Client(training.address, training.join)
    wrong = 0
    try:
        for _, message in odd_messages():
            client.send(message)
            try:
                unpacked(message)
            except ValueError:
                wrong += 1
        client.socket.send_multipart([b"two", b"parts"])
        until(lambda: training.report()["refused"] >= wrong, 60, lambda: (training.report(), wrong))
        client.send(packed(frame()))
        assert client.answered(10)
        time.sleep(1.5)
        found = training.report()
        unharmed(found, before)
        assert found["refused"] == wrong
        assert (
            f"{wrong:,} messages to the ranks' server were refused, the last one: steps: a duration" in found["status"]
        )
        assert "1 messages were refused" in found["status"]
    finally:
        client.close()


def test_ranks_jobs_and_hosts_without_end_are_bounded(training: Training) -> None:
    before = training.steady()
    client = Client(training.address, training.join)
    try:
        numbers = itertools.count(1)

        def send() -> None:
            number = next(numbers)
            of = full(number, f"host-{number}", 2048 if number < 400 else 2)
            names = [{**of.loaders[0], "name": f"loader {number}.{each}", "id": f"{each}"} for each in range(8)]
            # The ones that were let in stay and change their names, cores and jobs.
            again = full(number % 64, f"host-{number % 64}", 1024 + number % 7)
            with suppress(zmq.Again):  # a busy server reads more slowly than this sends
                client.send(packed(of._replace(loaders=names, chunks=[], indices=b"", device=f"GPU-{number}")))
                client.send(packed(again._replace(identity=again.identity._replace(name=f"name {number}"))))

        def refused() -> bool:
            send()
            return "more than 64 other hosts at once" in training.report()["status"]

        end = time.monotonic() + 15
        while time.monotonic() < end:
            send()
        found = training.report()
        unharmed(found, before)
        assert found["nodes"] <= 64 + 8, found["nodes"]
        assert len(found["ranks"]) <= 256
        assert found["series"] < 10_000
        until(refused, ANSWERED_S)
    finally:
        client.close()


def test_the_gateway_is_started_again_and_ends_with_the_kernel(training: Training) -> None:
    (first,) = training.gateways()
    client = Client(training.address, training.join)
    try:
        client.send(packed(frame()))
        assert client.answered(10)
        client.socket.recv()
        first.kill()
        until(lambda: [each.pid for each in training.gateways()] not in ([], [first.pid]), 10)
        client.send_until_answered(packed(frame()))
        words = "was started again 1 time, the last time: it was killed by SIGKILL"
        until(lambda: words in training.report()["status"], 5, lambda: training.report()["status"])
        (second,) = training.gateways()
        training.kill()
        assert not psutil.wait_procs([second], timeout=5)[1]
    finally:
        client.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_fails_or_ends_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = RankServer()
    client = Client(server.files.socket, session_files.read(server.folder))
    try:
        failures: list[BaseException] = [OSError("Too many open files"), SystemExit()]
        lost: list[bool] = []

        def refresh(alive: object) -> None:
            if failures:
                raise failures.pop(0)
            if lost and server._listener is not None:
                lost.clear()
                server._listener.router.close()

        monkeypatch.setattr(server.hosts, "refresh", refresh)
        until(lambda: server.restarts == 1)
        assert server.faults() == [
            "the thread that hears ranks failed 1 time and went on, the last time: OSError: Too many open files"
        ]
        until(lambda: not server._thread.is_alive())
        server.revive()
        assert server.faults() == ["the thread that hears ranks failed 2 times and went on, the last time: it ended"]
        client.send(packed(frame()))
        assert client.answered(10)
        client.socket.recv()
        # Its sockets are lost: it makes others.
        lost.append(True)
        until(lambda: server.restarts == 3)
        client.send_until_answered(packed(frame()))
    finally:
        client.close()
        server.stop()
