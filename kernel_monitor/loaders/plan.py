"""The plan of an epoch: the order of its samples, and the record of their delivery.

The wrapped loader's own batch sampler yields the order. A cursor draws it lazily on the thread that iterates; engines
take batches from the cursor and never choose them. Batches that were taken and not delivered (an engine failed, the
loop was interrupted) are given back and taken again first.
"""

from __future__ import annotations

import operator
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..errors import MonitorError
from ..protocol.states import EpochCounts
from ..text import line

KEPT = 1000  # the most fallbacks and skipped samples that are listed per epoch; the counts include all
EPOCHS_KEPT = 4


def mark_plain(error: BaseException) -> None:
    """Mark an exception that the wrapped DataLoader would raise, too, so that it is raised in the loop."""
    vars(error)["_is_plain"] = True


def is_plain(error: BaseException) -> bool:
    """Return whether an exception was marked by `mark_plain`."""
    return bool(vars(error).get("_is_plain"))


class Slot(NamedTuple):
    """A batch of the plan, as an engine receives it."""

    number: int  # the batch's number in its epoch, from 0
    epoch: int  # the epoch's number
    seed: int  # seed of the augmentation; it is sent with the batch, so that running workers use a new one
    indices: list[int]  # n numbers of samples: indices in the data set, or larger numbers that stand for other keys
    occurrences: list[int]  # n counts of how often that number occurred earlier in the epoch
    # Images that another engine has decoded, for a worker that transforms them; None in the plan.
    decoded: Any = None
    # The batch's files (`data.sent_files.SentFiles`), for a worker that cannot read them; None in the plan.
    sent: Any = None
    # n keys as the sampler gave them, for `__getitem__`; None if they are the indices.
    keys: Any = None

    def key(self, row: int) -> Any:
        """Return the key of a row for the data set's `__getitem__`."""
        return self.indices[row] if self.keys is None else self.keys[row]


def shown_key(key: Any) -> str:
    """Return a sample's key as text for users: an index as a number, any other key as its `repr`."""
    if isinstance(key, int | np.integer):
        return str(key)
    try:
        return line(repr(key))
    except Exception:  # noqa: BLE001 - the user's own class may raise anything
        return f"<{type(key).__name__}>"


