"""`switchable`: a DataLoader whose engine can be changed while it iterates."""

from __future__ import annotations

import math
import os
import threading
import weakref
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ..errors import MonitorError, NotSwitchable
from .data.keyed import KeyedDataset
from .data.sources import find_source
from .engines import backends as registry_of_backends
from .engines.backends import SPECS, Backend, Setting, availability, resolve
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import WorkersEngine
from .epoch import EpochIterator
from .meter import Meter
from .parity import Parity, compare
from .plan import Cursor, EpochRecord, Fallback
from .registry import register
from .segment import Slot
from .state import EpochCounts, LoaderState
from .switch import Switch, Switchboard, Wish, prepare, prepare_in_background

EPOCHS_KEPT = 4  # epochs whose plan and decoders can still be asked for


def switchable(
    loader: DataLoader[Any],
    *,
    name: str | None = None,
    dali: Any = None,
    seed: int | None = None,
    device: torch.device | str | int | None = None,
    on_error: str = "raise",
) -> SwitchableLoader:
    """Wrap a DataLoader over image files so that its engine can be swapped in the middle of an epoch.

    The order is the one that the DataLoader's own sampler draws (the same as torch's for the same seed); random
    crops and flips are a function of (seed, epoch, index, occurrence), so that no switch changes them. Workers start
    at the first iteration and are kept. Where the DataLoader has persistent_workers=False, changes made to the data
    set between epochs reach them as in torch, for as long as neither DALI nor CUDA runs in the process; after that
    a fork would not be safe and the existing workers stay. With num_workers=0 every change is seen at once.

    Args:
        loader: map-style, over ImageFolder, DatasetFolder, Imagenette or Subset of these.
        name: shown in the monitor; its id where none is given.
        dali: a pipeline of one's own; not available in this version.
        seed: of the augmentation; torch's initial seed where none is given.
        device: where `dali-gpu` decodes; the current CUDA device if one is usable, else the CPU.
        on_error: what to do with an unreadable file; this version has "raise" only.

    Raises:
        NotSwitchable: (a MonitorError and a TypeError) the loader cannot be driven; the message says why.
        MonitorError: an argument asks for something that this version does not have.
    """
    if dali is not None:
        raise MonitorError("switchable(dali=…) is not available in this version; leave it out.")
    if on_error != "raise":
        raise MonitorError(f'switchable(on_error={on_error!r}) is not available in this version; use "raise".')
    return SwitchableLoader(loader, name=name, seed=seed, device=device)


