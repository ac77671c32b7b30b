"""The living loaders of this process, weakly held. In a forked child there are none."""

from __future__ import annotations

import os
import threading
import weakref

from . import events
from .loader import SwitchableLoader

_lock = threading.Lock()
_live: weakref.WeakValueDictionary[str, SwitchableLoader] = weakref.WeakValueDictionary()
# A child's copies of the parent's loaders: kept, because to destroy them would end threads that it does not have.
_inherited: list[SwitchableLoader] = []


def register(loader: SwitchableLoader) -> None:
    """Enter a loader that is complete: other threads may use it at once."""
    with _lock:
        _live[loader.id] = loader


def live() -> list[SwitchableLoader]:
    """Every loader that is still in use, oldest first."""
    with _lock:
        return list(_live.values())


def _in_child() -> None:
    global _lock  # noqa: PLW0603 - a lock is replaced, not a value
    _lock = threading.Lock()  # some other thread of the parent may have held it
    _inherited.extend(_live.values())
    _live.clear()
    events.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