@dataclass(frozen=True, slots=True)
class Fallback:
    """A sample that DALI did not decode and the torchvision path did."""

    index: Any  # index in the data set, or another key from the sampler
    path: str  # the file's path, as the data set gives it
    reason: str  # why the engine did not decode it


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out of its batch because its file could not be read."""

    index: Any  # index in the data set, or another key from the sampler
    path: str  # the file's path, as the data set gives it
    reason: str  # why the file could not be read


@dataclass
class EpochRecord:
    """The record of the samples planned and delivered in an epoch. Counts are samples, except where noted.

    At the end of an epoch without an error, samples + skipped + replaced == planned, and lost == doubled == 0.
    """

    number: int
    batches_planned: int | None  # batches, by the sampler's own length; None if it has no length
    samples_planned: int | None  # samples, by the sampler's own length; None if it has no length
    indices: array[int] = field(default_factory=lambda: array("q"))  # sample numbers in the order of the plan
    ends: array[int] = field(default_factory=lambda: array("q"))  # end of each batch in `indices`
    decoders: list[str] = field(default_factory=list)  # a name for each run of equal decoders
    runs: array[int] = field(default_factory=lambda: array("q"))  # the length of each run in `decoders`
    decoded: dict[str, int] = field(default_factory=dict)  # samples by the name of their decoder
    fallbacks: list[Fallback] = field(default_factory=list)  # the first `KEPT`
    skips: list[Skipped] = field(default_factory=list)  # the first `KEPT`
    before: int = 0  # samples of it that torch's own iterator delivered; their indices are not known
    passed: int = 0  # batches drawn that do not count, because the iteration began after them
    answered: int = 0  # batches up to the last that was answered: delivered, or raised as an exception
    batches: int = 0  # batches delivered, including those in which every sample was skipped
    samples: int = 0  # delivered samples
    skipped: int = 0  # unreadable samples, left out of their batches
    replaced: int = 0  # samples replaced by synthetic ones
    lost: int = 0  # planned samples that were not delivered
    doubled: int = 0  # delivered samples that were not planned, or had been delivered
    finished: bool = False  # the epoch came to its end
    counted: bool = False  # whether it ends with its last planned batch: frameworks request no further one
    length: int | None = None  # length of the data set
    # Whether the sampler takes one rank's share of the data set, by indices that are the same in all ranks.
    shared: bool = False
    keys: list[Any] = field(default_factory=list)  # keys that are no indices; their numbers begin at `length`

    @property
    def planned(self) -> int:
        """The samples of the whole epoch, or those drawn so far if the sampler has no length."""
        passed = self.ends[self.passed - 1] if self.passed else 0
        drawn = self.before + len(self.indices)
        return (drawn if self.samples_planned is None else self.samples_planned) - passed

    @property
    def in_flight(self) -> int:
        """The number of batches taken and not answered yet."""
        return len(self.ends) - self.answered

    def counts(self) -> EpochCounts:
        """Return the counts for pages and recordings."""
        return EpochCounts(
            epoch=self.number,
            batches=self.batches,
            samples=self.samples,
            planned=self.planned,
            lost=self.lost,
            doubled=self.doubled,
            skipped=self.skipped,
            replaced=self.replaced,
            decoded=dict(self.decoded),
            finished=self.finished,
        )

    def sampled(self) -> list[Any]:
        """Return the keys that the sampler gave so far: indices and others."""
        first = self.length or 0
        if not self.keys:
            return self.indices.tolist()
        return [number if number < first else self.keys[number - first] for number in self.indices]

    def batch(self, number: int) -> array[int]:
        """Return the sample numbers of a batch of the plan."""
        first = self.ends[number - 1] if number else 0
        return self.indices[first : self.ends[number]]

    def begin_after(self, batches: int) -> None:
        """Record that the iteration begins after that many batches, which were drawn and count as not planned."""
        self.passed = min(batches, len(self.ends))
        self.answered = max(self.answered, self.passed)
        if self.batches_planned is not None:
            self.batches_planned = max(0, self.batches_planned - self.passed)

    def raised(self, number: int) -> None:
        """Record a batch that was answered by an exception: it counts as neither delivered nor lost."""
        self._skip_to(number)
        self.answered = max(self.answered, number + 1)

    def delivered(
        self,
        number: int,
        indices: npt.NDArray[np.int64],
        decoders: list[str],
        skipped: Mapping[int, Skipped] = MappingProxyType({}),
        replaced: bool = False,
    ) -> None:
        """Record a delivered batch, and compare its samples with the plan.

        Args:
            number: the batch's number.
            indices: int64[n], the numbers of the samples that the engine computed, as its worker reported them.
            decoders: n names, of the decoder of each sample.
            skipped: the samples left out, by their row in the planned batch.
            replaced: whether the batch is synthetic; `indices` are then the numbers of the replaced samples.
        """
        self.batches += 1
        if replaced:
            self.replaced += len(indices)
        else:
            self.samples += len(indices)
        self.skipped += len(skipped)
        self.skips.extend(islice(skipped.values(), KEPT - len(self.skips)))
        if number < self.answered:
            self.doubled += len(indices)
        else:
            self._skip_to(number)
            planned = np.frombuffer(self.batch(number), dtype=np.int64)
            if skipped:
                planned = np.delete(planned, list(skipped))
            shared = min(len(planned), len(indices))
            right = int(np.count_nonzero(planned[:shared] == indices[:shared]))
            self.lost += len(planned) - right
            self.doubled += len(indices) - right
            self.answered = number + 1
        if self.counted and self.answered == self.batches_planned:
            self.finished = True
        for name, run in groupby(decoders):
            count = len(list(run))
            self.decoded[name] = self.decoded.get(name, 0) + count
            if self.decoders and self.decoders[-1] == name:
                self.runs[-1] += count
            else:
                self.decoders.append(name)
                self.runs.append(count)

    def add_fallbacks(self, fallbacks: Iterable[Fallback]) -> None:
        """Record fallbacks; only the first `KEPT` of the epoch are kept."""
        self.fallbacks.extend(islice(fallbacks, KEPT - len(self.fallbacks)))

    def finish(self) -> None:
        """Close the epoch: planned batches that were never answered are lost."""
        self._skip_to(len(self.ends))
        self.finished = True

    def _skip_to(self, number: int) -> None:
        self.lost += sum(len(self.batch(missing)) for missing in range(self.answered, number))
        self.answered = max(self.answered, number)


class EpochRecords:
    """The records of a loader's last four epochs; any thread may read them between batches."""

    def __init__(self) -> None:
        self.newest: EpochRecord | None = None  # the record of the epoch that began last; None before the first
        self._by_number: dict[int, EpochRecord] = {}

    def add_record(self, record: EpochRecord) -> None:
        """Add the record of an epoch that begins."""
        self._by_number.pop(record.number, None)
        self._by_number[record.number] = self.newest = record
        while len(self._by_number) > EPOCHS_KEPT:
            del self._by_number[next(iter(self._by_number))]

    def drop(self, record: EpochRecord) -> None:
        """Remove the record of the newest epoch, which delivered nothing."""
        if self._by_number.get(record.number) is record:
            del self._by_number[record.number]
            self.newest = next(reversed(self._by_number.values()), None)

    def plan(self, epoch: int | None = None) -> list[Any]:
        """Return the indices (or other keys) drawn so far in an epoch, in order; the newest epoch by default.

        Raises:
            MonitorError: the epoch has not begun, or is not among the last four.
        """
        return self._epoch(epoch).sampled()

    def decoded(self, epoch: int | None = None) -> dict[str, int]:
        """Return how many delivered samples of an epoch each decoder decoded."""
        return dict(self._epoch(epoch).decoded)

    def decoders(self, epoch: int | None = None) -> list[str]:
        """Return the name of the decoder of each delivered sample of an epoch, in the order of delivery."""
        record = self._epoch(epoch)
        return [name for name, run in zip(record.decoders, record.runs, strict=True) for _ in range(run)]

    def fallbacks(self, epoch: int | None = None) -> list[Fallback]:
        """Return the samples of an epoch (the first thousand) that DALI handed to the torchvision path, and why."""
        return list(self._epoch(epoch).fallbacks)

    def skipped(self, epoch: int | None = None) -> list[Skipped]:
        """Return the samples of an epoch (the first thousand) left out as unreadable, and why (on_error="skip")."""
        return list(self._epoch(epoch).skips)

    def records(self) -> list[EpochRecord]:
        """Return the last epochs, oldest first; may be called from any thread."""
        return list(self._by_number.values())

    def epochs(self) -> list[EpochCounts]:
        """Return the counts of the last epochs, oldest first; may be called from any thread."""
        return [record.counts() for record in self.records()]

    def _epoch(self, epoch: int | None) -> EpochRecord:
        record = self.newest if epoch is None else self._by_number.get(epoch)
        if record is None:
            kept = ", ".join(map(str, self._by_number)) or "none"
            raise MonitorError(f"epoch {epoch if epoch is not None else 0} is not recorded; epochs recorded: {kept}")
        return record


