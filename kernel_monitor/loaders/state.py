"""What a loader tells a monitor, as plain data."""

from __future__ import annotations

from typing import Any, TypedDict


class EpochCounts(TypedDict):
    """What became of one epoch: batches and samples delivered, samples planned, lost and doubled."""

    epoch: int
    batches: int
    samples: int
    planned: int
    lost: int
    doubled: int
    decoded: dict[str, int]


class LoaderState(TypedDict):
    """What a monitor shows of a loader; counts are of its newest epoch. See docs/architecture.md."""

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
    decoded: dict[str, int]
