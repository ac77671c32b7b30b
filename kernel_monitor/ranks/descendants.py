"""Ranks among the kernel's descendants that use nothing of this package, and the commands that started ranks."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from ..os_process import start_of
from .identity import Identity, host_key, job_of, ranks_of
from .session_files import VARIABLE, JoinError

# ---- Ranks among the kernel's descendants that use nothing of this package: their environment says that they are
# ranks.


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
    """Return which rank a process is; None where its environment does not say, or it was started by such a rank."""
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
    """Return whether this process has more children than these: to know more takes a look at all processes."""
    if not sys.platform.startswith("linux"):
        return True
    with suppress(OSError):
        tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
        return sum(len((task / "children").read_bytes().split()) for task in tasks) > helpers
    return True


# ---- The command of a rank of this machine, and what to change so that it runs as one rank alone.

_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_OF_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_")
"""Variables by which frameworks find a job of several ranks."""


@dataclass(frozen=True)
class RankCommand:
    """How a rank was started. The environment stays in memory: it may hold secrets."""

    words: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]

    @property
    def text(self) -> str:
        """The script or module with its arguments, for people."""
        place = _program(self.words) or 0
        return " ".join(["python", *self.words[place:]])[:200]

    def alone(self, join: str) -> dict[str, str]:
        """The environment for one rank alone that joins the session of the folder `join`, under `alone_process`.

        RANK and LOCAL_RANK, by which a rank is known, are set by that process for its command.
        """
        left_out = (*_OF_LAUNCHERS, "RANK", "LOCAL_RANK")
        kept = {name: value for name, value in self.environment.items() if not name.startswith(left_out)}
        first = dict.fromkeys(("GROUP_RANK", "ROLE_RANK", "NODE_RANK"), "0")
        one = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        return {**kept, **first, **one, **meeting, VARIABLE: join}


def command_of(pid: int) -> RankCommand:
    """The command of a process of this machine and user. JoinError: it is no script, or cannot be read."""
    try:
        process = psutil.Process(pid)
        words, folder, environment = tuple(process.cmdline()), process.cwd(), process.environ()
    except (psutil.Error, OSError) as error:
        raise JoinError(f"its command cannot be read ({error})") from None
    if _program(words) is None:
        raise JoinError("it is a function of this notebook and no script that could be started again")
    return RankCommand(words, folder, environment)


def _program(words: Sequence[str]) -> int | None:
    """The place of the script or of `-m` among a Python command's words; None where it has none that can run again."""
    if not words or "python" not in Path(words[0]).name:
        return None
    place = 1
    while place < len(words):
        word = words[place]
        if word == "-m":
            module = words[place + 1 : place + 2]
            return None if not module or module[0].startswith("ipykernel") else place
        if word == "-c" or word == "-":
            return None
        if not word.startswith("-"):
            return None if "ipykernel" in word else place
        place += 2 if word in _OPTIONS_WITH_VALUE else 1
    return None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def supervisor(command: RankCommand) -> list[str]:
    """The words that start it under `alone_process`."""
    return [sys.executable, "-m", "kernel_monitor.ranks.alone_process", command.folder, *command.words]