def own_batch(batch: Any) -> Any:
    """Return a copy of a sampler's batch, in the type that torch would pass on: samplers may reuse their list."""
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    return batch if type(batch) is tuple else list(batch)


class Undelivered:
    """An iterator over a sampler's batches that keeps those that the loop has not received yet."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._kept: deque[tuple[int, Any]] = deque()  # number and keys
        self._newest: Any = None  # the sampler's last batch, until it is kept
        self._drawn = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            self._newest = next(self._batches) if self._newest is None else self._newest
        except StopIteration:
            raise
        except Exception as error:
            mark_plain(error)
            raise
        try:
            batch = own_batch(self._newest)
        except TypeError as error:  # the sampler gave something that is no batch
            mark_plain(error)
            raise
        self._kept.append((self._drawn, batch))
        self._newest = None
        self._drawn += 1
        return batch

    def answered(self, number: int) -> None:
        """Drop the batches up to this number: the loop receives that batch, or an exception in its place."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()

    def keys(self, number: int) -> Any:
        """Return the keys of a batch that the loop has not received yet."""
        return next(keys for kept, keys in self._kept if kept == number)

    def rest(self) -> Iterator[tuple[int, Any]]:
        """Yield number and keys of each batch that the loop has not received yet; they are no longer kept."""
        while self._kept:
            yield self._kept.popleft()
        if self._newest is not None:
            yield self._drawn, self._newest
            self._drawn += 1
        yield from enumerate(self._batches, self._drawn)


