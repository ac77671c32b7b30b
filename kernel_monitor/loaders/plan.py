"""The plan: which samples an epoch takes, in which order, and what has become of them.

The order is what the wrapped loader's own batch sampler yields. It is drawn lazily, by one cursor, on the thread
that iterates; engines take from the cursor and never choose. What was taken but not delivered (an engine that
broke, an interrupt) is given back and taken again first.
"""

from __future__ import annotations

import operator
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..errors import MonitorError
from ..protocol.states import EpochCounts
from ..text import line

KEPT = 1000  # fallbacks and skipped samples listed per epoch; the counts go on beyond it
EPOCHS_KEPT = 4


def mark_plain(error: BaseException) -> None:
    """Note of an exception that the wrapped DataLoader would raise as well, so that it is raised in the loop."""
    vars(error)["_is_plain"] = True


def is_plain(error: BaseException) -> bool:
    """Return whether an exception was marked by `mark_plain`."""
    return bool(vars(error).get("_is_plain"))


class Slot(NamedTuple):
    """One batch of the plan, as an engine receives it."""

    number: int  # of the batch in its epoch, from 0
    epoch: int  # number of the epoch
    seed: int  # of the augmentation. It travels with the batch, so that running workers use a new one
    indices: list[int]  # n numbers of samples: their indices in the data set, or what stands for keys that are none
    occurrences: list[int]  # n counts of how often that number came earlier in the epoch
    # images that another engine has made already, for a worker that does the rest; None in the plan
    decoded: Any = None
    # files that came with the batch (`data.sent_files.SentFiles`), for a worker that does not see them
    sent: Any = None
    # n keys as the sampler gave them, for `__getitem__`; None where they are the indices
    keys: Any = None

    def key(self, row: int) -> Any:
        """Return what the data set is asked for."""
        return self.indices[row] if self.keys is None else self.keys[row]


def shown_key(key: Any) -> str:
    """A sample's key for people: an index as a number, anything else as Python writes it."""
    if isinstance(key, int | np.integer):
        return str(key)
    try:
        return line(repr(key))
    except Exception:  # noqa: BLE001 - of a class of the user's
        return f"<{type(key).__name__}>"


@dataclass(frozen=True, slots=True)
class Fallback:
    """A sample that the engine in use handed to the torchvision path."""

    index: Any  # in the data set: what the sampler gave
    path: str  # of the file, as the data set gives it
    reason: str  # why the engine did not decode it


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out of its batch because its file could not be read."""

    index: Any  # in the data set: what the sampler gave
    path: str  # of the file, as the data set gives it
    reason: str  # what went wrong


@dataclass
class EpochRecord:
    """The samples planned and delivered in one epoch; counts are samples, except where noted.

    At the end of an epoch without an error, samples + skipped + replaced == planned, and lost == doubled == 0.
    """

    number: int
    batches_planned: int | None  # batches, by the sampler's own length; None where it has none
    samples_planned: int | None
    indices: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))  # of each batch in `indices`
    decoders: list[str] = field(default_factory=list)  # one name per run of equal decoders, see `runs`
    runs: array[int] = field(default_factory=lambda: array("q"))
    decoded: dict[str, int] = field(default_factory=dict)
    fallbacks: list[Fallback] = field(default_factory=list)
    skips: list[Skipped] = field(default_factory=list)
    passed: int = 0  # batches drawn that are not part of it, because the iteration began after them
    answered: int = 0  # batches answered, delivered or raised; and those before them
    batches: int = 0  # batches delivered, those included in which every sample was skipped
    samples: int = 0  # delivered
    skipped: int = 0  # left out of their batches as unreadable
    replaced: int = 0  # places that were taken by synthetic ones
    lost: int = 0
    doubled: int = 0
    finished: bool = False
    length: int | None = None  # of the data set
    # whether its sampler takes one rank's share of the data set, by indices, which other ranks have, too
    shared: bool = False
    keys: list[Any] = field(default_factory=list)  # that are no indices; their numbers follow those of the data set

    @property
    def planned(self) -> int:
        """Samples of the whole epoch; those drawn so far if the sampler has no length."""
        passed = self.ends[self.passed - 1] if self.passed else 0
        return (len(self.indices) if self.samples_planned is None else self.samples_planned) - passed

    @property
    def in_flight(self) -> int:
        """Batches taken and not answered yet."""
        return len(self.ends) - self.answered

    def counts(self) -> EpochCounts:
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
        """Return what the sampler gave so far: indices, and the keys that are none."""
        first = self.length or 0
        if not self.keys:
            return self.indices.tolist()
        return [number if number < first else self.keys[number - first] for number in self.indices]

    def batch(self, number: int) -> array[int]:
        """Indices of one batch of the plan."""
        first = self.ends[number - 1] if number else 0
        return self.indices[first : self.ends[number]]

    def begin_after(self, batches: int) -> None:
        """Note that the iteration begins after that many batches, which were drawn: neither delivered nor lost."""
        self.passed = min(batches, len(self.ends))
        self.answered = max(self.answered, self.passed)
        if self.batches_planned is not None:
            self.batches_planned = max(0, self.batches_planned - self.passed)

    def raised(self, number: int) -> None:
        """Note a batch that was answered by an exception: neither delivered nor lost."""
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
        """Note a delivered batch, comparing what the engine computed with the plan.

        Args:
            number: of the batch.
            indices: int64[n] that the engine computed, from where it was computed.
            decoders: n names of what decoded each sample.
            skipped: samples left out, by their row in the planned batch.
            replaced: whether the batch is synthetic; `indices` are then those whose places it takes.
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
        for name in decoders:
            self.decoded[name] = self.decoded.get(name, 0) + 1
            if self.decoders and self.decoders[-1] == name:
                self.runs[-1] += 1
            else:
                self.decoders.append(name)
                self.runs.append(1)

    def note(self, fallbacks: Iterable[Fallback]) -> None:
        """Keep the first `KEPT` fallbacks of the epoch."""
        self.fallbacks.extend(islice(fallbacks, KEPT - len(self.fallbacks)))

    def finish(self) -> None:
        """Close the epoch: what was planned and never answered is lost."""
        self._skip_to(len(self.ends))
        self.finished = True

    def _skip_to(self, number: int) -> None:
        self.lost += sum(len(self.batch(missing)) for missing in range(self.answered, number))
        self.answered = max(self.answered, number)