def _check(loader: Any) -> None:
    """Refuse what cannot be driven, in one sentence that says what to do."""
    if isinstance(loader, SwitchableLoader):
        raise NotSwitchable("This loader is switchable already; use it as it is.")
    if not isinstance(loader, DataLoader):
        raise NotSwitchable(
            f"switchable() takes a torch.utils.data.DataLoader, not {type(loader).__name__}; "
            "wrap your data set in a DataLoader first."
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise NotSwitchable(f"{type(loader).__name__} iterates in a way of its own; give switchable() a DataLoader.")
    if isinstance(loader.dataset, IterableDataset):
        raise NotSwitchable(
            "switchable() needs a map-style data set, whose samples have an index; this one is iterable-style. "
            "Use torchvision's ImageFolder or one like it."
        )
    if loader.batch_sampler is None:
        raise NotSwitchable("switchable() works on batches; give the DataLoader a batch_size.")


def _device(device: torch.device | str | int | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    # Asking for the current device would make a CUDA context, and workers are forked yet.
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _release(slots: dict[str, Slot], process: int) -> None:
    """Give back everything once the loader is gone; in a forked child there is nothing of ours to give back."""
    if os.getpid() == process:
        for slot in slots.values():
            slot.release()


class SwitchableLoader:
    """A DataLoader with a choice of engines; made by `switchable`.

    Iterates like the DataLoader that it wraps, whose public attributes read through (`len(loader.dataset)`).
    `switch` may be called from any thread; everything else belongs to the thread that iterates.
    """

    def __init__(
        self, loader: DataLoader[Any], *, name: str | None, seed: int | None, device: torch.device | str | int | None
    ) -> None:
        _check(loader)
        self._wrapped = loader
        self._keyed = KeyedDataset(find_source(loader.dataset), torch.initial_seed() if seed is None else seed)
        self._setting = registry_of_backends.setting(self._keyed, loader, _device(device))
        self._backends = availability(self._setting)
        self._slots: dict[str, Slot] = {}
        self._slots_lock = threading.Lock()
        self._process = os.getpid()
        self._records: dict[int, EpochRecord] = {}
        self._record: EpochRecord | None = None
        self._next_epoch = 0
        self._iterated = False
        self._deferred: Wish | None = None  # its engine is to be prepared once the workers have been forked
        self.meter = Meter()
        self.id = f"loader-{register(self)}"
        self.name = self.id if name is None else name
        self.board = Switchboard(self.id, TORCHVISION)
        weakref.finalize(self, _release, self._slots, self._process)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._wrapped, name)

    def __len__(self) -> int:
        return len(self._wrapped)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.board.status}, {len(self._keyed)} samples>"

    def __reduce__(self) -> Any:
        raise MonitorError("A switchable loader cannot be copied or sent to another process; wrap a DataLoader there.")

    def __iter__(self) -> EpochIterator:
        if os.getpid() != self._process:
            raise MonitorError("This loader belongs to the parent process; wrap a DataLoader of this process's own.")
        wrapped = self._wrapped
        self._refresh()
        engine = self.slot(TORCHVISION).engine
        # What follows draws from torch's generators exactly what DataLoader.__iter__ draws, in its order.
        batches = iter(wrapped.batch_sampler)  # type: ignore[arg-type]
        if not (wrapped.persistent_workers and self._iterated):
            drawn_from = torch.default_generator if wrapped.generator is None else wrapped.generator
            if isinstance(engine, WorkersEngine):
                engine.generator = _clone(drawn_from)  # new workers are then seeded as torch would seed them
            torch.empty((), dtype=torch.int64).random_(generator=wrapped.generator)
            if wrapped.num_workers > 0:
                batches = iter(wrapped.batch_sampler)  # type: ignore[arg-type]
        self._iterated = True
        record = self._begin_record()
        iterator = EpochIterator(self, Cursor(batches, record, len(self._keyed)))
        if isinstance(engine, WorkersEngine):
            self._start_workers()
        deferred, self._deferred = self._deferred, None
        if deferred is not None and deferred is self.board.waiting:
            prepare(self.board, deferred, self.slot(deferred.target))
        if wrapped.num_workers > 0 or self.board.taking != TORCHVISION:
            iterator.begin()
        return iterator

    # What people use

    @property
    def backend(self) -> str:
        """Name of the backend in use: of the batch delivered last."""
        return self.board.backend

    @property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name: whether it can run here, and why not."""
        return dict(self._backends)

    @property
    def history(self) -> list[Switch]:
        """The switches that took place, oldest first."""
        return self.board.history

    def switch(self, name: str) -> None:
        """Ask for another backend and return at once; may be called from any thread while another one iterates.

        The backend is built in the background while the present one delivers, and takes over at a batch boundary.

        Args:
            name: `torchvision`, `dali-cpu`, `dali-gpu`, or `dali` for the better of the two that can run.

        Raises:
            BackendUnavailable: there is no such backend or it cannot run here.
        """
        target = resolve(name, self._backends)
        slot = self.slot(target)
        first = self.slot(TORCHVISION).engine
        # Workers that are to be forked must exist before DALI's threads do: then the first iteration prepares.
        later = not self._iterated and isinstance(first, WorkersEngine) and first.forks
        wish = self.board.ask(target)
        if wish is None:
            return
        if target == TORCHVISION:
            self.board.ready(wish)  # there is nothing to build
        elif later:
            self._deferred = wish
        else:
            prepare_in_background(self.board, wish, slot)

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, as DistributedSampler.set_epoch does; samplers that have it are told."""
        self._next_epoch = epoch
        batch_sampler = self._wrapped.batch_sampler
        for sampler in (batch_sampler, getattr(batch_sampler, "sampler", None)):
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def plan(self, epoch: int | None = None) -> list[int]:
        """Return the indices drawn so far in an epoch, in order; the newest epoch by default.

        Raises:
            MonitorError: the epoch has not begun, or is not among the last four.
        """
        return self._epoch(epoch).indices.tolist()

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

    def epochs(self) -> list[EpochCounts]:
        """Return the counts of the last epochs, oldest first; may be called from any thread."""
        return [
            EpochCounts(
                epoch=record.number,
                batches=record.batches,
                samples=record.samples,
                planned=record.planned,
                lost=record.lost,
                doubled=record.doubled,
                decoded=dict(record.decoded),
            )
            for record in list(self._records.values())
        ]

    def parity(self, n: int = 64) -> Parity:
        """Compare the pixels of `torchvision` with DALI's on n samples spread over the data set.

        Raises:
            BackendUnavailable: DALI cannot run here.
        """
        backend = resolve("dali", self._backends)
        engine = self.slot(TORCHVISION).engine
        if isinstance(engine, WorkersEngine) and engine.forks and not engine.started:
            engine.generator = _clone(torch.default_generator)
            self._start_workers()
        return compare(self._setting, backend, n)

    def release(self) -> None:
        """Give back workers, threads and memory. The next iteration, or the next batch of this one, starts anew."""
        for slot in list(self._slots.values()):
            slot.release()

    # What the monitor uses

    def state(self) -> LoaderState:
        """Return what a monitor shows; may be called from any thread."""
        record = self._record or EpochRecord(0, None, 0)
        known = {name: 0 for name, backend in self._backends.items() if backend.available}
        return LoaderState(
            id=self.id,
            name=self.name,
            backend=self.board.backend,
            wanted=self.board.wanted,
            status=self.board.status,
            backends=[{"name": name, **backend._asdict()} for name, backend in self._backends.items()],
            epoch=record.number,
            batch=record.batches,
            batches=record.batches_planned,
            samples=record.samples,
            planned=record.planned,
            lost=record.lost,
            doubled=record.doubled,
            decoded={**known, **record.decoded},
        )

    def slot(self, name: str) -> Slot:
        """The engine of a backend, with its holder; made when first asked for, not started."""
        with self._slots_lock:
            if name not in self._slots:
                self._slots[name] = Slot(SPECS[name].build(self._setting))
            return self._slots[name]

    # Inside

    def _epoch(self, epoch: int | None) -> EpochRecord:
        record = self._record if epoch is None else self._records.get(epoch)
        if record is None:
            kept = ", ".join(map(str, self._records)) or "none"
            raise MonitorError(f"epoch {epoch if epoch is not None else 0} is not recorded; epochs recorded: {kept}")
        return record

    def _begin_record(self) -> EpochRecord:
        batches, samples = _lengths(self._wrapped)
        record = EpochRecord(self._next_epoch, batches, samples)
        self._next_epoch += 1
        self._records.pop(record.number, None)
        self._records[record.number] = record
        while len(self._records) > EPOCHS_KEPT:
            del self._records[next(iter(self._records))]
        self._record = record
        return record

    def _start_workers(self) -> None:
        slot = self.slot(TORCHVISION)
        with slot.use() as engine:
            if not isinstance(engine, WorkersEngine):
                return
            if slot.holder is None:
                engine.renew()
            if self.board.taking != TORCHVISION or self.board.waiting is not None:
                engine.ensure()

    def _refresh(self) -> None:
        """Translate the transform again: the user may have changed it between epochs."""
        setting: Setting = registry_of_backends.setting(self._keyed, self._wrapped, self._setting.device)
        if setting.program == self._setting.program and setting.refusal == self._setting.refusal:
            return
        self._setting = setting
        self._backends = availability(setting)
        for name in [name for name in self._slots if name != TORCHVISION]:
            with self._slots_lock:
                slot = self._slots.pop(name)
            slot.release()
        taking = self.board.taking
        if not self._backends[taking].available:
            self.board.gave_up(taking, MonitorError(self._backends[taking].reason or ""), TORCHVISION)


def _clone(generator: torch.Generator) -> torch.Generator:
    clone = torch.Generator(generator.device)
    clone.set_state(generator.get_state())
    return clone


def _lengths(loader: DataLoader[Any]) -> tuple[int | None, int | None]:
    """How many batches and samples an epoch will have; None where the sampler does not tell."""
    sampler = loader.batch_sampler
    try:
        batches = len(loader)
    except (TypeError, NotImplementedError):
        return None, None
    if type(sampler) is not BatchSampler:
        return batches, None
    samples = len(sampler.sampler)  # type: ignore[arg-type]
    return batches, math.floor(samples / sampler.batch_size) * sampler.batch_size if sampler.drop_last else samples
