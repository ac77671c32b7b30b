"""The command of a rank of this machine, and what to change so that it runs as one rank alone."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from .session_files import VARIABLE, JoinError

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
