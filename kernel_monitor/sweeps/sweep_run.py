"""Runs a sweep: row by row, pass by pass, engine by engine, and keeps each pass as soon as it is whole."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ..privacy import error_text
from ..runtime import monitor
from .presets import Grid, Row, fused_of, order_of
from .progress_line import Progress
from .sweep_file import SweepFile
from .table_cells import expected, of_windows
from .training import Timed, Training, TrainingLoop

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
        """All engines of a row once: the windows by engine, and what was expected of the engines after the first."""
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
    """The first line of an error, without folders."""
    lines = error_text(error).splitlines()
    return lines[0] if lines and lines[0] else type(error).__name__
