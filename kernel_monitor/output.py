"""Write a file that the user named: completely or not at all, and never over a recorded session.

A regular file is replaced atomically by a rename; symbolic links are followed and permissions kept. A device, a pipe or
an open descriptor (`/dev/stdout`) is written to directly.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sqlite3
import stat
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from .errors import MonitorError
from .own_files import NoPlace, expanded

# ---- Recognition of recorded sessions by content: SQLite's file header and the application id in it.

SUFFIX = ".kmsession"
APPLICATION_ID = 0x4B4D5331  # "KMS1"

_SQLITE = b"SQLite format 3\0"
_TABLES = {"meta", "layouts", "hellos", "tail", "chunks"}
_BESIDE = ("-wal", "-shm", "-journal")  # suffixes of the files that SQLite keeps beside a database


def is_recording(path: Path) -> bool:
    """Return whether the file at `path` is a recorded session, or SQLite's log of one; an OSError if it cannot be read.

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
    """Return whether a database, including its log, has the id or the tables of a session."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)) as connection:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema LIMIT 100")}
    except sqlite3.Error:
        return False
    return application == APPLICATION_ID or names >= _TABLES


PATIENCE_S = 30.0  # how long a write to a pipe or a device may block before it fails

_CHUNK = 1 << 16
_MAX_LINKS = 40  # Linux's limit
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self))/fd/(\d{1,6})")
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_REFUSED = {
    stat.S_IFDIR: "it is a folder. Name a file in it, such as run.html",
    stat.S_IFSOCK: "it is a socket. Name a file",
    stat.S_IFBLK: "it is a disk, whose content would be lost. Name a file",
}


class Target(NamedTuple):
    named: Path  # the absolute path as given
    path: Path  # the path with links followed
    facts: os.stat_result | None  # `stat` of the existing file, or None
    descriptor: int | None = None  # the open descriptor of this process that the path names, or None


def write(path: str | os.PathLike[str], content: str | bytes, *, mode: int = 0o666, durable: bool = True) -> Path:
    """Write a file; returns its absolute path.

    Args:
        path: of the file; `~` is the home folder.
        content: text is written as UTF-8.
        mode: permissions of a new file, less the umask; an existing file keeps its own.
        durable: whether to `fsync`.

    Raises:
        MonitorError: it cannot or must not be written; the message has cause and remedy. An existing file is then
            unchanged, and no temporary file is left.
    """
    place = check(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if place.descriptor is not None:
            if place.descriptor in (1, 2) and sys.stdout is not None:
                sys.stdout.flush()
            _write_all(place.descriptor, data)
        elif place.facts is None or stat.S_ISREG(place.facts.st_mode):
            _replace(place, data, mode, durable=durable)
        else:
            # O_NONBLOCK: opening a named pipe without a reader would block for ever.
            number = os.open(place.path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
            try:
                _write_all(number, data)
            finally:
                os.close(number)
    except OSError as error:
        raise MonitorError(f"Cannot write {place.named}: {error_words(error, place.path)}.") from error
    return place.named


def check(path: str | os.PathLike[str]) -> Target:
    """Raise the MonitorError that `write` would raise, before a long computation of the content; else the target."""
    place = _find(path)
    if place.descriptor is not None:
        return place
    facts = place.facts
    kind = 0 if facts is None else stat.S_IFMT(facts.st_mode)
    refusal = _REFUSED.get(kind)
    try:
        if facts is None:
            os.stat(place.path.parent)  # noqa: PTH116 - raises if it is missing
        elif refusal is None and not os.access(place.path, os.W_OK):
            if hasattr(os, "statvfs") and os.statvfs(place.path).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            refusal = "it is write-protected. Name another file, or change its permissions"
        if refusal is None and kind in (0, stat.S_IFREG):
            refusal = _protected(place.path)
    except OSError as error:
        refusal = error_words(error, place.path)
    if refusal is not None:
        raise MonitorError(f"Cannot write {place.named}: {refusal}.")
    return place


def descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the open descriptor that a path such as `/dev/stdout` names, or None."""
    text = os.fspath(path)
    found = _DESCRIPTOR.fullmatch(text)
    return int(found[1]) if found else _STREAMS.get(text)


