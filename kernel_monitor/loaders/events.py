"""Events of loaders, and their listeners, which run on the thread on which the event happened."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
Listener = Callable[[Event], None]

log = logging.getLogger(__name__)
_lock = threading.Lock()
_listeners: list[Listener] = []


def listen(callback: Listener) -> Callable[[], None]:
    """Call `callback(event)` at every event of every loader; returns the function that ends it.

    An event has `kind`, `monotonic` (s, of `time.monotonic()`), `loader` (its id), and the fields that docs/messages.md
    lists for its kind: `asked` and `first` in the same seconds. `waited` is at most `in_flight` + 1.
    """
    with _lock:
        _listeners.append(callback)

    def unlisten() -> None:
        with _lock:
            if callback in _listeners:
                _listeners.remove(callback)

    return unlisten


def emit(kind: str, loader: str, **fields: Any) -> None:
    with _lock:
        listeners = list(_listeners)
    event = {"kind": kind, "monotonic": time.monotonic(), "loader": loader, **fields}
    for listener in listeners:
        try:
            listener(dict(event))
        except Exception:  # a monitor's error must not end the training
            log.exception("a listener failed on %s", kind)


def forget() -> None:
    """Drop all listeners: nothing listens in a forked child."""
    _listeners.clear()
