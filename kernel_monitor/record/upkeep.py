"""What takes the disk's time, on a thread of its own: deleting old sessions, writing SQLite's log back into the file.

The latter waits for the disk, for seconds on a busy one, and what was sampled meanwhile would be lost with the process.
A passive checkpoint lets the recorder go on writing.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from .format import files_of, wal_of
from .sessions import sessions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_BYTES = 2 << 30
MAX_AGE_DAYS = 30.0
PERIOD_S = 10.0
ENOUGH = 4 << 20  # bytes of log that are worth a checkpoint
_SPARED_S = 86_400.0  # what cannot be read now may be in the making


def prune(directory: Path, max_bytes: int = MAX_BYTES, max_age_days: float = MAX_AGE_DAYS) -> list[Path]:
    """Delete sessions older than `max_age_days`, and the oldest until all together have at most `max_bytes`.

    A file that cannot be read as a session is as old as its last change. Those that are being recorded are left alone,
    and whatever is no file, has not a session's ending, or cannot be read and changed within the last day.

    Returns:
        What was deleted.

    Raises:
        OSError: one could not be deleted; the others were.
    """
    kept = 0
    gone: list[Path] = []
    failed: OSError | None = None
    for one in sessions(directory):  # the newest first
        kept += one.bytes
        age_s = time.time() - (one.started + one.seconds)
        spared = one.live if one.problem is None else age_s < _SPARED_S or not one.path.is_file()
        if spared or not (age_s > max_age_days * 86400 or kept > max_bytes):
            continue
        try:
            for file in files_of(one.path):
                file.unlink(missing_ok=True)
        except OSError as error:
            failed = failed or error
            continue
        gone.append(one.path)
        kept -= one.bytes
    if failed is not None:
        raise failed
    return gone


class Upkeep:
    """The thread.

    Args:
        path: the session's file.
        complain: told, in words, what could not be done.
    """

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-upkeep", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End it, wait `timeout` seconds at most."""
        self._ended.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            prune(self._path.parent)
        except OSError as error:
            self._complain(f"Old sessions in {self._path.parent} could not be deleted: {error.strerror}.")
        except Exception as error:  # noqa: BLE001 - without this thread the log would grow for ever
            what = f"{type(error).__name__}: {error}"
            self._complain(f"Old sessions in {self._path.parent} could not be looked through ({what}).")
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA cache_size = -64")
                while not self._ended.wait(PERIOD_S):
                    if self._size() > ENOUGH:
                        # The second finds what was written during the first: only when nothing is left of the log
                        # does the next commit begin it anew.
                        for _ in range(2):
                            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            # What is wrong with the file the recorder meets when it writes; it tells, and stops.
            self._complain(f"The log of {self._path} is not written back: {error}.")

    def _size(self) -> int:
        try:
            return wal_of(self._path).stat().st_size
        except FileNotFoundError:
            return 0
