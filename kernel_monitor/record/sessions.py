"""The recorded sessions: their list, the search for one, and whether the last one ended properly."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_monitor.errors import SessionError

from . import folders
from .access import Access, OtherFormat, restrain
from .format import SUFFIX, is_live, size_of
from .session_facts import ends, read_hello, read_meta


@dataclass(frozen=True)
class Found:
    """One session's file, by its own facts."""

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


def sessions(directory: Path | None = None) -> list[Found]:
    """The sessions in a folder, else in all folders where sessions are kept; the newest first.

    Every file with a session's suffix is listed: with `problem` where it is damaged, or no session at all.
    """
    searched = folders.known() if directory is None else [directory]
    found = [look(path) for folder in searched for path in folder.glob(f"*{SUFFIX}")]
    return sorted(found, key=lambda session: (session.started, session.path.name), reverse=True)


def look(path: Path) -> Found:
    """A session's facts, without its rows; never an error."""
    try:
        with Access(path).connect() as connection:
            damage: list[str] = []
            meta = read_meta(connection, damage)
            first, last = ends(connection)
            _, hello = read_hello(connection, damage)
        identity(path, meta, damage)
    except SessionError as error:
        # The list has the file's name beside it.
        problem = str(error).removeprefix(f"{path} ").removeprefix("is ").removeprefix("damaged: ")
        damaged = not isinstance(error, OtherFormat)
        changed = 0.0
        with suppress(OSError):
            changed = path.lstat().st_mtime
        return Found(path, "", changed, 0.0, size_of(path), False, False, "", problem=problem, damaged=damaged)
    ended = meta.get("ended")
    return Found(
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
    """The id of a session and when it began (Unix s); a SessionError if its file lacks them."""
    if "session" in meta and "origin" in meta:
        return meta["session"], float(meta["origin"])
    why = next((part for part in damage if part.startswith(("session:", "origin:"))), "it is not there")
    raise SessionError(f"{path} is damaged: it does not say which session it is ({why}).")


def find(path: str | os.PathLike[str] | None) -> Path:
    """The file that `path` names, as for `reader.open_session`; a SessionError if there is none, or several."""
    if path is None:
        return _newest(None)
    try:
        place = Path(path).expanduser()
        with suppress(FileNotFoundError):  # the working directory is gone
            place = place.absolute()  # a notebook may change the working directory while the session is open
        if place.is_file():
            return place
        is_folder = place.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise SessionError(f"{str(path)[:200]!r} is no name of a file: {error}.") from error
    if is_folder:
        return _newest(place)
    beginning = os.fspath(path)
    fitting = [
        session.path
        for session in sessions()
        if beginning and (session.id.startswith(beginning) or session.path.name.startswith(beginning))
    ]
    if len(fitting) > 1:
        raise SessionError(f"Several sessions begin with {beginning!r}: {', '.join(file.name for file in fitting)}.")
    if not fitting:
        searched = " and ".join(map(str, folders.known())) or str(folders.usual())
        raise SessionError(
            f"There is no session {beginning!r}: neither a file nor the beginning of a name or id (in {searched})."
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


def left_without_goodbye(directory: Path | None = None) -> Found | None:
    """The newest session that is not live, ended without goodbye, and of which no user was told yet."""
    for session in sessions(directory):
        known = session.live or session.goodbye or session.told
        if session.problem is None and session.seconds > 0 and not known:
            return session
    return None


def mark_told(found: Found) -> None:
    """Note in the session's file that a user was told how it ended; a SessionError if it cannot be written."""
    try:
        with closing(sqlite3.connect(found.path, isolation_level=None, timeout=2.0)) as connection:
            restrain(connection)
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
    """`14:02`, with the date where that is not today."""
    at = time.localtime(unix)
    return time.strftime("%H:%M" if at[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", at)


def span_text(seconds: float) -> str:
    """`42 s`, `31 min`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
