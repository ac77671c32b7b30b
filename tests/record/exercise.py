"""Everything that can be done with one recording, in a process that measures what it takes.

`python -m tests.record.exercise` reads lines of JSON: `{"path", "depth"}`, and to make the file first `bases`, `seed`
and `number` (`hostile.make`). It answers each with a line: `outcome` (`session`, `refused: …`, or the traceback of what
should not have been raised), `what`, `seconds` and `cpu_s` of what took longest, `all_s`, `peak_mb`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from kernel_monitor.analysis.session_comparison import compare
from kernel_monitor.control import OF_RECORDED
from kernel_monitor.errors import MonitorError, SessionError
from kernel_monitor.protocol.message_types import SessionEntry
from kernel_monitor.protocol.states import MonitorState
from kernel_monitor.record.reader import Session
from kernel_monitor.record.sessions import read_entry
from kernel_monitor.recorded import RecordedSession, interpreted, table
from kernel_monitor.report.page import render

from . import hostile

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def everything(path: Path, timer: Timer, depth: int) -> str:
    """List, open and read it; from depth 1 on also analyse it for a page, at 2 compare, report and copy it.

    Returns:
        The outcome.
    """
    found = read_entry(path)
    table([cast("SessionEntry", {**vars(found), "path": str(path)})]).encode()
    try:
        session = Session(path)
    except SessionError as error:
        if found.problem is None and "is empty" not in str(error):
            raise ValueError(f"it is listed as readable: {error}") from error
        return f"refused: {error}".replace(str(path), "…")
    recorded = RecordedSession(session)
    steps: list[Callable[[], object]] = [
        lambda: _snapshot(recorded),
        lambda: _words(recorded),
        session.events,
        session.steps,
        lambda: session.rows(start=1.0, end=2.0),
        session.to_pandas,
        session.check,
        lambda: _answer(recorded, "history"),
    ]
    if depth > 0:
        steps.append(lambda: _answer(recorded, "subscribe"))
    if depth > 1:
        steps += [
            lambda: _compare(recorded),
            lambda: _report(recorded),
            lambda: session.copy(path.with_name("copy.kmsession")),
        ]
    refused = ""
    for step in steps:
        timer.next()
        try:
            step()
        except SessionError as error:
            refused = refused or f"; refused: {error}".replace(str(path), "…")
    timer.next()
    path.with_name("copy.kmsession").unlink(missing_ok=True)
    return f"session{refused}"


class Timer:
    """The longest of what was done one after the other, s by the clock and of processor time."""

    def __init__(self) -> None:
        self.seconds = self.cpu_s = 0.0
        self._begun = time.monotonic(), time.process_time()

    def next(self) -> None:
        now = time.monotonic(), time.process_time()
        self.seconds = max(self.seconds, now[0] - self._begun[0])
        self.cpu_s = max(self.cpu_s, now[1] - self._begun[1])
        self._begun = now


def _snapshot(recorded: RecordedSession) -> None:
    recorded.snapshot.to_bytes()


def _words(recorded: RecordedSession) -> None:
    (recorded.words() + repr(recorded) + repr(recorded.session)).encode()


def _compare(recorded: RecordedSession) -> None:
    try:
        with interpreted("two recordings", "a comparison"):
            compare(recorded.snapshot, recorded.snapshot)
    except SessionError:
        raise
    except MonitorError:
        pass  # they have no loader in common


def _report(recorded: RecordedSession) -> None:
    with interpreted("a recording", "a page"):
        render(recorded.snapshot).encode()


def _answer(recorded: RecordedSession, command: str) -> None:
    """What a page is sent, except the document, which another process makes."""
    content, _ = OF_RECORDED[command](recorded, cast("MonitorState", {"charts": []}))
    json.dumps(content).encode()


def peak_mb() -> float:
    """The most memory since `reset_peak`, MB; since the process began where that cannot be told."""
    try:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1e3
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def reset_peak() -> None:
    """Give back what the case before took, and begin anew, where this system lets us."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text("5")


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    path = Path(asked["path"])
    what = ""
    if "number" in asked:
        what = hostile.make(path, [Path(one) for one in asked["bases"]], asked["seed"], asked["number"])
    reset_peak()
    begun, timer = time.monotonic(), Timer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".* is damaged; missing: ")
        try:
            outcome = everything(path, timer, asked.get("depth", 2))
        except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
            outcome = traceback.format_exc()
    timer.next()
    took = {"seconds": timer.seconds, "cpu_s": timer.cpu_s, "all_s": time.monotonic() - begun, "peak_mb": peak_mb()}
    return {"what": what, "outcome": outcome, **took}


def main() -> None:
    gc.freeze()  # what is imported by now need not be looked through after each case
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever prints, the answers stay apart
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
