"""Commands of users to jobs of ranks: how well one scales, and one of its ranks run alone."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Protocol, cast

from ..analysis.job_figures import Scaling, scaling
from ..errors import SessionError
from ..os_process import child_environment
from ..protocol.analysis_states import AloneState
from ..ranks.descendants import RankCommand, supervisor
from ..ranks.rank_server import RankServer
from ..store import Snapshot
from .rank_tracker import RankTracker

# ---- One rank of a job run alone for some seconds, to compare: its command again, in a process of its own.

START_S = 180.0  # for the first step: imports, the data set, the model
_END_S = 12.0  # for the end, after which its supervisor has killed it
LOOK_S = 0.2


class _AloneRun:
    """Begins at once, on a thread of its own; `wait` returns when it has ended.

    Attributes:
        state: for people.
        error: why it brought nothing; None while it runs, or where it did.
    """

    def __init__(
        self,
        command: RankCommand,
        join: str,
        seconds: float,
        stepped: Callable[[int], bool],
        wanted: Callable[[], bool],
        done: Callable[[_AloneRun], object],
    ) -> None:
        """`stepped` says whether the process of a number has sent steps, `wanted` whether the session still measures.

        `done` is called at the end.
        """
        self.state = "it starts"
        self.error: str | None = None
        self._command, self._seconds = command, seconds
        self._stepped, self._wanted, self._done = stepped, wanted, done
        self._ending = threading.Event()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread
        environment = _environment(command.alone(join))
        self._process = subprocess.Popen(
            supervisor(command),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            start_new_session=True,  # an interrupt of the kernel's cell is not meant for it
        )
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-alone", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    @property
    def stopped(self) -> bool:
        """Somebody asked for its end."""
        return self._ending.is_set()

    def stop(self) -> None:
        """End it now."""
        self._ending.set()

    def _run(self) -> None:
        process = self._process
        stdin, stdout = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        began, first = time.monotonic(), None
        try:
            pid = int(stdout.readline() or 0)
            while pid and process.poll() is None and not self._ending.wait(LOOK_S):
                now = time.monotonic()
                if first is None and self._stepped(pid):
                    first = now
                if not self._wanted():
                    self.error = "the monitor was stopped"
                    break
                if first is None and now - began > START_S:
                    self.error = f"it took no step within {START_S:.0f} s"
                    break
                if first is not None:
                    self.state = f"{min(now - first, self._seconds):.0f} of {self._seconds:.0f} s of its steps"
                    if now - first >= self._seconds:
                        break
            if first is None and self.error is None:
                self.error = "it was stopped" if self.stopped else f"it ended without a step: {self._last()}"
        finally:
            with suppress(OSError):
                stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            stdout.close()
            self._output.close()
            self.state = "it has ended"
            self._done(self)

    def _last(self) -> str:
        """The last line that it wrote."""
        self._output.seek(0)
        lines = self._output.read()[-4000:].decode("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


def _environment(of_rank: dict[str, str]) -> dict[str, str]:
    """With this very package, which the supervisor needs, behind what the rank had."""
    paths = [found.get("PYTHONPATH", "") for found in (of_rank, child_environment())]
    joined = os.pathsep.join(dict.fromkeys(part for path in paths for part in path.split(os.pathsep) if part))
    return {**of_rank, **({"PYTHONPATH": joined} if joined else {})}


def question(job: int, command: RankCommand, seconds: float) -> str:
    """Return what has to be confirmed."""
    return (
        f"This runs the script of job {job} once more, from its start and as one rank, for {seconds:.0f} s of its "
        f"steps: {command.text}. Whatever the script writes (checkpoints, logs), it writes again."
    )


def refused(job: int, reason: str) -> SessionError:
    return SessionError(
        f"Job {job} cannot be run alone: {reason}. Run one rank of it yourself (WORLD_SIZE=1 RANK=0, from this "
        f"notebook or after %monitor join), or name a recorded session of one: monitor.scaling({job}, alone=SESSION)."
    )


DEFAULT_S = 20.0
SECONDS = (5.0, 600.0)  # for which a rank may run alone


class Recorded(Protocol):
    """The parts of `recorded.RecordedSession` that are used here."""

    @property
    def snapshot(self) -> Snapshot: ...


class RankCommands:
    """The commands of `Monitor` on jobs."""

    def __init__(
        self, ranks: RankTracker, snapshot: Callable[[], Snapshot], opened: Callable[[str | os.PathLike[str]], Recorded]
    ) -> None:
        self._ranks, self._snapshot, self._opened = ranks, snapshot, opened
        self._run: _AloneRun | None = None
        self._of = 0  # the number of its job

    def scaling(self, job: int | None = None, *, alone: str | os.PathLike[str] | Snapshot | None = None) -> Scaling:
        """The scaling efficiency of a job: its images/s over its ranks times those of one rank alone.

        See `Monitor.scaling`.
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

        See `Monitor.run_alone`.
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
        run = _AloneRun(
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
        """Return what `run_alone` needs confirmed. SessionError: it cannot be run."""
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
        """Return what a page may ask `run_alone` for.

        The newest job, if it has ended and was not measured. Never raises.
        """
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

    def _note(self, job: int, run: _AloneRun) -> None:
        """Keep the result for the status and the pages; on the run's thread."""
        if run.stopped:
            return
        try:
            if run.error is not None:
                raise refused(job, run.error)
            self._ranks.notes[job] = self.scaling(job).sentence
        except SessionError as error:
            self._ranks.notes[job] = str(error)
