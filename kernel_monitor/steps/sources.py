"""What steps in this process without being switchable: watched iterables and loops under `monitor.step()`."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..text import given
from .step_meter import Meter

if TYPE_CHECKING:
    from ..protocol.states import EngineState, EpochCounts, LoaderState

EPOCHS_KEPT = 4  # epochs of a source whose counts are kept
EMPTY_KEPT = (
    50  # of those that delivered nothing: of an iterator at its end they pass between two readings of the counts
)

_lock = threading.Lock()
_live: weakref.WeakValueDictionary[int, Source] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def next_number() -> int:
    """A number for a loader, from 1, never used again: switchable loaders and sources share them."""
    with _lock:
        return next(_numbers)


def live() -> list[Source]:
    """Every source that is still in use, oldest first. In a forked child there are none."""
    with _lock:
        return [source for _, source in sorted(_live.items())]


@dataclass(slots=True)
class Epoch:
    """What one iteration has delivered."""

    number: int
    planned: int | None  # samples; None: not known
    batches: int = 0
    samples: int = 0
    finished: bool = False  # its end was reached


class EpochLog:
    """The newest epochs of a source; it may outlive the source, and holds nothing of what that iterates over."""

    def __init__(self) -> None:
        self._epochs: list[Epoch] = []

    def begin(self, planned: int | None) -> Epoch:
        """A new epoch, of so many samples if that is known."""
        delivered = [one for one in self._epochs if one.batches][1 - EPOCHS_KEPT :]
        empty = [one for one in self._epochs if not one.batches][-EMPTY_KEPT:]
        epoch = Epoch(self._epochs[-1].number + 1 if self._epochs else 0, planned)
        self._epochs = [*sorted((*delivered, *empty), key=lambda one: one.number), epoch]
        return epoch

    def counts(self) -> list[EpochCounts]:
        """Of each, oldest first, as a switchable loader's."""
        return [_counts(epoch) for epoch in self._epochs]


class Source:
    """A loop whose steps are measured and whose data comes from elsewhere."""

    def __init__(
        self,
        name: str | None,  # for people, kept as one line of at most 80 letters; None: the id
        batches: Callable[[], int | None] = lambda: None,  # how many an epoch has, asked at its beginning, if known
        planned: Callable[[], int | None] = lambda: None,  # the same for samples
        engines: Sequence[EngineState] = (),  # that might be thought of for it, none of which can be chosen
    ) -> None:
        name = None if name is None else given(name, "The name of a loop") or None
        number = next_number()
        self.id = f"loader-{number}"
        self.name = self.id if name is None else name
        self.meter = Meter(self.id)
        self._batches = batches
        self._planned = planned
        self.engines = list(engines)
        self._length: int | None = None
        self.log = EpochLog()
        with _lock:
            _live[number] = self

    def begin(self) -> Epoch:
        self._length = self._batches()
        return self.log.begin(self._planned())

    def state(self) -> LoaderState:
        """As a switchable loader's; there is nothing to switch and no knob."""
        counts = self.log.counts()
        newest = counts[-1] if counts else _counts(Epoch(0, None))
        return {
            "id": self.id,
            "name": self.name,
            "backend": "loader",
            "wanted": None,
            "status": status(newest) if counts else "watched",
            "backends": self.engines,
            "batch": newest["batches"],
            "skips": [],
            "calibration": {},
            "ended": False,
            "nodes": 0,
            "remote": None,
            "ranks": 0,
            "padded": 0,
            "once": False,
            "knobs": {"workers": None, "prefetch": None, "threads": None},
            **newest,
            "batches": self._length,
        }

    def epochs(self) -> list[EpochCounts]:
        """The counts of the last epochs, oldest first, as a switchable loader's."""
        return self.log.counts()


def status(counts: EpochCounts) -> str:
    """The sentence of a page's status region, of the newest epoch."""
    return f"watched, batch {counts['batches']:,}"


def _counts(epoch: Epoch) -> EpochCounts:
    missing = 0 if epoch.planned is None or not epoch.finished else max(0, epoch.planned - epoch.samples)
    return {
        "epoch": epoch.number,
        "batches": epoch.batches,
        "samples": epoch.samples,
        "planned": epoch.planned,
        "lost": missing,
        "doubled": 0,
        "skipped": 0,
        "replaced": 0,
        "decoded": {},
        "finished": epoch.finished,
    }


def _in_child() -> None:
    global _lock  # noqa: PLW0603 - some other thread of the parent may have held it
    _lock = threading.Lock()
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
