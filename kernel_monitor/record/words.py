"""Why a recording stopped, and what a person can do about it."""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

AGAIN = "run %monitor record on"


def stopped(error: Exception, path: Path, now: float) -> str:
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
    if name == "SQLITE_FULL" or number in (errno.ENOSPC, errno.EDQUOT) or (_io(name) and _is_full(folder)):
        return f"The disk is full ({folder})", f"Free space and {AGAIN}."
    if not folder.is_dir():
        return f"The folder {folder} is gone", f"Make it again, or {elsewhere[0].lower()}{elsewhere[1:]}"
    if isinstance(error, FileNotFoundError):
        return f"The file {path} was removed", f"To record from here on, {AGAIN}."
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) or number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{folder} cannot be written ({_text(error)})", elsewhere
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"Another program keeps {path} locked", f"End it and {AGAIN}."
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"{path} was damaged while it was written ({_text(error)})", f"To go on in a new file, {AGAIN}."
    if _io(name):
        return f"The disk or its limits refuse to take more ({folder}: {_text(error)})", elsewhere
    return f"The recorder failed ({type(error).__name__}: {error})", f"To try again, {AGAIN}."


def _io(name: str) -> bool:
    return name.startswith("SQLITE_IOERR")


def _is_full(folder: Path) -> bool:
    """Whether the file system has no room for one more page of a database."""
    if sys.platform == "win32":
        import shutil

        return shutil.disk_usage(folder).free < 1 << 16
    try:
        facts = os.statvfs(folder)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize < 1 << 16 or (facts.f_files > 0 and facts.f_favail == 0)


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, sqlite3.Error):
        return str(error.strerror)
    return str(error)
