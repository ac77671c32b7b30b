"""What a loader tells a monitor, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

from ..paths import last_part, private

if TYPE_CHECKING:
    from .data.sources import FileSource
    from .engines.backends import Backend
    from .plan import Skipped


class EpochCounts(TypedDict):
    """What became of one epoch: batches and samples delivered; samples planned, skipped, replaced, lost and doubled."""

    epoch: int
    batches: int
    samples: int
    planned: int
    lost: int
    doubled: int
    skipped: int
    replaced: int
    decoded: dict[str, int]


class KnobsState(TypedDict):
    """The knobs as they are set; `threads` is None where no DALI backend can run. See `Knobs`."""

    workers: int
    prefetch: int
    threads: int | None


class LoaderState(TypedDict):
    """What a monitor shows of a loader; counts are of its newest epoch. See docs/architecture.md.

    Each of `backends` has name, available, reason (why not), confirm (what to ask a person first, or None) and note
    (which part of the transforms it leaves to others, or None); `skips` are the last few samples left out, each with
    index, path (the file's name: states are recorded and sent to others) and reason; `expected` is the CPU time of
    loading with an engine over that with `torchvision`, by the maker of the processor, where it can be told before that
    engine has run.
    """

    id: str
    name: str
    backend: str
    wanted: str | None
    status: str
    backends: list[dict[str, Any]]
    epoch: int
    batch: int
    batches: int | None
    samples: int
    planned: int
    lost: int
    doubled: int
    skipped: int
    replaced: int
    skips: list[dict[str, Any]]
    knobs: KnobsState
    decoded: dict[str, int]
    expected: dict[str, dict[str, float]]


KNOWN_FILES = 100


def some_paths(source: FileSource) -> list[str]:
    """Paths from the root of files that are spread over a data set."""
    step = max(1, len(source) // KNOWN_FILES)
    found: list[str] = []
    for index in range(0, len(source), step):
        # The user's own code may fail here as well, and it is another error that is told.
        with suppress(Exception):
            located = source.locate(index)
            found += [] if located.data is not None else [source.absolute(located.path)]
    return found


def shown_backend(name: str, backend: Backend) -> dict[str, Any]:
    """A backend for the state: without folders in its reason, as states are recorded and sent to others."""
    reason = None if backend.reason is None else _private(backend.reason)
    return {"name": name, **backend._replace(reason=reason)._asdict()}


def shown_skip(skipped: Skipped, absolute: Callable[[str], str]) -> dict[str, Any]:
    """A sample left out, for the state: its file by its last part, which the reason has too.

    Args:
        skipped: as `SwitchableLoader.skipped` gives it, with the whole path.
        absolute: makes of a path as the data set gives it one from the root.
    """
    reason = _private(skipped.reason, skipped.path, absolute(skipped.path))
    return {"index": skipped.index, "path": last_part(skipped.path), "reason": reason}


_private = lru_cache(maxsize=512)(private)  # a state is asked for ten times a second
