"""One rank of a job run alone for some seconds, to compare: its command again, in a process of its own.

`python -m kernel_monitor.ranks.alone_run FOLDER COMMAND …` is that process: it runs a command until its own stdin ends,
then ends the command and its children, so that nothing goes on when the kernel that asked for it is killed. It prints
the command's process number, and exits with its status.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import psutil

from ..errors import SessionError
from ..os_process import child_environment
from ..privacy import without_secrets
from ..rank import Rank
from .session_files import VARIABLE, JoinError

if TYPE_CHECKING:
    from ..analysis.job_figures import Scaling
    from ..protocol.analysis_states import AloneState
    from .rank_server import RankServer

# ---- The command of a rank of this machine, and what to change so that it runs as one rank alone.

_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_OF_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_")
"""Variables by which frameworks find a job of several ranks."""


@dataclass(frozen=True)
class RankCommand:
    """The command by which a rank was started. The environment stays in memory: it may hold secrets."""

    words: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]

    @property
    def text(self) -> str:
        """The script or module with its arguments, for people, and without keys."""
        place = _program(self.words) or 0
        return without_secrets(" ".join(["python", *self.words[place:]]))[:200]

    def alone(self, join: str) -> dict[str, str]:
        """Return the environment for one rank alone that joins the session of the folder `join`, under `main`.

        RANK and LOCAL_RANK, by which a rank is known, are set by that process for its command.
        """
        left_out = (*_OF_LAUNCHERS, "RANK", "LOCAL_RANK")
        kept = {name: value for name, value in self.environment.items() if not name.startswith(left_out)}
        first = dict.fromkeys(("GROUP_RANK", "ROLE_RANK", "NODE_RANK"), "0")
        one = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "1")
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        return {**kept, **first, **one, **meeting, VARIABLE: join}


def command_of(pid: int) -> RankCommand:
    """Return the command of a process of this machine and user. JoinError: it is no script, or cannot be read."""
    try:
        process = psutil.Process(pid)
        words, folder, environment = tuple(process.cmdline()), process.cwd(), process.environ()
    except (psutil.Error, OSError) as error:
        raise JoinError(f"its command cannot be read ({error})") from None
    if _program(words) is None:
        raise JoinError("it is a function of this notebook and no script that could be started again")
    return RankCommand(words, folder, environment)


def _program(words: Sequence[str]) -> int | None:
    """Return the place of the script or of `-m` among a Python command's words; None where it has none that can run
    again.
    """
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
    """Return the words that start it under `main`."""
    return [sys.executable, "-m", "kernel_monitor.ranks.alone_run", command.folder, *command.words]


# ---- How the jobs of this machine were started, read while their ranks run, so that one can be run again alone.

FORKED = "its ranks are forks of this process, and no script that could be started again"
KEPT = 64  # commands of jobs, the newest
UNKNOWN = "none of its ranks ran on this machine long enough for its command to be known"


class JobCommands:
    """Asked on the sampler's reader thread; the commands stay in memory."""

    def __init__(self) -> None:
        self._of: dict[
            int, tuple[int, RankCommand | str]
        ] = {}  # by the job's number: a rank's process, and the command

    def refresh(self, leads: dict[int, int]) -> None:
        """Read the commands of jobs; `leads`: the process of the first rank of each job here, by the job's number."""
        for job, pid in leads.items():
            if pid != self._of.get(job, (0, ""))[0]:
                self._of[job] = pid, _command(pid)
        for job in list(self._of)[:-KEPT]:
            del self._of[job]

    def of(self, job: int) -> RankCommand | str:
        """Return the command of a job, or why it cannot be run."""
        return self._of.get(job, (0, UNKNOWN))[1]


def _command(pid: int) -> RankCommand | str:
    try:
        command = command_of(pid)
    except JoinError as error:
        return str(error)
    own = psutil.Process().cmdline()
    return FORKED if list(command.words) == own else command


# ---- One rank of a job run alone for some seconds, to compare: its command again, in a process of its own.

