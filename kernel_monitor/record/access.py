"""Opens a session's file for reading, whatever became of its writer and wherever the file comes from.

Nothing in the file is run: its schema must be the recorder's tables, letter by letter, before any of them is read, and
the time and memory of a statement are bounded (`file_limits`).
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kernel_monitor.errors import SessionError

from .file_limits import INSTRUCTIONS, ROW_BYTES, SCHEMA_INSTRUCTIONS, STATEMENT_BYTES
from .format import APPLICATION_ID, FORMAT, TABLES, wal_of

_TABLES = {" ".join(statement.split()) for statement in TABLES.split(";") if statement.strip()}
_STRIDE = 1000  # instructions between two checks of their number
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: ROW_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: STATEMENT_BYTES,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_UNREACHABLE = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR")


class OtherFormat(SessionError):
    """The session was written by another version of this package: it is intact, but cannot be read here."""


class Access:
    """How a session's file can be read here; a SessionError if it is missing, no session, empty or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = path
        self._is_copy = False
        with _named(path):
            if not path.is_file():
                if path.exists():
                    raise SessionError(f"{path} is not a recorded session: it is no file.")
                raise SessionError(f"There is no session at {path}.")
            try:
                self._open().close()
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith(_UNREACHABLE):
                    raise
                self._copy()
                self._open().close()

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection within a read transaction: all reads see the same state; what fails in it is a SessionError."""
        with _named(self.path), closing(self._open()) as connection:
            connection.execute("BEGIN")
            yield connection

    def _open(self) -> sqlite3.Connection:
        place = self._place.resolve()
        written = any(place.with_name(place.name + end).exists() for end in ("-wal", "-journal"))
        # A file without a log has no writer, and is opened without any file beside it.
        mode = "rw" if self._is_copy else "ro" if written else "ro&immutable=1"
        uri = f"{place.as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0, check_same_thread=False)
        try:
            restrain(connection, SCHEMA_INSTRUCTIONS)
            connection.execute("PRAGMA query_only = ON")
            _examine(connection, self.path)
            restrain(connection)
        except BaseException:  # an interrupt, too, must leave no open connection
            connection.close()
            raise
        return connection

    def _copy(self) -> None:
        """Read a temporary copy, which goes with this object.

        On a read-only or full medium SQLite cannot make the files that reading a log needs.
        """
        folder = tempfile.mkdtemp(prefix="kernel_monitor-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        place, self._place, self._is_copy = self._place.resolve(), Path(folder, self.path.name), True
        shutil.copyfile(place, self._place)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(wal_of(place), wal_of(self._place))


def restrain(connection: sqlite3.Connection, instructions: int = INSTRUCTIONS) -> None:
    """Bound the time and memory that SQLite spends on the file that `connection` has open."""
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    left = instructions // _STRIDE

    def spent() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    connection.set_progress_handler(spent, _STRIDE)
    connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _examine(connection: sqlite3.Connection, path: Path) -> None:
    """Raise a SessionError if this is no session of this format, with its tables and nothing else."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application == 0:
        raise SessionError(f"{path} is not a recorded session, or nothing was recorded in it.")
    if application != APPLICATION_ID:
        raise SessionError(f"{path} is not a recorded session: it is a database of another program.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise OtherFormat(
            f"{path} has format {version}; this version of kernel_monitor reads format {FORMAT}. "
            "The newest version reads the newest format: pip install --upgrade kernel-monitor"
        )
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema LIMIT ?", (len(_TABLES) + 1,)).fetchall()
    strange = [f"{kind} {name!r:.60}" for kind, name, sql in found if " ".join(str(sql).split()) not in _TABLES]
    if strange or len(found) != len(_TABLES):
        what = f"{strange[0]} is none of its own" if strange else "some are missing"
        raise SessionError(f"{path} is damaged: its tables are not those of a recorded session ({what}).")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn SQLite's and the system's errors into a SessionError with the file, the cause and the remedy."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_NOTADB":
            raise SessionError(f"{path} is not a recorded session.") from error
        if name.startswith("SQLITE_CORRUPT"):
            raise SessionError(f"{path} is damaged: {error}. A copy of it may be intact.") from error
        if name.startswith(("SQLITE_INTERRUPT", "SQLITE_TOOBIG")):
            raise SessionError(f"{path} is damaged: it holds more than any recording ({error}).") from error
        raise SessionError(f"{path} cannot be read: {error}.") from error
    except OSError as error:
        raise SessionError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:  # SQLite's message quotes what is damaged
        raise SessionError(f"{path} is damaged: its tables have no names.") from error
