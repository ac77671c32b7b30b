"""The wrapped DataLoader's own transforms: in its workers, or in the process where it has none."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ...steps.attached_loader import OWN
from ..data.fingerprint import fingerprint
from ..data.keyed_dataset import GREETING, Fetched, KeyedCollate, KeyedDataset, KeyedInit
from ..plan import Slot, mark_plain
from . import worker_start
from .engine import Delivery, EngineFailed, Pull, WhenAsked
from .fork_server import NoWorkers, WorkerContext

NAME = "torchvision"
PREFETCH = 2  # batches per worker, torch's own default
CAN_OFFER = hasattr(_MultiProcessingDataLoaderIter, "_try_put_index")  # see `WorkersEngine.offer`
_MOST_SEED = (1 << 63) - 1
_DYING = 1.0  # s in which a worker whose connection broke is seen to have ended

_starts = itertools.count(1)  # of workers in the middle of an epoch, in this process

log = logging.getLogger(__name__)


def answer(slot: Slot, fetched: Fetched) -> Delivery:
    """Turn what a worker computed into a delivery."""
    indices = np.frombuffer(fetched.indices, dtype=np.int64)
    if fetched.failure is not None:
        return Delivery(slot.number, indices, None, error=fetched.raised())
    skipped = {row: bad.skipped() for row, bad in fetched.bad.items()}
    return Delivery(slot.number, indices, fetched.content, decoders=[NAME] * len(indices), skipped=skipped)


class InlineEngine(WhenAsked):
    """num_workers=0: computes each batch when it is asked for, as the DataLoader does; nothing is in flight."""

    name = NAME

    def __init__(self, keyed: KeyedDataset, wrapped: DataLoader[Any]) -> None:
        super().__init__()
        self._keyed = keyed
        self._collate = KeyedCollate(wrapped.collate_fn, seeded=keyed.source.seeded)
        self._pin = wrapped.pin_memory and torch.accelerator.is_available()

    def receive(self) -> Delivery:
        if not self._queue:
            raise EngineFailed("no batch was asked for")
        slot = self._queue.popleft()
        try:
            with self._keyed.apart(self._collate.collate):
                fetched = self._keyed.fetch(slot, range(len(slot.indices)))
                if fetched.failure is None:
                    everything_skipped = bool(fetched.bad) and not fetched.content
                    batch = None if everything_skipped else self._collate.batch(fetched.content, fetched.seed)
                    if self._pin:
                        accelerator = torch.accelerator.current_accelerator()
                        batch = pin_memory(batch, None if accelerator is None else accelerator.type)
                    fetched = fetched._replace(content=batch)
        except Exception as error:  # noqa: BLE001 - the user's code: to be raised in the user's loop
            return Delivery(slot.number, np.asarray(slot.indices, dtype=np.int64), None, error=error)
        return answer(slot, fetched)


class _LiveSampler:
    """A batch sampler that yields what the current run pulls from the plan, and stops when there is nothing now."""

    def __init__(self) -> None:
        self.pull: Pull | None = None
        self.taken: deque[Slot] = deque()
        self.failure: Exception | None = None  # what `pull` raised: not torch's

    def __iter__(self) -> Iterator[Slot]:
        return self

    def __next__(self) -> Slot:
        try:
            slot = None if self.pull is None else self.pull()
        except Exception as error:
            self.failure = error
            raise
        if slot is None:
            raise StopIteration
        self.taken.append(slot)
        return slot


class _Inner(DataLoader[Any]):
    """The DataLoader of an engine: whether workers are too many, the user's own has said, or *Tune* finds out."""

    def check_worker_number_rationality(self) -> None:
        """Say nothing."""


