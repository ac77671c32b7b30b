"""A DataLoader whose engine can be changed while it iterates."""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial
from typing import Any

import torch

from ..errors import MonitorError, NotSwitchable
from ..integrations import accelerate
from ..integrations.distributed import Sharding
from ..integrations.samplers import ShownSampler
from ..steps.meter import Meter
from ..steps.registry import next_number
from .data.snapshot import snapshot
from .data.sources import same
from .engines.backends import Backend, Setting, resolve
from .engines.synthetic import NAME as SYNTHETIC
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import WorkersEngine, dali_runs, fork_is_safe, forks, sentence, why_not_sent
from .epoch import EpochIterator
from .knobs import Knobs, checked
from .orders import Orders
from .parity import Parity, compare
from .plan import Cursor, EpochRecord, Fallback, Skipped
from .registry import register
from .segment import Slot
from .slots import Slots
from .state import EpochCounts, KnobsState, LoaderState, shown_backend, shown_skip, some_paths
from .switch import Click, Switch, Switchboard, Wish, prepare, prepare_in_background
from .view import LoaderView
from .view import checked as checked_skip

EPOCHS_KEPT = 4  # epochs whose plan and decoders can still be asked for
SKIPS_SHOWN = 5  # skipped samples in the state that a monitor shows


def _end(slots: Slots, board: Switchboard, process: int) -> None:
    """Give back everything once the loader is gone; in a forked child there is nothing of ours to give back."""
    if os.getpid() == process:
        board.cancel()
        slots.release()


