"""The recorder in the sampler's process: queues frames and messages, and writes them on a thread of its own."""

from __future__ import annotations

import base64
import contextlib
import errno
import math
import os
import sqlite3
import struct
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from kernel_monitor.node_sources import node_series
from kernel_monitor.os_process import request_realtime
from kernel_monitor.rank import job_series, rank_series
from kernel_monitor.steps.measured_step import PHASES

from .format import packed_step
from .session_file import Maintenance, OtherFile, SessionFile

MAX_BYTES = 256 << 20
_COMMIT_S = 0.4  # how often the queue is written: what a kill of the sampler can cost
QUEUE_BYTES = 4 << 20  # of frames that may wait for the disk
_QUEUE_COMMANDS = 10_000
_BATCH_ROWS = 100  # rows in one row of the file at most: what is packed in a piece
_PACK_S = 5.0  # how often is checked whether there is enough to pack
PIECES, PAUSE_S = 4, 0.0002
"""Without a real-time priority, pieces packed between two pauses: a thread that sleeps often is run when it asks."""
_NOT_QUIET_S = 0.01  # how long packing waits while a frame is about to be taken
LAST_S = 1.2  # how long the end may take; the kernel kills a sampler that takes two seconds
_LOADER_UNITS = dict.fromkeys(("wait", "step", *PHASES, "other"), "ms") | {"images": "images/s"}

_writing: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
"""When recording is turned off and on again, the old recorder still ends while the new one starts: the lock of a file
lets them write in turn."""


