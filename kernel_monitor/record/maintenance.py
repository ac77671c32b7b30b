"""Slow work on recordings, on a thread of its own: deleting old sessions, writing SQLite's log back into the file.

Writing back waits for the disk, for seconds on a busy one; samples taken meanwhile would be lost with the process. A
passive checkpoint lets the recorder go on writing.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .format import files_of, size_of_log
from .sessions import sessions

MAX_BYTES = 2 << 30
MAX_AGE_DAYS = 30.0
PERIOD_S = 10.0
ENOUGH = 4 << 20  # bytes of log that are worth a checkpoint
_SPARED_S = 86_400.0  # a file that cannot be read now may still be being made


def prune(directory: Path, max_bytes: int = MAX_BYTES, max_age_days: float = MAX_AGE_DAYS) -> list[Path]:
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
class Upkeep:
    """The thread."""

    path: Path  # the session's file
    complain: Callable[[str], None]  # called with a sentence for each failure

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
            self.complain(f"Old sessions in {folder} could not be deleted: {error.strerror}.")
        except Exception as error:  # noqa: BLE001 - the checkpoints below must go on, or the log would grow for ever
            self.complain(f"Old sessions in {folder} could not be looked through ({type(error).__name__}: {error}).")
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
            self.complain(f"The log of {self.path} is not written back: {error}.")
