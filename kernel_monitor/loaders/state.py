"""What a loader tells a monitor, as plain data."""

from __future__ import annotations

from typing import Any, TypedDict


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

    Each of `backends` has name, available, reason (why not) and confirm (what to ask a person first, or None); `skips`
    are the last few samples left out, each with index, path and reason; `expected` is the CPU time of loading with an
    engine over that with `torchvision`, by the maker of the processor, where it can be told before that engine has run.
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
