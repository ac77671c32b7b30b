"""What a schedule is made of, where it is played, and what the model keeps while it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kernel_monitor.loaders import SwitchableLoader
from kernel_monitor.loaders.plan import EpochRecord
from kernel_monitor.loaders.switching.epoch import EpochIterator

MOST = 20  # samples in a data set
SAMPLERS = ("sequential", "shuffle", "generator", "replacement", "weighted", "subset", "distributed", "batches")
PATIENCE = 30.0  # s until something that must end counts as hanging

Batches = list[list[int]]


class PlannedFailure(RuntimeError):
    """An engine's own failure, as a schedule wants it."""


@dataclass(frozen=True)
class Config:
    """What is wrapped.

    Attributes:
        bad: indices whose files cannot be read.
        depth, eager: of the in-process engines.
        kind: of the data set, in `traced.KINDS`.
    """

    size: int
    batch_size: int
    drop_last: bool
    sampler: str
    workers: int
    skip: bool
    bad: frozenset[int]
    depth: int
    eager: bool
    kind: str = "photos"


@dataclass(frozen=True)
class Step:
    """One thing that is done. `what` names a method of `Machine`; `args` are its arguments."""

    what: str
    args: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f"{self.what}{self.args}"


class Stage(Protocol):
    """Where schedules are played."""

    dataset: Any  # label == index, and at least MOST samples
    anywhere: bool  # interrupts may come in the middle of anything, the sampler's generator included, which then ends

    collate: Any  # the loop's collate function; None for torch's own

    def labels(self, batch: Any) -> list[int]:
        """The labels of a delivered batch."""

    def compare(self, batch: Any, epoch: int, drawn: list[tuple[int, int]]) -> None:
        """Compare a batch with plain torch's samples; `drawn` are their indices, and how often each came before."""

    def offers(self, loader: SwitchableLoader, what: str) -> bool:
        """Whether an engine, or a knob such as `threads=2`, may be chosen: some data sets are too small for DALI."""

    def plant(self, after: int, what: str, loader: SwitchableLoader) -> None:
        """Let something happen at a later moment, `after` of the stage's own units from now. `what`: the name of a
        backend to switch to (by another thread), `workers` and the like (knobs, by another thread), `interrupt`, or a
        call of an engine that is to fail.
        """

    def asking(self, *, beginning: bool = False) -> Any:
        """A context in which planted interrupts may arrive. `beginning`: `iter(loader)`, else `next()`."""

    def clear(self) -> None:
        """Nothing planted happens any more."""


@dataclass
class Run:
    """One live iteration and what it has to deliver."""

    iterator: EpochIterator
    record: EpochRecord
    foretold: Batches | None  # when it began
    expected: Batches | None  # None where another iteration may have drawn from torch's generator in between
    at: int = 0  # batches answered
    raised: int = 0  # samples of batches that were answered by an error
    ended: bool = False
    rough: bool = False  # interrupted anywhere: counts of the batch of then may be missing

    @property
    def undrawn(self) -> bool:
        return len(self.record.ends) == 0


@dataclass
class Saved:
    """A state with what the model knows of it."""

    state: dict[str, Any]
    epoch: int
    expected: Batches | None  # of the whole epoch; None where it was not known
    at: int
    begun: bool
    raised: int
    rough: bool
    torch_state: torch.Tensor
    own_state: torch.Tensor


@dataclass
class Totals:
    """What a series of schedules has covered."""

    schedules: int = 0
    batches: int = 0
    switches: int = 0
    resumed: int = 0
    errors: int = 0
    interrupts: int = 0
    skipped: int = 0
    replaced: int = 0
    knobs: int = 0
    epochs: int = 0
    decoders: dict[str, int] = field(default_factory=dict)
