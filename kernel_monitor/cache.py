"""The user's cache folder: files that are made again where they are missing or damaged.

Each file is written as a whole or not at all, with a digest of its content.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from .own_files import NoPlace, expanded, files_in, is_own, make, read, spare, user_folder, write

FOLDER = "KERNEL_MONITOR_CACHE"  # environment variable with the cache folder, instead of the user's
_LARGEST = 1 << 28  # bytes of a file


def user_cache(name: str) -> Path:
    """Return a subfolder of the cache folder of the environment or of the user; it may not exist yet.

    Of an account without a home it is in temporary space; without that, too, it is a path that cannot be written.
    """
    chosen = os.environ.get(FOLDER)
    with suppress(NoPlace):
        return (expanded(chosen) if chosen else user_folder("cache")) / name
    with suppress(NoPlace):
        return spare() / name
    return Path(name)


def create_folder(folder: Path) -> None:
    """Create the folder, accessible by its owner only; OSError if it cannot be, or is not this user's alone."""
    if not folder.is_absolute():
        raise OSError(f"{folder} is not an absolute path")
    make(folder)
    if not (os.access(folder, os.W_OK) and is_own(folder)):
        raise PermissionError(f"{folder} cannot be written to, or is not this user's alone")


def read_checked(path: Path) -> bytes | None:
    """Return a file's content; None if the file is missing, damaged, or not this user's alone."""
    try:
        digest, _, content = read(path, _LARGEST).partition(b"\n")
    except OSError:
        return None
    return content if digest == hashlib.sha256(content).hexdigest().encode() else None


def write_checked(path: Path, content: bytes) -> None:
    """Write a file with the digest of its content, and the folder if there is none; OSError if that fails."""
    create_folder(path.parent)
    write(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def prune(folder: Path, *, files: int | None = None, size: int | None = None) -> None:
    """Delete the oldest files of a folder, until it has no more than so many files, and bytes."""
    found = []
    for path in files_in(folder, ""):
        with suppress(OSError):  # another process deletes, too
            facts = path.lstat()
            found.append((facts.st_mtime_ns, facts.st_size, path))
    number = total = 0
    for _, length, path in sorted(found, reverse=True):
        number, total = number + 1, total + length
        if (files is not None and number > files) or (size is not None and total > size):
            path.unlink(missing_ok=True)
