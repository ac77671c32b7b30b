"""How the jobs of this machine were started, read while their ranks run, so that one can be run again alone."""

from __future__ import annotations

import psutil

from ..ranks.rank_command import RankCommand, command_of
from ..ranks.session_files import JoinError

FORKED = "its ranks are forks of this process, and no script that could be started again"
KEPT = 64  # commands of jobs, the newest
UNKNOWN = "none of its ranks ran on this machine long enough for its command to be known"


class JobCommands:
    """Asked on the sampler's reader thread; the commands stay in memory."""

    def __init__(self) -> None:
        self._of: dict[
            int, tuple[int, RankCommand | str]
        ] = {}  # by the job's number: a rank's process, and the command

    def look(self, leads: dict[int, int]) -> None:
        """`leads`: the process of the first rank of each job here, by the job's number."""
        for job, pid in leads.items():
            if pid != self._of.get(job, (0, ""))[0]:
                self._of[job] = pid, _command(pid)
        for job in list(self._of)[:-KEPT]:
            del self._of[job]

    def of(self, job: int) -> RankCommand | str:
        """The command of a job, or why it cannot be run."""
        return self._of.get(job, (0, UNKNOWN))[1]


def _command(pid: int) -> RankCommand | str:
    try:
        command = command_of(pid)
    except JoinError as error:
        return str(error)
    own = psutil.Process().cmdline()
    return FORKED if list(command.words) == own else command
