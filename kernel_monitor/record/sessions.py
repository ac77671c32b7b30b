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
from .access import NewerFormat, access, restrain
from .facts import read_hello, read_meta
from .format import SUFFIX, is_live, size_of
from .runs import ends


@dataclass(frozen=True)
class Found:
    """One session's file, by its own facts.

    Attributes:
        path: the file.
        id: the session; empty where the file cannot be read.
        started: Unix s at which the monitor started; of a file that cannot be read, when it changed last.
        seconds: from its first row to its last.
        bytes: on disk.
        live: it is being recorded.
        goodbye: its kernel ended it as it should.
        host: the machine in a few words.
        told: somebody was told that it ended without goodbye.
        problem: why the file cannot be read, in words that follow its name; None if it can.
        damaged: it cannot be read, and no later version of this package could.
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
    damaged: bool = False


def sessions(directory: Path | None = None) -> list[Found]:
    """The sessions in a folder, else in all folders where sessions are kept; the newest first.

    Whatever has a session's ending is listed: with `problem` where it is damaged, or no session at all.
    """
    folders = places.known() if directory is None else [directory]
    found = [look(path) for folder in folders for path in folder.glob(f"*{SUFFIX}")]
    return sorted(found, key=lambda one: (one.started, one.path.name), reverse=True)


def look(path: Path) -> Found:
    """A session's facts, without reading what was measured; never an error."""
    try:
        with access(path).connect() as connection:
            damage: list[str] = []
            meta = read_meta(connection, damage)
            first, last = ends(connection)
            _, hello = read_hello(connection, damage)
        identity(path, meta, damage)
    except SessionError as error:
        # The list has the file's name beside it.
        problem = str(error).removeprefix(f"{path} ").removeprefix("is ").removeprefix("damaged: ")
        return Found(
            path,
            "",
            _changed(path),
            0.0,
            size_of(path),
            live=False,
            goodbye=False,
            host="",
            problem=problem,
            damaged=not isinstance(error, NewerFormat),
        )
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
    """The id of a session and when it began (Unix s).

    Raises:
        SessionError: its file does not say so.
    """
    if "session" in meta and "origin" in meta:
        return meta["session"], float(meta["origin"])
    why = next((words for words in damage if words.startswith(("session:", "origin:"))), "it is not there")
    raise SessionError(f"{path} is damaged: it does not say which session it is ({why}).")


def find(path: str | os.PathLike[str] | None) -> Path:
    """The file of the session that is meant: a file, a folder's newest, the beginning of an id or name, the newest.

    Raises:
        SessionError: there is none, or several begin like that.
    """
    try:
        place = None if path is None else _absolute(Path(path).expanduser())
        if place is not None and place.is_file():
            return place
        folder = place is not None and place.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise SessionError(f"{str(path)[:200]!r} is no name of a file: {error}.") from error
    if place is None or folder:
        every = sessions(place)
        found = [one for one in every if one.problem is None]
        if not found:
            where = "" if place is None else f" in {place}"
            unreadable = f" that can be read; {len(every)} cannot: kernel-monitor sessions" if every else ""
            raise SessionError(f"There is no recorded session{where}{unreadable}.")
        return found[0].path
    beginning = os.fspath(path) if path is not None else ""
    every = sessions()
    fitting = [
        one.path for one in every if beginning and (one.id.startswith(beginning) or one.path.name.startswith(beginning))
    ]
    if len(fitting) > 1:
        raise SessionError(f"Several sessions begin with {beginning!r}: {', '.join(one.name for one in fitting)}.")
    if not fitting:
        searched = " and ".join(map(str, places.known())) or str(places.usual())
        raise SessionError(
            f"There is no session {beginning!r}: neither a file nor the beginning of one's name or id (in {searched})."
        )
    return fitting[0]


def _absolute(path: Path) -> Path:
    """The same file whatever the working directory becomes: a notebook may change it while the session is open."""
    try:
        return path.absolute()
    except FileNotFoundError:  # the working directory is gone
        return path


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


def _changed(path: Path) -> float:
    """When a file changed last, Unix s."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
