"""Runs a sweep: row by row, pass by pass, engine by engine; keeps each pass as soon as it is whole, and shows how far
it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from ..privacy import error_text
from ..runtime import monitor
from .presets import Grid, Row, fused_of, order_of
from .sweep_file import SweepFile
from .table_cells import expected, of_windows
from .training import Timed, Training, TrainingLoop

# ---- The progress: a bar, what is measured and the time left.

_WIDTH = 24  # letters of the bar
_EVERY_S = 0.5
_LINES_S = 15.0  # between two lines where none can be written over


class Progress:
    """A line that is written over, on stderr; in a notebook on stdout. In a log file there are lines at a distance.

    `jupyter nbconvert` shows no output of a notebook before its end: such lines go to its own stderr as well.

    Args:
        passes, done: all, and those that an earlier run has measured.
        expected: s that a pass takes, until one is measured; None: that is not known.
    """

    def __init__(self, passes: int, done: int, *, expected: float | None = None, shown: bool = True) -> None:
        self._passes = passes
        self._resumed = self._done = done
        self._expected = expected
        self._shown = shown
        self._notebook = "ipykernel" in sys.modules
        self._live = sys.stderr.isatty() or self._notebook
        self._terminal = _terminal_of_nbconvert() if self._notebook else None
        self._began = time.monotonic()
        self._due = self._line_due = 0.0
        self._cell = ""
        self._longest = 0

    def cell(self, text: str) -> None:
        """Show this cell as the one that is measured from now on."""
        self._cell = text
        self._due = 0.0
        self.tell()

    def finished(self) -> None:
        """Count a pass as done."""
        self._done += 1
        self._due = 0.0
        self.tell()

    def tell(self) -> None:
        """Show how far it is; cheap, for every step."""
        now = time.monotonic()
        if not self._shown or now < self._due:
            return
        self._due = now + _EVERY_S
        line = self.line()
        if self._live:
            self._longest = max(self._longest, len(line))
            self._write(sys.stdout if self._notebook else sys.stderr, "\r" + line.ljust(self._longest))
        if now >= self._line_due:
            self._line_due = now + _LINES_S
            if not self._live:
                self._write(sys.stderr, line + "\n")
            if self._terminal is not None:
                self._write(self._terminal, f"kernel-monitor sweep: {line}\n")

    def end(self) -> None:
        if self._shown and self._live and self._longest:
            self._write(sys.stdout if self._notebook else sys.stderr, "\n")
        elif self._shown and not self._live and self._done > self._resumed:
            self._write(sys.stderr, f"{self._done} of {self._passes} passes are measured\n")

    def line(self) -> str:
        full = round(_WIDTH * self._done / max(1, self._passes))
        left = self.left()
        words = "" if left is None else f" · about {_words(left)} left"
        return f"[{'█' * full}{'·' * (_WIDTH - full)}] {self._done} of {self._passes} passes · {self._cell}{words}"

    def left(self) -> float | None:
        """s, by the passes that were measured now; before the first, by what is expected, or None."""
        made, spent = self._done - self._resumed, time.monotonic() - self._began
        missing = self._passes - self._done
        if made:
            return spent / made * missing
        return None if self._expected is None else max(0.0, self._expected * missing - spent)

    def _write(self, stream: Any, text: str) -> None:
        stream.write(text)
        stream.flush()


def _terminal_of_nbconvert() -> Any:
    """Return what `jupyter nbconvert` was started with as stderr, if it runs this notebook."""
    import psutil

    try:
        words = psutil.Process(os.getppid()).cmdline()
    except psutil.Error:
        return None
    # ipykernel's copy of the stderr that the kernel was started with: the descriptor itself leads to the notebook.
    copy = getattr(sys.stderr, "_original_stdstream_copy", None)
    if not isinstance(copy, int) or not any(word.endswith("nbconvert") for word in words):
        return None
    return os.fdopen(os.dup(copy), "w", encoding="utf-8", errors="replace")


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


# ---- The run.

_CALIBRATION_S = 60.0  # longest that the measurement of another engine on some files is waited for
Prepare = Callable[[Row], Training]


class SweepRun:
    """One run of a sweep, which may go on with what an earlier one has measured."""

    def __init__(self, grid: Grid, file: SweepFile, prepare: Prepare, progress: Progress) -> None:
        self._grid = grid
        self._file = file
        self._prepare = prepare
        self._progress = progress

    def rows(self) -> None:
        """Measure every pass that is not in the file."""
        for row in self._grid.rows:
            missing = [n for n in range(1, self._grid.passes + 1) if not self._file.has(row.name, n)]
            if missing:
                self._row(row, missing)

    def _row(self, row: Row, missing: list[int]) -> None:
        self._progress.cell(f"{row.name}, starting")
        try:
            training = self._prepare(row)
        except Exception as error:  # noqa: BLE001 - whatever a row's model or data raise: the other rows go on
            windows = {engine: {"problem": cause(error)} for engine in row.engines}
            for number in missing:
                self._keep(row, number, windows, {})
            return
        try:
            for number in missing:
                self._keep(row, number, *self._pass(row, training, number))
        finally:
            training.end()

    def _keep(self, row: Row, number: int, windows: dict[str, Any], predicted: dict[str, Any]) -> None:
        ordered = {engine: windows[engine] for engine in row.engines}
        self._file.add(
            {"row": row.name, "number": number, "ended": time.time(), "windows": ordered, "predicted": predicted}
        )
        self._progress.finished()

    def _pass(self, row: Row, training: Training, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Measure all engines of a row once; returns the windows by engine, and what was expected of those after the
        first.
        """
        loop = TrainingLoop(training, self._progress.tell)
        timed: dict[str, Timed] = {}
        windows: dict[str, Any] = {}
        predicted: dict[str, Any] = {}
        order = order_of(row, number)
        if number == 1 and any(engine.startswith("dali-cpu") for engine in order):
            self._calibrate(training)
        for engine in order:
            self._progress.cell(f"{row.name}, {engine}")
            try:
                timed[engine] = self._window(row, training, loop, engine, number)
            except Exception as error:  # noqa: BLE001 - whatever an engine or a model raise: the other cells go on
                windows[engine] = {"problem": cause(error)}
            if engine in windows:  # here, where the error no longer holds what is on the GPU
                loop = TrainingLoop(training, self._progress.tell, failed=True)
                if torch.cuda.is_initialized():
                    torch.cuda.empty_cache()
            elif engine == order[0] and number == 1:
                state: Any = training.loader.state()
                predicted = expected(timed[engine].label, monitor.snapshot(), state, order[1:])
        if timed:
            windows |= of_windows(timed, monitor.snapshot(), training.loader.id)
        return windows, predicted

    def _window(self, row: Row, training: Training, loop: TrainingLoop, engine: str, number: int) -> Timed:
        grid, fused = self._grid, fused_of(engine, row)
        if fused is not None and training.loader.fused_decode != fused:
            training.loader.fused_decode = fused
        loop.change(engine)
        label = f"{row.name}, {engine}, pass {number}"
        if grid.epochs:
            return loop.measure_epochs(engine, label, grid.epochs)
        return loop.measure(engine, label, grid.seconds, grid.steps)

    def _calibrate(self, training: Training) -> None:
        """Measure the other engine on some files while nothing else runs, for the prediction."""
        training.loader.calibrate()
        until = time.monotonic() + _CALIBRATION_S
        while any(one["state"] == "running" for one in training.loader.state()["calibration"].values()):
            if time.monotonic() > until:
                return  # the prediction then says that it is still being measured
            self._progress.tell()
            time.sleep(0.1)


def cause(error: BaseException) -> str:
    """Return the first line of an error, without folders."""
    lines = error_text(error).splitlines()
    return lines[0] if lines and lines[0] else type(error).__name__
