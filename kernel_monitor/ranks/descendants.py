"""Ranks among the kernel's descendants that use nothing of this package: their environment says that they are ranks."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from ..os_process import start_of
from .identity import Identity, host_key, job_of, ranks_of


class _Seen(NamedTuple):
    """A process, looked at before."""

    process: psutil.Process
    identity: Identity | None  # None: it is no rank


class Descendants:
    """Looks for them; what a process is, is read once."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], _Seen] = {}

    def look(self, joined: set[int], helpers: int = 1) -> list[tuple[Identity, float]]:
        """Ranks that run and are none of the processes `joined`, with their CPU since the last look (% of a core).

        `helpers`: how many children of this process are the monitor's own.
        """
        if not _has_children(helpers):
            self._seen.clear()
            return []
        found: list[tuple[Identity, float]] = []
        seen: dict[tuple[int, float], _Seen] = {}
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                key = (process.pid, process.create_time())
                known = self._seen.get(key)
                fresh = known is None
                known = seen[key] = known or _Seen(process, _identity(process))
                if known.identity is not None and process.pid not in joined:
                    used = known.process.cpu_percent(None)  # since the call before
                    found.append((known.identity, math.nan if fresh else used))
        self._seen = seen
        return found


def _identity(process: psutil.Process) -> Identity | None:
    """Which rank a process is; None where its environment does not say, or it was started by such a rank."""
    environment = process.environ()
    rank, world = ranks_of(environment)
    start = start_of(process.pid)
    if rank is None or start is None:
        return None
    parent = process.ppid()
    with suppress(psutil.Error, OSError):
        if ranks_of(psutil.Process(parent).environ())[0] == rank:
            return None  # a rank's own child, such as a worker of its loader
    return Identity(
        host=host_key(),
        name="",
        pid=process.pid,
        start=start,
        parent=parent,
        rank=rank,
        world=world,
        job=job_of(environment, parent),
    )


def _has_children(helpers: int) -> bool:
    """Whether this process has more children than these: to know more takes a look at all processes."""
    if not sys.platform.startswith("linux"):
        return True
    with suppress(OSError):
        tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
        return sum(len((task / "children").read_bytes().split()) for task in tasks) > helpers
    return True
