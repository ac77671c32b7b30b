"""A DataLoader whose engine can be changed while it iterates."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from ..errors import BackendUnavailable, MonitorError, NotSwitchable
from ..integrations import accelerate
from ..integrations.distributed import SamplerProxy, Sharding
from ..node_sources import RayNode
from ..protocol.states import EngineState, LoaderState
from ..steps.attached_loader import AttachedLoader
from ..steps.step_meter import Meter
from ..steps.watched_loader import Epoch, EpochLog, SizedLoader, next_number
from . import code, random_streams
from .dataset_changes import DatasetChanges
from .engines import worker_start
from .engines.backends import PIPELINES, SPECS, THREADS, Backend, resolve
from .engines.engine import Knobs, Setting, checked
from .engines.torch_engine import NAME as TORCHVISION
from .engines.torch_engine import WorkersEngine
from .orders import Orders
from .parity import Parity, compare
from .plan import EpochRecord, EpochRecords
from .random_streams import Defaults
from .state import loader_state, some_paths
from .switching.engine_pool import EnginePool
from .switching.epoch import EpochIterator, Guard, is_ours
from .switching.preparation import Preparation
from .switching.switch import Click, Switch, SwitchState

# ---- A switchable loader as a framework wants it: from some batches later on, or with its batches converted.


class LoaderView:
    """The loader that `SwitchableLoader.skip` returns. Each iteration of it is one of the loader, and monitored.

    Everything else is the loader's own: `switch`, `set_epoch`, `state_dict`, its attributes, which may be assigned.

    Args:
        loader: a `SwitchableLoader`, or a view of one.
        convert: applied to each batch.
        skipped: batches after which an iteration begins.

    Raises:
        ValueError: `skipped` is negative.
    """

    __slots__ = ("__weakref__", "_convert", "_loader", "_skipped")

    def __init__(self, loader: Any, convert: Callable[[Any], Any] | None = None, skipped: int = 0) -> None:
        if skipped < 0:
            raise ValueError(f"skip() takes a number of batches, not {skipped}")
        for name, value in (("_loader", loader), ("_skipped", int(skipped)), ("_convert", convert)):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __len__(self) -> int:
        return max(0, len(self._loader) - int(self._skipped))

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def __repr__(self) -> str:
        return f"{self._loader!r} after {self._skipped} batches" if self._skipped else repr(self._loader)

    def __reduce__(self) -> Any:
        return self._loader.__reduce__()

    def iterate(self, skipped: int = 0) -> Iterator[Any]:
        """Begin an iteration that many batches later."""
        batches = self._loader.iterate(self._skipped + skipped)
        return batches if self._convert is None else map(self._convert, batches)

    def skip(self, batches: int) -> LoaderView:
        """See `SwitchableLoader.skip`; counted from where this one begins."""
        return LoaderView(self, skipped=batches)


# ---- A DataLoader that no engine can take over: its steps are watched, and every engine says why it cannot be chosen.


class FixedLoader(SizedLoader):
    """The loader that `switchable` returns where there is no plan to adopt_settings; otherwise as `watch_loader`'s."""

    def __init__(self, loader: DataLoader[Any], name: str | None, reason: str) -> None:
        engines = [
            EngineState(name=engine, available=False, reason=reason, confirm=None, note=None)
            for engine in SPECS
            if engine != TORCHVISION
        ]
        super().__init__(loader, name, engines)

    @property
    def backends(self) -> dict[str, Backend]:
        """Every engine, and why it cannot be chosen."""
        engines = self._kernel_monitor_source.engines
        return {engine["name"]: Backend(engine["available"], engine["reason"]) for engine in engines}

    def switch(self, name: str) -> None:
        """Refuse, as no engine can be chosen: raises `BackendUnavailable` with the reason."""
        reason = next(engine.reason for engine in self.backends.values())
        raise BackendUnavailable(f"{name} cannot be used: {reason}")


_DRAWS_ANEW = "The order goes on from the state; what the data set draws is not repeated (seeded=False)."


