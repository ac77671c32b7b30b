"""What a training step consists of: the wait for its batch, and the phases of what is done with it.

Nothing happens at import, and torch is imported only when a model is watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .by_hand import phase, step
    from .iterables import watch_loader
    from .watching import watch

__all__ = ["phase", "step", "watch", "watch_loader"]


def __getattr__(name: str) -> Any:
    if name == "watch_loader":
        from .iterables import watch_loader

        return watch_loader
    if name == "watch":
        from .watching import watch

        return watch
    if name in ("phase", "step"):
        from . import by_hand

        return getattr(by_hand, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
