"""The file of a session: its tables, and whether it is being written.

An SQLite database, in WAL mode while it is written and a plain file once it is closed. Tables:

* `meta`: facts by name, as JSON: `session`, `origin` (Unix s at session time 0), `created` (Unix s), `writer` (the
  writing process), `ended`, `facts`, `loaders`, `nodes`, `ranks`, `epochs`, `dropped` (the oldest rows, deleted for
  want of room).
* `layouts`: the series of a kind of rows (`host`, `loaders`, `node/<id>` for each other machine, `rank/<id>` for each
  rank), which never change; `hellos`: the sampler's hellos.
* `tail`: the newest rows as they came, a batch each: float64 times[n], uint32 missed[n], float32 values[n, m].
* `chunks`: older rows, packed (`codec`).
* `events`, and `steps` in batches of `STEP`, packed or not.

All times are session seconds, all numbers little-endian.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from kernel_monitor import signature
from kernel_monitor.os_process import is_alive, start_of

SUFFIX = signature.SUFFIX
APPLICATION_ID = signature.APPLICATION_ID
FORMAT = 2
HOST, LOADERS = "host", "loaders"
NODE = "node/"
"""The kind of the rows of a node is this and its id, as in the names of its series: nodes come and go, and a layout of
all of them would be a new one each time."""
RANK = "rank/"  # the same for ranks
JOB = "job/"  # series of a job's slowest and median rank: of the kind `rank/job-<n>`
STEP = struct.Struct("<dIII6fB")
"""One step, as `steps.measured_step.Step` has it: end (session s), counts, durations (s; NaN: not measured), flags."""

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE layouts (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, series TEXT NOT NULL);
CREATE TABLE hellos (id INTEGER PRIMARY KEY, time REAL NOT NULL, layout INTEGER NOT NULL, hello TEXT NOT NULL);
CREATE TABLE tail (
  id INTEGER PRIMARY KEY, layout INTEGER NOT NULL, first REAL NOT NULL, last REAL NOT NULL, n INTEGER NOT NULL,
  data BLOB NOT NULL
);
CREATE TABLE chunks (
  id INTEGER PRIMARY KEY, layout INTEGER NOT NULL, first REAL NOT NULL, last REAL NOT NULL, n INTEGER NOT NULL,
  data BLOB NOT NULL
);
CREATE TABLE events (id INTEGER PRIMARY KEY, time REAL NOT NULL, event TEXT NOT NULL);
CREATE TABLE steps (
  id INTEGER PRIMARY KEY, loader TEXT NOT NULL, last REAL NOT NULL, n INTEGER NOT NULL, dropped INTEGER NOT NULL,
  packed INTEGER NOT NULL, data BLOB NOT NULL
);
"""


def kind_of(series: str) -> str:
    """The kind of the rows that have a series."""
    for kind in (NODE, RANK):
        if series.startswith(kind):
            return kind + series[len(kind) :].partition("/")[0]
    if series.startswith(JOB):
        return f"{RANK}job-{series[len(JOB) :].partition('/')[0]}"
    return LOADERS if series.startswith("loader/") else HOST


def packed_step(row: Sequence[Any]) -> tuple[float, bytes]:
    """The end and the bytes of a step that the kernel sent: the fields of `Step`, its end in session s.

    Phases and flags may be left out; None or NaN where nothing was measured. What is no step raises ValueError,
    TypeError, OverflowError or struct.error.
    """
    end, epoch, batch, images, *rest = row
    if not math.isfinite(end):
        raise ValueError(f"a step that ended at {end}")
    times = [math.nan if value is None else float(value) for value in rest[:6]]
    times += [math.nan] * (6 - len(times))
    flags = rest[6] if len(rest) > 6 else 0
    return float(end), STEP.pack(end, int(epoch), int(batch), int(images), *times, int(flags))


def writer_here() -> dict[str, Any]:
    """This process, by which a reader can check whether the writer still runs."""
    return {"pid": os.getpid(), "start": start_of(os.getpid()), **_machine()}


def is_live(writer: dict[str, Any] | None, path: Path) -> bool:
    """Whether the process that wrote `writer` into the session at `path` still runs.

    From another container its number means nothing: then a file that changed within the last ten seconds is live.
    """
    if writer is None or writer.get("start") is None:
        return False
    here = _machine()
    if writer.get("boot") != here["boot"]:
        return False
    if writer.get("namespace") == here["namespace"]:
        return is_alive(int(writer["pid"]), float(writer["start"]))
    changed = 0.0
    for file in (path, wal_of(path)):
        with suppress(OSError):
            changed = max(changed, file.stat().st_mtime)
    return time.time() - changed < 10


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def size_of_log(path: Path) -> int:
    """Bytes of a database's log; 0 without one."""
    try:
        return wal_of(path).stat().st_size
    except FileNotFoundError:
        return 0


def size_of(path: Path) -> int:
    """Bytes of a session on disk, with SQLite's files beside it; files deleted meanwhile count 0."""
    total = 0
    for file in files_of(path):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def files_of(path: Path) -> list[Path]:
    """The session's file and those that SQLite keeps beside it, as far as they exist."""
    return [file for end in ("", "-wal", "-shm", "-journal") if (file := path.with_name(path.name + end)).exists()]


@cache
def _machine() -> dict[str, str]:
    """Ids of this boot of this machine, and of this container's process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no Linux, or no /proc: process numbers are the machine's
        boot = namespace = ""
    return {"boot": boot, "namespace": namespace}
