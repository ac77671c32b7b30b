"""The kernel's side of the sampler: a client that starts its process, reads it, restarts it, and ends it."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..errors import MonitorError
from ..os_process import child_creation_flags, child_environment, start_of, widen_pipe
from ..text import log_failed
from . import pipes
from .clock import SessionClock
from .pipes import Outbox

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable


LOG = logging.getLogger(__name__)

BACK_OFF_S = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Pauses before a restart, after 1, 2, … samplers in a row that ended early; then there are no more restarts."""
EARLY_S = 10.0  # a sampler that lived this long did not end early
FLUSH_S = 0.5  # the longest wait of `stop` for earlier messages to be written
GRACE_S = 2.0  # seconds that a stopped sampler has until it is killed


class SamplerClient:
    """A sampler process and the thread that reads its frames; can be started once.

    All callbacks run on the reader thread (named `kernel-monitor-sampler`). An exception in a callback is logged, once
    for each type, and the reading goes on.

    Args:
        interval: seconds between samples, 0.01 to 60.
        on_hello: called with the series and facts about the machine (`docs/messages.md`, *Sampler*): after each start,
            again whenever they have changed, and always before the first frame that they describe.
        on_frame: called with a sample: `time.monotonic()` when it was taken, the number of deadlines missed before it,
            and one float32 per series of the last hello (an `array('f')` of its own, which NumPy takes without a copy).
        on_notice: called with `{"level", "message"}` for the user; notices of the recorder also have `kind`, `state`
            and `path`.
        on_exit: called with the cause when the sampler ended before `stop`; a restart follows, or a notice of level
            `error` if there will be no restart.
        clock: the session's clock; by default a new one. Samples are due in the middle of the intervals since its zero.
        session: the session's name, for its recording.
        record: the file to record to; None: no recording.

    Raises:
        ValueError: the interval is out of range.
    """

    def __init__(
        self,
        interval: float,
        on_hello: Callable[[dict[str, Any]], None],
        on_frame: Callable[[float, int, array[float]], None],
        on_notice: Callable[[dict[str, Any]], None],
        on_exit: Callable[[str], None],
        *,
        clock: SessionClock | None = None,
        session: str = "",
        record: Path | None = None,
    ) -> None:
        self.interval = pipes.check_interval(interval)
        self.session = session
        self.record = record
        self.clock = clock or SessionClock(time.monotonic(), time.time())
        self.restarts = 0  # how often the sampler was restarted
        self._workers: list[int] = []
        self._outbox = Outbox()
        self._callbacks: dict[str, Callable[..., None]] = {
            "on_hello": on_hello,
            "on_frame": on_frame,
            "on_notice": on_notice,
            "on_exit": on_exit,
        }
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._logged: set[tuple[str, str]] = set()

    @property
    def pid(self) -> int | None:
        """The sampler's pid; None while no process runs, also for some milliseconds after `start`."""
        process = self._process
        return None if process is None else process.pid

    def send(self, message: dict[str, Any]) -> bool:
        """Send the sampler a message (`docs/messages.md`, *Kernel to sampler*). Never waits; for any thread.

        A restarted sampler gets the last interval, workers and recording again. Returns whether the message was
        accepted: not after `stop`, not in a forked child, and not if it is larger than 1 MiB.

        Raises:
            TypeError: the message is not JSON.
            ValueError: the interval in it is out of range.
        """
        do = message.get("do")
        if do == "interval":
            self.interval = pipes.check_interval(float(message["seconds"]))
        elif do == "roles":
            self._workers = list(message["workers"])
        elif do == "record":
            self.record = None if message["path"] is None else Path(message["path"])
        return self._outbox.put(message)

    def start(self) -> None:
        """Start the sampler without waiting for it; can be called once."""
        if self._thread is not None or self._stopping.is_set():
            raise RuntimeError("a SamplerClient is started once")
        _register_hooks()
        _live.add(self)
        self._outbox.start()
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the sampler and wait for it and the thread. Repeated calls and calls in a forked child do nothing.

        Earlier messages are written first, if the sampler reads them within `FLUSH_S`. Called from a callback, it
        returns at once, and the thread ends after the callback.
        """
        if self._process is not None and not self._stopping.is_set():
            self._outbox.flush(FLUSH_S)
        with self._lock:
            self._stopping.set()
            process = self._process
            self._outbox.close()
            self._outbox.connect(None)
            if process is not None and process.stdin is not None:
                process.stdin.close()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(GRACE_S)
        if thread.is_alive() and process is not None:
            process.kill()  # it hangs, or was stopped by a signal
            thread.join(GRACE_S)
        if thread.is_alive():
            LOG.warning("the sampler does not end: a driver or a callback hangs")
        _live.discard(self)

    # -- The reader thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        early = 0
        while True:
            began = time.monotonic()
            try:
                reason = self._run_once()
            except Exception as error:  # noqa: BLE001 - the monitor must not harm the kernel: it logs, reports and tries again
                self._log_once(error, "The sampler could not be started or read, and is tried again")
                reason = f"{type(error).__name__}: {error}"
            if self._stopping.is_set():
                return
            self._call("on_exit", reason)
            early = 0 if time.monotonic() - began >= EARLY_S else early + 1
            if early > len(BACK_OFF_S):
                message = f"the sampler ended {early} times within {EARLY_S:g} s and is not restarted: {reason}"
                self._call("on_notice", {"level": "error", "message": message})
                return
            if self._stopping.wait(BACK_OFF_S[max(0, early - 1)]):
                return
            self.restarts += 1

    def _run_once(self) -> str:
        """Start a sampler and read it until its end; return the cause of the end."""
        with self._lock:
            if self._stopping.is_set():
                return "stopped"
            process = self._process = spawn(self.interval, self.clock, self.session, self.record)
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("the sampler was started without pipes")
        if self._workers:
            self._outbox.put({"do": "roles", "workers": self._workers})
        self._outbox.connect(process.stdin.fileno())
        try:
            decoder = pipes.Decoder()
            # A blocking read is the cheapest: one wait for the GIL per frame.
            while data := os.read(process.stdout.fileno(), 1 << 16):
                for kind, payload in decoder.feed(data):
                    if kind == pipes.FRAME:
                        self._call("on_frame", *pipes.decode_frame(payload))
                    else:
                        name = "on_hello" if kind == pipes.HELLO else "on_notice"
                        self._call(name, pipes.decode_json(payload))
                if self._stopping.is_set():
                    break
        except pipes.WireError as error:
            process.kill()
            return f"it sent what is no message: {error}"
        finally:
            process.stdout.close()
            with self._lock:
                self._outbox.connect(None)
                process.stdin.close()
                self._process = None
            code = _end(process)
            errors = _rest_of(process.stderr.fileno())
            process.stderr.close()
        last = errors.strip().splitlines()[-1:]
        return ": ".join([_cause(code), *last])

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            self._callbacks[name](*arguments)
        except Exception as error:  # noqa: BLE001 - a failing callback must not end the reading
            self._log_once(error, f"{name} of the sampler failed, and the sampling goes on")

    def _log_once(self, error: Exception, what: str) -> None:
        kind = (what, type(error).__name__)
        if kind not in self._logged:
            self._logged.add(kind)
            log_failed(LOG, f"{what}; this is logged once")

    # -- A forked child ---------------------------------------------------------------------------------------------

    def _forget_in_child(self) -> None:
        """Close the inherited ends of the pipes; the process and the thread belong to the parent."""
        process, self._process, self._thread = self._process, None, None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopping.set()
        self._outbox = Outbox()
        self._outbox.close()
        if process is not None:
            process.returncode = 0  # only the parent can wait for it
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a sampler whose pipes are closed; return its exit status."""
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _rest_of(fd: int) -> str:
    if hasattr(os, "set_blocking"):
        os.set_blocking(fd, False)
    try:
        return os.read(fd, 1 << 16).decode(errors="replace")
    except BlockingIOError:
        return ""


