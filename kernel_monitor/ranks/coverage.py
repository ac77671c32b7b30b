"""The samples of a data set that all ranks of a job together delivered in an epoch: each once, or not."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .rank_frames import Chunk

LARGEST = 64_000_000  # samples of a data set that are counted, a byte each
MOST_RANKS = 1024  # of an epoch


@dataclass(frozen=True)
class Covered:
    """Counts of an epoch over all ranks; of samples."""

    once: int  # of the data set, that were delivered at least once
    skipped: int  # that could not be read, or whose places synthetic ones took
    length: int  # of the data set
    padded: int  # delivered again by the samplers' plan, so that each rank has as many
    doubled: int  # delivered again beyond that
    lost: int  # that nobody delivered, once every rank has finished; what the samplers leave out is not
    finished: bool  # by every rank


@dataclass
class _Rank:
    place: int = 0  # of its plan, that has come
    end: int = 0  # of its plan, that it has delivered
    planned: int = 0
    finished: bool = False
    skipped: int = 0
    lost: int = 0
    doubled: int = 0
    begun: bool = False


@dataclass
class Coverage:
    """One epoch of one loader of a job with `world` ranks."""

    length: int
    world: int
    shared: bool = True  # whether every rank's sampler takes its share: else nothing can be said
    told: bool = False  # whether it was said that it is finished
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _times: npt.NDArray[np.uint8] = field(init=False)
    _once: int = 0
    _all: int = 0

    def __post_init__(self) -> None:
        self._times = np.zeros(self.length if self.length <= LARGEST else 0, dtype=np.uint8)

    def add(self, rank: int, chunk: Chunk, indices: bytes) -> int:
        """Count what a rank delivered; returns how much of its plan has come. What came before is not counted again."""
        if rank not in self._ranks and len(self._ranks) >= MOST_RANKS:
            self.shared = False  # nothing is claimed
            return chunk.start + chunk.samples
        own = self._ranks.setdefault(rank, _Rank())
        if not own.begun:
            own.begun, own.place = True, chunk.first
        own.planned, own.finished, own.end = chunk.planned, chunk.finished, chunk.end
        own.skipped, own.lost, own.doubled = chunk.skipped, chunk.lost, chunk.doubled
        self.shared = self.shared and chunk.shared and chunk.length == self.length == len(self._times)
        again = own.place - chunk.start
        if 0 <= again < chunk.samples:
            fresh = np.frombuffer(indices, dtype="<u4")[again:]
            places, times = np.unique(fresh[fresh < len(self._times)], return_counts=True)
            before = self._times[places]
            self._once += int(np.count_nonzero(before == 0))
            self._all += int(times.sum())
            self._times[places] = np.minimum(255, before + times)
            own.place = chunk.start + chunk.samples
        return own.place

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self._times)

    def has(self, rank: int) -> bool:
        """Return whether this rank has a part in it."""
        return rank in self._ranks

    def covered(self) -> Covered | None:
        """Return the counts; None where a sampler does not share out, or not every rank has begun."""
        if not self.shared or len(self._ranks) < self.world:
            return None
        ranks = self._ranks.values()
        # What a rank's plan has and the rank did not deliver, by its own count, was not delivered.
        skipped, lost = sum(rank.skipped for rank in ranks), sum(rank.lost for rank in ranks)
        again = self._all - self._once
        planned = sum(rank.planned for rank in ranks)
        padded = min(again, max(0, planned - self.length))
        finished = all(rank.finished and rank.place >= rank.end for rank in ranks)
        if finished:
            lost += max(0, min(self.length, planned) - self._once)  # of no rank's plan, beyond what is left out
        once = max(0, self._once - skipped - sum(rank.lost for rank in ranks))
        doubled = again - padded + sum(rank.doubled for rank in ranks)
        return Covered(once, skipped, self.length, padded, doubled, lost, finished)
