"""The user's cache folder: files that are made again where they are missing or damaged.

Each file is written as a whole or not at all, with a digest of its content.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

FOLDER = "KERNEL_MONITOR_CACHE"  # environment variable with the cache folder, instead of the user's


def user_cache(name: str) -> Path:
    """Return a subfolder of the cache folder of the environment or of the user; it may not exist yet."""
    chosen = os.environ.get(FOLDER)
    return (Path(chosen).expanduser().absolute() if chosen else user_cache_path("kernel_monitor")) / name


def create_folder(folder: Path) -> None:
    """Create the folder, accessible by its owner only; OSError if it cannot be, or if the user has no home."""
    if not folder.is_absolute():
        raise OSError(f"{folder} is not an absolute path")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written to")


def read_checked(path: Path) -> bytes | None:
    """Return a file's content; None if the file is missing or damaged."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content if digest == hashlib.sha256(content).hexdigest().encode() else None


def write_checked(path: Path, content: bytes) -> None:
    """Write a file with the digest of its content, and the folder if there is none; OSError if that fails."""
    create_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        Path(name).replace(path)
    except BaseException:  # raised again: a full disk, an interrupt
        Path(name).unlink(missing_ok=True)
        raise


def prune(folder: Path, *, files: int | None = None, size: int | None = None) -> None:
    """Delete the oldest files of a folder, until it has no more than so many files, and bytes."""
    found = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process deletes, too
            facts = path.stat()
            found.append((facts.st_mtime_ns, facts.st_size, path))
    number = total = 0
    for _, length, path in sorted(found, reverse=True):
        number, total = number + 1, total + length
        if (files is not None and number > files) or (size is not None and total > size):
            path.unlink(missing_ok=True)
