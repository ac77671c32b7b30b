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

    An event has `kind`, `monotonic` (s, of `time.monotonic()`), `loader` (its id), and by kind:
    `switch-asked` source, target · `engine-ready` target · `switch` source, target, epoch, batch, asked, first
    (both s, monotonic), waited (batches from `engine-ready` to this first one, itself included), in_flight (batches
    under way at `engine-ready`: `waited` is at most one more) · `switch-failed` target, message ·
    `switch-superseded` target · `switch-cancelled` target (the loader was released or dropped before it took effect) ·
    `knobs` workers, prefetch, threads, message (the values from the next batch on; with a message, the cause: the old
    values again, because an engine did not start with the new ones).
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
