"""A switchable loader as a framework wants it: from some batches later on, or with its batches converted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Skippable(Protocol):
    """What a view needs of a `SwitchableLoader`, or of another view."""

    def __len__(self) -> int: ...

    def iterate(self, skipped: int = 0) -> Iterator[Any]: ...


class LoaderView:
    """What `SwitchableLoader.skip` returns. Every iteration of it is one of the loader, which a monitor shows.

    Everything else is the loader's own: `switch`, `set_epoch`, `state_dict`, its attributes, which may be assigned.

    Args:
        loader: or a view of one.
        skipped: batches after which an iteration begins.
        convert: applied to each batch.
    """

    __slots__ = ("__weakref__", "_convert", "_loader", "_skipped")

    _loader: Skippable
    _skipped: int
    _convert: Callable[[Any], Any] | None

    def __init__(self, loader: Skippable, skipped: int = 0, convert: Callable[[Any], Any] | None = None) -> None:
        for name, value in (("_loader", loader), ("_skipped", skipped), ("_convert", convert)):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, loader: Any, convert: Callable[[Any], Any]) -> LoaderView:
        """The same batches, converted."""
        return cls(loader, 0, convert)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __len__(self) -> int:
        return max(0, len(self._loader) - self._skipped)

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
        return LoaderView(self, checked(batches))


def checked(batches: int) -> int:
    """A number of batches to skip.

    Raises:
        ValueError: it is negative.
    """
    if batches < 0:
        raise ValueError(f"skip() takes a number of batches, not {batches}")
    return int(batches)