_START_S = 180.0  # for the first step: imports, the data set, the model
_END_S = 12.0  # for the end, after which its supervisor has killed it
_POLL_S = 0.2


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
            while pid and process.poll() is None and not self._ending.wait(_POLL_S):
                now = time.monotonic()
                if first is None and self._stepped(pid):
                    first = now
                if not self._wanted():
                    self.error = "the monitor was stopped"
                    break
                if first is None and now - began > _START_S:
                    self.error = f"it took no step within {_START_S:.0f} s"
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
        """Return the last line that it wrote."""
        self._output.seek(0)
        lines = self._output.read()[-4000:].decode("utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


def _environment(of_rank: dict[str, str]) -> dict[str, str]:
    """Return the environment of a rank, with the path of this package, which the supervisor needs, at the end."""
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


SECONDS = (5.0, 600.0)  # for which a rank may run alone


class AloneRuns:
    """Runs one rank of a job alone, one at a time, and keeps what was found of each job.

    Attributes:
        commands: how the jobs were started.
        notes: how well a job scales, in words, by the job's number, where one rank of it was run alone.
    """

    def __init__(self, ranks: Callable[[], Sequence[Rank]], server: Callable[[], RankServer | None]) -> None:
        """`ranks` returns those of the session, `server` the server that hears them; None while it does not measure."""
        self.commands = JobCommands()
        self.notes: dict[int, str] = {}
        self._ranks, self._server = ranks, server
        self._run: _AloneRun | None = None
        self._job = 0  # its number

    def run(
        self, job: int | None, scaling: Callable[[int], Scaling], *, seconds: float, confirmed: bool, wait: bool
    ) -> Scaling | None:
        """Run one rank of a job alone for some seconds, and say how well the job scales.

        `scaling` computes that of a job (its number) from what this session has measured. See `Monitor.run_alone`.
        """
        number = self._number(job)
        command = self._command(number)
        if not SECONDS[0] <= seconds <= SECONDS[1]:
            raise SessionError(f"A rank runs alone for {SECONDS[0]:.0f} to {SECONDS[1]:.0f} s, not {seconds:g}.")
        if not confirmed:
            raise SessionError(f"{question(number, command, seconds)} If you mean it: confirmed=True.")
        server = self._server()
        if server is None:
            raise refused(number, "the monitor does not run")
        self.notes.pop(number, None)
        run = self._run = _AloneRun(
            command,
            server.folder,
            seconds,
            stepped=server.has_steps,
            wanted=lambda: self._server() is server,
            done=lambda ended: self._note(number, ended, scaling),
        )
        self._job = number
        if not wait:
            return None
        try:
            run.wait()
        except KeyboardInterrupt:
            self.stop()
            raise
        if run.error is not None:
            raise refused(number, run.error)
        return scaling(number)

    def question(self, job: int | None, seconds: float) -> str:
        """Return what `run` needs confirmed. SessionError: it cannot be run."""
        number = self._number(job)
        return question(number, self._command(number), seconds)

    def stop(self) -> bool:
        """End what runs alone. Returns False if nothing does."""
        run = self._run
        if run is None or not run.running:
            return False
        run.stop()
        run.wait()
        return True

    def state(self, seconds: float) -> AloneState | None:
        """Return what a page may ask `run` for: the newest job, if it has ended and was not measured. Never raises."""
        run = self._run
        if run is not None and run.running:
            return {"job": self._job, "question": "", "running": True}
        try:
            job = self._number(None)
            if job in self.notes or self._server() is None:
                return None
            return {"job": job, "question": self.question(job, seconds), "running": False}
        except SessionError:  # no such job, or it cannot be run: the reason is given to who asks for it
            return None

    def sentences(self) -> list[str]:
        """Return what was found of the jobs, and how far the run is that is under way."""
        run = self._run
        running = run is not None and run.running
        now = [f"One rank of job {self._job} runs alone: {run.state}."] if run is not None and running else []
        return [*self.notes.values(), *now]

    def _number(self, job: int | None) -> int:
        counts = Counter(rank.job for rank in self._ranks() if rank.steps)
        several = [number for number, count in counts.items() if count > 1]
        if job is None and several:
            return max(several)
        if job is None or job not in several:
            raise SessionError(
                f"There is no {'job' if job is None else f'job {job}'} of several ranks in this session."
            )
        return job

    def _command(self, job: int) -> RankCommand:
        if any(rank.alive for rank in self._ranks() if rank.job == job):
            raise refused(job, "it still runs, and would take the machine from it")
        if self._run is not None and self._run.running:
            raise refused(job, "another one runs alone now")
        command = self.commands.of(job)
        if isinstance(command, str):
            raise refused(job, command)
        return command

    def _note(self, job: int, run: _AloneRun, scaling: Callable[[int], Scaling]) -> None:
        """Keep the result for the status and the pages; on the run's thread."""
        if run.stopped:
            return
        try:
            if run.error is not None:
                raise refused(job, run.error)
            self.notes[job] = scaling(job).sentence
        except SessionError as error:
            self.notes[job] = str(error)


# ---- The process under which it runs.

_PATIENCE_S = (5.0, 3.0)  # after SIGINT, and after SIGTERM


def main() -> int:
    folder, *command = sys.argv[1:]
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    ) as it:
        sys.stdout.write(f"{it.pid}\n")
        sys.stdout.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            while it.poll() is None and not selector.select(0.1):
                pass
        for number, patience in zip((signal.SIGINT, signal.SIGTERM), _PATIENCE_S, strict=True):
            _signal(it.pid, number)
            if _ended(it, patience):
                break
        _signal(it.pid, signal.SIGKILL)  # its children too, which may be left
        return it.wait()


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process.returncode is not None


if __name__ == "__main__":
    sys.exit(main())
