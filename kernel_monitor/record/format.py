"""The file of a session: what is in it, and how it is opened for reading, whatever became of its writer.

An SQLite database, in WAL mode while it is written and a plain file once it is closed. Tables:

* `meta`: facts by name, as JSON: `session`, `origin` (Unix s at session time 0), `created` (Unix s), `writer` (who
  writes, to tell whether it lives), `ended`, `facts`, `loaders`, `epochs`, `dropped` (the oldest rows, gone for want
  of room).
* `layouts`: the series of a kind of rows (`host`, `loaders`), which never change; `hellos`: what the sampler said.
* `tail`: the newest rows as they came, a batch each: float64 times[n], uint32 missed[n], float32 values[n, m].
* `chunks`: older rows, packed (`codec`).
* `events`, and `steps` in batches of `STEP`, packed or not.

All times are session seconds, all numbers little-endian.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import struct
import tempfile
import time
import weakref
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_monitor.errors import SessionError
from kernel_monitor.sample import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUFFIX = ".kmsession"
APPLICATION_ID = 0x4B4D5331  # "KMS1"
FORMAT = 2
"""1 knew no phases of a step; its files are read as they are."""
HOST, LOADERS = "host", "loaders"
STEP = struct.Struct("<dIII6fB")
"""One step, as `steps.records.Step` has it: end (session s), counts, durations (s; NaN: not measured), flags."""
STEP_1 = struct.Struct("<dIIIff")
"""One step of format 1: up to `step`."""

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


def packed_step(row: Sequence[Any]) -> tuple[float, bytes]:
    """The end and the bytes of a step as the kernel tells it: the fields of `steps.records.Step`, its end in session s.

    Phases and flags may be left out; what was not measured is None or NaN.

    Raises:
        ValueError, TypeError, OverflowError, struct.error: it is no step.
    """
    end, epoch, batch, images, *rest = row
    if not math.isfinite(end):
        raise ValueError(f"a step that ended at {end}")
    times = [math.nan if one is None else float(one) for one in rest[:6]]
    times += [math.nan] * (6 - len(times))
    flags = rest[6] if len(rest) > 6 else 0
    return float(end), STEP.pack(end, int(epoch), int(batch), int(images), *times, int(flags))


def writer_here() -> dict[str, Any]:
    """This process, for a reader that asks whether the writer lives."""
    return {"pid": os.getpid(), "start": process.start_of(os.getpid()), **_machine()}


def is_live(writer: dict[str, Any] | None, path: Path) -> bool:
    """Whether the process that wrote `writer` into the session at `path` still runs.

    In another container its number says nothing: then a file that changed within the last ten seconds is live.
    """
    if writer is None or writer.get("start") is None:
        return False
    here = _machine()
    if writer.get("boot") != here["boot"]:
        return False
    if writer.get("namespace") == here["namespace"]:
        return process.is_alive(int(writer["pid"]), float(writer["start"]))
    return any(_age(file) < 10 for file in (path, wal_of(path)))


def wal_of(path: Path) -> Path:
    """SQLite's log beside a database."""
    return path.with_name(path.name + "-wal")


def size_of(path: Path) -> int:
    """Bytes of a session on disk, with what SQLite keeps beside it."""
    return sum(file.stat().st_size for file in files_of(path))


def files_of(path: Path) -> list[Path]:
    """The session's file and those that SQLite keeps beside it, as far as they exist."""
    return [file for end in ("", "-wal", "-shm", "-journal") if (file := path.with_name(path.name + end)).exists()]


def _age(file: Path) -> float:
    try:
        return time.time() - file.stat().st_mtime
    except FileNotFoundError:
        return float("inf")


@cache
def _machine() -> dict[str, str]:
    """What tells this boot of this machine, and this container's process numbers, from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # no Linux, or no /proc: process numbers are the machine's
        boot = namespace = ""
    return {"boot": boot, "namespace": namespace}


@dataclass(frozen=True)
class Access:
    """How a session's file can be read here.

    Attributes:
        path: the session's file.
        uri: what SQLite is to open.
        copy: the folder of a temporary copy, where reading in place is not possible; it goes with this object.
    """

    path: Path
    uri: str
    copy: str | None = None

    def __post_init__(self) -> None:
        if self.copy is not None:
            weakref.finalize(self, shutil.rmtree, self.copy, ignore_errors=True)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection within one read transaction: everything that is read belongs to one moment.

        Raises:
            SessionError: the file cannot be read, and why.
        """
        with _named(self.path), closing(_open(self.uri)) as connection:
            connection.execute("BEGIN")
            yield connection


def access(path: Path) -> Access:
    """Find out how a session's file can be read, and that it is one.

    Raises:
        SessionError: there is no such file, it is no session, of a newer format, empty or damaged.
    """
    if not path.is_file():
        raise SessionError(f"There is no session at {path}.")
    with _named(path):
        found = _reachable(path)
        with closing(_open(found.uri)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = format_of(connection)
    if application != APPLICATION_ID:
        if path.stat().st_size == 0 or application == 0:
            raise SessionError(f"{path} is not a recorded session, or nothing was recorded in it.")
        raise SessionError(f"{path} is not a recorded session: it is a database of another program.")
    if version > FORMAT:
        raise SessionError(
            f"{path} has format {version}; this version of kernel_monitor reads formats up to {FORMAT}. "
            "Update it: pip install --upgrade kernel-monitor"
        )
    return found


def _reachable(path: Path) -> Access:
    """In place where that works. On a read-only or full medium SQLite cannot make what reading a log takes."""
    place = path.resolve().as_uri()
    try:
        with closing(_open(f"{place}?mode=ro")) as connection:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR")):
            raise
    else:
        return Access(path, f"{place}?mode=ro")
    log = wal_of(path)
    if not log.exists() or log.stat().st_size == 0:
        return Access(path, f"{place}?mode=ro&immutable=1")
    folder = tempfile.mkdtemp(prefix="kernel_monitor-")
    found = Access(path, f"{Path(folder, path.name).as_uri()}?mode=rw", folder)
    for file in (path, log):
        shutil.copyfile(file, Path(folder, file.name))
    return found


def _open(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, check_same_thread=False)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors as errors that name the file, the cause and what can be done."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        name = error.sqlite_errorname if hasattr(error, "sqlite_errorname") else ""
        if name == "SQLITE_NOTADB":
            raise SessionError(f"{path} is not a recorded session.") from error
        if name.startswith("SQLITE_CORRUPT"):
            raise SessionError(f"{path} is damaged: {error}. A copy of it, if there is one, may be whole.") from error
        raise SessionError(f"{path} cannot be read: {error}.") from error
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror}.") from error


def format_of(connection: sqlite3.Connection) -> int:
    """The format of the session that `connection` has open."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def read_meta(connection: sqlite3.Connection) -> dict[str, Any]:
    """All facts by name."""
    return {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM meta")}


def last_ends(connection: sqlite3.Connection) -> tuple[float, float]:
    """Session times of the oldest and the newest of the host's rows; NaN where there is none."""
    first, last = connection.execute(
        "SELECT min(first), max(last) FROM (SELECT first, last, layout FROM chunks UNION ALL "
        "SELECT first, last, layout FROM tail) WHERE layout IN (SELECT id FROM layouts WHERE kind = ?)",
        (HOST,),
    ).fetchone()
    return (float("nan"), float("nan")) if first is None else (first, last)
