"""What takes the disk's time, on a thread of its own: deleting old sessions, writing SQLite's log back into the file.

The latter waits for the disk, for seconds on a busy one, and what was sampled meanwhile would be lost with the process.
A passive checkpoint lets the recorder go on writing.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

from . import places
from .format import wal_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PERIOD_S = 10.0
ENOUGH = 4 << 20  # bytes of log that are worth a checkpoint


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
            places.prune(self._path.parent)
        except OSError as error:
            self._complain(f"Old sessions in {self._path.parent} could not be deleted: {error.strerror}.")
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