def _cause(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


_live: WeakSet[SamplerClient] = WeakSet()


@cache
def _register_hooks() -> None:
    """Register hooks, once in the process: forked children forget the clients, and the interpreter's end stops them."""
    atexit.register(_stop_all)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=forking.acquire, after_in_parent=forking.release, after_in_child=_forget_all_in_child
        )


def _stop_all() -> None:
    for client in list(_live):
        client.stop()


def _forget_all_in_child() -> None:
    forking.release()
    for client in list(_live):
        client._forget_in_child()
    _live.clear()


# ---- The start of the sampler process: its command, its environment, its separation from the kernel.

forking = RLock()
"""Held while a sampler is started; forks wait for it. A child that is forked while the pipes are made would inherit the
sampler's ends of them, and the sampler's end would go unnoticed while the child lives."""
PIPE_BYTES = 1 << 20  # the most that Linux gives an unprivileged user's pipe


def spawn(interval: float, clock: SessionClock, session: str, record: Path | None) -> subprocess.Popen[bytes]:
    """Start a sampler with pipes for stdin, stdout and stderr, in a session of its own.

    Raises:
        MonitorError: this interpreter does not know its own path, or /proc is hidden.
        OSError: the process cannot be started.
    """
    if not sys.executable:
        raise MonitorError("the sampler cannot be started: sys.executable does not name this Python")
    began = start_of(os.getpid())
    if began is None:
        raise MonitorError("/proc does not show this process: mount it where this program runs")
    command = [
        sys.executable,
        "-P",  # the notebook's folder may contain a psutil.py of its own
        "-m",
        "kernel_monitor.sample",
        f"--interval={interval!r}",
        f"--zero={clock.zero - clock.suspended!r}",
        f"--origin={clock.origin!r}",
        f"--session={session}",
        f"--parent={os.getpid()}",
        f"--parent-start={began!r}",
    ]
    environment = child_environment()
    environment.pop(pipes.RECORD, None)
    if record is not None:
        environment[pipes.RECORD] = str(record)  # an argument could be read by every user of the machine
    with forking:
        process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # signals to the kernel's process group, such as an interrupt, must not reach it
            creationflags=child_creation_flags(),
        )
    if process.stdout is not None:
        # Ten seconds of frames: with 256 cores and 8 GPUs one has 7 kB, the hello 70 kB. With a smaller pipe a kernel
        # whose reader waits long for the GIL would lose frames.
        widen_pipe(process.stdout.fileno(), PIPE_BYTES)
    return process
