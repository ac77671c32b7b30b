"""The interface of engines. An engine computes the batches that it takes, in the order in which it took them."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from ...errors import MonitorError
from ...field_checks import MOST_OF_A_KNOB
from ...node_sources import RayNode
from ...os_process import usable_cores
from ...text import quoted
from ..data.file_source import Examined
from ..data.keyed_dataset import KeyedDataset
from ..plan import Fallback, Skipped, Slot
from ..random_streams import Streams
from ..transforms.inject import Injected
from ..transforms.program import Program, distinct
from ..transforms.recorded import Forms
from ..transforms.translate import examine

Pull = Callable[[], Slot | None]
PIPELINES = 8  # of DALI, for the transforms of a ConcatDataset's parts; each has threads and memory of its own


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


class Patient:
    """Base of an engine whose `prepare` may wait for minutes, as for the cores of other machines."""

    tell: Callable[[str], None] = staticmethod(lambda _: None)  # is given a sentence on what `prepare` waits for

    def abandon(self) -> None:
        """Let a `prepare` that waits end, with an error; by any thread, at once. One that is done stays done."""
        raise NotImplementedError


class WhenAsked:
    """Base of an engine that works in `receive` alone: it queues what it takes, `depth` batches at most."""

    depth = 1

    def __init__(self) -> None:
        self.broken = False
        self._pull: Pull | None = None
        self._queue: deque[Slot] = deque()

    def prepare(self) -> None:
        """Do nothing: this engine builds nothing in advance."""

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


# ---- What an engine is built for: data set, settings of the wrapped DataLoader, knobs, translated transforms.


class GivenSettings(NamedTuple):
    """Settings of a DataLoader that the user may assign between two iterations; each as the DataLoader has it."""

    collate_fn: Any
    worker_init_fn: Any
    pin_memory: Any
    timeout: Any
    num_workers: int
    prefetch_factor: int | None
    multiprocessing_context: Any

    @classmethod
    def of(cls, wrapped: DataLoader[Any]) -> GivenSettings:
        return cls(*(getattr(wrapped, name) for name in cls._fields))

    def same(self, other: GivenSettings) -> bool:
        """Return whether nothing was assigned; functions are compared by identity."""
        return all(a is b or (type(a) is int and a == b) for a, b in zip(self, other, strict=True))


@dataclass(frozen=True)
class Setting:
    """The data set and the settings that an engine is built for."""

    keyed: KeyedDataset  # the data set by keys
    wrapped: DataLoader[Any]  # the user's DataLoader
    given: GivenSettings  # its settings when the engine was built
    device: torch.device  # where `dali-gpu` decodes
    workers: int  # processes of `torchvision`
    threads: int  # CPU threads of DALI
    prefetch: int | None = None  # batches in flight, per worker or in all for DALI; None: each engine's usual number
    own: Callable[..., Any] | None = None  # the user's own DALI pipeline function, or None
    fused_decode: bool | None = None  # whether a crop that comes first is decoded alone; None: on the CPU
    program: Program | None = None  # the data set's transform for DALI; the first, if the parts have different ones
    others: tuple[Program, ...] = ()  # those of the other transforms, in the order of `FileSource.chains`
    forms: Forms | None = None  # the forms of the operations on its images, where traces follow them; no program then
    refusal: str | None = None  # why there is no program
    obstacle: str | None = None  # why only the data set itself may open its files, see `Examined`

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of all transforms, in the order of `FileSource.chains`; empty if some have none."""
        return () if self.program is None else (self.program, *self.others)

    def fused(self, device: int | None) -> bool:
        """Return whether a crop that comes first is decoded alone (a ROI decode) on a CUDA device, or None, the CPU.

        Not on a GPU by itself: before nvJPEG 13.2 its decoders refuse a part of an image with fancy upsampling, which
        our pixels need; nvImageCodec then decodes on the CPU, with a warning on stderr for each image.
        """
        return device is None if self.fused_decode is None else self.fused_decode


