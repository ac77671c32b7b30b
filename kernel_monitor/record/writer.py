"""The recorder in the sampler's process: takes what comes, writes it on a thread of its own, and harms nobody."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import sys
import threading
import time
from array import array
from collections import defaultdict, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_monitor.sample.clock import SessionClock
from kernel_monitor.sample.priority import ask_for_punctuality
from kernel_monitor.steps.records import PHASES

from . import words
from .file import Batch, NotOurs, SessionFile
from .format import packed_step
from .states import States
from .upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MAX_BYTES = 256 << 20
COMMIT_S = 0.4
"""How often what came is written: what a kill of the sampler can cost."""
WAITING = 4 << 20
"""Bytes of frames that may wait for the disk."""
BATCH_ROWS = 100
WAITING_COMMANDS = 10_000
PACK_S = 5.0
"""How often it is looked whether there is enough to pack."""
PIECES, PAUSE_S = 4, 0.0002
"""Without a real-time priority, so many pieces are packed at a stretch: one that sleeps often is run when it asks."""
NOT_QUIET_S = 0.01
LAST_S = 1.2
"""How long the end may take; the kernel kills a sampler that takes two seconds."""
LOADER_UNITS = dict.fromkeys(("wait", "step", *PHASES, "other"), "ms") | {"images": "images/s"}


_writing: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
"""Turned off and on again, a session has a recorder at its end and one at its beginning: one at a time has the file."""


class Recorder:
    """Records one session; started once.

    No method raises or waits for the disk; a failure ends the recording and nothing else. The interpreter's end waits
    for what `close` began, a second or so.

    Args:
        path: the session's file; one of the same session is continued, and beside anything else of that name, or a
            damaged file, a new one is made.
        session: the session's id.
        zero: monotonic time of session time 0, as `SessionClock` takes it in this process.
        origin: Unix time of the same moment.
        on_state: called on the recorder's thread with `{"kind": "recorder", "level", "state", "path", "message"}`;
            `state` is `recording`, `moved` (to another file), `stopped` (it failed) or `off` (it was closed).
        max_bytes: of the session's file; beyond, the oldest rows go.
    """

    def __init__(
        self,
        path: Path,
        *,
        session: str,
        zero: float,
        origin: float,
        on_state: Callable[[dict[str, Any]], None],
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.path = path
        self._session = session
        self._origin = origin
        self._clock = SessionClock(zero, origin)
        self._states = States(on_state, path)
        self._max_bytes = max_bytes
        self._queue: deque[tuple[Any, ...]] = deque()
        self._taking = True  # until it fails or is closed
        self._framed = float("-inf")  # when the last frame was taken
        self._interval = 0.1
        self._lost = 0  # frames that found the queue full, of which the next stored frame tells
        self._lost_in_all = 0
        self._closing = threading.Event()
        self._goodbye: str | None = None
        self._reason = ""
        # No daemon: the interpreter's end waits for it.
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-record")
        # The thread's own:
        self._punctual = False
        self._layout: int | None = None
        self._batches: list[Batch] = []
        self._last = 0.0
        self._steps: dict[str, tuple[list[tuple[float, bytes]], int]] = {}

    # -- called by the sampler's loop: nothing here waits -----------------------------------------------------------

    def start(self) -> None:
        """Begin; the file is made by the thread."""
        self._thread.start()

    def hello(self, hello: Mapping[str, Any]) -> None:
        """Take what the sampler says of the frames that follow."""
        self._interval = float(hello.get("interval", self._interval))
        self._put(self._take_hello, self._clock.time(time.monotonic()), dict(hello))

    def frame(self, monotonic: float, missed: int, values: Sequence[float] | bytes) -> None:
        """Take a frame: when it was taken, deadlines missed before it, a float32 per series of the last hello.

        Bytes are taken as they are (little-endian); any other sequence may be used again by the caller.
        """
        if not self._taking:
            return
        if not isinstance(values, bytes):
            cells = array("f", values)
            if sys.byteorder == "big":
                cells.byteswap()
            values = cells.tobytes()
        if len(self._queue) * (len(values) + 100) > WAITING:
            self._lost += 1
            self._lost_in_all += 1
            return
        self._framed = time.monotonic()
        self._queue.append((self._take_frame, self._clock.time(monotonic), missed + self._lost, values))
        self._lost = 0

    def command(self, command: Mapping[str, Any]) -> None:
        """Take a line of the kernel's: `event`, `values`, `steps`, `loaders`, `epochs`, `facts` or `goodbye`."""
        if command.get("do") == "goodbye":
            self._goodbye = str(command.get("reason", "stopped"))
        else:
            self._put(self._take_command, dict(command))

    def close(self, reason: str, *, goodbye: bool | None = None) -> None:
        """End the recording; `join` waits until it is done.

        Args:
            reason: why, unless the kernel said goodbye with a reason of its own.
            goodbye: whether it ended as it should; by default, whether the kernel said goodbye.
        """
        if self._closing.is_set():
            return
        if goodbye and self._goodbye is None:
            self._goodbye = reason
        self._reason = reason
        self._taking = False
        self._closing.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the recording has ended, for `timeout` seconds at most; whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _put(self, take: Callable[..., None], *what: Any) -> None:
        if self._taking and len(self._queue) < WAITING_COMMANDS:
            self._queue.append((take, *what))

    # -- the recorder's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        with _writing[self.path]:
            self._record()

    def _record(self) -> None:
        file: SessionFile | None = None
        upkeep: Upkeep | None = None
        # While it packs it holds the interpreter, which the clock's thread wants back in time: beside busy processes
        # (two cores, load 15, 256 cores' rows) a clock's p99 was 157 ms with the usual priority and 0.1 ms with this.
        self._punctual = ask_for_punctuality()
        try:
            file = self._opened()
            upkeep = Upkeep(file.path, lambda message: self._states.complain("upkeep", message))
            self._write_on(file)
            upkeep.stop(0.1)
            self._finish(file)
        except Exception as error:  # noqa: BLE001 - whatever fails here must not end the sampling
            self._taking = False
            self._queue.clear()
            if upkeep is not None:
                upkeep.stop(0.0)
            if file is not None:
                with contextlib.suppress(sqlite3.Error):  # it failed before; what matters is told
                    file.abandon()
            self._states.tell("stopped", "error", words.stopped(error, self.path, time.time()))
        else:
            self._states.tell("off", "info", f"Recording ended: {self._goodbye or self._reason}.")

    def _opened(self) -> SessionFile:
        """The file, or one beside it where that name is taken by something else."""
        wanted = self.path
        for number in range(2, 100):
            try:
                file = SessionFile(self.path, session=self._session, origin=self._origin, max_bytes=self._max_bytes)
                file.prove_room()
            except (NotOurs, sqlite3.DatabaseError) as error:
                damaged = getattr(error, "sqlite_errorname", "SQLITE_NOTADB").split("_")[1] in ("NOTADB", "CORRUPT")
                if not damaged:
                    raise
                self.path = self._states.path = wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
                continue
            if self.path == wanted:
                self._states.tell("recording", "info", "")
            else:
                self._states.tell(
                    "moved", "warning", f"{wanted} is damaged or another session's: recorded in {self.path}."
                )
            return file
        raise NotOurs(f"there are a hundred files like {wanted}, and none is this session's")

    def _write_on(self, file: SessionFile) -> None:
        due = time.monotonic()
        pack_due = due + PACK_S
        packing: Iterator[None] | None = None
        pieces = 0
        while not self._closing.is_set():
            if not threading.main_thread().is_alive():
                self.close("the sampler failed")  # or this thread would keep its process
            now = time.monotonic()
            if now >= due:
                due = max(due + COMMIT_S, now)
                self._write(file)
                file.keep_log_short()
            if packing is None and now >= pack_due:
                pack_due = now + PACK_S
                packing = file.pack()
            pause = due - now
            # Packing goes on in small pieces, in the first half of the time between two frames: whoever has the
            # interpreter when a frame is due, and is not run, holds up the clock.
            if packing is not None and not self._is_quiet(now):
                pause = NOT_QUIET_S
            elif packing is not None:
                if next(packing, self) is self:
                    packing = None
                pieces += 1
                if self._punctual or pieces % PIECES:
                    continue
                pause = PAUSE_S
            self._closing.wait(max(0.0, min(pause, due - now)))

    def _is_quiet(self, now: float) -> bool:
        since = now - self._framed
        return since < 0.5 * self._interval or since > 2 * self._interval

    def _finish(self, file: SessionFile) -> None:
        until = time.monotonic() + LAST_S
        self._write(file)
        file.begin()
        said = self._goodbye
        file.note("ended", {"reason": said or self._reason, "time": self._last, "goodbye": said is not None})
        file.commit()
        for _ in file.pack(everything=True):
            if time.monotonic() > until:
                break  # unpacked rows are read as well
        else:
            file.shrink()
        file.close()

    def _write(self, file: SessionFile) -> None:
        """Write what waits."""
        if not file.is_there():
            raise FileNotFoundError(2, "removed", str(file.path))
        if not self._queue:
            return
        file.begin()
        try:
            for _ in range(len(self._queue)):
                take, *what = self._queue.popleft()
                take(file, *what)
            for batch in self._batches:
                file.add_rows(batch)
            for loader, (rows, dropped) in self._steps.items():
                file.add_steps(loader, rows, dropped)
            file.commit()
        except BaseException:
            file.roll_back()
            raise
        self._batches.clear()
        self._steps.clear()
        self._states.lost(self._lost_in_all)

    def _take_hello(self, file: SessionFile, moment: float, hello: dict[str, Any]) -> None:
        self._layout = file.add_hello(moment, hello)

    def _take_frame(self, _file: SessionFile, moment: float, missed: int, values: bytes) -> None:
        if self._layout is None:
            return  # no hello yet: nobody knows what the values are
        self._add(self._layout, moment, missed, values)

    def _add(self, layout: int, moment: float, missed: int, values: bytes) -> None:
        for batch in self._batches:
            if batch.layout == layout and len(batch.times) < BATCH_ROWS:
                break
        else:
            batch = Batch(layout, [], [], [])
            self._batches.append(batch)
        batch.times.append(moment)
        batch.missed.append(missed)
        batch.values.append(values)
        self._last = max(self._last, moment)

    def _take_command(self, file: SessionFile, command: dict[str, Any]) -> None:
        try:
            do = command["do"]
            if do == "event":
                file.add_event(float(command["event"]["time"]), command["event"])
            elif do == "values":
                self._take_values(file, command["rows"])
            elif do == "steps":
                rows, dropped = self._steps.get(command["loader"], ([], 0))
                self._steps[command["loader"]] = (
                    rows + [packed_step(row) for row in command["rows"]],
                    dropped + int(command.get("dropped", 0)),
                )
            elif do in ("loaders", "epochs", "facts"):
                file.note(do, command[do])
            else:
                self._states.complain(str(do), f"The recorder knows no such thing: {do!r:.80}.")
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, struct.error) as error:
            what = command.get("do")
            self._states.complain(
                str(what), f"Not recorded: {what!r:.80} from the kernel ({type(error).__name__}: {error})."
            )

    def _take_values(self, file: SessionFile, rows: list[Any]) -> None:
        units = {name: LOADER_UNITS.get(name.rpartition("/")[2], "1") for _, values in rows for name in values}
        if not units:
            return
        layout, names = file.loader_layout(units)
        for moment, values in rows:
            cells = array("f", [float("nan") if (value := values.get(name)) is None else value for name in names])
            if sys.byteorder == "big":
                cells.byteswap()
            self._add(layout, float(moment), 0, cells.tobytes())