def error_words(error: OSError, path: Path) -> str:
    """Return cause and remedy of an error in writing `path`, as the end of a sentence."""
    folder, number = path.parent, error.errno
    elsewhere = "name a file in another folder"
    if number in (errno.ENOENT, errno.ENOTDIR):
        return f"{_missing(folder)}: {elsewhere}"
    if number in (errno.EACCES, errno.EPERM):
        return f"you may not write in {folder} ({error.strerror}): {elsewhere}"
    if number == errno.EROFS:
        return f"{folder} is on a read-only file system: {elsewhere}"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: free space, or name a file on another one"
    words = {
        errno.ENAMETOOLONG: "its name is too long: give it a shorter one",
        errno.ELOOP: "its links lead in a circle: name another file",
        errno.EISDIR: "it is a folder: name a file in it, such as run.html",
        errno.EEXIST: "it is not a folder: name another one",
        errno.EFBIG: "the file would be larger than is allowed here (ulimit -f, or the file system): raise the limit",
        errno.EBUSY: f"it is in use, as a file that is mounted by itself is: {elsewhere}",
        errno.ENXIO: "it is a named pipe without a reader: start the reader first",
        errno.EPIPE: "its reader has closed it before all was written: start the reader again",
        errno.EBADF: "it is not open for writing: name a file",
    }
    return words.get(number or 0) or f"{error.strerror or error}: {elsewhere}"


def _missing(folder: Path) -> str:
    """Return which part of a folder's path is missing."""
    for part in (*reversed(folder.parents), folder):
        try:
            if not stat.S_ISDIR(part.stat().st_mode):
                return f"{part} is not a folder"
        except OSError:
            return f"the folder {folder} does not exist"
    return f"no file can be created in {folder}"


def _protected(path: Path) -> str | None:
    """Return why the file at `path` must not be created or replaced, or None."""
    try:
        if is_recording(path):
            return "it is a recorded session, or belongs to one, and would be lost. Name another file"
    except PermissionError:
        return "it is not readable and might be a recorded session. Name another file"
    return None


def _find(path: str | os.PathLike[str]) -> Target:
    name = os.fspath(path)
    if not name:
        raise MonitorError("A file without a name cannot be written: name one, such as run.html.")
    named = Path(name)
    try:
        named = here = expanded(named)
        for _ in range(_MAX_LINKS):
            number = descriptor(here)
            if number is not None:
                return Target(named, here, os.fstat(number), number)
            if not here.is_symlink():
                break
            here = here.parent / here.readlink()
        else:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        try:
            return Target(named, here, here.stat())
        except FileNotFoundError:
            return Target(named, here, None)
    except NoPlace as error:
        raise MonitorError(f"Cannot write {named}: {error}") from error
    except OSError as error:
        raise MonitorError(f"Cannot write {named}: {error_words(error, named)}.") from error
    except ValueError as error:  # a name with a zero byte
        raise MonitorError(f"Cannot write {name!r}: {error}. Name another file.") from error


def _replace(place: Target, data: bytes, mode: int, *, durable: bool) -> None:
    facts = place.facts
    # In the same folder: a rename is atomic only within one file system.
    temporary = place.path.with_name(f".kernel-monitor-{secrets.token_hex(6)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    # The replacement must not be readable for more users than the file itself.
    number = os.open(temporary, flags, mode if facts is None else 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            if facts is not None:
                _take_over(number, facts)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(number)
        temporary.replace(place.path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _take_over(number: int, facts: os.stat_result) -> None:
    """Copy permissions and, as far as allowed, the owner of the replaced file."""
    if sys.platform == "win32":
        return
    if facts.st_uid != os.geteuid() or facts.st_gid != os.getegid():
        for owner in (facts.st_uid, -1):
            try:
                os.fchown(number, owner, facts.st_gid)
                break
            except PermissionError:
                continue  # only root may change owners, and only members of a group may set it
    os.fchmod(number, stat.S_IMODE(facts.st_mode))


def _write_all(number: int, data: bytes) -> None:
    rest = memoryview(data)
    until = time.monotonic() + PATIENCE_S
    while rest:
        try:
            rest = rest[os.write(number, rest[:_CHUNK]) :]
            until = time.monotonic() + PATIENCE_S
        except BlockingIOError:
            if time.monotonic() > until:
                left = f"{len(data) - len(rest):,} of {len(data):,} bytes were written"
                raise OSError(errno.ETIMEDOUT, f"its reader has read nothing for {PATIENCE_S:g} s ({left})") from None
            time.sleep(0.002)