class WorkersEngine:
    """num_workers > 0: a second DataLoader with the same settings, its workers kept across epochs and switches.

    If the wrapped loader does not keep its workers, new ones are made at the start of an epoch, so that changes of the
    data set are seen, as in torch. Once DALI runs in the process they are forked from the fork server, which is sent
    the data set: then only if they are `outdated`.

    `prefetch` counts the batches in flight for each; None: as the wrapped loader has it.
    """

    name = NAME

    def __init__(self, keyed: KeyedDataset, wrapped: DataLoader[Any], workers: int, prefetch: int | None) -> None:
        self.broken = False
        self._keyed = keyed
        self._wrapped = wrapped
        self._workers = workers
        self._prefetch = wrapped.prefetch_factor if prefetch is None else prefetch  # per worker
        self._sampler = _LiveSampler()
        self._inner: DataLoader[Any] | None = None
        self._iterator: Any = None
        self._sent = b""  # fingerprint of what the workers were given
        self.generator: torch.Generator | None = None  # in the state from which torch would seed the workers
        worker_start.note_loader(keyed, wrapped)

    @property
    def depth(self) -> int:
        return self._workers * (self._prefetch or PREFETCH)

    @property
    def started(self) -> bool:
        return self._iterator is not None

    @property
    def _processes(self) -> list[Any]:
        return list(getattr(self._iterator, "_workers", ()))

    @property
    def pids(self) -> list[int]:
        """The process numbers of its workers; may be asked by any thread."""
        return [worker.pid for worker in self._processes if worker.pid is not None]

    @property
    def forks(self) -> bool:
        """Whether its workers would now be made by a fork of this process."""
        return worker_start.forks(self._wrapped) and not worker_start.dali_runs()

    def prepare(self) -> None:
        """Start the workers and wait for an answer of each; those that are forked start later, on the loop's thread."""
        if self.started or self.forks:
            return
        try:
            self._greet()
        except BaseException:  # an interrupt, too, must leave no workers behind
            self.release()
            raise
        self._sampler.taken.clear()

    def _greet(self) -> None:
        """Start the workers, and wait until each has the data set."""
        greetings = iter([Slot(GREETING, 0, 0, [], []) for _ in range(self._workers)])
        self._sampler.pull = lambda: next(greetings, None)
        self._start_workers()
        for _ in range(self._workers):
            next(self._iterator)
        self.broken = False

    def ensure(self) -> None:
        """Start the workers if they are not running, with nothing to do yet."""
        if not self.started:
            self.start(lambda: None)

    def outdated(self, dataset: Any, *, shared: bool) -> bool:
        """Return whether an epoch that begins now needs new workers.

        If `shared`, another iteration uses the workers, which then stay unless the data set has changed.
        """
        if not self.started:
            return False
        if not shared and (self.forks or not worker_start.forks(self._wrapped)):
            return True
        return self._fingerprint(dataset) != self._sent

    def _fingerprint(self, dataset: Any) -> bytes:
        return fingerprint(dataset, self._wrapped.collate_fn, self._wrapped.worker_init_fn)

    def start(self, pull: Pull) -> None:
        if self.started and (self.broken or not self._alive()):
            self.release()
        self.broken = True  # until it has started: an interrupt in here leaves the queues in an unknown state
        self._sampler.taken.clear()
        self._sampler.pull = pull
        if self._inner is not None:
            try:
                self._iterator = iter(self._inner)  # lets the workers go on
            except Exception as error:  # noqa: BLE001 - whatever an ending worker leaves in the queues: start new ones
                # A process counts as alive until its last thread has ended; by then its shared memory is gone.
                log.warning("the workers do not go on (%s); starting new ones", error)
                self.release()
                self.broken = True
                self._sampler.pull = pull
        if self._inner is None:
            with worker_start.fork_lock:  # DALI starts no threads meanwhile
                if self.forks or not worker_start.forks(self._wrapped):
                    self._start_workers()
            if self._inner is None:
                self._start_from_server(pull)
        self.broken = False

    def _start_from_server(self, pull: Pull) -> None:
        """Start workers that are sent the data set.

        Raises:
            NoWorkers: they cannot be started. With a fork they could, so that the training must not end by it.
        """
        try:
            self._greet()
        except NoWorkers:
            self.release()
            raise
        except Exception as error:
            self.release()
            raise NoWorkers(f"{worker_start.NO_WORKERS}: {error}") from error
        self._sampler.taken.clear()
        self._sampler.pull = pull
        self._iterator = iter(self._inner)  # type: ignore[arg-type]  # `_greet` has made it

    def _start_workers(self) -> None:
        self._inner = self._build()
        try:
            self._iterator = iter(self._inner)  # starts the workers
        except Exception as error:
            self._note_plain(error)
            raise
        if not self._wrapped.persistent_workers:
            self._sent = self._fingerprint(self._keyed.source.dataset)  # while they begin to work

    def _build(self) -> DataLoader[Any]:
        wrapped = self._wrapped
        context: Any = wrapped.multiprocessing_context
        keyed: Any = self._keyed
        collate: Any = KeyedCollate(wrapped.collate_fn, seeded=keyed.source.seeded)
        init: Any = KeyedInit(wrapped.worker_init_fn)
        if worker_start.forks(wrapped) and not self.forks:
            transfer = worker_start.transfer_of(keyed, wrapped)
            if transfer.obstacle is not None:
                raise NoWorkers(transfer.obstacle)
            context = WorkerContext()
            if transfer.by_value:
                from . import worker_pickle  # cloudpickle may be missing

                keyed, collate, init = worker_pickle.parts(keyed, collate, init)
        inner = _Inner(
            keyed,
            batch_sampler=self._sampler,  # type: ignore[arg-type]
            num_workers=self._workers,
            collate_fn=collate,
            pin_memory=wrapped.pin_memory,
            timeout=wrapped.timeout,
            worker_init_fn=init,
            multiprocessing_context=context,
            generator=self._seeding(),
            prefetch_factor=self._prefetch,
            persistent_workers=True,
        )
        vars(inner)[OWN] = True
        return inner

    def _seeding(self) -> torch.Generator:
        """The generator that torch seeds new workers from."""
        if self._keyed.source.seeded:
            return self.generator or torch.Generator()
        # What the workers draw depends on it. Further ones in the same epoch must not draw the same again.
        generator, self.generator = self.generator, None
        return generator or torch.Generator().manual_seed((torch.initial_seed() + next(_starts)) & _MOST_SEED)

    def _alive(self) -> bool:
        """Return whether all workers live: a notebook's interrupt reaches them too, and ends them."""
        return all(worker.is_alive() for worker in self._processes)

    def pump(self, most: int | None = None) -> None:
        """Do nothing: the DataLoader takes by itself, at its start and for each batch it hands out."""

    def offer(self) -> None:
        """Let the DataLoader take one batch now, without a batch being received.

        torch has no public way: its iterators take a batch for each batch that they hand out. `_try_put_index` is how
        they do so (torch 2.6 to 2.15); where it is missing, `CAN_OFFER` makes `dali-cpu` unavailable for such chains.
        """
        self._iterator._try_put_index()

    def receive(self) -> Delivery:
        slot = self._sampler.taken[0]
        try:
            fetched = Fetched(*next(self._iterator))
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            # A worker was killed while it handed over its memory: torch reports it only if it is dead already.
            workers = {worker.sentinel: worker for worker in self._processes}
            dead = [workers[ended] for ended in wait(list(workers), timeout=_DYING)]
            if not dead:
                mark_plain(error)
                raise
            for worker in dead:
                worker.join(_DYING)  # else torch's own handler finds it later, and raises a second time
            pids = ", ".join(str(worker.pid) for worker in dead)
            ended_early = RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly")
            mark_plain(ended_early)
            raise ended_early from error
        except Exception as error:
            self._note_plain(error)
            raise
        self._sampler.taken.popleft()
        return answer(slot, fetched)

    def _note_plain(self, error: Exception) -> None:
        """Mark an exception of torch's own loader as plain, unless the plan, which it asks for batches, raised it."""
        if error is not self._sampler.failure:
            mark_plain(error)

    def release(self) -> None:
        pids = self.pids
        iterator, self._iterator, self._inner = self._iterator, None, None
        self._sampler.pull = None
        self._sampler.taken.clear()
        self.broken = False
        # Explicitly, because a traceback may still hold a reference to the iterator.
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is None:
            return
        try:
            shutdown()
        except RuntimeError as error:
            # torch's handler of SIGCHLD raises wherever the main thread is. A worker of another loader is not ours to
            # hide; one of these was to end anyway, and torch has ended the others before this arrives here.
            if not any(f"(pid {pid})" in str(error) for pid in pids):
                raise
            log.warning("while its workers were ended: %s", error)
