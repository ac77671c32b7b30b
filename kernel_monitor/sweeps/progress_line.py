"""The progress of a sweep: a bar, what is measured and the time left."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

WIDTH = 24  # letters of the bar
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
        """This cell is measured from now on."""
        self._cell = text
        self._due = 0.0
        self.tell()

    def finished(self) -> None:
        """A pass is done."""
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
        full = round(WIDTH * self._done / max(1, self._passes))
        left = self.left()
        words = "" if left is None else f" · about {_words(left)} left"
        return f"[{'█' * full}{'·' * (WIDTH - full)}] {self._done} of {self._passes} passes · {self._cell}{words}"

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