def torch_records(log: EpochLog) -> list[EpochRecord]:
    """Return the records of the epochs that torch's own iterators delivered, without their indices."""
    return [
        EpochRecord(
            epoch.number,
            None,
            epoch.samples if epoch.planned is None else epoch.planned,
            batches=epoch.batches,
            samples=epoch.samples,
            decoded={TORCHVISION: epoch.samples},
            finished=epoch.finished,
        )
        for epoch in log.epochs()
    ]


_to_end: weakref.WeakSet[SwitchableLoader] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Release the engines of the loaders that are alive when Python ends."""
    for loader in list(_to_end):
        if loader._process == os.getpid():
            with contextlib.suppress(MonitorError):  # this thread is inside an engine
                loader.release()


class SwitchableLoader(EpochRecords):
    """A DataLoader with a choice of engines; made by `switchable`.

    Iterates like the DataLoader that it wraps, whose public attributes read through (`len(loader.dataset)`).
    Any thread may call any method; threads that have iterators of the same loader at the same time take turns.
    """

    kind = "wrapped"

    def __init__(
        self,
        setting: Setting | None = None,
        name: str | None = None,
        seed: int | None = None,
        shard: bool = True,
        attached: AttachedLoader | None = None,
        **others: Any,
    ) -> None:
        if type(setting) is not Setting or others:  # a framework that makes another one of the same class
            raise NotSwitchable(
                "A switchable loader cannot be made anew with other settings; let the framework prepare the DataLoader "
                "and give that to switchable(), or set it to leave the loader as it is."
            )
        super().__init__()
        self._wrapped = setting.wrapped
        self._sharding = Sharding(setting.wrapped, wanted=shard)
        self._keyed = setting.keyed
        self._process = os.getpid()
        self._orders = Orders(setting.wrapped, setting.keyed, seed, rewinds=attached is None)
        self.turn = threading.RLock()
        """Held by the thread that asks for a batch or begins an epoch: iterators of several threads take turns."""
        self._log = None if attached is None else attached.log  # the epochs of torch's own iterators
        self.id = f"loader-{next_number()}" if attached is None else attached.id
        self.meter = Meter(self.id) if attached is None else attached.meter
        self.name = self.id if name is None else name
        self.switch_state = SwitchState(self.id, TORCHVISION, partial(some_paths, setting.keyed.source))
        self.pool = EnginePool(setting, self.switch_state)
        self.guard = Guard(setting.wrapped, self.switch_state)
        self.preparation = Preparation(self.pool, self.switch_state)
        self.changes = DatasetChanges(self.pool, self.switch_state)
        _to_end.add(self)
        self._settle()

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        # No `weakref.finalize`, which would hold the pool: the user's collate function, say, may refer to this loader.
        # At the interpreter's end `_end_all` has released the engines, and modules may be empty, as on Python 3.14.
        found = self.__dict__
        if "pool" in found and not ends():
            self.end()

    def end(self) -> None:
        """Give back everything, without waiting for a thread that builds an engine; not in a forked child."""
        if os.getpid() == self._process:
            self.switch_state.cancel()
            self.pool.end()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name == "batch_sampler":
            self._settle()
            return SamplerProxy(self._wrapped.batch_sampler, self.name)
        if name == "sampler":
            self._settle()
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the wrapped DataLoader's attributes there: it may refuse; else the next iteration follows them."""
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
        return f"<{self.name}: {self.switch_state.sentence}, {len(self._keyed)} samples>"

    def __reduce__(self) -> Any:
        raise MonitorError("A switchable loader cannot be copied or sent to another process; wrap a DataLoader there.")

    def __iter__(self) -> Iterator[Any]:
        return self.iterate()

    def iterate(self, skipped: int = 0) -> Iterator[Any]:
        """Begin an iteration, as `iter` does, after that many batches of the epoch; for views, see `skip`."""
        if os.getpid() != self._process:  # a forked child: the engines are the parent's
            return itertools.islice(self._wrapped, skipped, None) if skipped else iter(self._wrapped)
        with self.turn:
            cursor = iterator = None
            drawn: list[Callable[[], object]] = []
            try:
                drawn = self._drawn()
                self._settle(begins=True)
                self._keyed.forget()
                self.pool.renew()
                self.changes.at_epoch()
                self.pool.reap()
                cursor, seeding = self._orders.begin(skipped)
                self.add_record(cursor.record)
                iterator = EpochIterator(self, cursor)
                self._begin(iterator, seeding)
                self._orders.begun()
            except BaseException as error:
                if not isinstance(error, Exception) or not is_ours(error) or self._orders.resumes:
                    if cursor is not None:  # interrupts too: the epoch is then begun again, from the same state
                        self.forget_unused(cursor.record)
                    raise
                if cursor is None:
                    for restore in drawn:
                        restore()
                    batches = itertools.islice(cast("Any", self._wrapped.batch_sampler), skipped, None)
                    return self.guard.plainly(error, batches, draws=True)
                iterator = EpochIterator(self, cursor) if iterator is None else iterator
                iterator.go_on_plainly(error)
            return iterator

    def continue_epoch(self, batches: Iterator[Any], epoch: Epoch, seed: int, lead: float) -> Iterator[Any]:
        """Return an iterator over the rest of an epoch that torch's own iterator began; see `Orders.continue_epoch`.

        `lead`: how long the loop has waited for the next batch already (s).
        """
        with self.turn:
            cursor = self._orders.continue_epoch(batches, epoch, seed)
            self.add_record(cursor.record)
            iterator = EpochIterator(self, cursor, lead)
            self.switch_state.record = cursor.record
            return iterator

    def note_torch_epochs(self, epoch: int, workers_kept: bool) -> None:
        """Note the number (from 0) of the last epoch of torch's own iterators, and whether they keep their workers."""
        self._orders.next_epoch = max(self._orders.next_epoch, epoch + 1)
        self._orders.workers_kept = workers_kept

    def adopt_settings(self, settings: dict[str, Any]) -> None:
        """Adopt, between two iterations, attributes that were assigned to the user's own DataLoader since."""
        known = vars(self._wrapped)
        changed = {name: value for name, value in settings.items() if name not in known or known[name] is not value}
        if changed:
            known.update(changed)
            self.pool.renew()

    def _drawn(self) -> list[Callable[[], object]]:
        """Return what puts the generators back from which an epoch's order is drawn."""
        own_generators = random_streams.own(self._wrapped).values()
        states = [partial(generator.set_state, generator.get_state()) for generator in own_generators]
        return [Defaults.now().restore, *states]

    def _begin(self, iterator: EpochIterator, seeding: torch.Generator | None) -> None:
        engine = self.pool[TORCHVISION].engine
        if isinstance(engine, WorkersEngine) and seeding is not None:
            engine.generator = seeding  # new workers are then seeded as torch would seed them
        self.preparation.before_epoch()
        # Without workers torch asks the sampler, which may draw a seed then, only when the loop requests a batch.
        lazily = self._log is not None and self._wrapped.num_workers == 0
        if not lazily and (isinstance(engine, WorkersEngine) or self.switch_state.active != TORCHVISION):
            iterator.begin()
        self.preparation.epoch_started()

    # What people use

    @property
    def backend(self) -> str:
        """The backend in use: of the batch delivered last."""
        return self.switch_state.backend

    @property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name: whether it can run here, and why not."""
        return self.pool.backends

    @property
    def nodes(self) -> list[RayNode]:
        """The nodes of the Ray cluster that `ray` has joined, those that are left out with the reason."""
        return self.pool.nodes

    @property
    def knobs(self) -> Knobs:
        """The knobs that hold from the next batch on."""
        return self.pool.knobs

    @property
    def fused_decode(self) -> bool | None:
        """Whether DALI decodes only the region that a crop at the start of the transforms keeps; None: on the CPU.

        May be set, by any thread, and takes effect as what `set` sets. On a GPU, before nvJPEG 13.2, regions are
        decoded on the CPU, with a warning of nvImageCodec for each image.
        """
        return self.pool.setting.fused_decode

    @fused_decode.setter
    def fused_decode(self, fused: bool | None) -> None:
        self.pool.turn(fused_decode=None if fused is None else bool(fused))

    @property
    def history(self) -> list[Switch]:
        """The switches that took place, oldest first."""
        return self.switch_state.history

    @property
    def clicks(self) -> list[Click]:
        """The outcome of every `switch` (the last thousand), oldest first.

        One for the backend in use, or for the one that is already on its way, changes nothing and is not among them.
        """
        return self.switch_state.clicks

    def switch(self, name: str) -> None:
        """Ask for another backend and return at once; may be called from any thread while another one iterates.

        The backend is built in the background while the present one delivers, and takes over at a batch boundary.

        Args:
            name: `torchvision`, `threads`, `dali-cpu`, `dali-gpu`, or `dali` for the better of these two that can run;
                `ray`, whose workers are on other machines; or `synthetic`, which keeps copies of the next four batches
                and hands out copies of those from then on.

        Raises:
            BackendUnavailable: there is no such backend or it cannot run here.
        """
        try:
            self.preparation.request(resolve(name, self.backends))
        except BackendUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a click must not end the loop in which it is asked for
            self.guard.note(error, f"the switch to {name} does not take place")

    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None:
        """Change knobs (see `Knobs`) and return; may be called from any thread while another one iterates.

        Takes effect at a batch boundary, with nothing lost. Of several quick changes the newest counts. If the new
        engine does not start, the old values come back and the status shows why. New workers are forked where the
        DataLoader would fork them; once DALI runs in the process they are forked from the fork server, which is sent
        the data set (docs/one-plan.md).

        Raises:
            MonitorError: a value is out of range, threads are asked for where no engine can have some, or new workers
                could not be given the data set.
        """
        knobs = checked(workers, prefetch, threads)
        if "threads" in knobs and self.knobs.threads is None:
            raise MonitorError(
                f"set(threads=…) is for the engine threads and for DALI. {self.backends[THREADS].reason}"
            )
        if knobs.get("workers", 0) not in (0, self.knobs.workers):
            obstacle = worker_start.why_not_sent(self._keyed, self._wrapped)
            if obstacle is not None:
                raise MonitorError(obstacle)
        self.pool.turn(**knobs)

    def skip(self, batches: int) -> LoaderView:
        """Return a view of this loader whose iterations begin after the first `batches` of the epoch.

        These are drawn and not computed, so that order, crops and flips of the rest are those of a whole epoch; they
        count neither as planned nor as delivered. accelerate's `skip_first_batches(loader, batches)` returns this.

        Raises:
            ValueError: the number is negative.
        """
        return LoaderView(self, skipped=batches)

    def set_epoch(self, epoch: int) -> None:
        """Number the next epoch, as DistributedSampler.set_epoch does, and pass the number to samplers that take it."""
        self._settle()
        self._orders.set_epoch(epoch)

    def order_as(self, make: accelerate.Prepare) -> None:
        """Follow the order of a framework that prepares DataLoaders; see `integrations.accelerate`."""
        with self.turn:
            self._settle()
            self._orders.order_as(make)

    def state_dict(self) -> dict[str, Any]:
        """Return where the newest iteration has come to, by the convention of torchdata's StatefulDataLoader.

        To be called between batches by the thread that iterates; batches in flight count as not delivered. About 20 KB
        of plain values (but for what a sampler's own `state_dict` holds): the order is not stored but drawn again.
        """
        with self.turn:
            self._settle()
            return self._orders.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on from a state: it delivers exactly the batches that were not delivered then.

        The samplers draw their order again, from the generators' states of then; the process's own generators and the
        engine in use stay. What a data set draws with `seeded=False` is not repeated, which the status says. A state
        from between two epochs starts the next epoch. An empty state forgets a loaded one.

        Raises:
            MonitorError: it is no state, or of a loader with another data set length or batch size. Whether the sampler
                draws another order than it did is checked when the next iteration begins.
        """
        with self.turn:
            self._settle()
            self._orders.load(state)
            if state and not self._keyed.source.seeded:
                self.switch_state.add_notice(_DRAWS_ANEW)

    def parity(self, n: int = 64, engine: str | None = None) -> Parity:
        """Compare the pixels of `torchvision` with another engine's on n samples spread over the data set.

        Args:
            n: how many samples.
            engine: its name; DALI if it can run, else `threads`.

        Raises:
            BackendUnavailable: that engine cannot run here, or computes no pixels of these files.
        """
        usable = [name for name in PIPELINES if self.backends[name].available]
        backend = resolve(engine or (usable[0] if usable else "dali"), self.backends)
        if backend not in PIPELINES:
            raise BackendUnavailable(
                f"parity() compares torchvision with one of {', '.join(PIPELINES)}; not {backend}."
            )
        workers = self.pool[TORCHVISION].engine
        if isinstance(workers, WorkersEngine) and workers.forks and not workers.started:
            workers.generator = torch.default_generator.clone_state()
            self.preparation.start_workers()
        return compare(self.pool.setting, backend, n, self._orders.seed)

    def code(self, *, compare: bool = True) -> str:
        """Return a Python file that delivers these batches by DALI, without this package.

        It is written for the GPU if `dali-gpu` is in use, else for the CPU.

        Args:
            compare: whether to run it on a few samples, and to state in it how its pixels differ from the data set's
                own. Not while another thread iterates: samples are computed with the process's random generators, which
                are put back afterwards. Where DALI cannot run, nothing is compared.

        Raises:
            MonitorError: something of the loader has no code form; the message names it.
        """
        device = "gpu" if self.backend == "dali-gpu" else "cpu"
        runs = compare and self.backends[f"dali-{device}"].available
        return (code.compared if runs else code.uncompared)(self.pool.setting, device)

    def release(self, *, idle: bool = False) -> None:
        """Give back workers, threads and memory. The next iteration, or the next batch of this one, starts anew.

        A switch that has not taken effect is cancelled.

        Args:
            idle: only what is not in use: workers, or DALI's threads and memory, are otherwise kept after a switch, so
                that the way back is quick.
        """
        if idle:
            self.pool.release_idle(but=(self.switch_state.active, self.switch_state.wanted))
            return
        self.switch_state.cancel()
        self.pool.release()
        self.changes.shown = False

    # What the monitor uses

    @property
    def worker_pids(self) -> list[int]:
        """The process numbers of the workers that run now."""
        return self.pool.worker_pids

    def calibrate(self) -> None:
        """Measure in the background what another engine takes of the processor; see `calibration`. For any thread."""
        if self.switch_state.backend == TORCHVISION and self.knobs.workers > 0:
            self.pool.calibrate()

    def state(self) -> LoaderState:
        """Return what a monitor shows; may be called from any thread."""
        newest = next(reversed(self.records()), None) or EpochRecord(0, None, 0)
        return loader_state(self.id, self.name, self.switch_state, self.pool, newest)

    def records(self) -> list[EpochRecord]:
        """Return the last epochs, oldest first, with those that torch's own iterators delivered. For any thread."""
        own = super().records()
        if self._log is None:
            return own
        known = {record.number for record in own}
        theirs = [record for record in torch_records(self._log) if record.number not in known]
        return sorted([*theirs, *own], key=lambda record: record.number)

    def add_record(self, record: EpochRecord) -> None:
        """Add the record of an epoch that begins."""
        record.counted = self._log is not None  # in a wrapped loader's `state_dict` end and last batch differ
        super().add_record(record)

    def forget_unused(self, record: EpochRecord) -> None:
        """An iterator over an epoch is gone: if it never delivered, forget the epoch."""
        # Python may collect the iterator on any thread, which must not wait for another thread's turn.
        if record.finished or os.getpid() != self._process or not self.turn.acquire(blocking=False):
            return
        try:
            if self._orders.undo(record):
                self.drop(record)
        finally:
            self.turn.release()

    # Inside

    def _settle(self, *, begins: bool = False) -> None:
        """Look for a process group, among whose ranks the samples are shared out, and for frameworks to serve."""
        accelerate.serve((SwitchableLoader, LoaderView), LoaderView)
        # Under way, an epoch keeps its sampler.
        notices = [self._sharding.settle() if begins or self.newest is None else None]
        if begins:
            notices.append(self._orders.number_next())
        for notice in filter(None, notices):
            self.switch_state.add_notice(notice)
