"""The recorder's state as it reports it, and why a recording stopped, with the remedy."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOST_PERIOD_S = 60.0  # lost samples are reported no more often
AGAIN = "run %monitor record on"


@dataclass(eq=False)
class RecorderStatus:
    """Reports states to `on_state`; that a callback fails harms nothing."""

    # Called with `{"kind": "recorder", "level", "state", "path", "message"}`.
    on_state: Callable[[dict[str, Any]], None]
    path: Path  # the session's file

    def __post_init__(self) -> None:
        self._complained: set[str] = set()
        self._lost = 0
        self._lost_at = float("-inf")

    def report(self, state: str, level: str, message: str) -> None:
        with contextlib.suppress(Exception):  # the reader may have gone with its kernel; the recording goes on
            said = {"level": level, "state": state, "path": str(self.path), "message": message}
            self.on_state({"kind": "recorder", **said})

    def complain(self, kind: str, message: str) -> None:
        """Report, once for each kind, a problem that does not end the recording."""
        if kind not in self._complained:
            self._complained.add(kind)
            self.report("recording", "warning", message)

    def lost(self, samples: int) -> None:
        """Report, once a minute at most, that the queue was full for `samples` frames since the beginning."""
        now = time.monotonic()
        if samples > self._lost and now >= self._lost_at + _LOST_PERIOD_S:
            message = f"The disk is too slow: {samples - self._lost} samples were not recorded and show as a gap."
            self._lost, self._lost_at = samples, now
            self.report("recording", "warning", message)


def stop_message(error: Exception, path: Path, now: float) -> str:
    """The sentences for a recording in `path` that failed with `error` at `now` (Unix s)."""
    cause, remedy = _cause(error, path)
    clock = time.strftime("%H:%M", time.localtime(now))
    there = "the session up to then is readable" if path.exists() else "nothing of it is left"
    return f"{cause}: recording stopped at {clock}; {there}. {remedy}"


def _cause(error: Exception, path: Path) -> tuple[str, str]:
    folder = path.parent
    elsewhere = f"Name another folder (the setting for where sessions are recorded) and {AGAIN}."
    number = getattr(error, "errno", None)
    name = getattr(error, "sqlite_errorname", "")
    text = str(error.strerror if isinstance(error, OSError) else error)
    io_error = name.startswith("SQLITE_IOERR")
    if name == "SQLITE_FULL" or number in (errno.ENOSPC, errno.EDQUOT) or (io_error and _is_full(folder)):
        return f"The disk is full ({folder})", f"Free space and {AGAIN}."
    if not folder.is_dir():
        return f"The folder {folder} is gone", f"Make it again, or {elsewhere[0].lower()}{elsewhere[1:]}"
    if isinstance(error, FileNotFoundError):
        return f"The file {path} was removed", f"To record from here on, {AGAIN}."
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) or number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{folder} cannot be written ({text})", elsewhere
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"Another program keeps {path} locked", f"End it and {AGAIN}."
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"{path} was damaged while it was written ({text})", f"To go on in a new file, {AGAIN}."
    if io_error:
        return f"The disk or its limits refuse to take more ({folder}: {text})", elsewhere
    return f"The recorder failed ({type(error).__name__}: {error})", f"To try again, {AGAIN}."


def _is_full(folder: Path) -> bool:
    """Return whether the file system has no room for one more page of a database."""
    if sys.platform == "win32":
        import shutil

        return shutil.disk_usage(folder).free < 1 << 16
    try:
        facts = os.statvfs(folder)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize < 1 << 16 or (facts.f_files > 0 and facts.f_favail == 0)
