"""What a training step consists of: the wait for its batch, and the phases of what is done with it.

Nothing happens at import, and torch is imported only when a model is watched.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .manual_steps import phase, step
    from .model_watch import watch
    from .watched_loader import watch_loader

__all__ = ["phase", "step", "watch", "watch_loader"]

_MODULES = {"phase": "manual_steps", "step": "manual_steps", "watch": "model_watch", "watch_loader": "watched_loader"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
