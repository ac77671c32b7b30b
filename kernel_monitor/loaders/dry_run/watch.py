"""What a data set changes while samples are read: its own attributes, what its module keeps, files."""

from __future__ import annotations

import builtins
import io
import threading
from collections.abc import Callable
from typing import Any

CHANGES = "changes its own attributes"
WRITES = "writes files"
LARGE = 100_000  # elements: longer containers of the module are not watched


class Watch:
    """Watches one data set, on the thread that enters it; a context manager.

    Args:
        dataset: a copy of the user's.
        shared: the containers among its module's globals; restored at the end.

    Attributes:
        reason: what it changes, as the end of "The data set …"; None where nothing was seen.
    """

    def __init__(self, dataset: Any, shared: list[Any]) -> None:
        self.reason: str | None = None
        self._dataset = dataset
        self._shared = [(values, type(values)(values)) for values in shared if len(values) <= LARGE]
        self._state: Any = None
        self._thread = threading.get_ident()
        self._open = builtins.open

    def __enter__(self) -> Watch:
        opened = self._opener(self._open)
        builtins.open = io.open = opened
        return self

    def __exit__(self, *_: object) -> None:
        builtins.open = io.open = self._open
        for values, before in self._shared:
            if values != before:
                self.reason = self.reason or CHANGES
                values.clear()
                values.extend(before) if isinstance(values, list) else values.update(before)

    def look(self) -> None:
        """Compare with the look before. The first one comes after a sample: what is set once is no memory."""
        before, self._state = self._state, _state(self._dataset)
        if before is not None and before != self._state:
            self.reason = self.reason or CHANGES

    def _opener(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: Any = "r", *args: Any, **named: Any) -> Any:
            if threading.get_ident() == self._thread and isinstance(mode, str) and set(mode) & set("wax+"):
                self.reason = self.reason or WRITES
            return original(file, mode, *args, **named)

        return watched


def _state(value: Any) -> Any:
    """What an object and its class keep: attributes by identity, lengths of what can grow; also one level deeper."""
    found = _attributes(value)
    for inner in vars(value).values():
        if hasattr(inner, "__dict__") and not isinstance(inner, type):
            found += _attributes(inner)
    for kind in type(value).__mro__:
        found += [(name, id(kept), 0) for name, kept in vars(kind).items() if not callable(kept)]
    return found


def _attributes(value: Any) -> list[tuple[str, int, int]]:
    own = vars(value).items()
    return [(name, id(kept), len(kept) if isinstance(kept, list | dict | set) else 0) for name, kept in own]