class EpochRecords:
    """The records of a loader's last four epochs, as questions that any thread may ask between batches."""

    def __init__(self) -> None:
        self.newest: EpochRecord | None = None  # of the epoch that began last; None before the first
        self._by_number: dict[int, EpochRecord] = {}

    def enter(self, record: EpochRecord) -> None:
        """Keep the record of an epoch that begins."""
        self._by_number.pop(record.number, None)
        self._by_number[record.number] = self.newest = record
        while len(self._by_number) > EPOCHS_KEPT:
            del self._by_number[next(iter(self._by_number))]

    def drop(self, record: EpochRecord) -> None:
        """Forget the newest epoch, which delivered nothing."""
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
        """Return what decoded each delivered sample of an epoch, in the order of delivery."""
        record = self._epoch(epoch)
        return [name for name, run in zip(record.decoders, record.runs, strict=True) for _ in range(run)]

    def fallbacks(self, epoch: int | None = None) -> list[Fallback]:
        """Return the samples of an epoch (the first thousand) that DALI handed to the torchvision path, and why."""
        return list(self._epoch(epoch).fallbacks)

    def skipped(self, epoch: int | None = None) -> list[Skipped]:
        """Return the samples of an epoch (the first thousand) left out as unreadable, and why (on_error="skip")."""
        return list(self._epoch(epoch).skips)

    def records(self) -> list[EpochRecord]:
        """The last epochs, oldest first; may be called from any thread."""
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


def _own_batch(batch: Any) -> Any:
    """A copy of a sampler's batch, as samplers fill one list again and again; of the type that torch hands on."""
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    return batch if type(batch) is tuple else list(batch)


class Undelivered:
    """A sampler's batches as it gives them; those that the loop has not got yet are kept."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._kept: deque[tuple[int, Any]] = deque()  # number and keys
        self._newest: Any = None  # what the sampler gave last, until it is kept
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
            batch = _own_batch(self._newest)
        except TypeError as error:  # it is no batch
            mark_plain(error)
            raise
        self._kept.append((self._drawn, batch))
        self._newest = None
        self._drawn += 1
        return batch

    def answered(self, number: int) -> None:
        """The loop gets the batch with this number, or the exception that answers it; batches come in their order."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()

    def keys(self, number: int) -> Any:
        """The keys of a batch that the loop has not got yet."""
        return next(keys for kept, keys in self._kept if kept == number)

    def rest(self) -> Iterator[tuple[int, Any]]:
        """Return what the loop has not got yet, numbers and keys in the sampler's order.

        Nothing is kept of it any more.
        """
        while self._kept:
            yield self._kept.popleft()
        if self._newest is not None:
            yield self._drawn, self._newest
            self._drawn += 1
        yield from enumerate(self._batches, self._drawn)


