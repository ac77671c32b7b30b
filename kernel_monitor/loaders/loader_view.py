"""A switchable loader as a framework wants it: from some batches later on, or with its batches converted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class LoaderView:
    """What `SwitchableLoader.skip` returns. Every iteration of it is one of the loader, which a monitor shows.

    Everything else is the loader's own: `switch`, `set_epoch`, `state_dict`, its attributes, which may be assigned.

    Args:
        loader: a `SwitchableLoader`, or a view of one.
        convert: applied to each batch.
        skipped: batches after which an iteration begins.

    Raises:
        ValueError: `skipped` is negative.
    """

    __slots__ = ("__weakref__", "_convert", "_loader", "_skipped")

    def __init__(self, loader: Any, convert: Callable[[Any], Any] | None = None, skipped: int = 0) -> None:
        if skipped < 0:
            raise ValueError(f"skip() takes a number of batches, not {skipped}")
        for name, value in (("_loader", loader), ("_skipped", int(skipped)), ("_convert", convert)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __len__(self) -> int:
        return max(0, len(self._loader) - int(self._skipped))

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def __repr__(self) -> str:
        return f"{self._loader!r} after {self._skipped} batches" if self._skipped else repr(self._loader)

    def __reduce__(self) -> Any:
        return self._loader.__reduce__()

    def iterate(self, skipped: int = 0) -> Iterator[Any]:
        """Begin an iteration that many batches later."""
        batches = self._loader.iterate(self._skipped + skipped)
        return batches if self._convert is None else map(self._convert, batches)

    def skip(self, batches: int) -> LoaderView:
        """See `SwitchableLoader.skip`; counted from where this one begins."""
        return LoaderView(self, skipped=batches)
