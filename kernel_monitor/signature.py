"""What a recorded session is told by, whatever its name: the header of SQLite and the id of this application in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

SUFFIX = ".kmsession"
APPLICATION_ID = 0x4B4D5331  # "KMS1"

_SQLITE = b"SQLite format 3\0"
_TABLES = {"meta", "layouts", "hellos", "tail", "chunks"}
_BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database, by the ends of their names."""


def is_recording(path: Path) -> bool:
    """Whether the file at `path` is a recorded session, or belongs to one as SQLite's log does.

    Told by its content; by its name too, as a damaged recording may still be read in part.

    Raises:
        OSError: it is there and cannot be read.
    """
    for end in _BESIDE:
        # Of a log that is not there as well: what stands in its place SQLite takes for the log.
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
    """Whether a database has the id or the tables of a session, those included that are only in its log yet."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema LIMIT 100")}
    except sqlite3.Error:
        return False
    return application == APPLICATION_ID or names >= _TABLES