@dataclass(eq=False)
class Recorder:
    """The recorder of one session; started once.

    No method raises or waits for the disk; a failure ends the recording and nothing else. A file of the same session is
    continued; beside a damaged file, or another session's, a new file is made.

    `on_state` is called on the recorder's thread with `{"kind": "recorder", "level", "state", "path", "message"}`;
    `state` is `recording`, `moved` (to another file), `stopped` (it failed) or `off` (it was closed).
    """

    path: Path
    _: KW_ONLY
    session: str  # the session's id
    origin: float  # Unix time at session time 0
    on_state: Callable[[dict[str, Any]], None]
    max_bytes: int = MAX_BYTES  # of the session's file; beyond, the oldest rows go

    def __post_init__(self) -> None:
        self._status = RecorderStatus(self.on_state, self.path)
        self._queue: deque[tuple[Any, ...]] = deque()
        self._accepting = True  # until it fails or is closed
        self._framed = float("-inf")  # monotonic time of the last frame
        self._interval = 0.1
        self._lost = 0  # frames that found the queue full, which the next stored frame counts as missed
        self._lost_in_all = 0
        self._closing = threading.Event()
        self._goodbye: str | None = None
        self._reason = ""
        # No daemon: the interpreter's end waits for it, a second or so.
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-record")
        # Used by the thread alone:
        self._punctual = False
        self._layout: int | None = None
        self._rows: defaultdict[int, list[tuple[float, int, bytes]]] = defaultdict(list)  # of each layout
        self._last = 0.0
        self._steps: dict[str, tuple[list[tuple[float, bytes]], int]] = {}

    # -- called by the sampler's loop: nothing here waits -----------------------------------------------------------

    def start(self) -> None:
        """Start the thread, which makes the file."""
        self._thread.start()

    def hello(self, moment: float, hello: Mapping[str, Any]) -> None:
        """Take the sampler's hello, which describes the frames that follow; `moment` in session s."""
        self._interval = float(hello.get("interval", self._interval))
        self._put(self._take_hello, moment, dict(hello))

    def frame(self, moment: float, missed: int, values: bytes) -> None:
        """Take a frame: its session time (s), deadlines missed before it, a `<f4` per series of the last hello."""
        if not self._accepting:
            return
        if len(self._queue) * (len(values) + 100) > QUEUE_BYTES:
            self._lost += 1
            self._lost_in_all += 1
            return
        self._framed = time.monotonic()
        self._queue.append((self._take_frame, moment, missed + self._lost, values))
        self._lost = 0

    def command(self, command: Mapping[str, Any]) -> None:
        """Take a message of the kernel for the recorder (`docs/messages.md`, *Kernel to sampler*)."""
        if command.get("do") == "goodbye":
            self._goodbye = str(command.get("reason", "stopped"))
        else:
            self._put(self._take_command, dict(command))

    def close(self, reason: str, *, goodbye: bool = False) -> None:
        """End the recording; `join` waits until it is done.

        The `reason` holds unless the kernel said goodbye with its own; `goodbye`: it ended properly even without.
        """
        if not self._closing.is_set():
            if goodbye and self._goodbye is None:
                self._goodbye = reason
            self._reason = reason
            self._accepting = False
            self._closing.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the recording has ended, for `timeout` seconds at most; whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _put(self, take: Callable[..., None], *what: Any) -> None:
        if self._accepting and len(self._queue) < _QUEUE_COMMANDS:
            self._queue.append((take, *what))

    # -- the recorder's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        with _writing[self.path]:
            self._record()

    def _record(self) -> None:
        file: SessionFile | None = None
        upkeep: Maintenance | None = None
        # While it packs, this thread holds the GIL, which the clock's thread needs in time: beside busy processes (two
        # cores, load 15, 256 cores' rows) a clock's p99 was 157 ms with the usual priority and 0.1 ms with this.
        self._punctual = request_realtime()
        try:
            file = self._opened()
            upkeep = Maintenance(file.path, lambda message: self._status.warn_once("upkeep", message))
            self._write_on(file)
            upkeep.stop(0.1)
            self._finish(file)
        except Exception as error:  # noqa: BLE001 - a failed recording must not end the sampling: it is reported
            self._accepting = False
            self._queue.clear()
            if upkeep is not None:
                upkeep.stop(0.0)
            if file is not None:
                with contextlib.suppress(sqlite3.Error):  # the first error is the one to report
                    file.abandon()
            self._status.report("stopped", "error", stop_message(error, self.path, time.time()))
        else:
            self._status.report("off", "info", f"Recording ended: {self._goodbye or self._reason}.")

    def _opened(self) -> SessionFile:
        """Return the file, or a new one beside it where the name is taken by another session or a damaged file."""
        wanted = self.path
        for number in range(2, 100):
            try:
                file = SessionFile(self.path, session=self.session, origin=self.origin, max_bytes=self.max_bytes)
                file.check_room()
            except (OtherFile, sqlite3.DatabaseError) as error:
                if getattr(error, "sqlite_errorname", "SQLITE_NOTADB").split("_")[1] not in ("NOTADB", "CORRUPT"):
                    raise
                self.path = self._status.path = wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
                continue
            if self.path == wanted:
                self._status.report("recording", "info", "")
            else:
                message = f"{wanted} is damaged or another session's: recorded in {self.path}."
                self._status.report("moved", "warning", message)
            return file
        raise OtherFile(f"there are a hundred files like {wanted}, and none is this session's")

    def _write_on(self, file: SessionFile) -> None:
        due = time.monotonic()
        pack_due = due + _PACK_S
        packing: Iterator[None] | None = None
        pieces = 0
        while not self._closing.is_set():
            if not threading.main_thread().is_alive():
                self.close("the sampler failed")  # or this thread would keep its process
            now = time.monotonic()
            if now >= due:
                due = max(due + _COMMIT_S, now)
                self._write(file)
                file.keep_log_short()
            if packing is None and now >= pack_due:
                pack_due = now + _PACK_S
                packing = file.pack()
            pause, since_frame = due - now, now - self._framed
            # Packing goes on in small pieces, in the first half of the time between two frames: a thread that holds
            # the GIL when a frame is due, and is not run, delays the clock.
            if packing is not None and 0.5 * self._interval <= since_frame <= 2 * self._interval:
                pause = _NOT_QUIET_S
            elif packing is not None:
                if next(packing, self) is self:
                    packing = None
                pieces += 1
                if self._punctual or pieces % PIECES:
                    continue
                pause = PAUSE_S
            self._closing.wait(max(0.0, min(pause, due - now)))

    def _finish(self, file: SessionFile) -> None:
        until = time.monotonic() + LAST_S
        self._write(file)
        goodbye = self._goodbye
        file.set_fact("ended", {"reason": goodbye or self._reason, "time": self._last, "goodbye": goodbye is not None})
        for _ in file.pack(everything=True):
            if time.monotonic() > until:
                break  # unpacked rows can be read, too
        else:
            file.give_back()
        file.close()

    def _write(self, file: SessionFile) -> None:
        if not file.exists():
            raise FileNotFoundError(2, "removed", str(file.path))
        if not self._queue:
            return
        with file.transaction():
            for _ in range(len(self._queue)):
                take, *what = self._queue.popleft()
                take(file, *what)
            for layout, rows in self._rows.items():
                for start in range(0, len(rows), _BATCH_ROWS):
                    file.add_rows(layout, rows[start : start + _BATCH_ROWS])
            for loader, (steps, dropped) in self._steps.items():
                file.add_steps(loader, steps, dropped)
        self._rows.clear()
        self._steps.clear()
        self._status.lost(self._lost_in_all)

    def _take_hello(self, file: SessionFile, moment: float, hello: dict[str, Any]) -> None:
        self._layout = file.add_hello(moment, hello)

    def _take_frame(self, _file: SessionFile, moment: float, missed: int, values: bytes) -> None:
        if self._layout is not None:  # before the hello the values have no names
            self._add(self._layout, moment, missed, values)

    def _add(self, layout: int, moment: float, missed: int, values: bytes) -> None:
        self._rows[layout].append((moment, missed, values))
        self._last = max(self._last, moment)

    def _take_command(self, file: SessionFile, command: dict[str, Any]) -> None:
        try:
            do = command["do"]
            if do == "event":
                file.add_event(float(command["event"]["time"]), command["event"])
            elif do == "values":
                self._take_values(file, command["rows"])
            elif do == "steps":
                steps, dropped = self._steps.get(command["loader"], ([], 0))
                steps = steps + [packed_step(row) for row in command["rows"]]
                self._steps[command["loader"]] = steps, dropped + int(command.get("dropped", 0))
            elif do == "node-values":
                for node, found in command["nodes"].items():
                    series = node_series(node, found["cores"], int(found.get("gpus", 0)))
                    self._take_packed(file.node_layout(node, series), len(series), found["rows"])
            elif do == "rank-values":
                for rank, found in command["ranks"].items():
                    job = found.get("job")
                    series = (
                        rank_series(rank, steps=found["steps"], gpu=found.get("gpu", False))
                        if job is None
                        else job_series(int(job))
                    )
                    self._take_packed(file.rank_layout(rank, series), len(series), found["rows"])
            elif do in ("loaders", "nodes", "ranks", "epochs", "facts", "cell_running"):
                file.set_fact(do, command[do])
            else:
                self._status.warn_once(str(do), f"The recorder knows no such message: {do!r:.80}.")
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError, struct.error) as error:
            what, why = command.get("do"), f"{type(error).__name__}: {error}"
            self._status.warn_once(str(what), f"Not recorded: {what!r:.80} from the kernel ({why}).")

    def _take_values(self, file: SessionFile, rows: list[Any]) -> None:
        units = {name: _LOADER_UNITS.get(name.rpartition("/")[2], "1") for _, values in rows for name in values}
        if not units:
            return
        layout, names = file.loader_layout(units)
        for moment, values in rows:
            cells = [math.nan if (value := values.get(name)) is None else value for name in names]
            self._add(layout, float(moment), 0, struct.pack(f"<{len(cells)}f", *cells))

    def _take_packed(self, layout: int, width: int, rows: Sequence[tuple[float, str]]) -> None:
        """Take rows of a layout, each with its time and its float32 values in base64."""
        for moment, packed in rows:
            cells = base64.b64decode(packed, validate=True)
            if len(cells) != 4 * width:
                raise ValueError(f"{len(cells)} bytes for {width} values")
            self._add(layout, float(moment), 0, cells)