class Cursor:
    """A cursor that draws an epoch's batches from a batch sampler's iterator; one thread at a time may take them.

    A batch has indices below `length`, or any other keys for `__getitem__`; the other keys are numbered from `length`
    on, in the order in which they appear.

    Args:
        batches: the sampler's iterator.
        record: the epoch's record.
        length: the length of the data set.
        seed: the seed of the augmentation.
        lookahead: number of batches that the wrapped loader would draw before it delivers the first; after that it
            draws a batch for each that is requested. The cursor draws exactly as many, even if an engine would take
            more. None: no limit.
    """

    def __init__(
        self, batches: Iterator[Any], record: EpochRecord, length: int, seed: int, lookahead: int | None = None
    ) -> None:
        self.record = record
        record.length = length
        self.seed = seed
        self.failure: Exception | None = None  # the exception of the user's sampler, which ends the plan
        self.undelivered = Undelivered(batches)
        self._drawn: Any = None  # the sampler's last batch, until it has a slot
        self._lookahead = lookahead
        self._limit = lookahead  # batches that may be drawn by now
        self._waiting: deque[Slot] = deque()  # batches drawn and not taken, or given back, in their order
        self._seen = np.zeros(length, dtype=np.uint32)
        self._length = length
        self._numbers: dict[Any, int] = {}  # numbers of the keys that are no indices
        self._ended = False

    @property
    def exhausted(self) -> bool:
        """Whether no batch is left."""
        return self._ended and not self._waiting

    def take(self) -> Slot | None:
        """Return the next batch of the plan; None if no batch is left, or if none may be drawn yet."""
        if self._waiting:
            return self._waiting.popleft()
        return self._draw() if self._limit is None or len(self.record.ends) < self._limit else None

    def ask(self) -> None:
        """Allow one more batch to be drawn, as the loop requests one."""
        if self._lookahead is not None:
            self._limit = self._lookahead + self.record.answered + 1

    def fill(self) -> None:
        """Draw as many batches as the wrapped loader would have drawn by now, even if no engine takes them yet."""
        while self._limit is not None and len(self.record.ends) < self._limit:
            slot = self._draw()
            if slot is None:
                return
            self._waiting.append(slot)

    def _draw(self) -> Slot | None:
        """Draw a batch; return None if the sampler has ended."""
        if self._ended:
            return None
        try:
            self._drawn = next(self.undelivered) if self._drawn is None else self._drawn
        except StopIteration:
            self._ended = True
            return None
        except Exception as error:
            if not is_plain(error):
                raise
            # The batches under way are delivered first; then the sampler's own error is raised in the loop.
            self._ended, self.failure = True, error
            return None
        slot = self._slot(self._drawn)
        self._drawn = None
        return slot

    def _slot(self, keys: Any) -> Slot:
        """Return the next slot of the plan, and add it to the record."""
        indices, other_keys = self._numbered(keys)
        occurrences = self._count(indices)
        record = self.record
        slot = Slot(len(record.ends), record.number, self.seed, indices, occurrences, keys=other_keys)
        record.indices.extend(indices)
        record.ends.append(len(record.indices))
        return slot

    def record_batch(self, number: int, keys: Any) -> None:
        """Add a batch to the record that was not taken here, but from `Undelivered.rest`."""
        if number >= len(self.record.ends):
            self._slot(keys)

    def give_back(self, slots: Iterable[Slot]) -> None:
        """Put batches that were taken and not delivered back at the front, in their order."""
        self._waiting = deque(sorted([*slots, *self._waiting], key=lambda slot: slot.number))

    def replay(self, drawn: int, answered: int) -> None:
        """Draw the first `drawn` batches of the plan; those from number `answered` on are to be taken again."""
        self.give_back(slot for slot in islice(iter(self._draw, None), drawn) if slot.number >= answered)
        self.undelivered.answered(answered - 1)
        if self._lookahead is not None:
            self._limit = self._lookahead + answered

    def _numbered(self, batch: Any) -> tuple[list[int], Any]:
        """Return the numbers of a batch's samples, and its keys, or None if the keys are the numbers."""
        all_ints = type(batch) is list and {int}.issuperset(map(type, batch))
        if all_ints and (not batch or (min(batch) >= 0 and max(batch) < self._length)):
            return list(batch), None
        keys = own_batch(batch)
        return [self._number(key) for key in keys], keys

    def _number(self, key: Any) -> int:
        try:
            number = operator.index(key)
        except Exception:  # noqa: BLE001 - it is no integer; the user's own class may raise anything
            number = -1
        if 0 <= number < self._length:
            return number
        next_number = self._length + len(self.record.keys)
        try:
            # A tensor's hash is its id, so each tensor gets a new number, as does a key that cannot be hashed.
            number = next_number if isinstance(key, torch.Tensor) else self._numbers.setdefault(key, next_number)
        except Exception:  # noqa: BLE001 - as above
            number = next_number
        if number == next_number:
            self.record.keys.append(key)
            self.record.shared = False
            if next_number >= len(self._seen):
                self._seen = np.concatenate([self._seen, np.zeros(max(1024, len(self._seen)), dtype=np.uint32)])
        return number

    def _count(self, indices: list[int]) -> list[int]:
        if len(set(indices)) == len(indices):
            earlier: list[int] = self._seen[indices].tolist()
            self._seen[indices] += 1
            return earlier
        counts = []
        for index in indices:
            counts.append(int(self._seen[index]))
            self._seen[index] += 1
        return counts
