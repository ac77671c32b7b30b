"""The sessions that were recorded: which there are, and whether the last one ended as it should."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_monitor.errors import SessionError

from . import places
from .format import SUFFIX, access, is_live, last_ends, read_meta, size_of


@dataclass(frozen=True)
class Found:
    """One session's file, by its own facts.

    Attributes:
        path: the file.
        id: the session; empty where the file cannot be read.
        started: Unix s at which the monitor started.
        seconds: from its first row to its last.
        bytes: on disk.
        live: it is being recorded.
        goodbye: its kernel ended it as it should.
        host: the machine in a few words.
        told: somebody was told that it ended without goodbye.
        problem: why the file cannot be read; None if it can.
    """

    path: Path
    id: str
    started: float
    seconds: float
    bytes: int
    live: bool
    goodbye: bool
    host: str
    told: bool = False
    problem: str | None = None


def sessions(directory: Path | None = None) -> list[Found]:
    """The sessions in a folder, else in all folders where sessions are kept; the newest first."""
    folders = places.known() if directory is None else [directory]
    found = [look(path) for folder in folders for path in folder.glob(f"*{SUFFIX}")]
    return sorted(found, key=lambda one: (one.started, one.path.name), reverse=True)


def look(path: Path) -> Found:
    """A session's facts, without reading what was measured."""
    try:
        size = size_of(path)
        with access(path).connect() as connection:
            meta = read_meta(connection)
            first, last = last_ends(connection)
            row = connection.execute("SELECT hello FROM hellos ORDER BY id DESC LIMIT 1").fetchone()
    except (SessionError, OSError, ValueError, KeyError) as error:
        return Found(path, "", _made(path), 0.0, _size(path), live=False, goodbye=False, host="", problem=str(error))
    ended = meta.get("ended")
    return Found(
        path=path,
        id=meta["session"],
        started=meta["origin"],
        seconds=last - first if last == last else 0.0,
        bytes=size,
        live=ended is None and is_live(meta.get("writer"), path),
        goodbye=bool(ended and ended["goodbye"]),
        host=_host({} if row is None else json.loads(row[0])),
        told=bool(meta.get("told")),
    )


def find(path: str | os.PathLike[str] | None) -> Path:
    """The file of the session that is meant: a file, a folder's newest, the beginning of an id or name, the newest.

    Raises:
        SessionError: there is none, or several begin like that.
    """
    place = None if path is None else Path(path).expanduser()
    if place is not None and place.is_file():
        return place
    if place is None or place.is_dir():
        found = [one for one in sessions(place) if one.problem is None]
        if not found:
            where = "" if place is None else f" in {place}"
            raise SessionError(f"There is no recorded session{where}.")
        return found[0].path
    beginning = os.fspath(path) if path is not None else ""
    fitting = [
        one.path
        for one in sessions()
        if beginning and (one.id.startswith(beginning) or one.path.name.startswith(beginning))
    ]
    if len(fitting) > 1:
        raise SessionError(f"Several sessions begin with {beginning!r}: {', '.join(one.name for one in fitting)}.")
    if not fitting:
        raise SessionError(f"There is no session {beginning!r}: neither a file nor the beginning of one's name or id.")
    return fitting[0]


def left_without_goodbye(directory: Path | None = None) -> Found | None:
    """The newest session that is not live, ended without goodbye, and of which nobody was told yet."""
    for one in sessions(directory):
        if one.problem is None and one.seconds > 0 and not (one.live or one.goodbye or one.told):
            return one
    return None


def mark_told(found: Found) -> None:
    """Note in the session's file that somebody was told how it ended.

    Raises:
        SessionError: the file cannot be written; the next one who asks is told again.
    """
    try:
        with closing(sqlite3.connect(found.path, isolation_level=None, timeout=2.0)) as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('told', ?)", (json.dumps(time.time()),))
    except sqlite3.Error as error:
        raise SessionError(f"{found.path} cannot be written: {error}.") from error


def _host(hello: dict[str, Any]) -> str:
    host = hello.get("host", {})
    parts = [f"{host['logical_cpus']} cores"] if "logical_cpus" in host else []
    names = [gpu["name"] for gpu in hello.get("gpus", [])]
    parts += [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)


def _made(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return size_of(path)
    except OSError:
        return 0
