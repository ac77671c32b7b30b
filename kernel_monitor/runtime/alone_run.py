"""One rank of a job run alone for some seconds, to compare: its command again, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, cast

from ..errors import SessionError
from ..os_process import child_environment
from ..ranks.rank_command import RankCommand, supervisor

START_S = 180.0  # for the first step: imports, the data set, the model
END_S = 12.0  # for the end, after which its supervisor has killed it
LOOK_S = 0.2


class AloneRun:
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
        done: Callable[[AloneRun], object],
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
                process.wait(END_S)
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
    """What has to be confirmed."""
    return (
        f"This runs the script of job {job} once more, from its start and as one rank, for {seconds:.0f} s of its "
        f"steps: {command.text}. Whatever the script writes (checkpoints, logs), it writes again."
    )


def refused(job: int, reason: str) -> SessionError:
    return SessionError(
        f"Job {job} cannot be run alone: {reason}. Run one rank of it yourself (WORLD_SIZE=1 RANK=0, from this "
        f"notebook or after %monitor join), or name a recorded session of one: monitor.scaling({job}, alone=SESSION)."
    )
