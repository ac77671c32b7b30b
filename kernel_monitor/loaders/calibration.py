"""Measures what another engine takes of the processor for some of the user's files, in a process beside the training.

Once per data set and chain. The process (`calibration_process`) is given the files' names and the translated chain, and
nothing of the user's own code; it draws from no generator of this process.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..privacy import private

if TYPE_CHECKING:
    from ..protocol.states import CalibrationState
    from .engines.engine import Setting

FILES = 32  # spread over the data set
LIMIT_S = 300.0  # then it is ended: beside a training that fills every core it takes half a minute to a minute
POLL_S = 0.2

_known: dict[bytes, Calibration] = {}  # by a hash of the request: of this process's data sets and chains


class Calibration:
    """One run of the process, on a thread of its own that starts it, waits for it and ends it.

    `request` has the pickled arguments of `calibration_process.measure`, with so many `files`; `reason` is why there
    can be no run.
    """

    def __init__(self, request: bytes = b"", files: int = 0, reason: str | None = None) -> None:
        self.state: CalibrationState = {  # replaced, not changed
            "state": "running" if reason is None else "failed",
            "files": files,
            "seconds": None,
            "error": None,
            "reason": reason,
        }
        self.key = hashlib.sha256(request).digest()  # the same for the same files and chain
        self._request = request
        self._process_id = os.getpid()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kernel-monitor-calibration", daemon=True)

    @property
    def stopped(self) -> bool:
        """Whether it was ended before there was a result."""
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the process, if it runs, and wait for its end. Harmless when repeated, and in a forked child."""
        if self.state["state"] != "running" or os.getpid() != self._process_id:
            return
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            result = self._result()
        except (OSError, ValueError, TypeError, IndexError) as error:  # no process, no temporary file, no answer
            result = {"reason": f"the process that measures failed ({error})"}
        if self.stopped:
            return
        if "reason" in result:
            result = {"state": "failed", "reason": private(result["reason"])}
        found: Any = {**self.state, "state": "done", **result}
        self.state = found

    def _result(self) -> dict[str, Any]:
        # Files instead of pipes: a worker that the user's loader forks meanwhile would keep the ends of a pipe open.
        with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as answer:
            request.write(self._request)
            request.seek(0)
            module = Path(__file__).with_name("calibration_process.py")
            # A group of its own keeps the interrupt of a notebook away. No session of its own: Linux shares the
            # processor out by sessions first (sched(7), autogroup), and the low priority would mean nothing.
            process = subprocess.Popen(
                [sys.executable, "-P", str(module), str(os.getpid())],
                stdin=request,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
            until = time.monotonic() + LIMIT_S
            try:
                while process.poll() is None and not self._stopping.wait(POLL_S):
                    if time.monotonic() > until:
                        return {"reason": f"{self.state['files']} files were not measured within {LIMIT_S:g} s"}
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                return {"reason": f"the process that measures ended with status {process.returncode}"}
            answer.seek(0)
            return dict(json.loads(answer.read().splitlines()[-1]))


def calibrate(setting: Setting) -> Calibration:
    """Measure what `dali-cpu` takes of the processor for a loader's chain, unless that is known or under way.

    Any thread may call this: a data set's own code is not asked for more files than it was when it was wrapped.
    """
    made = _made(setting)
    if made.state["state"] == "failed":
        return made
    known = _known.get(made.key)
    if known is None or known.stopped:
        known = _known[made.key] = made
        made.start()
    return known


def stop_calibrations() -> None:
    """End all processes that measure; they are measured anew when they are asked for again."""
    for calibration in list(_known.values()):
        calibration.stop()


def _made(setting: Setting) -> Calibration:
    source, program = setting.keyed.source, setting.program
    if setting.own is not None:
        return Calibration(reason="a DALI pipeline of your own (dali=) is not measured in advance")
    if setting.forms is not None:
        return Calibration(reason="what DALI takes beside code of your own is not measured in advance")
    if setting.others:
        return Calibration(reason="the parts of the ConcatDataset have different transforms")
    if program is None or program.rest is not None:
        return Calibration(reason="DALI leaves a part of these transforms to torchvision")
    try:
        located = [one for one in source.spread(FILES) if one.reason is None]
        files: Any = [source.absolute(one.path) if one.data is None else one.data for one in located]
        return Calibration(pickle.dumps((program, files, setting.fused(None))), len(files))
    except Exception as error:  # noqa: BLE001 - the user's data set, edited by another thread: the verdict shows it
        return Calibration(reason=private(f"its files cannot be sent to a process ({type(error).__name__}: {error})"))
