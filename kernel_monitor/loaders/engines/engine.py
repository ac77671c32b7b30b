"""What an engine is. An engine computes the batches it takes, in the order in which it took them, and no others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import MonitorError
from ..plan import Fallback, Skipped, Slot

Pull = Callable[[], Slot | None]


class EngineFailed(MonitorError):
    """An engine cannot go on; what it has taken is to be given back to the plan."""


@dataclass
class Delivery:
    """One computed batch, or the exception that answers it."""

    number: int  # of the batch in its epoch
    indices: npt.NDArray[np.int64]  # int64[n], of the samples in `batch` as computed, from where they were computed
    batch: Any  # what the user's loop receives. None where every sample was skipped: the loop is then not given it
    error: BaseException | None = None  # raised in the user's loop instead of delivering
    decoders: list[str] = field(default_factory=list)  # n names of what decoded each sample
    fallbacks: list[Fallback] = field(default_factory=list)  # samples that the engine handed to the torchvision path
    skipped: dict[int, Skipped] = field(default_factory=dict)  # samples left out as unreadable, by planned row
    replaced: bool = False  # whether the batch is synthetic; `indices` are then the planned ones whose places it takes


class Engine(Protocol):
    """The contract. Every method but `prepare` runs on the thread that iterates; calls never overlap.

    Where the work is done (processes, threads, a GPU, another machine) is up to the engine.
    """

    name: str
    broken: bool  # must be started anew before it can be used: whatever it had in flight counts as not computed

    @property
    def depth(self) -> int:
        """Most batches it keeps in flight."""

    def prepare(self) -> None:
        """Build and warm up; may run on a background thread while another engine delivers.

        Raises:
            Exception: it cannot be built; the message has the cause.
        """

    def start(self, pull: Pull) -> None:
        """Begin to take from `pull`, forgetting whatever was in flight. `pull` gives None when nothing is left."""

    def pump(self, most: int | None = None) -> None:
        """Take as many batches as fit, at most `most`."""

    def receive(self) -> Delivery:
        """Wait for the oldest batch taken.

        Raises:
            Exception: the engine itself failed; the batch counts as not computed.
        """

    def release(self) -> None:
        """Give back processes, threads and memory; `start` may follow."""


class WhenAsked:
    """Base of an engine that works in `receive` alone: it queues what it takes, `depth` batches at most."""

    depth = 1

    def __init__(self) -> None:
        self.broken = False
        self._pull: Pull | None = None
        self._queue: deque[Slot] = deque()

    def prepare(self) -> None:
        """Nothing to build."""

    def start(self, pull: Pull) -> None:
        self._pull, self.broken = pull, False
        self._queue.clear()

    def pump(self, most: int | None = None) -> None:
        depth = self.depth if most is None else min(self.depth, len(self._queue) + most)
        while len(self._queue) < depth and self._pull is not None:
            slot = self._pull()
            if slot is None:
                return
            self._queue.append(slot)

    def release(self) -> None:
        self._queue.clear()
        self._pull, self.broken = None, False
