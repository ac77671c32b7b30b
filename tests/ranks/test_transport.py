"""Who may join and who may not, and what is left behind: sockets, folders, threads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from kernel_monitor.ranks import session_files
from kernel_monitor.ranks.rank_frames import MOST_BYTES, packed, unpacked
from kernel_monitor.ranks.rank_server import RankServer
from kernel_monitor.ranks.session_files import VARIABLE, Join, JoinError

from ..waiting import until
from .peers import HEARD_S, LOOP, Client, frame, started


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RankServer]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = RankServer("tcp://127.0.0.1:0")
    yield server
    server.stop()


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    made: list[Client] = []
    yield made
    for client in made:
        client.close()


def test_the_folder_is_the_users_own_and_names_what_a_rank_needs(server: RankServer) -> None:
    folder = Path(server.folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "join.json").stat().st_mode & 0o777 == 0o600
    assert len(os.fsencode(folder / "ranks")) <= 100
    join = session_files.read(server.folder)
    assert join.addresses[0] == f"ipc://{folder / 'ranks'}"
    assert join.addresses[1].startswith("tcp://127.0.0.1:")
    assert (join.pid, os.environ[VARIABLE]) == (os.getpid(), server.folder)
    with pytest.raises(JoinError, match="has no session to join"):
        session_files.read(str(folder.parent / "nothing"))
    address = join.addresses[1]
    assert server.remote_address == address
    again = session_files.read(address, join.keys)
    assert (again.addresses, again.keys) == ((address,), join.keys)
    for keys in (None, "", join.keys[:-1]):
        with pytest.raises(JoinError, match="is joined with the keys in KERNEL_MONITOR_KEYS"):
            session_files.read(address, keys)


@pytest.mark.parametrize("place", [0, 1], ids=["unix", "tcp"])
def test_who_has_the_keys_is_heard_and_answered_with_the_time(
    server: RankServer, clients: list[Client], place: int
) -> None:
    join = session_files.read(server.folder)
    clients.append(Client(join.addresses[place], join))
    sent = frame()
    clients[0].send(packed(sent))
    assert clients[0].answered(HEARD_S)
    answer = json.loads(clients[0].socket.recv())
    assert answer["sent"] == sent.sent <= answer["received"] <= answer["answered"]
    until(server.values)
    assert server.values()["rank/1-0/step"] == pytest.approx(50)
    assert server.values()["rank/1-0/wait_percent"] == pytest.approx(20)
    assert server.ranks()[0].host == "other-host"


@pytest.mark.parametrize("place", [0, 1], ids=["unix", "tcp"])
@pytest.mark.parametrize("kind", ["no key", "wrong key", "wrong server key", "garbage"])
def test_a_foreign_client_gets_nothing_and_breaks_nothing(
    server: RankServer, clients: list[Client], place: int, kind: str
) -> None:
    join = session_files.read(server.folder)
    address = join.addresses[place]
    if kind == "garbage":
        with socket.socket(socket.AF_INET if place else socket.AF_UNIX) as raw:
            host, _, port = address.removeprefix("tcp://").partition(":")
            raw.connect((host, int(port)) if place else address.removeprefix("ipc://"))
            raw.settimeout(1.0)
            raw.sendall(os.urandom(4096))
            received = b""
            try:
                while more := raw.recv(4096):
                    received += more
            except OSError:
                pass
            # At most ZeroMQ's greeting, which says nothing but that this is ZeroMQ.
            assert len(received) <= 64
    else:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        if kind == "no key":
            foreign = Client(address, None)
        elif kind == "wrong key":
            foreign = Client(address, join, secret, public)
        else:
            theirs = zmq.curve_keypair()[0].decode()
            foreign = Client(address, Join(**{**vars(join), "server": theirs}))
        clients.append(foreign)
        with contextlib.suppress(zmq.Again):  # the server has hung up on it before it sent anything
            foreign.send(packed(frame()))
        assert not foreign.answered(1.0)
    assert server.ranks() == []
    own = Client(address, join)
    clients.append(own)
    own.send(packed(frame()))
    assert own.answered(HEARD_S)


def test_messages_that_are_no_frames_are_refused_and_counted(server: RankServer, clients: list[Client]) -> None:
    join = session_files.read(server.folder)
    clients.append(Client(join.addresses[0], join))
    good = packed(frame())
    head, _, steps = good.partition(b"\n")
    other = json.loads(head)

    def with_head(**changes: Any) -> bytes:
        return json.dumps({**other, **changes}).encode() + b"\n" + steps

    bad = [
        b"",
        head,
        good[:-1],
        os.urandom(200).replace(b"\n", b"") + b"\n" + steps,
        b"[]\n" + steps,
        b"[" * 50_000 + b"\n" + steps,
        with_head(version=99),
        with_head(identity={"pid": "x"}),
        with_head(identity={**other["identity"], "rank": -1}),
        with_head(identity={**other["identity"], "start": None}),
        with_head(cpu="hot"),
    ]
    for message in bad:
        with pytest.raises(ValueError, match=r"."):
            unpacked(message)
        clients[0].send(message)
    until(lambda: server.refused == len(bad), HEARD_S, lambda: server.refused)
    clients[0].send(good)
    until(lambda: bool(server.ranks()))
    # ZeroMQ closes the connection of who sends more than a frame can have, and takes it again.
    clients[0].send(b"x" * (MOST_BYTES + 1))
    clients[0].send_until_answered(good)


def test_a_frame_is_what_it_was(server: RankServer) -> None:
    sent = frame(3)
    got = unpacked(packed(sent))
    assert got.identity == sent.identity
    assert got.steps[0][:4] == sent.steps[0][:4]
    assert got.steps[0][4:6] == pytest.approx((0.01, 0.05))


def test_a_killed_rank_keeps_its_row_with_the_reason(server: RankServer) -> None:
    processes = [started("-c", LOOP, RANK=str(rank), WORLD_SIZE="2", MASTER_PORT="29500") for rank in (0, 1)]
    try:
        until(lambda: len(server.ranks()) == 2 and all(rank.steps for rank in server.ranks()), 30)
        until(lambda: "rank/1-1/step" in server.values())
        processes[1].kill()
        until(lambda: not server.ranks()[1].alive, 4)
        assert [(rank.id, rank.alive, rank.reason) for rank in server.ranks()] == [
            ("1-0", True, None),
            ("1-1", False, "its process has ended"),
        ]
        # One that stands still is not dead: it comes back.
        processes[0].send_signal(signal.SIGSTOP)
        until(lambda: not server.ranks()[0].alive, 9)
        assert server.ranks()[0].reason == "nothing was heard of it for 5 s"
        processes[0].send_signal(signal.SIGCONT)
        until(lambda: server.ranks()[0].alive)
        processes[0].send_signal(signal.SIGINT)
        assert processes[0].wait(10) != 0
        until(lambda: server.ranks()[0].reason == "it has finished", 4)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_after_the_session_a_rank_goes_on_alone_and_nothing_is_left(tmp_path: Path) -> None:
    server = RankServer()
    process = started("-c", LOOP, RANK="0", WORLD_SIZE="1", MASTER_PORT="29500")
    try:
        until(lambda: bool(server.values()), 30)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 2
        assert not Path(server.folder).exists()
        assert VARIABLE not in os.environ
        assert not [each.name for each in threading.enumerate() if each.name.startswith("kernel-monitor-ranks")]
        until(lambda: _threads(process.pid) <= before_joining(), 5)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def before_joining() -> int:
    """Threads of such a loop that joins nothing."""
    process = started("-c", LOOP)
    try:
        time.sleep(1.5)
        return _threads(process.pid)
    finally:
        process.kill()
        process.wait()


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_folders_of_kernels_that_were_killed_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    code = (
        "from kernel_monitor.ranks.rank_server import RankServer\nimport os\n"
        "print(RankServer().folder, flush=True)\nos.kill(os.getpid(), 9)"
    )
    folder = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
    assert folder.parent == tmp_path
    assert folder.is_dir()
    server = RankServer()
    try:
        assert not folder.exists()
        assert Path(server.folder).is_dir()
    finally:
        server.stop()
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(JoinError, match=r"Ranks cannot join: tcp://192\.0\.2\.1:9"):
        RankServer("tcp://192.0.2.1:9")
    assert list(tmp_path.iterdir()) == []
    assert VARIABLE not in os.environ
