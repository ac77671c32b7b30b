"""Files of this user alone in places where other users may write, and where the user's own folders are.

No other module asks for the temporary folder, the home or the working directory (`pyproject.toml` bans it), and none
opens a file of ours in a shared place: another user may have put a link, a pipe or a huge file there.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from .errors import MonitorError

SMALL = 64 << 10  # bytes of what sessions write for other processes
_MOST_NAMES = 200_000  # names of a shared folder that are looked at, which takes 0.1 s
_MOST_COUNTED = 1000
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_HAS_OWNERS = hasattr(os, "getuid")  # else Windows, where the places below are the user's own
_FLAGS = os.O_RDONLY
for _flag in ("O_BINARY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK"):
    _FLAGS |= getattr(os, _flag, 0)


class NotOwn(PermissionError):
    """A file or a folder that is passed over: it is not this user's alone, is no plain file, or is too large."""


# ---- Reading and writing.

_passed_over: dict[str, str] = {}  # by path: why


def passed_over() -> str | None:
    """Return a line for the status on what was passed over in this process; None where nothing was."""
    if not _passed_over:
        return None
    path, why = list(_passed_over.items())[-1]
    return f"passed over in folders of several users: {len(_passed_over):,}, the last one {path}, which {why}"


def read(path: Path, limit: int = SMALL) -> bytes:
    """Return the content of a file of this user alone, in a folder of this user alone; never waits, follows no link.

    Raises:
        NotOwn: it is none, or has more than `limit` bytes; it is counted for the status.
        OSError: it is missing, or cannot be read.
    """
    with _opened(path.parent) as folder, _opened(path, limit, folder) as number:
        return os.read(number, min(limit, os.fstat(number).st_size) + 1)


def write(path: Path, content: bytes) -> None:
    """Write such a file as a whole or not at all; OSError if that fails, NotOwn if its folder is not this user's."""
    with _opened(path.parent):
        part = path.with_name(f".{secrets.token_hex(8)}.part")
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
            part.replace(path)
        except BaseException:  # raised again: a full disk, an interrupt
            part.unlink(missing_ok=True)
            raise


def folders(place: Path, prefix: str) -> list[Path]:
    """Return the folders of this user in a shared folder whose names begin with `prefix`; others are counted."""
    return [path for path, facts in _listed(place, prefix, "") if _is_accepted(path, facts, None)]


def files_in(folder: Path, suffix: str) -> list[Path]:
    """Return the entries of a folder whose names end with `suffix`: all where only this user or root may write.

    Of a folder where others may write, only plain files of this user alone; the others are counted.
    """
    try:
        facts = folder.stat()
    except OSError:
        return []
    alone = not _HAS_OWNERS or (facts.st_uid in (0, os.getuid()) and not facts.st_mode & _BY_OTHERS)
    return [path for path, facts in _listed(folder, "", suffix) if alone or _is_accepted(path, facts, sys.maxsize)]


def is_own(folder: Path) -> bool:
    """Return whether a folder exists and is this user's alone; another's is counted."""
    with suppress(OSError), _opened(folder):
        return folder.is_dir()
    return False


def make(folder: Path) -> None:
    """Make a folder and those above it, each for its owner only."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def claim(folder: Path) -> None:
    """Make a folder in shared space, or close the one of this user to others; NotOwn if another user made it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    if _HAS_OWNERS and stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and facts.st_mode & 0o077:
        folder.chmod(0o700)
    with _opened(folder):
        pass


def _listed(folder: Path, prefix: str, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if entry.name.startswith(prefix) and entry.name.endswith(suffix):
                with suppress(FileNotFoundError):  # it is gone
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


@contextmanager
def _opened(path: Path, limit: int | None = None, folder: int | None = None) -> Iterator[Any]:
    """Yield a descriptor of a folder (`limit` is None), or of a file of at most `limit` bytes in the folder `folder`.

    On Windows, where folders have none, None.
    """
    if limit is None and not _HAS_OWNERS:
        yield None
        return
    flags = _FLAGS if limit is not None else _FLAGS | os.O_DIRECTORY
    try:
        number = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:  # a link, a socket, no permission
        raise _refused(path, f"cannot be opened ({error.strerror})") from None
    try:
        if (why := _wrong(os.fstat(number), limit)) is not None:
            raise _refused(path, why)
        yield number
    finally:
        os.close(number)


def _is_accepted(path: Path, facts: os.stat_result, limit: int | None) -> bool:
    why = _wrong(facts, limit)
    if why is not None:
        _refused(path, why)
    return why is None


def _refused(path: Path, why: str) -> NotOwn:
    """Count what is passed over, and return the error for it."""
    if len(_passed_over) < _MOST_COUNTED:
        _passed_over[str(path)] = why
    return NotOwn(errno.EACCES, f"it {why}", str(path))


def _wrong(facts: os.stat_result, limit: int | None) -> str | None:
    """Return why a folder (`limit` is None) or a file is not this user's alone, in words that follow its name."""
    if not (stat.S_ISDIR if limit is None else stat.S_ISREG)(facts.st_mode):
        return "is no folder" if limit is None else "is no plain file"
    if _HAS_OWNERS and facts.st_uid != os.getuid():
        return "belongs to another user"
    if _HAS_OWNERS and facts.st_mode & _BY_OTHERS:
        return "may be written by others"
    if limit is not None and facts.st_nlink > 1:  # 0: it was replaced just now
        return "has a second name"
    return "is too large" if limit is not None and facts.st_size > limit else None


# ---- Where the user's own folders are: a container may have an account without a home, or no temporary folder.


class NoPlace(MonitorError, FileNotFoundError):
    """A folder of this user's does not exist: the message has cause and remedy."""


def user_folder(kind: Literal["cache", "state"]) -> Path:
    """Return this package's folder in the user's; NoPlace if the account has no home."""
    from platformdirs import PlatformDirs

    places = PlatformDirs("kernel_monitor", appauthor=False)
    with suppress(RuntimeError):
        found = places.user_cache_path if kind == "cache" else places.user_state_path
        if found.is_absolute():  # else it begins with ~
            return found
    raise NoPlace(f"This account has no home directory for its {kind}.")


def temporary() -> Path:
    """Return the temporary folder; NoPlace if there is none that can be written."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        raise NoPlace("There is no temporary folder that can be written: set TMPDIR to one.") from None


def spare() -> Path:
    """Return this user's folder in the temporary one, which takes the place of a home; it may not exist yet."""
    return temporary() / f"kernel_monitor-{os.getuid() if _HAS_OWNERS else os.environ.get('USERNAME', 'user')}"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path that the user gave, absolute and with `~` replaced.

    Raises:
        NoPlace: there is no such home, or the working directory was deleted.
    """
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, FileNotFoundError) as error:
        why = "the working directory was deleted" if isinstance(error, OSError) else "this account has no such home"
        raise NoPlace(f"{str(path)[:200]!r} cannot be found, as {why}: give an absolute path.") from None


def working_folder() -> str:
    """Return the working directory; empty where it was deleted, so that absolute paths can be joined to it."""
    try:
        return os.getcwd()  # noqa: PTH109 - a string
    except FileNotFoundError:
        return ""
