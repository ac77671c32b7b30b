"""The file of a session: its tables, whether it is being written, and the limits within which it is read."""

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

from kernel_monitor import output
from kernel_monitor.os_process import is_alive, start_of

# ---- The file of a session: its tables, and whether it is being written.

SUFFIX = output.SUFFIX
APPLICATION_ID = output.APPLICATION_ID
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
    """Return the kind of the rows that have a series."""
    for kind in (NODE, RANK):
        if series.startswith(kind):
            return kind + series[len(kind) :].partition("/")[0]
    if series.startswith(JOB):
        return f"{RANK}job-{series[len(JOB) :].partition('/')[0]}"
    return LOADERS if series.startswith("loader/") else HOST


def packed_step(row: Sequence[Any]) -> tuple[float, bytes]:
    """Return the end and the bytes of a step that the kernel sent: the fields of `Step`, its end in session s.

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
    """Return the identity of this process, by which a reader can check whether the writer still runs."""
    return {"pid": os.getpid(), "start": start_of(os.getpid()), **_machine()}


def is_live(writer: dict[str, Any] | None, path: Path) -> bool:
    """Return whether the process that wrote `writer` into the session at `path` still runs.

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
    """Return the size of a database's log, in bytes; 0 without one."""
    try:
        return wal_of(path).stat().st_size
    except FileNotFoundError:
        return 0


def size_of(path: Path) -> int:
    """Return the bytes of a session on disk, with SQLite's files beside it; files deleted meanwhile count 0."""
    total = 0
    for file in files_of(path):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def files_of(path: Path) -> list[Path]:
    """Return the session's file and those that SQLite keeps beside it, as far as they exist."""
    return [file for end in ("", "-wal", "-shm", "-journal") if (file := path.with_name(path.name + end)).exists()]


@cache
def _machine() -> dict[str, str]:
    """Return ids of this boot of this machine, and of this container's process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no Linux, or no /proc: process numbers are the machine's
        boot = namespace = ""
    return {"boot": boot, "namespace": namespace}


# ---- Limits of a recording, so that a file of unknown origin up to 100 MB is read within seconds and 500 MB of
# memory.

INSTRUCTIONS = 20_000_000  # instructions of SQLite's machine that one question to a file may take: one or two seconds
SCHEMA_INSTRUCTIONS = 10_000  # the same for reading its schema, each of whose rows is a statement to be parsed
ROW_BYTES = 16 << 20  # bytes of one row of any table
STATEMENT_BYTES = 4096  # bytes of one `CREATE TABLE` in the file's schema

TEXT_BYTES = 8 << 20  # characters of one JSON text; also of all events, and of all layouts, together
TEXT_VALUES = 400_000  # values in one JSON text; also in all events, and in all layouts, together
TEXT_DEPTH = 24  # lists and objects inside each other in one JSON text
INTEGER = 1 << 53  # the largest integer that every reader of JSON holds exactly

ORIGIN_S = 8e9  # the latest session time 0, Unix s: the year 2223. pandas ends in 2262
SESSION_S = 3.2e8  # the furthest session time from 0, s: ten years
INTERVAL_S = (0.001, 86_400.0)  # seconds between two rows: the least and the most

EVENTS = 60_000  # events that are read, the newest; the recorder keeps 50,000
EVENTS_SHOWN = 1_000  # events of each kind in a snapshot, the newest
SEGMENTS = 400
"""Segments that the changes in a snapshot may make: one for each switch and knob, one for each loader of a mark."""
EPOCHS = 2_000  # epochs in a snapshot, of all loaders together, the newest
LAYOUTS = 5_000  # layouts that are read, the newest
MOST_LOADERS = 256  # loaders whose states and steps are read, the newest
NODES = 256  # other machines that are read, the newest
RANKS = 1024  # ranks that are read, the newest
SERIES = 16_384  # series of one layout, and of all together
CPUS = 8_192  # logical cores
GPUS = 128  # GPUs
NAME = 300  # characters of a series' name and of a loader's

BLOCKS = 100_000  # runs of rows (chunks, batches of the tail) in a file; the recorder makes one a minute
BLOCK_ROWS = 10_000  # rows of one block; the recorder packs 700 at most
BLOCK_VALUES = 4 << 20  # values of one block; the recorder packs 2 MiB, half a million, at a time
BLOCK_COST = 4_000  # values that are decoded in the time that a block takes beside its values
FAMILY_COST = 1_000  # the same for a family of its series
STEPS_BLOCK = 200_000  # steps of one block; the recorder packs some 5,000

VALUES = 64 << 20  # values that `rows` and `to_pandas` give by default: 256 MiB of float32
SHOWN_VALUES = 96 << 20  # values that are decoded for a snapshot; of a longer session, evenly chosen blocks
SNAPSHOT_VALUES = 24 << 20  # values of a snapshot: with more than 4,000 series it has fewer rows than it might
STEPS = 2_000_000  # steps that `steps` gives by default, and that are decoded for a snapshot

MAGNITUDE = 1e24  # a value beyond is no measurement: it is read as missing