class SwitchableLoader:
    """A DataLoader with a choice of engines; made by `switchable`.

    Iterates like the DataLoader that it wraps, whose public attributes read through (`len(loader.dataset)`).
    `switch` and `set` may be called from any thread. So may everything else, as on a DataLoader; threads that have
    iterators of the same loader at the same time take turns.
    """

    def __init__(
        self,
        setting: Setting | None = None,
        name: str | None = None,
        seed: int | None = None,
        sharding: Sharding | None = None,
        **others: Any,
    ) -> None:
        if type(setting) is not Setting or others:  # a framework that makes another one of the same class
            raise NotSwitchable(
                "A switchable loader cannot be made anew with other settings; let the framework prepare the DataLoader "
                "and give that to switchable(), or tell it to leave the loader as it is."
            )
        self._wrapped = setting.wrapped
        self._sharding = Sharding(setting.wrapped, wanted=False) if sharding is None else sharding
        self._keyed = setting.keyed
        self._process = os.getpid()
        self._records: dict[int, EpochRecord] = {}
        self._record: EpochRecord | None = None
        self._orders = Orders(setting.wrapped, setting.keyed, seed)
        self._seen: list[Any] = []  # of the data set, between two batches
        self._shown = False  # whether workers that are kept have been given the data set
        self._workers_stand = False  # from the first iteration on
        self.turn = threading.RLock()
        """Held by the thread that asks for a batch or begins an epoch: iterators of several threads take turns."""
        self._deferring = threading.Lock()
        self._deferred: Wish | None = None  # its engine is to be prepared once the workers have been forked
        number = next_number()
        self.id = f"loader-{number}"
        self.meter = Meter(self.id)
        self.name = self.id if name is None else name
        self.board = Switchboard(self.id, TORCHVISION, partial(some_paths, setting.keyed.source))
        self.slots = Slots(setting, self.board)
        weakref.finalize(self, _end, self.slots, self.board, self._process)
        self._settle()
        register(number, self)  # last: from now on other threads ask it for its state

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name == "batch_sampler":
            self._settle()
            return ShownSampler(self._wrapped.batch_sampler, self.name)
        if name == "sampler":
            self._settle()
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what is the wrapped DataLoader's there: it says no as ever, or the next iteration goes by it."""
        wrapped = self.__dict__.get("_wrapped")
        theirs = name not in self.__dict__ and not name.startswith("_") and not hasattr(type(self), name)
        if wrapped is not None and theirs and hasattr(wrapped, name):
            setattr(wrapped, name, value)
        else:
            super().__setattr__(name, value)

    def __len__(self) -> int:
        self._settle()
        return len(self._wrapped)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.board.status}, {len(self._keyed)} samples>"

    def __reduce__(self) -> Any:
        raise MonitorError("A switchable loader cannot be copied or sent to another process; wrap a DataLoader there.")

    def __iter__(self) -> EpochIterator:
        return self.iterate()

    def iterate(self, skipped: int = 0) -> EpochIterator:
        """Begin an iteration, as `iter` does, after that many batches of the epoch; for views, see `skip`."""
        if os.getpid() != self._process:
            raise MonitorError("This loader belongs to the parent process; wrap a DataLoader of this process's own.")
        with self.turn:
            self._settle(begins=True)
            self._keyed.forget()
            self.slots.renew()
            self._refresh()
            self.slots.expect()
            self.slots.reap()
            cursor, seeding = self._orders.begin(skipped)
            self._enter(cursor.record)
            try:
                iterator = self._begin(cursor, seeding)
            except BaseException:  # interrupts too: the epoch is then begun again, from the same state
                self.left(cursor.record)
                raise
            self._orders.begun()
            return iterator

    def _begin(self, cursor: Cursor, seeding: torch.Generator | None) -> EpochIterator:
        engine = self.slot(TORCHVISION).engine
        if isinstance(engine, WorkersEngine) and seeding is not None:
            engine.generator = seeding  # new workers are then seeded as torch would seed them
        iterator = EpochIterator(self, cursor)
        if isinstance(engine, WorkersEngine):
            self._start_workers()
        deferred = self._take_deferred()
        if deferred is not None:
            self._start_workers()  # it may have come after the first time
            prepare(self.board, deferred, partial(self.slot, deferred.target))
        if isinstance(engine, WorkersEngine) or self.board.taking != TORCHVISION:
            iterator.begin()
        with self._deferring:
            self._workers_stand = True
            late = self._take_deferred()
        if late is not None:
            prepare_in_background(self.board, late, partial(self.slot, late.target))
        return iterator

    # What people use

    @property
    def backend(self) -> str:
        """Name of the backend in use: of the batch delivered last."""
        return self.board.backend

    @property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name: whether it can run here, and why not."""
        return dict(self.slots.backends)

    @property
    def knobs(self) -> Knobs:
        """How many workers, batches in flight and threads there are to be."""
        return self.slots.knobs

    @property
    def fused_decode(self) -> bool:
        """Whether DALI decodes only the region that a crop at the start of the transforms keeps; True at first.

        May be set, by any thread, and takes effect as what `set` sets. The pixels are the same; which is faster
        depends on the GPU.
        """
        return self.slots.setting.fused_decode

    @fused_decode.setter
    def fused_decode(self, fused: bool) -> None:
        self.slots.turn(fused_decode=bool(fused))

    @property
    def history(self) -> list[Switch]:
        """The switches that took place, oldest first."""
        return self.board.history

    @property
    def clicks(self) -> list[Click]:
        """What became of every `switch` (the last thousand), oldest first.

        One for the backend in use, or for the one that is already on its way, changes nothing and is not among them.
        """
        return self.board.clicks

    def switch(self, name: str) -> None:
        """Ask for another backend and return at once; may be called from any thread while another one iterates.

        The backend is built in the background while the present one delivers, and takes over at a batch boundary.

        Args:
            name: `torchvision`, `dali-cpu`, `dali-gpu`, or `dali` for the better of the two that can run; or
                `synthetic`, which keeps copies of the next four batches and hands out copies of those from then on.

        Raises:
            BackendUnavailable: there is no such backend or it cannot run here.
        """
        target = resolve(name, self.backends)
        first = self.slot(TORCHVISION).engine
        wish = self.board.ask(target)
        if wish is None:
            return
        if target == TORCHVISION and (not isinstance(first, WorkersEngine) or first.forks or first.started):
            self.board.ready(wish)  # there is nothing to build in the background
        elif target == SYNTHETIC:
            pass  # the iteration keeps batches for it, and says when it has enough
        else:
            # Workers that are to be forked must exist before DALI's threads do: then the first iteration prepares.
            with self._deferring:
                if not self._workers_stand and isinstance(first, WorkersEngine) and first.forks:
                    self._deferred = wish
                    return
            prepare_in_background(self.board, wish, partial(self.slot, target))

    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None:
        """Turn knobs (see `Knobs`) and return; may be called from any thread while another one iterates.

        Takes effect at a batch boundary, with nothing lost: a new engine takes over and the old one delivers what it
        has taken. The order and the augmentation do not depend on the knobs. Of several quick changes the newest
        counts. If the new engine does not start, the old values come back and the status says why. New workers are
        forked where the DataLoader would fork them, at the boundary; once DALI or CUDA runs in the process they are
        started in the background by forkserver, which takes some seconds and needs a data set that can be pickled and,
        in a script, `if __name__ == "__main__":` around what runs: else the workers there are stay.

        Raises:
            MonitorError: a value is out of range, DALI's threads are asked for where DALI cannot run, or new workers
                could not be given the data set.
        """
        knobs = checked(workers, prefetch, threads)
        if "threads" in knobs and self.knobs.threads is None:
            raise MonitorError(f"set(threads=…) is for DALI, which cannot be used: {self.backends['dali-cpu'].reason}")
        if knobs.get("workers", 0) not in (0, self.knobs.workers) and not fork_is_safe() and forks(self._wrapped):
            obstacle = why_not_sent(self._keyed, self._wrapped)
            if obstacle is not None:
                raise MonitorError(sentence(obstacle))
        self.slots.turn(**knobs)

    def skip(self, batches: int) -> LoaderView:
        """Return a view of this loader whose iterations begin after the first `batches` of the epoch.

        These are drawn and not computed, so that order, crops and flips of the rest are those of a whole epoch; they
        count neither as planned nor as delivered. accelerate's `skip_first_batches(loader, batches)` returns this.

        Raises:
            ValueError: the number is negative.
        """
        return LoaderView(self, checked_skip(batches))

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, as DistributedSampler.set_epoch does; samplers that have it are told."""
        self._settle()
        self._orders.next_epoch = epoch
        batch_sampler = self._wrapped.batch_sampler
        for sampler in (batch_sampler, getattr(batch_sampler, "sampler", None)):
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the newest iteration has come to, by the convention of torchdata's StatefulDataLoader.

        To be called between batches by the thread that iterates. What is in flight counts as not delivered. Plain
        values only (but for what a sampler's own `state_dict` may hold), about 20 KB: the order is not stored but
        drawn again.
        """
        with self.turn:
            self._settle()
            return self._orders.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a state: it delivers exactly the batches that were not delivered then.

        The samplers draw their order again as they drew it, from the generators' states of then; the process's own
        generators stay as they are. No sample before that place is computed. A state of before or after an epoch
        starts the next one. The engine in use stays. An empty state forgets one that was loaded before.

        Raises:
            MonitorError: it is no state, or of a loader with another data set length or batch size. That the sampler
                draws something else than it did shows, and is raised, when the next iteration begins.
        """
        with self.turn:
            self._settle()
            self._orders.load(state)

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

    def skipped(self, epoch: int | None = None) -> list[Skipped]:
        """Return the samples of an epoch (the first thousand) left out as unreadable, and why (on_error="skip")."""
        return list(self._epoch(epoch).skips)

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
                skipped=record.skipped,
                replaced=record.replaced,
                decoded=dict(record.decoded),
            )
            for record in list(self._records.values())
        ]

    def parity(self, n: int = 64) -> Parity:
        """Compare the pixels of `torchvision` with DALI's on n samples spread over the data set.

        Raises:
            BackendUnavailable: DALI cannot run here.
        """
        backend = resolve("dali", self.backends)
        engine = self.slot(TORCHVISION).engine
        if isinstance(engine, WorkersEngine) and engine.forks and not engine.started:
            engine.generator = _clone(torch.default_generator)
            self._start_workers()
        return compare(self.slots.setting, backend, n, self._orders.seed)

    def release(self, *, idle: bool = False) -> None:
        """Give back workers, threads and memory. The next iteration, or the next batch of this one, starts anew.

        A switch that has not taken effect is cancelled.

        Args:
            idle: only what is not in use: workers, or DALI's threads and memory, are otherwise kept after a switch, so
                that the way back is quick.
        """
        if idle:
            self.slots.release_idle(but=(self.board.taking, self.board.wanted))
            return
        self.board.cancel()
        self.slots.release()
        self._shown = False

    # What the monitor uses

    @property
    def worker_pids(self) -> list[int]:
        """The process numbers of the workers that run now; may be asked by any thread."""
        return self.slots.worker_pids

    def state(self) -> LoaderState:
        """Return what a monitor shows; may be called from any thread."""
        record = self._record or EpochRecord(0, None, 0)
        knobs, backends = self.knobs, self.backends
        known = {name: 0 for name, backend in backends.items() if backend.available and name != SYNTHETIC}
        return LoaderState(
            id=self.id,
            name=self.name,
            backend=self.board.backend,
            wanted=self.board.wanted,
            status=self.board.status,
            backends=[shown_backend(name, backend) for name, backend in backends.items()],
            epoch=record.number,
            batch=record.batches,
            batches=record.batches_planned,
            samples=record.samples,
            planned=record.planned,
            lost=record.lost,
            doubled=record.doubled,
            skipped=record.skipped,
            replaced=record.replaced,
            skips=[shown_skip(skipped, self._keyed.source.absolute) for skipped in record.skips[-SKIPS_SHOWN:]],
            knobs=KnobsState(workers=knobs.workers, prefetch=knobs.prefetch, threads=knobs.threads),
            decoded={**known, **record.decoded},
            expected={name: dict(one) for name, one in self.slots.expected.items()},
        )

    def slot(self, name: str) -> Slot:
        """The engine of a backend, with its holder; made when first asked for, not started."""
        return self.slots[name]

    def left(self, record: EpochRecord) -> None:
        """An iterator over an epoch is gone: if it never delivered, the epoch never was."""
        # A thread that comes by here in the middle of another one's turn must not wait.
        if record.finished or os.getpid() != self._process or not self.turn.acquire(blocking=False):
            return
        try:
            if self._orders.undo(record) and self._records.get(record.number) is record:
                del self._records[record.number]
                self._record = next(reversed(self._records.values()), None)
        finally:
            self.turn.release()

    # Inside

    def _settle(self, *, begins: bool = False) -> None:
        """Take account of what is around: a process group to share the samples out in, frameworks to be served.

        Args:
            begins: whether an iteration begins; under way, an epoch keeps its sampler.
        """
        accelerate.serve((SwitchableLoader, LoaderView), LoaderView.of)
        said = self._sharding.settle() if begins or self._record is None else None
        if said is not None:
            self.board.say(said)

    def _take_deferred(self) -> Wish | None:
        """The wish that was put off, if it is still what is wanted."""
        wish, self._deferred = self._deferred, None
        return wish if wish is self.board.waiting else None

    def _epoch(self, epoch: int | None) -> EpochRecord:
        record = self._record if epoch is None else self._records.get(epoch)
        if record is None:
            kept = ", ".join(map(str, self._records)) or "none"
            raise MonitorError(f"epoch {epoch if epoch is not None else 0} is not recorded; epochs recorded: {kept}")
        return record

    def _enter(self, record: EpochRecord) -> None:
        self._records.pop(record.number, None)
        self._records[record.number] = record
        while len(self._records) > EPOCHS_KEPT:
            del self._records[next(iter(self._records))]
        self._record = record

    def _start_workers(self) -> None:
        slot = self.slot(TORCHVISION)
        try:
            engine = slot.engine
            with slot.use():
                if not isinstance(engine, WorkersEngine):
                    return
                if engine.started or (forks(self._wrapped) and not engine.forks):
                    return  # those that are not forked start when they are wanted
                if self.board.taking != TORCHVISION or self.board.waiting is not None:
                    engine.ensure()
        except Exception as error:
            if not self.slots.roll_back(slot, error):
                raise

    def look(self) -> None:
        """Between two batches: where torch would see a change of the transform at once, let DALI see it as well."""
        if self.board.taking == TORCHVISION or isinstance(self.slot(TORCHVISION).engine, WorkersEngine):
            return
        seen = self._keyed.source.glance()
        if not same(seen, self._seen):
            self._seen = seen
            self._translate()

    def _refresh(self) -> None:
        """At the start of an epoch: let every engine see what the wrapped loader's workers would see.

        That is the data set as it is now; as it was at first, where workers are kept; and where there are none, as it
        is at each moment.

        Raises:
            MonitorError: it has changed, and the workers that have the old one cannot be replaced.
        """
        source, dataset = self._keyed.source, self._wrapped.dataset
        slot = self.slot(TORCHVISION)
        engine = slot.engine
        if not isinstance(engine, WorkersEngine):
            source.show(dataset)
            self._shown = False
        elif not (self._wrapped.persistent_workers and self._shown):
            self._renew(slot, engine, snapshot(dataset))
            self._shown = True
        self._translate()

    def _renew(self, slot: Slot, engine: WorkersEngine, dataset: Any) -> None:
        """Show a new state of the data set, and let go of workers that have another one."""
        source = self._keyed.source
        with slot.use():
            outdated = engine.outdated(dataset, shared=slot.holder is not None)
        if engine.started and not outdated:
            return
        before = source.dataset
        source.show(dataset)
        if not outdated:
            return
        if self.board.taking == TORCHVISION and dali_runs() and forks(self._wrapped):
            obstacle = why_not_sent(self._keyed, self._wrapped)
            if obstacle is not None:
                source.show(before)
                raise MonitorError(
                    f"The data set was changed since its workers were started, and {obstacle} "
                    "Or go on without workers: set(workers=0)."
                )
        engine.careful = dali_runs()
        slot.release()

    def _translate(self) -> None:
        """Let DALI's engines follow the data set."""
        self.slots.refresh()
        taking = self.board.taking
        backend = self.backends[taking]
        if not backend.available:
            self.board.gave_up(taking, MonitorError(backend.reason or ""), TORCHVISION)


def _clone(generator: torch.Generator) -> torch.Generator:
    clone = torch.Generator(generator.device)
    clone.set_state(generator.get_state())
    return clone
