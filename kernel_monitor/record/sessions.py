"""The recorded sessions: their list, the search for one, and whether the last one ended properly."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from kernel_monitor import own_files
from kernel_monitor.errors import SessionError
from kernel_monitor.text import line, quoted

from .format import SUFFIX, is_live, size_of
from .session_facts import Access, OtherFormat, limit_resources, read_hello, read_meta, time_range


@dataclass(frozen=True)
class SessionEntry:
    """A session's file, described by its own facts."""

    path: Path  # the file
    id: str  # the session; empty where the file cannot be read
    started: float  # Unix s at which the monitor started; of a file that cannot be read, when it changed last
    seconds: float  # from its first row to its last
    bytes: int  # on disk
    live: bool  # it is being recorded
    goodbye: bool  # its kernel ended it properly
    host: str  # the machine in a few words
    told: bool = False  # a user was told that it ended without goodbye (as in the file and in messages)
    problem: str | None = None  # why the file cannot be read, in words that follow its name; None if it can
    damaged: bool = False  # it cannot be read, and no other version of this package could


def sessions(directory: Path | None = None) -> list[SessionEntry]:
    """Return the sessions in a folder, else in all folders where sessions are kept; the newest first.

    Every file with a session's suffix is listed: with `problem` where it is damaged, or no session at all. In a folder
    where other users may write, only this user's files are (`own_files.files_in`).
    """
    searched = session_folders() if directory is None else [directory]
    found = [read_entry(path) for folder in searched for path in own_files.files_in(folder, SUFFIX)]
    return sorted(found, key=lambda session: (session.started, session.path.name), reverse=True)


def read_entry(path: Path) -> SessionEntry:
    """Return a session's facts, without its rows; never an error."""
    try:
        with Access(path).connect() as connection:
            damage: list[str] = []
            meta = read_meta(connection, damage)
            first, last = time_range(connection)
            _, hello = read_hello(connection, damage)
        identity(path, meta, damage)
    except SessionError as error:
        # The list has the file's name beside it.
        problem = str(error).removeprefix(f"{path} ").removeprefix("is ").removeprefix("damaged: ")
        damaged = not isinstance(error, OtherFormat)
        changed = 0.0
        with suppress(OSError):
            changed = path.lstat().st_mtime
        return SessionEntry(path, "", changed, 0.0, size_of(path), False, False, "", problem=problem, damaged=damaged)
    ended = meta.get("ended")
    return SessionEntry(
        path=path,
        id=meta["session"],
        started=float(meta["origin"]),
        seconds=last - first if last == last else 0.0,
        bytes=size_of(path),
        live=ended is None and "copied" not in meta and is_live(meta.get("writer"), path),
        goodbye=bool(ended and ended["goodbye"]),
        host=_host(hello),
        told="told" in meta,
    )


def identity(path: Path, meta: dict[str, Any], damage: list[str]) -> tuple[str, float]:
    """Return the id of a session and when it began (Unix s); a SessionError if its file lacks them."""
    if "session" in meta and "origin" in meta:
        return meta["session"], float(meta["origin"])
    why = next((part for part in damage if part.startswith(("session:", "origin:"))), "it is not there")
    raise SessionError(f"{path} is damaged: it does not say which session it is ({why}).")


def find(path: str | os.PathLike[str] | None) -> Path:
    """Return the file that `path` names, as for `reader.open_session`; a SessionError if there is none, or several."""
    if path is None:
        return _newest(None)
    try:
        place = Path(path)
        with suppress(FileNotFoundError):  # the working directory is gone, or the home
            place = own_files.expanded(place)  # a notebook may change the working directory while the session is open
        if place.is_file():
            return place
        is_folder = place.is_dir()
    except (OSError, ValueError) as error:
        raise SessionError(f"{quoted(path)} is no name of a file: {getattr(error, 'strerror', error)}.") from error
    if is_folder:
        return _newest(place)
    beginning = os.fspath(path)
    fitting = [
        session.path
        for session in sessions()
        if beginning and (session.id.startswith(beginning) or session.path.name.startswith(beginning))
    ]
    if len(fitting) > 1:
        raise SessionError(
            f"Several sessions begin with {quoted(beginning)}: {line(', '.join(file.name for file in fitting), 180)}."
        )
    if not fitting:
        searched = " and ".join(map(str, session_folders())) or "any folder"
        raise SessionError(
            f"There is no session {quoted(beginning)}: no file has that name, and no session in {searched} has a name "
            "or id that begins with it."
        )
    return fitting[0]


def _newest(folder: Path | None) -> Path:
    listed = sessions(folder)
    for session in listed:
        if session.problem is None:
            return session.path
    where = "" if folder is None else f" in {folder}"
    unreadable = f" that can be read; {len(listed)} cannot: kernel-monitor sessions" if listed else ""
    raise SessionError(f"There is no recorded session{where}{unreadable}.")


def left_without_goodbye(directory: Path | None = None) -> SessionEntry | None:
    """Return the newest session that is not live, ended without goodbye, and of which no user was told yet."""
    for session in sessions(directory):
        known = session.live or session.goodbye or session.told
        if session.problem is None and session.seconds > 0 and not known:
            return session
    return None


def mark_told(found: SessionEntry) -> None:
    """Record in the session's file that a user was informed of its end; a SessionError if it cannot be written."""
    try:
        with closing(sqlite3.connect(found.path, isolation_level=None, timeout=2.0)) as connection:
            limit_resources(connection)
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('told', ?)", (json.dumps(time.time()),))
    except sqlite3.Error as error:
        raise SessionError(f"{found.path} cannot be written: {error}.") from error


