"""What the kernel tells the sampler: JSON lines on its stdin (`docs/architecture.md`, *Kernel to sampler*)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .recording import Recording

RECORDED = ("event", "values", "steps", "loaders", "epochs", "facts", "goodbye")


class Commands:
    """Does what the lines say.

    Args:
        on_interval: told the new interval in seconds.
        on_workers: told the numbers of the loaders' worker processes.
        recording: given everything that belongs into the session's file.
        warn: told what cannot be understood, in words.
    """

    def __init__(
        self,
        on_interval: Callable[[float], None],
        on_workers: Callable[[list[int]], None],
        recording: Recording,
        warn: Callable[[str], None],
    ) -> None:
        self._on_interval = on_interval
        self._on_workers = on_workers
        self._recording = recording
        self._warn = warn

    def run(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            try:
                command: Any = json.loads(line)
                do = command["do"]
                if do in RECORDED:
                    self._recording.command(command)
                else:
                    self._steer(do, command)
            except (ValueError, TypeError, KeyError) as error:
                self._warn(f"the sampler does not understand {line[:80]!r}: {type(error).__name__}: {error}")

    def _steer(self, do: str, command: dict[str, Any]) -> None:
        """Raises ValueError, TypeError or KeyError for what makes no sense."""
        if do == "interval":
            seconds = float(command["seconds"])
            if not 0.01 <= seconds <= 60:
                raise ValueError(f"the interval is {seconds:g} s; it must lie between 0.01 and 60 s")
            self._on_interval(seconds)
        elif do == "roles":
            self._on_workers([int(pid) for pid in command["workers"]])
        elif do == "record":
            path = command["path"]
            if path is None:
                self._recording.stop()
            else:
                self._recording.start(Path(path))
        else:
            self._warn(f"the sampler knows no such command: {str(do)[:80]!r}")
