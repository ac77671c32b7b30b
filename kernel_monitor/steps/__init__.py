"""What a training step consists of: the wait for its batch, and the phases of what is done with it.

Nothing happens at import, and torch is imported only when a model is watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .manual_steps import phase, step
    from .model_watch import watch
    from .watched_loader import watch_loader

__all__ = ["phase", "step", "watch", "watch_loader"]


def __getattr__(name: str) -> Any:
    if name == "watch_loader":
        from .watched_loader import watch_loader

        return watch_loader
    if name == "watch":
        from .model_watch import watch

        return watch
    if name in ("phase", "step"):
        from . import manual_steps

        return getattr(manual_steps, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
