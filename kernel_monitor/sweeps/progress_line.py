"""The progress of a sweep: one line with a bar, the cell and the time left."""

from __future__ import annotations

import sys
import time

WIDTH = 24  # letters of the bar
EVERY_S = 0.5


class Progress:
    """A line that is written over, on stderr; in a notebook on stdout. In a log file each pass is a line of its own.

    Until the first pass is done, the time left is computed from `pass_s`, the seconds that one is expected to take.
    """

    def __init__(self, passes: int, done: int, *, pass_s: float = 0.0, shown: bool = True) -> None:
        self._passes = passes
        self._pass_s = pass_s
        self._resumed = self._done = done
        self._shown = shown
        self._notebook = "ipykernel" in sys.modules
        self._live = sys.stderr.isatty() or self._notebook
        self._began = time.monotonic()
        self._due = 0.0
        self._cell = ""
        self._longest = 0

    def cell(self, text: str) -> None:
        """This cell is measured from now on."""
        is_first = not self._cell
        self._cell = text
        self._due = 0.0
        if is_first and not self._live:
            self._write(self.line() + "\n")
        self.tell()

    def finished(self) -> None:
        """A pass is done."""
        self._done += 1
        if not self._live:
            self._write(self.line() + "\n")

    def tell(self) -> None:
        """Show how far it is; cheap, for every step."""
        now = time.monotonic()
        if self._live and now >= self._due:
            self._due = now + EVERY_S
            line = self.line()
            self._longest = max(self._longest, len(line))
            self._write("\r" + line.ljust(self._longest))

    def end(self) -> None:
        if self._live and self._longest:
            self._write("\n")

    def line(self) -> str:
        full = round(WIDTH * self._done / max(1, self._passes))
        left = self.left()
        words = "" if left is None else f" · about {_words(left)} left"
        return f"[{'█' * full}{'·' * (WIDTH - full)}] {self._done} of {self._passes} passes · {self._cell}{words}"

    def left(self) -> float | None:
        """s, by the passes that were measured now, before the first by what was expected; None: nothing is known."""
        made, taken = self._done - self._resumed, time.monotonic() - self._began
        if not made:
            return max(self._pass_s, self._pass_s * (self._passes - self._done) - taken) if self._pass_s else None
        return taken / made * (self._passes - self._done)

    def _write(self, text: str) -> None:
        if self._shown:
            stream = sys.stdout if self._notebook else sys.stderr
            stream.write(text)
            stream.flush()


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
