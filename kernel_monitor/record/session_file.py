"""Writes a session's file: rows go to its tail, and from there, packed, to its chunks."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import codec
from .format import APPLICATION_ID, FORMAT, HOST, LOADERS, NODE, RANK, STEP, TABLES, files_of, size_of_log, writer_here
from .sessions import sessions

CHUNK_ROWS = 600
_CHUNK_BYTES = 2 << 20  # of rows as they came: what packing holds in memory
STEPS_PACKED = 5000  # steps of a loader that are packed together
_EVENTS_KEPT = 50_000
_HELLOS_KEPT = 1000
ROOM = 1 << 16  # bytes that there must be for a recording to begin
_SLACK = 8 << 20  # bytes of free pages that a file may keep for its next tail
_LOG_LIMIT = 64 << 20  # a log beyond this is written back at once, by the writing thread


class OtherFile(Exception):
    """The error for a file that belongs to another session, or to none."""


class SessionFile:
    """A connection to a session's file, to be used by one thread at a time. Every method may raise sqlite3.Error.

    The file of the same session is continued, anything else in it an OtherFile. `origin` is the Unix time of session
    time 0. Beyond `max_bytes` the oldest rows go.
    """

    def __init__(self, path: Path, *, session: str, origin: float, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives the files beside it the mode of this one.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(fd, 0o600)
            self._facts = os.fstat(fd)
        finally:
            os.close(fd)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
        try:
            self._open(session, origin)
        except BaseException:  # an interrupt, too, must leave no open connection
            self._db.close()
            raise

    def _open(self, session: str, origin: float) -> None:
        db = self._db
        application = self._pragma("application_id")
        tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if application == 0 and tables == 0:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            with self.transaction():
                for statement in TABLES.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {FORMAT}")
                self.set_fact("session", session)
                self.set_fact("origin", origin)
                self.set_fact("created", time.time())
                self.set_fact("writer", writer_here())
        elif application != APPLICATION_ID or self._pragma("user_version") != FORMAT:
            raise OtherFile(f"{self.path} is no session of this version")
        else:
            if self._read("session") != session:
                raise OtherFile(f"{self.path} is another session")
            db.execute("PRAGMA journal_mode = WAL")
            self.set_fact("writer", writer_here())
            db.execute("DELETE FROM meta WHERE key = 'ended'")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")  # see `maintenance`
        db.execute("PRAGMA cache_size = -1024")
        known = db.execute("SELECT id, kind, series FROM layouts").fetchall()
        self._layouts: dict[tuple[str, str], int] = {(kind, series): number for number, kind, series in known}
        self._names = {number: [name for name, _ in json.loads(series)] for number, _, series in known}
        self._current: dict[str, int] = {}  # the newest layout of each kind
        self._loader_units: dict[str, str] = {}

    def close(self) -> None:
        """Close the database: a plain file remains, or a file with its log if another process has it open."""
        try:
            self._db.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError:
            pass  # a reader has it open; a session with its log is complete, too
        finally:
            self._db.close()

    def abandon(self) -> None:
        self._db.close()

    def exists(self) -> bool:
        """Return whether the file is still where it was: SQLite would go on writing to one that was deleted."""
        try:
            return os.path.samestat(self.path.stat(), self._facts)
        except OSError:
            return False

    # -- facts, hellos and rows ---------------------------------------------------------------------------------------

    def set_fact(self, key: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def _read(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def check_room(self) -> None:
        """Write and remove as much as the first rows need: even a nearly full disk takes the small facts above."""
        self.set_fact("room", "0" * ROOM)
        self._db.execute("DELETE FROM meta WHERE key = 'room'")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Yield all is written, or nothing: an interrupt, too, must leave no open transaction."""
        with self._db:  # commits or rolls back
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def add_hello(self, moment: float, hello: Mapping[str, Any]) -> int:
        """Record the sampler's hello; return the layout of its frames."""
        rest = {key: value for key, value in hello.items() if key != "series"}
        layout = self._layout(HOST, [(entry["name"], entry["unit"]) for entry in hello["series"]])
        self._insert("hellos", time=moment, layout=layout, hello=json.dumps(rest))
        return layout

    def loader_layout(self, units: Mapping[str, str]) -> tuple[int, list[str]]:
        """Return the layout for values of at least these loaders' series (name to unit), and its names."""
        self._loader_units |= {name: unit for name, unit in units.items() if name not in self._loader_units}
        layout = self._layout(LOADERS, list(self._loader_units.items()))
        return layout, self._names[layout]

    def node_layout(self, node: str, series: Sequence[tuple[str, str]]) -> int:
        """Return the layout for the values of a node (its id)."""
        return self._layout(f"{NODE}{node}", list(series))

    def rank_layout(self, rank: str, series: Sequence[tuple[str, str]]) -> int:
        """Return the layout for the values of a rank (its id)."""
        return self._layout(f"{RANK}{rank}", list(series))

    def _layout(self, kind: str, series: list[tuple[str, str]]) -> int:
        text = json.dumps(series)
        number = self._layouts.get((kind, text))
        if number is None:
            number = self._insert("layouts", kind=kind, series=text)
            self._layouts[kind, text] = number
            self._names[number] = [name for name, _ in series]
        self._current[kind] = number
        return number

    def add_rows(self, layout: int, rows: Sequence[tuple[float, int, bytes]]) -> None:
        """Record rows of a layout, each with its time, the deadlines missed before it, and its values."""
        times, missed, values = zip(*rows, strict=True)
        data = struct.pack(f"<{len(rows)}d{len(rows)}I", *times, *missed) + b"".join(values)
        self._insert("tail", layout=layout, first=min(times), last=max(times), n=len(rows), data=data)

    def add_event(self, moment: float, event: Mapping[str, Any]) -> None:
        self._insert("events", time=moment, event=json.dumps(event))

    def add_steps(self, loader: str, rows: Sequence[tuple[float, bytes]], dropped: int) -> None:
        """Record steps: the end (session s) of each and the step as `packed_step` gives it."""
        data = b"".join(step for _, step in rows)
        last = max((end for end, _ in rows), default=0.0)
        self._insert("steps", loader=loader, last=last, n=len(rows), dropped=dropped, packed=0, data=data)

    def _insert(self, table: str, **row: object) -> int:
        columns, marks = ", ".join(row), ", ".join("?" * len(row))
        done = self._db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))  # noqa: S608
        return int(done.lastrowid or 0)

    # -- packing ------------------------------------------------------------------------------------------------------

    def pack(self, *, everything: bool = False) -> Iterator[None]:
        """Pack whatever has grown enough, or everything, in pieces of less than a millisecond, outside any transaction.

        Between two pieces the caller may write.
        """
        for layout, ids in self._full(everything=everything):
            yield from self._pack_rows(layout, ids)
        yield from self._pack_steps(everything=everything)
        for table, kept in (("events", _EVENTS_KEPT), ("hellos", _HELLOS_KEPT)):
            self._db.execute(f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?", (kept,))  # noqa: S608

    def _full(self, *, everything: bool) -> list[tuple[int, list[int]]]:
        """Return the layouts and batches of the tail that make a chunk each."""
        found: list[tuple[int, list[int]]] = []
        open_: dict[int, tuple[list[int], int]] = {}
        for number, layout, count in self._db.execute("SELECT id, layout, n FROM tail ORDER BY id"):
            ids, rows = open_.get(layout, ([], 0))
            width = max(1, len(self._names[layout]))
            limit = max(50, min(CHUNK_ROWS, _CHUNK_BYTES // (4 * width)))
            ids, rows = [*ids, number], rows + count
            if rows >= limit:
                found.append((layout, ids))
                open_.pop(layout, None)
            else:
                open_[layout] = (ids, rows)
        current = set() if everything else set(self._current.values())
        # A layout that was left has no more rows to come.
        return found + [(layout, ids) for layout, (ids, _) in open_.items() if layout not in current]

    def _pack_rows(self, layout: int, ids: list[int]) -> Iterator[None]:
        names = self._names[layout]
        times: list[bytes] = []
        missed: list[bytes] = []
        values: list[bytes] = []
        first, last, rows = float("inf"), float("-inf"), 0
        for number in ids:
            start, end, count, data = self._db.execute(
                "SELECT first, last, n, data FROM tail WHERE id = ?", (number,)
            ).fetchone()
            first, last, rows = min(first, start), max(last, end), rows + count
            times.append(data[: 8 * count])
            missed.append(data[8 * count : 12 * count])
            values.append(data[12 * count :])
            yield
        chunk = yield from codec.encode(names, b"".join(times), b"".join(missed), b"".join(values))
        with self.transaction():
            self._insert("chunks", layout=layout, first=first, last=last, n=rows, data=chunk)
            self._db.executemany("DELETE FROM tail WHERE id = ?", [(number,) for number in ids])
        yield
        self._bound()

    def _pack_steps(self, *, everything: bool) -> Iterator[None]:
        enough = 2 if everything else STEPS_PACKED
        query = "SELECT loader FROM steps WHERE packed = 0 GROUP BY loader HAVING sum(n) >= ?"
        for (loader,) in self._db.execute(query, (enough,)).fetchall():
            found = self._db.execute(
                "SELECT id, last, n, dropped, data FROM steps WHERE packed = 0 AND loader = ? ORDER BY id", (loader,)
            ).fetchall()
            yield
            data = zlib.compress(b"".join(codec.planes(b"".join(row[4] for row in found), STEP.size)), codec.LEVEL)
            yield
            numbers, lasts, counts, drops, _ = zip(*found, strict=True)
            with self.transaction():
                self._db.executemany("DELETE FROM steps WHERE id = ?", [(number,) for number in numbers])
                counted = {"last": max(lasts), "n": sum(counts), "dropped": sum(drops)}
                self._insert("steps", id=numbers[0], loader=loader, **counted, packed=1, data=data)
            yield

    # -- bounds -------------------------------------------------------------------------------------------------------

    def _bound(self) -> None:
        """Delete the oldest chunks beyond `max_bytes`, and give unused pages back."""
        page = self._pragma("page_size")
        while (self._pragma("page_count") - self._pragma("freelist_count")) * page > self.max_bytes:
            oldest = self._db.execute(
                "SELECT chunks.id, last, n, kind FROM chunks JOIN layouts ON layouts.id = layout ORDER BY first LIMIT 1"
            ).fetchone()
            if oldest is None:
                break
            number, last, rows, kind = oldest
            dropped = self._read("dropped") or {"until": 0.0, "rows": 0}
            if kind == HOST:
                dropped = {"until": max(dropped["until"], last), "rows": dropped["rows"] + rows}
            with self.transaction():
                self._db.execute("DELETE FROM chunks WHERE id = ?", (number,))
                self._db.execute("DELETE FROM steps WHERE last <= ?", (last,))
                self.set_fact("dropped", dropped)
        spare = self._pragma("freelist_count") - _SLACK // page
        if spare > 0:
            self.give_back(spare)

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def give_back(self, pages: int = 0) -> None:
        """Give so many free pages back to the file system, all for 0."""
        # The pragma frees one page per step, and `execute` makes only one step where there is nothing to fetch.
        self._db.executescript(f"PRAGMA incremental_vacuum({pages})")

    def keep_log_short(self) -> None:
        """Write the log back if it has grown too long: a reader or a slow disk kept `maintenance` from it."""
        if size_of_log(self.path) > _LOG_LIMIT:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


# ---- Slow work on recordings, on a thread of its own: deleting old sessions, writing SQLite's log back into the file.

MAX_BYTES = 2 << 30
_MAX_AGE_DAYS = 30.0
PERIOD_S = 10.0
ENOUGH = 4 << 20  # bytes of log that are worth a checkpoint
_SPARED_S = 86_400.0  # a file that cannot be read now may still be being made


def prune(directory: Path, max_bytes: int = MAX_BYTES, max_age_days: float = _MAX_AGE_DAYS) -> list[Path]:
    """Delete sessions older than `max_age_days`, and the oldest until all together have at most `max_bytes`.

    A file that cannot be read as a session is as old as its last change. Left alone are sessions that are being
    recorded, unreadable files that changed within the last day, folders, and files without a session's suffix.
    Returns the deleted files; an OSError is raised at the end if one could not be deleted.
    """
    kept = 0
    gone: list[Path] = []
    failed: OSError | None = None
    for session in sessions(directory):  # the newest first
        kept += session.bytes
        age_s = time.time() - (session.started + session.seconds)
        spared = session.live if session.problem is None else age_s < _SPARED_S or not session.path.is_file()
        if spared or not (age_s > max_age_days * 86400 or kept > max_bytes):
            continue
        try:
            for file in files_of(session.path):
                file.unlink(missing_ok=True)
        except OSError as error:
            failed = failed or error
            continue
        gone.append(session.path)
        kept -= session.bytes
    if failed is not None:
        raise failed
    return gone


@dataclass(eq=False)
class Maintenance:
    """The thread for slow work on recordings."""

    path: Path  # the session's file
    warn: Callable[[str], None]  # called with a sentence for each failure

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-upkeep", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        self._ended.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        folder = self.path.parent
        try:
            prune(folder)
        except OSError as error:
            self.warn(f"Old sessions in {folder} could not be deleted: {error.strerror}.")
        except Exception as error:  # noqa: BLE001 - the checkpoints below must go on, or the log would grow for ever
            self.warn(f"Old sessions in {folder} could not be looked through ({type(error).__name__}: {error}).")
        try:
            with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA cache_size = -64")
                while not self._ended.wait(PERIOD_S):
                    if size_of_log(self.path) > ENOUGH:
                        # The second writes back what was committed during the first: only an empty log is begun again
                        # from its start by the next commit.
                        for _ in range(2):
                            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            # The recorder meets the same error when it writes, reports it and stops.
            self.warn(f"The log of {self.path} is not written back: {error}.")
