"""The kernel's side of the driver process: starts it, sends it slots, keeps the batches that come back."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ..errors import MonitorError
from ..loaders.data.keyed_dataset import INDEX_BYTES, Fetched
from ..loaders.plan import Slot
from ..node_sources import RayNode
from ..own_files import working_folder
from .driver import Channel
from .node_worker import Place, Probe, Sending, versions
from .nodes import NodeRows, PassedOn
from .packing import unpack

ENDS_WITHIN = 10.0  # s, for the process after its pipe was closed; then it is killed
WAITS_AT_MOST = 600.0  # s for the first worker: other jobs may have the cores, and a busy machine is slow to start it

# What ends a process: a line of Ray's with which it does so, and an exception.
_FATAL = re.compile(r"^\[[^\]]* [CF] [\d ]+\] (?:\(\w+\) )?\S+: (.+)", re.MULTILINE)
_RAISED = re.compile(r"^Traceback \(most recent call last\):\n(?: .*\n|\n)*(\w.*)", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LOG_BYTES = 1 << 16  # that are searched for the last words


def last_words(log: str, code: int) -> str:
    """Why a process of Ray's ended: the line of its log that ended it, among others on this and that, or its status."""
    log = _COLOURS.sub("", log)
    causes = _FATAL.findall(log) or (_RAISED.findall(log) if code > 0 else [])
    if causes:
        return str(causes[-1]).strip()
    return f"killed by {signal.Signals(-code).name}" if code < 0 else "Ray ended it, as it does without its cluster"


class Answer(NamedTuple):
    """The answer to a slot."""

    run: int  # run, number: of the slot
    number: int
    fetched: Any  # `data.keyed_dataset.Fetched`; None where it failed
    why: str | None  # it failed


