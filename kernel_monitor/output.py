"""Write a file that a person has named: whole or not at all, and never in place of what must not be replaced.

A regular file is replaced by a rename, where the links lead and with its permissions: other readers see the old file or
the whole new one. A device, a pipe or an open descriptor (`/dev/stdout`) is written to as it is. A recorded session
is never written to.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple

from .errors import MonitorError
from .signature import is_recording

PATIENCE_S = 30.0
"""How long a pipe or a device may take nothing before it is given up."""

_PIECE = 1 << 16
_MOST_LINKS = 40  # as Linux has it
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|thread-self))/fd/(\d{1,6})")
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


class _Place(NamedTuple):
    """What a path names.

    Attributes:
        named: the absolute path, as it was given.
        path: where its links lead.
        facts: of what is there; None where nothing is.
        descriptor: of this process, where the path names one.
    """

    named: Path
    path: Path
    facts: os.stat_result | None
    descriptor: int | None = None


def write(path: str | os.PathLike[str], content: str | bytes, *, mode: int = 0o666, durable: bool = True) -> Path:
    """Write a file.

    Args:
        path: where; `~` is the home folder.
        content: text is written as UTF-8.
        mode: permissions of a file that is not there yet, less the umask; one that is there keeps its own.
        durable: whether it is to be on the disk when this returns.

    Returns:
        The absolute path.

    Raises:
        MonitorError: it cannot be written, or must not be; the message says why and what to do. What was there is as it
            was, and no temporary file is left.
    """
    place = _allowed(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if place.descriptor is not None:
            _write_open(place.descriptor, data)
        elif place.facts is not None and not stat.S_ISREG(place.facts.st_mode):
            _write_through(place.path, data)
        else:
            _replace(place, data, mode, durable=durable)
    except OSError as error:
        raise MonitorError(f"Cannot write {place.named}: {why(error, place.path)}.") from error
    return place.named


def check(path: str | os.PathLike[str]) -> None:
    """Say at once what `write` would say, before anything is made that takes long.

    Raises:
        MonitorError: as `write`.
    """
    _allowed(path)


def descriptor(path: str | os.PathLike[str]) -> int | None:
    """The open descriptor of this process that a path such as `/dev/stdout` names; None where it names none."""
    text = os.fspath(path)
    found = _DESCRIPTOR.fullmatch(text)
    return int(found[1]) if found else _STREAMS.get(text)


def why(error: OSError, path: Path) -> str:
    """Why `path` cannot be written, and what can be done, in words that follow its name and a colon."""
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
        errno.ENXIO: "it is a named pipe that nobody reads: start its reader first",
        errno.EPIPE: "its reader has closed it before all was written: start the reader again",
        errno.EBADF: "it is not open for writing: name a file",
    }
    return words.get(number or 0) or f"{error.strerror or error}: {elsewhere}"


def _missing(folder: Path) -> str:
    """What of a file's folder is not there."""
    for one in (*reversed(folder.parents), folder):
        try:
            if not stat.S_ISDIR(one.stat().st_mode):
                return f"{one} is not a folder"
        except OSError:
            return f"the folder {folder} does not exist"
    return f"no file can be made in {folder}"


def _allowed(path: str | os.PathLike[str]) -> _Place:
    """What a path names, if it may be written."""
    place = _find(path)
    facts = place.facts
    if place.descriptor is not None:
        return place
    refusal = None
    try:
        if facts is None:
            os.stat(place.path.parent)  # noqa: PTH116 - for its error
        if facts is not None and stat.S_ISDIR(facts.st_mode):
            refusal = "it is a folder. Name a file in it, such as run.html"
        elif facts is not None and stat.S_ISSOCK(facts.st_mode):
            refusal = "it is a socket. Name a file"
        elif facts is not None and stat.S_ISBLK(facts.st_mode):
            refusal = "it is a disk, whose content would be lost. Name a file"
        elif facts is not None and not os.access(place.path, os.W_OK):
            if hasattr(os, "statvfs") and os.statvfs(place.path).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            refusal = "it is write-protected. Name another file, or change its permissions"
        elif facts is None or stat.S_ISREG(facts.st_mode):
            refusal = _lost(place.path)
    except OSError as error:
        refusal = why(error, place.path)
    if refusal is not None:
        raise MonitorError(f"Cannot write {place.named}: {refusal}.")
    return place


def _lost(path: Path) -> str | None:
    """Why the file at `path` must not be replaced, or a new one made there; None where it may."""
    try:
        if is_recording(path):
            return "it is a recorded session, or belongs to one, and would be lost. Name another file"
    except PermissionError:
        return "it may not be read, and so not be told from a recorded session. Name another file"
    return None


def _find(path: str | os.PathLike[str]) -> _Place:
    name = os.fspath(path)
    if not name:
        raise MonitorError("A file without a name cannot be written: name one, such as run.html.")
    named = Path(name)
    try:
        named = here = named.expanduser().absolute()
        for _ in range(_MOST_LINKS):
            number = descriptor(here)
            if number is not None:
                return _Place(named, here, os.fstat(number), number)
            if not here.is_symlink():
                break
            here = here.parent / here.readlink()
        else:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        try:
            return _Place(named, here, here.stat())
        except FileNotFoundError:
            return _Place(named, here, None)
    except OSError as error:
        raise MonitorError(f"Cannot write {named}: {why(error, named)}.") from error
    except (RuntimeError, ValueError) as error:  # a home that nobody has, a name with a zero byte
        raise MonitorError(f"Cannot write {name!r}: {error}. Name another file.") from error


def _replace(place: _Place, data: bytes, mode: int, *, durable: bool) -> None:
    facts = place.facts
    # In the same folder: a rename is atomic only within one file system.
    temporary = place.path.with_name(f".kernel-monitor-{secrets.token_hex(6)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    # Nobody else may read what takes the place of a file that they may not read.
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
    """Give an open file the owner, as far as that is allowed, and the permissions of the one that it replaces."""
    if sys.platform == "win32":
        return
    if facts.st_uid != os.geteuid() or facts.st_gid != os.getegid():
        for owner in (facts.st_uid, -1):
            try:
                os.fchown(number, owner, facts.st_gid)
                break
            except PermissionError:
                continue  # only root gives files away, and a group only its members
    os.fchmod(number, stat.S_IMODE(facts.st_mode))


def _write_open(number: int, data: bytes) -> None:
    """Write to a descriptor of this process; it stays open, and how it blocks is its owner's."""
    if number in (1, 2) and sys.stdout is not None:
        sys.stdout.flush()
    _pass_on(number, data)


def _write_through(path: Path, data: bytes) -> None:
    # Without O_NONBLOCK a named pipe waits for a reader for ever.
    number = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    try:
        _pass_on(number, data)
    finally:
        os.close(number)


def _pass_on(number: int, data: bytes) -> None:
    rest = memoryview(data)
    until = time.monotonic() + PATIENCE_S
    while rest:
        try:
            rest = rest[os.write(number, rest[:_PIECE]) :]
            until = time.monotonic() + PATIENCE_S
        except BlockingIOError:
            if time.monotonic() > until:
                left = f"{len(data) - len(rest):,} of {len(data):,} bytes were written"
                raise OSError(errno.ETIMEDOUT, f"nobody has read for {PATIENCE_S:g} s ({left})") from None
            time.sleep(0.002)
