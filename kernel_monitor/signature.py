"""Recognition of recorded sessions by content: SQLite's file header and the application id in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

SUFFIX = ".kmsession"
APPLICATION_ID = 0x4B4D5331  # "KMS1"

_SQLITE = b"SQLite format 3\0"
_TABLES = {"meta", "layouts", "hellos", "tail", "chunks"}
_BESIDE = ("-wal", "-shm", "-journal")  # suffixes of the files that SQLite keeps beside a database


def is_recording(path: Path) -> bool:
    """Whether the file at `path` is a recorded session, or SQLite's log of one; an OSError if it cannot be read.

    By content or by name, as parts of a damaged recording may still be readable.
    """
    for end in _BESIDE:
        # Also if the log does not exist: SQLite would take a file of that name for the log.
        if path.name.endswith(end) and is_recording(path.with_name(path.name.removesuffix(end))):
            return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(100)
    if path.suffix == SUFFIX:
        return True
    if not head.startswith(_SQLITE):
        return False
    # Offsets of the database header: https://www.sqlite.org/fileformat2.html#the_database_header
    if int.from_bytes(head[68:72], "big") == APPLICATION_ID:
        return True
    logged = path.with_name(f"{path.name}-wal").exists()
    return (logged or head[18] != 2) and _has_tables(path)


def _has_tables(path: Path) -> bool:
    """Whether a database, including its log, has the id or the tables of a session."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema LIMIT 100")}
    except sqlite3.Error:
        return False
    return application == APPLICATION_ID or names >= _TABLES