# ---- The recorder's state as it reports it, and why a recording stopped, with the remedy.

_LOST_PERIOD_S = 60.0  # lost samples are reported no more often
AGAIN = "run %monitor record on"


@dataclass(eq=False)
class RecorderStatus:
    """The state of a recorder, reported to `on_state`; errors of that callback are ignored."""

    # Called with `{"kind": "recorder", "level", "state", "path", "message"}`.
    on_state: Callable[[dict[str, Any]], None]
    path: Path  # the session's file

    def __post_init__(self) -> None:
        self._warned: set[str] = set()
        self._lost = 0
        self._lost_at = float("-inf")

    def report(self, state: str, level: str, message: str) -> None:
        with contextlib.suppress(Exception):  # the reader may have gone with its kernel; the recording goes on
            said = {"level": level, "state": state, "path": str(self.path), "message": message}
            self.on_state({"kind": "recorder", **said})

    def warn_once(self, kind: str, message: str) -> None:
        """Report, once for each kind, a problem that does not end the recording."""
        if kind not in self._warned:
            self._warned.add(kind)
            self.report("recording", "warning", message)

    def lost(self, samples: int) -> None:
        """Report, once a minute at most, that the queue was full for `samples` frames since the beginning."""
        now = time.monotonic()
        if samples > self._lost and now >= self._lost_at + _LOST_PERIOD_S:
            message = f"The disk is too slow: {samples - self._lost} samples were not recorded and show as a gap."
            self._lost, self._lost_at = samples, now
            self.report("recording", "warning", message)


