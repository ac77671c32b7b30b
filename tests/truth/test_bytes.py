"""Bytes: a file of known size, the loopback, memory and pressure as /proc tells them."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from .watch import Beside, contiguous, total, watching

pytestmark = pytest.mark.alone

SIZE = 48 << 20
PIECES = 12


def written_by_us() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["write_bytes"])


def on_a_disk(*folders: Path) -> Path:
    """A folder whose files are written to storage, which those of a tmpfs are not."""
    for folder in folders:
        before = written_by_us()
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            if written_by_us() - before >= 1 << 20:
                return folder
    raise AssertionError(f"none of {', '.join(map(str, folders))} is on a disk")


def test_a_file_of_known_size(tmp_path: Path) -> None:
    folder = on_a_disk(tmp_path, Path("/var/tmp"), Path(__file__).parent)  # noqa: S108 - a folder on a disk is sought
    piece = os.urandom(SIZE // PIECES)
    with watching() as watch, tempfile.NamedTemporaryFile(dir=folder) as file:
        begun = time.monotonic()
        for _ in range(PIECES):
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.2)
        watch.wait(time.monotonic() + 1.0, "process/kernel/write")
        readings = watch.readings("process/kernel/write", begun - 1.5)
        assert contiguous(readings)
        assert total(readings) == pytest.approx(SIZE, rel=0.05)
        # Where a disk can be seen, it took at least as much.
        if "disk/write" in watch.names():
            assert total(watch.readings("disk/write", begun - 1.5)) >= 0.95 * SIZE
            assert max(reading.value for reading in watch.readings("disk/busy", begun)) > 0
        else:
            assert "disk" in watch.host["reasons"]


def outward_bytes(column: int) -> int:
    """Of interfaces with hardware behind them, else of all but the loopback, from the kernel's table."""
    rows = [line.replace(":", " ").split() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    outward = [row for row in rows if row[0] != "lo"]
    counted = [row for row in outward if Path(f"/sys/class/net/{row[0]}/device").exists()] or outward
    return sum(int(row[column]) for row in counted)


def test_the_loopback_is_no_network() -> None:
    with (
        watching() as watch,
        Beside(lambda: outward_bytes(1)) as received,
        Beside(lambda: outward_bytes(9)) as sent,
    ):
        time.sleep(0.1)
        begun, loopback = time.monotonic(), psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
            receiver, _ = server.accept()
            with receiver:
                for _ in range(512):
                    sender.sendall(bytes(1 << 16))
                    got = 0
                    while got < 1 << 16:
                        got += len(receiver.recv(1 << 16))
        assert psutil.net_io_counters(pernic=True)["lo"].bytes_sent - loopback >= 32 << 20
        if "network/received" not in watch.names():
            assert "network" in watch.host["reasons"]
            return
        watch.wait(time.monotonic() + 0.5, "network/sent")
        time.sleep(0.1)
        for name, beside in (("network/received", received), ("network/sent", sent)):
            readings = watch.readings(name, begun)
            assert total(readings) == pytest.approx(beside.growth(readings), rel=0.1, abs=1 << 20)
            assert total(readings) < 16 << 20


def test_memory_that_is_taken_is_seen() -> None:
    size = 256 << 20
    with watching() as watch:
        before = {name: watch.readings(name)[-1].value for name in ("memory/used", "process/kernel/memory")}
        taken = bytearray(size)
        taken[:: os.sysconf("SC_PAGE_SIZE")] = b"x" * len(range(0, size, os.sysconf("SC_PAGE_SIZE")))
        watch.wait(time.monotonic() + 1.0, "process/kernel/memory")
        lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
        facts = {line[0]: 1024 * int(line[1]) for line in lines}
        used = watch.readings("memory/used")[-1].value
        statm = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        resident = watch.readings("process/kernel/memory")[-1].value
        assert resident - before["process/kernel/memory"] == pytest.approx(size, rel=0.05)
        assert resident == pytest.approx(statm, rel=0.05)
        near = 0.02 * facts["MemTotal:"]  # others take and give between the two looks
        assert used == pytest.approx(facts["MemTotal:"] - facts["MemAvailable:"], abs=near)
        assert len(taken) == size


def stalled_us() -> int:
    (some, *_) = Path("/proc/pressure/cpu").read_text().splitlines()
    return int(some.rpartition("=")[2])


def test_the_pressure_is_what_the_kernel_adds_up() -> None:
    with watching() as watch:
        if "pressure/cpu" not in watch.names():
            assert "pressure" in watch.host["reasons"]
            return
        with Beside(stalled_us) as stalled:
            begun = time.monotonic()
            watch.wait(begun + 3.0, "pressure/cpu")
            time.sleep(0.1)
            readings = watch.readings("pressure/cpu", begun)
            seconds = readings[-1].end - readings[0].begin
            assert total(readings) / seconds == pytest.approx(100 * stalled.growth(readings) / 1e6 / seconds, abs=3.0)
