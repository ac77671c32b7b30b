"""What the recorder's tests share: a small machine's frames, sessions made of them, and places to record to."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.record import writer
from kernel_monitor.record.format import wal_of
from kernel_monitor.record.reader import Session, open_session
from kernel_monitor.record.writer import Recorder

from ..waiting import until

ORIGIN = float(round(time.time() - 3600))  # sessions of long ago are deleted when a new one begins
SERIES = [("sample/interval", "s"), ("cpu/0/busy", "%"), ("cpu/1/busy", "%"), ("memory/used", "B")]


def hello(series: Sequence[tuple[str, str]] = SERIES, interval: float = 0.1, **changes: Any) -> dict[str, Any]:
    """What a sampler says."""
    return {
        "interval": interval,
        "series": [{"name": name, "unit": unit} for name, unit in series],
        "cpus": [0, 1],
        "gpus": [],
        "gpu_reason": "NVML Shared Library Not Found",
        "host": {"cpu_model": "test", "logical_cpus": 2, "memory_total": 1 << 34, "platform": "Linux"},
        **changes,
    }


class Told(list[dict[str, Any]]):
    """The states that a recorder told of."""

    @property
    def states(self) -> list[str]:
        return [one["state"] for one in list(self)]

    @property
    def warnings(self) -> list[str]:
        """The beginnings of the warnings."""
        return [one["message"].split("(")[0] for one in self if one["level"] == "warning"]

    def wait_for(self, state: str, seconds: float = 20.0) -> dict[str, Any]:
        until(lambda: state in self.states, seconds, lambda: list(self))
        return next(one for one in self if one["state"] == state)


@contextmanager
def recorder(
    path: Path, *, rows: int | None = None, session: str = "0123456789abcdef", origin: float = ORIGIN, **options: Any
) -> Iterator[tuple[Recorder, Told]]:
    """A recorder that is closed with a goodbye at the end; frames' stamps are session times.

    `rows`: how many frames it has been given, after a hello; None for no hello.
    """
    told = Told()
    one = Recorder(path, session=session, origin=origin, on_state=told.append, **options)
    one.start()
    before, writer.LAST_S = writer.LAST_S, 60.0  # all is packed at the end, however slow this machine is
    try:
        if rows is not None:
            one.hello(0.0, hello())
            feed(one, *waves(rows))
        yield one, told
    finally:
        one.close("the test ended", goodbye=True)
        assert one.join(30)
        writer.LAST_S = before


@contextmanager
def recording(path: Path, **options: Any) -> Iterator[tuple[Recorder, Told]]:
    """A recorder that got its first five frames, and said that it records."""
    with recorder(path, rows=5, **options) as (one, told):
        told.wait_for("recording")
        yield one, told


def feed(one: Recorder, times: npt.NDArray[np.float64], values: npt.NDArray[np.float32]) -> None:
    """Give frames to a recorder, no faster than it takes them."""
    for moment, row in zip(times.tolist(), values.astype("<f4"), strict=True):
        one.frame(moment, 0, row.tobytes())
        while len(one._queue) > 4000:
            time.sleep(0.001)


def waves(
    rows: int, start: float = 0.05, interval: float = 0.1
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
    """Frames of `SERIES`: times, values."""
    times = start + interval * np.arange(rows, dtype=np.float64)
    busy = 50 + 50 * np.sin(times)
    values = np.stack([np.full(rows, interval), busy, np.round(100 - busy), 1e9 + 1e6 * times], axis=1)
    return times.astype(np.float64), values.astype(np.float32)


def session(path: Path, rows: int = 30, **options: Any) -> Session:
    """A finished session of `rows` frames."""
    with recorder(path, rows=rows, **options):
        pass
    return open_session(path)


INTERRUPTED = """
import os, sys, time
from pathlib import Path
from kernel_monitor.record.writer import Recorder
from tests.record.recorded import feed, hello, until, waves
told = []
one = Recorder(Path(sys.argv[1]), session="interrupted", origin=float(sys.argv[2]), on_state=told.append)
one.start()
one.hello(0.0, hello())
feed(one, *waves(20))
until(lambda: not one._queue)
time.sleep(0.2)
os.kill(os.getpid(), 9)
"""


def interrupted(path: Path) -> None:
    """A session of 20 rows whose recorder was killed: all of it is in SQLite's log."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(path), repr(ORIGIN)])
    assert done.returncode == -9
    assert wal_of(path).stat().st_size > 0


def sql(path: Path, *statements: str, values: Sequence[Any] = ()) -> list[Any]:
    """Run statements on a file, all with the same values, and commit; return the rows that the last one gives."""
    rows: list[Any] = []
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            rows = connection.execute(statement, values).fetchall()
    return rows


def sql_many(path: Path, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """Run a statement on a file once for each row of values, and commit."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(statement, rows)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[bool]:
    """Make a folder and mount something on it; gives whether this user may."""
    folder.mkdir(exist_ok=True)
    command = ["mount", *options, str(folder)]
    done = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def small_disk(folder: Path) -> AbstractContextManager[bool]:
    """A file system of a megabyte, where this user may mount one."""
    return mounted(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs")