def stop_message(error: Exception, path: Path, now: float) -> str:
    """Return the sentences for a recording in `path` that failed with `error` at `now` (Unix s)."""
    cause, remedy = _cause(error, path)
    clock = time.strftime("%H:%M", time.localtime(now))
    there = "the session up to then is readable" if path.exists() else "nothing of it is left"
    return f"{cause}: recording stopped at {clock}; {there}. {remedy}"


def _cause(error: Exception, path: Path) -> tuple[str, str]:
    folder = path.parent
    elsewhere = f"Name another folder (the setting for where sessions are recorded) and {AGAIN}."
    number = getattr(error, "errno", None)
    name = getattr(error, "sqlite_errorname", "")
    text = str(error.strerror if isinstance(error, OSError) else error)
    io_error = name.startswith("SQLITE_IOERR")
    if name == "SQLITE_FULL" or number in (errno.ENOSPC, errno.EDQUOT) or (io_error and _is_full(folder)):
        return f"The disk is full ({folder})", f"Free space and {AGAIN}."
    if not folder.is_dir():
        return f"The folder {folder} is gone", f"Make it again, or {elsewhere[0].lower()}{elsewhere[1:]}"
    if isinstance(error, FileNotFoundError):
        return f"The file {path} was removed", f"To record from here on, {AGAIN}."
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")) or number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{folder} cannot be written ({text})", elsewhere
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"Another program keeps {path} locked", f"End it and {AGAIN}."
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"{path} was damaged while it was written ({text})", f"To go on in a new file, {AGAIN}."
    if io_error:
        return f"The disk or its limits refuse to take more ({folder}: {text})", elsewhere
    return f"The recorder failed ({type(error).__name__}: {error})", f"To try again, {AGAIN}."


def _is_full(folder: Path) -> bool:
    """Return whether the file system has no room for one more page of a database."""
    if sys.platform == "win32":
        import shutil

        return shutil.disk_usage(folder).free < 1 << 16
    try:
        facts = os.statvfs(folder)
    except OSError:
        return False
    return facts.f_bavail * facts.f_frsize < 1 << 16 or (facts.f_files > 0 and facts.f_favail == 0)