class DriverProcess:
    """One process and what it has answered; `finish` is applied to each batch. One thread at a time begins and waits.

    That thread may be interrupted anywhere: it writes to no pipe and holds no lock, but passes through queues.
    """

    def __init__(
        self,
        address: str,
        blob: bytes,
        workers: int,
        prefetch: int,
        finish: Callable[[Any], Any],
        probes: tuple[Probe, ...],
        sending: Sending,
    ) -> None:
        self.nodes: list[RayNode] = []
        self.passed_on = PassedOn()
        self._rows = NodeRows()
        self._finish = finish
        self._answers: dict[int, Answer] = {}  # of this run, by number: those that came before their turn
        self._run = 0
        self._inbox: SimpleQueue[Answer | None] = SimpleQueue()  # None: there will be no more
        self._outbox: SimpleQueue[tuple[tuple[Any, ...], list[Any]] | None] = SimpleQueue()  # None: close
        self._ended: str | None = None  # why there will be no more answers
        self._reader: threading.Thread | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # -P: its folder is not searched for modules, as some have names of others' packages.
        command = [sys.executable, "-P", str(Path(__file__).with_name("driver.py")), str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # the notebook's interrupts are not for it
        )
        try:
            source: Any = self._process.stdout
            sink: Any = self._process.stdin
            self._channel = Channel(source, sink)
            threading.Thread(target=self._send_all, name="ray slots", daemon=True).start()
            here = working_folder()
            place = Place(
                versions(),
                tuple(path or here for path in sys.path),
                here,
                tuple((one.path, one.size, one.digest) for one in probes),
            )
            self._outbox.put((("open", address, place, sending, workers, prefetch), [blob]))
        except BaseException:  # an interrupt, too, must not leave it behind
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can still answer."""
        return self._ended is None

    def await_ready(self, address: str, tell: Callable[[str], None]) -> None:
        """Wait for the first worker. `tell` is given a sentence on what is waited for, where it takes long.

        Raises:
            MonitorError: the cluster cannot be joined, none of its nodes can work, or no worker was there in time.
        """
        if self._reader is not None:
            return
        late = threading.Timer(WAITS_AT_MOST, self.give_up, (f"no worker was there within {WAITS_AT_MOST:.0f} s",))
        late.daemon = True
        late.start()
        kind, waits = "waits", ""
        told: Any = None
        try:
            while kind == "waits":
                (kind, told), _ = self._channel.receive()
                if kind == "waits":
                    waits = f": {told}"
                    tell(f"{told} ({WAITS_AT_MOST / 60:g} minutes at most, or until another engine is chosen)")
        except (EOFError, OSError):
            self._ended = self._ended or self._last_words()
            raise MonitorError(f"Ray did not start: {self._ended}{waits}") from None
        finally:
            late.cancel()
        if kind == "refused":
            where = "could not be started on this machine" if address == "local" else f"at {address} cannot be used"
            self._ended = f"Ray {where}: {told}"
            raise MonitorError(self._ended)
        self.nodes = told
        self._reader = threading.Thread(target=self._receive_all, name="ray batches", daemon=True)
        self._reader.start()

    def give_up(self, why: str) -> None:
        """End a wait for the first worker; for any thread, and without a lock. What is ready stays."""
        if self._reader is None:
            self._ended = self._ended or why
            self._outbox.put(None)

    def begin(self, run: int) -> None:
        """A new run: what was computed for an earlier one is dropped."""
        self._run = run
        self._answers.clear()
        self._outbox.put((("begin", run), []))

    @property
    def sends_files(self) -> bool:
        """Whether a node gets the files' contents with each batch."""
        return any(node.is_sent_files and node.alive and node.reason is None for node in self.nodes)

    def take(self, run: int, slot: Slot, rows: bytes | None, paths: tuple[str, ...]) -> None:
        """Have a slot computed; `rows` and `paths`: see `node_worker.Work`.

        Raises:
            Exception: its keys are of a class of the user's, and cannot be pickled.
        """
        if slot.keys is None:
            data = pickle.dumps(slot, protocol=5)
        else:
            from ..loaders.engines.worker_pickle import for_other_machines

            data = for_other_machines(slot)
        self._outbox.put((("slot", run, slot.number, data, rows, paths), []))

    def give(self, blob: bytes) -> None:
        """The data set has changed: slots taken from now on are computed with this state of it."""
        self._outbox.put((("data",), [blob]))

    def turn(self, workers: int, prefetch: int) -> None:
        """Have other numbers of workers, and of slots under way for each. For any thread."""
        self._outbox.put((("knobs", workers, prefetch), []))

    def wait(self, number: int, timeout: float | None) -> Answer:
        """Wait for a batch of this run; an `Answer` with `why` if it will not come, or not within `timeout` s."""
        until = None if timeout is None else time.monotonic() + timeout
        while number not in self._answers:
            if self._ended is not None and self._inbox.empty():
                return Answer(self._run, number, None, self._ended)
            try:
                come = self._inbox.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except Empty:
                return Answer(self._run, number, None, f"no answer came within {timeout:g} s")
            if come is not None and come.run == self._run:
                self._answers.setdefault(come.number, come)
        return self._answers.pop(number)

    def _send_all(self) -> None:
        with suppress(OSError):  # it has ended, which the other thread reports
            while (message := self._outbox.get()) is not None:
                self._channel.send(*message)
            self._channel.send(("close",))  # workers that were forked meanwhile have copies of the pipe: no EOF comes
        self._channel.close()

    def _receive_all(self) -> None:
        while True:
            try:
                (kind, *told), buffers = self._channel.receive()
            except (EOFError, OSError, ValueError):
                self._ended = self._ended or f"Ray's driver process ended: {self._last_words()}"
                self._inbox.put(None)
                return
            if kind == "nodes":
                self.nodes = told[0]
                self._rows.told(self.nodes)
                continue
            if kind == "loads":
                self._rows.loaded(told[0], self.nodes)
                continue
            if kind == "gone":
                self._ended = told[0]
                continue
            if kind == "passed":
                self.passed_on.told(*told)
                continue
            run, number, content = told
            if kind == "batch":
                node, content = content
                self._rows.delivered(node)
            if run == self._run:
                opened = self._opened(content, buffers) if kind == "batch" else (None, content)
                if isinstance(opened[0], Fetched):
                    size = sum(buffer.nbytes for buffer in buffers)
                    self.passed_on.received(len(opened[0].indices) // INDEX_BYTES, size)
                self._inbox.put(Answer(run, number, *opened))

    def _opened(self, header: bytes, buffers: list[Any]) -> tuple[Any, str | None]:
        try:
            return self._finish(unpack(header, buffers)), None
        except Exception as error:  # noqa: BLE001 - of the user's classes, or no memory: the engine fails with it
            return None, f"the batch cannot be opened: {type(error).__name__}: {error}"

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        try:
            size = os.fstat(self._log.fileno()).st_size
            text = os.pread(self._log.fileno(), _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace")
        except (OSError, ValueError):
            return "closed"
        return last_words(text, self._process.returncode or 0)

    def close(self) -> None:
        """End the process, and with it the workers and a Ray of our own; takes about a second."""
        self._ended = self._ended or "it was given back"
        self._inbox.put(None)
        self._outbox.put(None)
        source: Any = self._process.stdout
        try:
            self._process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            if self._reader is not None:
                self._reader.join()
            source.close()
            self._log.close()