def setting(
    keyed: KeyedDataset,
    examined: Examined,
    wrapped: DataLoader[Any],
    device: torch.device,
    own: Callable[..., Any] | None = None,
) -> Setting:
    """Describe a wrapped loader as it is, its transform translated."""
    # DALI gets as many threads as the loader has workers, at most one per core given to us.
    threads = max(1, min(usable_cores(), wrapped.num_workers or 4))
    plain = Setting(keyed, wrapped, GivenSettings.of(wrapped), device, wrapped.num_workers, threads, own=own)
    return translated(plain, examined)


def translated(setting: Setting, examined: Examined) -> Setting:
    """Return the setting with the data set as it was examined, its transforms translated."""
    if examined.forms is not None:
        obstacle = examined.obstacle or _unexamined("collate function", Streams(setting.wrapped.collate_fn).failure)
        return replace(setting, program=None, others=(), forms=examined.forms, refusal=None, obstacle=obstacle)
    setting = replace(setting, forms=None)
    programs: list[Program] = []
    refusal = _unexamined("transform", examined.failure)
    for chain in examined.chains:
        found = examine(chain.transform, chain.kind)
        refusal = (
            refusal
            or _unexamined("transform", Injected(chain.transform, found.links).failure)
            or _unexamined("collate function", Streams(setting.wrapped.collate_fn).failure)
            or found.refusal
            or _unexamined("transform", found.failure)
        )
        if refusal is not None or found.program is None:
            break
        programs.append(found.program)
    count = len(distinct(programs)[0])
    if refusal is None and count > PIPELINES:
        refusal = (
            f"The parts of the ConcatDataset have {count} different transforms, and DALI runs a pipeline for each; "
            f"{PIPELINES} at most."
        )
    if refusal is not None or not programs:
        return replace(setting, program=None, others=(), refusal=refusal, obstacle=examined.obstacle)
    first, *others = programs
    return replace(setting, program=first, others=tuple(others), refusal=None, obstacle=examined.obstacle)


def _unexamined(what: str, failure: str | None) -> str | None:
    return None if failure is None else f"The {what} cannot be examined ({failure})."


def rest_in_workers(setting: Setting) -> bool:
    """Return whether `dali-cpu` leaves a part of the transforms to workers, as the loader has some."""
    left = any(program.rest is not None for program in setting.programs)
    return setting.own is None and left and setting.workers > 0


def gpu(setting: Setting) -> int:
    """Number of the CUDA device that `dali-gpu` decodes on."""
    index: int | None = setting.device.index  # torch's stubs leave out that "cuda" alone has none
    return torch.cuda.current_device() if index is None else index


@dataclass(frozen=True)
class Spec:
    """One entry of the registry of engines, `backends.SPECS`."""

    name: str  # of the backend
    obstacle: Callable[[Setting], str | None]  # why it cannot run, None where it can
    build: Callable[[Setting], Engine]  # makes the engine
    uses: frozenset[str]  # the knobs (fields of `Knobs`) that it is built with
    confirm: Callable[[], str | None] | None = None  # what to ask a person before switching to it; None: nothing
    replays: bool = False  # whether it hands out batches of before, whatever the data set has become
    turn: Callable[[Any, Setting], None] | None = (
        None  # changes the knobs of the running engine; None: a new one is made
    )
    # of an engine on other machines: what to say of the nodes that it has joined
    note: Callable[[Sequence[RayNode]], str] | None = None


# ---- The knobs of a loader: how many workers, batches in flight and threads.


class Knobs(NamedTuple):
    """The resources that a loader may use."""

    workers: int  # processes of `torchvision`; 0 computes in the process itself
    # batches in flight, for each worker of `torchvision` (torch's prefetch_factor), in all for DALI; as long as nobody
    # has set it, torch's own for the one and DALI's usual for the other
    prefetch: int
    threads: int | None  # CPU threads of DALI; None where no DALI backend can run


def checked(workers: Any, prefetch: Any, threads: Any) -> dict[str, int]:
    """Return the knobs that are given, by name; a `MonitorError` if a value is no whole number or out of range."""
    found: dict[str, int] = {}
    for name, value, least in (("workers", workers, 0), ("prefetch", prefetch, 1), ("threads", threads, 1)):
        if value is None:
            continue
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or type(value) is bool or not least <= number <= MOST_OF_A_KNOB:
            raise MonitorError(f"set({name}={quoted(value)}): give a whole number from {least} to {MOST_OF_A_KNOB}.")
        found[name] = number
    return found