def _host(hello: dict[str, Any]) -> str:
    host = hello["host"]
    parts = [f"{host['logical_cpus']} cores"] if "logical_cpus" in host else []
    names = [gpu["name"] for gpu in hello["gpus"]]
    parts += [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)


def moment_text(unix: float) -> str:
    """Format a moment: `14:02`, with the date where that is not today."""
    at = time.localtime(unix)
    return time.strftime("%H:%M" if at[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", at)


def span_text(seconds: float) -> str:
    """Format a duration: `42 s`, `31 min`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


# ---- The folders in which sessions are recorded.

OVERRIDE = "KERNEL_MONITOR_SESSIONS"
# File systems whose files are on another machine; each may stand behind "fuse." too.
_REMOTE = (
    "9p acfs afs beegfs ceph cifs coda davfs davfs2 gcsfuse glusterfs gpfs juicefs lustre ncpfs nfs nfs4 orangefs "
    "panfs prl_fs pvfs2 rclone s3fs smb2 smb3 smbfs sshfs vboxsf virtiofs vmhgfs vmhgfs-fuse webdav"
)


class SessionFolder(NamedTuple):
    """A folder that can be recorded into, and if it is not the wanted one a `message` that explains why."""

    path: Path
    message: str | None


def choose_folder(wanted: Path | None = None) -> SessionFolder:
    """Return the folder for sessions: `wanted`, else `KERNEL_MONITOR_SESSIONS`, else the user's state directory.

    Where that cannot be written or is on a network, local temporary space; a SessionError where that cannot be, either.
    What is missing is made, for the owner only.
    """
    place, problem = _usable(lambda: default_folder() if wanted is None else own_files.expanded(wanted))
    if place is not None:
        return SessionFolder(place, None)
    spare, other = _usable(temporary_folder, private=True)
    if spare is None:
        raise SessionError(
            f"Sessions cannot be recorded: {problem}, and {other}. "
            f"Name a local folder that you may write: {OVERRIDE}=FOLDER."
        )
    message = (
        f"{problem}: the session is recorded in {spare}, which may be emptied at a restart. "
        f"{OVERRIDE} can name another local folder."
    )
    return SessionFolder(spare, message)


def default_folder() -> Path:
    """Return the folder of the environment or of the user; NoPlace if the account has no home."""
    anchor_override()
    named = os.environ.get(OVERRIDE)
    return own_files.expanded(named) if named else own_files.user_folder("state") / "sessions"


def anchor_override() -> None:
    """Make the folder in the environment variable absolute, so that a later `chdir` in a notebook does not move it."""
    if named := os.environ.get(OVERRIDE):
        with suppress(FileNotFoundError):  # the working directory is gone, or the home: it stays as it is
            os.environ[OVERRIDE] = str(own_files.expanded(named))


def temporary_folder() -> Path:
    """Return the folder in local temporary space that replaces it; NoPlace if there is none."""
    return own_files.spare() / "sessions"


def session_folders() -> list[Path]:
    """Return the existing folders in which sessions may be found."""
    found: list[Path] = []
    with suppress(own_files.NoPlace):
        found.append(default_folder())
    with suppress(own_files.NoPlace):
        spare = temporary_folder()
        found += [spare] if own_files.is_own(spare.parent) and own_files.is_own(spare) else []
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def new_file(place: SessionFolder | Path, session: str, origin: float) -> Path:
    """Return the file of a session that began at `origin` (Unix s): `2026-11-21-193000-1a2b3c4d.kmsession`, local."""
    folder = place.path if isinstance(place, SessionFolder) else place
    return folder / f"{time.strftime('%Y-%m-%d-%H%M%S', time.localtime(origin))}-{session[:8]}.kmsession"


def network_file_system(path: Path, mounts: Iterable[tuple[str, str]]) -> str | None:
    """Return the kind of network file system that `path` (absolute, without links) is on; None if it is local.

    `mounts` has the mount point and the kind of every file system, in the order of mounting.
    """
    depth, kind = -1, ""
    for point, name in mounts:
        parts = Path(point).parts
        if len(parts) >= depth and path.is_relative_to(point):  # of two on the same point, the later covers
            depth, kind = len(parts), name.lower()
    return kind if kind.removeprefix("fuse.") in _REMOTE.split() else None


def _usable(find: Callable[[], Path], *, private: bool = False) -> tuple[Path | None, str]:
    """Return the folder that `find` returns, and makes it; None and the reason if sessions cannot be recorded there."""
    try:
        folder = find()
    except own_files.NoPlace as error:
        return None, str(error).rstrip(".")
    try:
        if private:
            own_files.claim(folder.parent)
        own_files.make(folder)
        kind = network_file_system(folder.resolve(), _mounts())
        if kind is not None:
            return None, f"{folder} is on a network file system ({kind}), where SQLite's log does not work"
        with tempfile.TemporaryFile(dir=folder):
            return folder, ""
    except FileExistsError:
        return None, f"{folder} is not a folder"
    except OSError as error:
        return None, f"{folder} cannot be written ({error.strerror})"


def _mounts() -> list[tuple[str, str]]:
    return [(mount.mountpoint, mount.fstype) for mount in psutil.disk_partitions(all=True)]
