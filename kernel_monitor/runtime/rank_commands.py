"""What a user asks of the jobs of ranks: how well one scales, and to run one of its ranks alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from ..analysis.scaling import Scaling, scaling
from ..errors import SessionError
from ..protocol.analysis_states import AloneState
from ..ranks.rank_command import RankCommand
from ..ranks.rank_server import RankServer
from ..store import Snapshot
from .alone_run import AloneRun, question, refused
from .rank_tracker import RankTracker

DEFAULT_S = 20.0
SECONDS = (5.0, 600.0)  # for which a rank may run alone


class Recorded(Protocol):
    """Of `recorded.RecordedSession`, what is read here."""

    @property
    def snapshot(self) -> Snapshot: ...


class RankCommands:
    """The commands of `Monitor` on jobs."""

    def __init__(
        self, ranks: RankTracker, snapshot: Callable[[], Snapshot], opened: Callable[[str | os.PathLike[str]], Recorded]
    ) -> None:
        self._ranks, self._snapshot, self._opened = ranks, snapshot, opened
        self._run: AloneRun | None = None
        self._of = 0  # the number of its job

    def scaling(self, job: int | None = None, *, alone: str | os.PathLike[str] | Snapshot | None = None) -> Scaling:
        """The scaling efficiency of a job: its images/s over its ranks times those of one rank alone.

        Args:
            job: its number; by default the newest one of several ranks.
            alone: a recorded session (path, id or the id's beginning) or a snapshot with one rank alone; by default a
                job of one rank in this session.

        Returns:
            `efficiency`, `together` and `alone` with their rates and counts; `print()` of it gives one sentence.

        Raises:
            SessionError: one of the two was not measured, or not for long enough.
        """
        if alone is None:
            return scaling(self._snapshot(), job)
        if isinstance(alone, Snapshot):
            return scaling(self._snapshot(), job, alone)
        return scaling(self._snapshot(), job, self._opened(alone).snapshot, f" (session {os.fspath(alone)})")

    def run_alone(
        self, job: int | None = None, *, seconds: float = DEFAULT_S, confirmed: bool = False, wait: bool = True
    ) -> Scaling | None:
        """Run one rank of a job alone for some seconds, and say how well the job scales.

        Its script is started once more, from its start, with WORLD_SIZE=1, in a process of its own, which is ended by
        SIGINT, then SIGTERM, then SIGKILL.

        Args:
            job: its number; by default the newest one of several ranks. All of its ranks must have ended.
            seconds: of its steps, 5 to 600.
            confirmed: that the script may run again, with whatever it writes.
            wait: until it has ended; else returns None at once.

        Raises:
            SessionError: it is not confirmed (the message is the question), or cannot be run, with the reason.
        """
        number = self._number(job)
        command = self._command(number)
        if not SECONDS[0] <= seconds <= SECONDS[1]:
            raise SessionError(f"A rank runs alone for {SECONDS[0]:.0f} to {SECONDS[1]:.0f} s, not {seconds:g}.")
        if not confirmed:
            raise SessionError(f"{question(number, command, seconds)} If you mean it: confirmed=True.")
        server = self._ranks.server
        if server is None:
            raise refused(number, "the monitor does not run")
        self._ranks.notes.pop(number, None)
        run = AloneRun(
            command,
            server.folder,
            seconds,
            server.has_steps,
            self._measures(server),
            lambda ended: self._note(number, ended),
        )
        self._run, self._of = run, number
        self._ranks.running_alone = lambda: (
            f"One rank of job {number} runs alone: {run.state}." if run.running else None
        )
        if not wait:
            return None
        try:
            run.wait()
        except KeyboardInterrupt:
            self.stop_alone()
            raise
        if run.error is not None:
            raise refused(number, run.error)
        return self.scaling(number)

    def alone_question(self, job: int | None = None, *, seconds: float = DEFAULT_S) -> str:
        """What `run_alone` needs confirmed. SessionError: it cannot be run."""
        number = self._number(job)
        return question(number, self._command(number), seconds)

    def stop_alone(self) -> bool:
        """End what runs alone. Returns False if nothing does."""
        run = self._run
        if run is None or not run.running:
            return False
        run.stop()
        run.wait()
        return True

    def state(self) -> AloneState | None:
        """What a page may ask `run_alone` for: the newest job, if it has ended and was not measured. Never raises."""
        run = self._run
        if run is not None and run.running:
            return {"job": self._of, "question": "", "running": True}
        try:
            job = self._number(None)
            if job in self._ranks.notes or self._ranks.server is None:
                return None
            return {"job": job, "question": question(job, self._command(job), DEFAULT_S), "running": False}
        except SessionError:  # no such job, or it cannot be run: the reason is given to who asks for it
            return None

    def _number(self, job: int | None) -> int:
        counts = Counter(rank.job for rank in self._ranks.ranks if rank.steps)
        several = [number for number, count in counts.items() if count > 1]
        if job is None and several:
            return max(several)
        if job is None or job not in several:
            raise SessionError(
                f"There is no {'job' if job is None else f'job {job}'} of several ranks in this session."
            )
        return job

    def _command(self, job: int) -> RankCommand:
        if any(rank.alive for rank in self._ranks.ranks if rank.job == job):
            raise refused(job, "it still runs, and would take the machine from it")
        if self._run is not None and self._run.running:
            raise refused(job, "another one runs alone now")
        command = self._ranks.commands.of(job)
        if isinstance(command, str):
            raise refused(job, command)
        return command

    def _measures(self, server: RankServer) -> Callable[[], bool]:
        return lambda: self._ranks.server is server

    def _note(self, job: int, run: AloneRun) -> None:
        """Keep the result for the status and the pages; on the run's thread."""
        if run.stopped:
            return
        try:
            if run.error is not None:
                raise refused(job, run.error)
            self._ranks.notes[job] = self.scaling(job).sentence
        except SessionError as error:
            self._ranks.notes[job] = str(error)