class Cursor:
    """Draws one epoch's batches from a batch sampler's iterator; one thread at a time takes.

    A batch is of indices below `length`, that of the data set, or of whatever else its `__getitem__` takes: a key that
    is no such index has a number above them, in the order in which keys appear.

    `lookahead` is the number of batches that the wrapped loader draws before it has delivered any; it then draws one
    for each that is asked for. Here exactly as many are drawn, whatever an engine would take. None: any number.
    """

    def __init__(
        self, batches: Iterator[Any], record: EpochRecord, length: int, seed: int, lookahead: int | None = None
    ) -> None:
        self.record = record
        record.length = length
        self.seed = seed
        self.failure: Exception | None = None  # raised by the user's sampler; the plan ends there
        self.undelivered = Undelivered(batches)
        self._drawn: Any = None  # what the sampler gave last, until there is a slot of it
        self._lookahead = lookahead
        self._limit = lookahead  # batches that may be drawn by now
        self._waiting: deque[Slot] = deque()  # drawn and not taken, or given back: in their order
        self._seen = np.zeros(length, dtype=np.uint32)
        self._length = length
        self._numbers: dict[Any, int] = {}  # of the keys that are no indices
        self._ended = False

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to take."""
        return self._ended and not self._waiting

    def take(self) -> Slot | None:
        """Return the next batch of the plan; None when there is none left, or none may be drawn yet."""
        if self._waiting:
            return self._waiting.popleft()
        return self._draw() if self._limit is None or len(self.record.ends) < self._limit else None

    def ask(self) -> None:
        """The loop asks for one batch more: as many more may be drawn."""
        if self._lookahead is not None:
            self._limit = self._lookahead + self.record.answered + 1

    def fill(self) -> None:
        """Draw as far as the wrapped loader would have drawn by now, though no engine takes that much."""
        while self._limit is not None and len(self.record.ends) < self._limit:
            slot = self._draw()
            if slot is None:
                return
            self._waiting.append(slot)

    def _draw(self) -> Slot | None:
        """Ask the sampler; None where it has ended."""
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
            # Batches already under way are delivered first; then the loop sees the sampler's own error.
            self._ended, self.failure = True, error
            return None
        slot = self._slot(self._drawn)
        self._drawn = None
        return slot

    def _slot(self, keys: Any) -> Slot:
        """The next slot of the plan, in the record."""
        indices, odd = self._numbered(keys)
        occurrences = self._count(indices)
        record = self.record
        slot = Slot(len(record.ends), record.number, self.seed, indices, occurrences, keys=odd)
        record.indices.extend(indices)
        record.ends.append(len(record.indices))
        return slot

    def enter(self, number: int, keys: Any) -> None:
        """Enter a batch that is not taken from here, but by `Undelivered.rest`, into the record."""
        if number >= len(self.record.ends):
            self._slot(keys)

    def give_back(self, slots: Iterable[Slot]) -> None:
        """Put batches that were taken and not delivered at the front again, in their order."""
        self._waiting = deque(sorted([*slots, *self._waiting], key=lambda slot: slot.number))

    def replay(self, drawn: int, answered: int) -> None:
        """Draw the first `drawn` batches of the plan; those from number `answered` on are then taken again."""
        self.give_back(slot for slot in islice(iter(self._draw, None), drawn) if slot.number >= answered)
        self.undelivered.answered(answered - 1)
        if self._lookahead is not None:
            self._limit = self._lookahead + answered

    def _numbered(self, batch: Any) -> tuple[list[int], Any]:
        """The numbers of a batch's samples, and its keys; None for these where they are the numbers."""
        plain = type(batch) is list and {int}.issuperset(map(type, batch))
        if plain and (not batch or (min(batch) >= 0 and max(batch) < self._length)):
            return list(batch), None
        keys = _own_batch(batch)
        return [self._number(key) for key in keys], keys

    def _number(self, key: Any) -> int:
        try:
            number = operator.index(key)
        except Exception:  # noqa: BLE001 - no integer; a class of the user's may raise anything
            number = -1
        if 0 <= number < self._length:
            return number
        fresh = self._length + len(self.record.keys)
        try:
            # A tensor's hash is its id, so that no other one is the same; and what cannot be hashed is none.
            number = fresh if isinstance(key, torch.Tensor) else self._numbers.setdefault(key, fresh)
        except Exception:  # noqa: BLE001 - as above
            number = fresh
        if number == fresh:
            self.record.keys.append(key)
            self.record.shared = False
            if fresh >= len(self._seen):
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
