"""The wrapped DataLoader's own transforms: in its workers, or in the process where it has none."""

from __future__ import annotations

import io
import logging
import multiprocessing
import threading
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ...errors import MonitorError
from ..data.fingerprint import fingerprint
from ..data.inherited import InheritingInit
from ..data.keyed import GREETING, BadSample, Fetched, KeyedCollate, KeyedDataset, KeyedInit
from ..plan import Take
from . import main_guard
from .base import Delivery, EngineFailed, Pull

NAME = "torchvision"
PREFETCH = 2  # batches per worker, where nobody says: torch's own default
TRIED = 100  # elements of a list that are pickled to see whether all can be
DYING = 1.0  # s in which a worker whose connection broke is seen to have ended

log = logging.getLogger(__name__)

_dali_runs = threading.Event()  # set once a DALI pipeline was built in this process


def note_dali() -> None:
    """Remember that DALI's threads exist in this process."""
    _dali_runs.set()


def dali_runs() -> bool:
    """Whether a DALI pipeline was built in this process."""
    return _dali_runs.is_set()


def fork_is_safe() -> bool:
    """Whether the process has neither DALI's threads nor a CUDA context, which do not survive a fork."""
    return not dali_runs() and not torch.cuda.is_initialized()


def forks(wrapped: DataLoader[Any]) -> bool:
    """Whether a DataLoader makes its workers by a fork of this process."""
    context = wrapped.multiprocessing_context or multiprocessing
    # allow_none: asking must not fix the method, which the user may still set.
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return bool(method == "fork")


def without_fork() -> Any:
    """The multiprocessing context for workers that must not be made by a fork."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    _start_server(context)
    return context


def _start_server(context: Any) -> None:
    """Start multiprocessing's server, if it does not run yet, with torch imported: else each worker imports it, in 6 s.

    What the user has set to be imported is imported too, and stays set.
    """
    from multiprocessing import forkserver  # not on Windows

    wanted = list(forkserver._forkserver._preload_modules)  # type: ignore[attr-defined]
    context.set_forkserver_preload([*wanted, __name__])
    try:
        forkserver.ensure_running()
    finally:
        context.set_forkserver_preload(wanted)


NOT_FORKED = "new workers cannot be forked, because DALI or CUDA runs in this process, nor started otherwise"


def why_not_sent(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> str | None:
    """Why workers cannot be started without a fork, with the remedy; None where they can.

    Of the data set's long lists only the beginning is tried.

    To be asked before any such worker is started where the user's own DataLoader would fork: a process that is not
    forked imports the user's script.
    """
    script = main_guard.unguarded()
    if script is not None and not script.is_file():
        return f"{NOT_FORKED}, because {script.name} is no file that they could import; run a script from a file."
    if script is not None:
        return (
            f"{NOT_FORKED}, because {script.name} would then run once more in each: put what it runs under "
            'if __name__ == "__main__":, or set workers before the first switch.'
        )
    try:
        sent = _Trial.bytes_of((keyed, wrapped.collate_fn, wrapped.worker_init_fn))
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return (
            f"{NOT_FORKED}: {cause}; define what the data set uses in a module, or set workers before the first switch."
        )
    # A notebook's own classes are sent by name, and a new process has no notebook to find them in.
    if b"__main__" in sent and main_guard.imported_again() is None:
        return (
            f"{NOT_FORKED}, because the data set uses what is defined in the notebook; move it to a module, or set "
            "workers before the first switch."
        )
    return None


class _Trial(ForkingPickler):
    """Finds out what cannot be pickled, without the time and memory that a million samples would take."""

    @classmethod
    def bytes_of(cls, one: Any) -> bytes:
        """What is pickled of an object."""
        sink = io.BytesIO()
        cls(sink).dump(one)
        return sink.getvalue()

    def persistent_id(self, one: Any) -> Any:
        """What stands for an object; None: it is pickled."""
        if type(one) is list and len(one) > TRIED:
            return self.bytes_of(one[:TRIED])
        # ForkingPickler would move a tensor's memory to where other processes have it, too.
        numbers = isinstance(one, torch.Tensor) or (type(one) is np.ndarray and not one.dtype.hasobject)
        return "numbers" if numbers else None


def sentence(words: str) -> str:
    """Words with a capital letter at their start."""
    return words[:1].upper() + words[1:]


def answer(take: Take, fetched: Fetched) -> Delivery:
    """Turn what a worker computed into a delivery."""
    indices = np.frombuffer(fetched.indices, dtype=np.int64)
    skipped = {row: bad.skipped() for row, bad in fetched.bad.items()}
    failure = fetched.failure
    if isinstance(failure, BadSample):
        return Delivery(take.number, indices, None, error=failure.error())
    if isinstance(failure, ExceptionWrapper):
        return Delivery(take.number, indices, None, error=_rebuilt(failure))
    return Delivery(take.number, indices, fetched.content, decoders=[NAME] * len(indices), skipped=skipped)


def _rebuilt(wrapper: ExceptionWrapper) -> Exception:
    """The exception that torch would raise for a worker's error."""
    try:
        wrapper.reraise()
    except Exception as error:  # noqa: BLE001 - raised in the user's loop
        return error.with_traceback(None)
    raise AssertionError("ExceptionWrapper.reraise() returned")


class InlineEngine:
    """num_workers=0: computes each batch when it is asked for, as the DataLoader does; nothing is in flight."""

    name = NAME
    depth = 1

    def __init__(self, keyed: KeyedDataset, wrapped: DataLoader[Any]) -> None:
        self.broken = False
        self._keyed = keyed
        self._collate = KeyedCollate(wrapped.collate_fn)
        self._pin = wrapped.pin_memory and torch.accelerator.is_available()
        self._pull: Pull | None = None
        self._next: Take | None = None

    def prepare(self) -> None:
        """Nothing to build."""

    def start(self, pull: Pull) -> None:
        self._pull, self._next, self.broken = pull, None, False

    def pump(self, most: int | None = None) -> None:  # noqa: ARG002 - it takes one at a time
        if self._next is None and self._pull is not None:
            self._next = self._pull()

    def receive(self) -> Delivery:
        take, self._next = self._next, None
        if take is None:
            raise EngineFailed("no batch was asked for")
        try:
            with self._keyed.apart(self._collate.collate):
                fetched = self._keyed.fetch(take, range(len(take.indices)))
                if fetched.failure is None:
                    everything_skipped = bool(fetched.bad) and not fetched.content
                    batch = None if everything_skipped else self._collate.batch(fetched.content, fetched.seed)
                    fetched = fetched._replace(content=_pinned(batch) if self._pin else batch)
        except Exception as error:  # noqa: BLE001 - the user's code: to be raised in the user's loop
            return Delivery(take.number, np.asarray(take.indices, dtype=np.int64), None, error=error)
        return answer(take, fetched)

    def release(self) -> None:
        self._pull = self._next = None


def _pinned(batch: Any) -> Any:
    accelerator = torch.accelerator.current_accelerator()
    return pin_memory(batch, None if accelerator is None else accelerator.type)


class _LiveSampler:
    """A batch sampler without an end of its own: asks whoever holds the engine; stops when there is nothing now."""

    def __init__(self) -> None:
        self.pull: Pull | None = None
        self.taken: deque[Take] = deque()

    def __iter__(self) -> Iterator[Take]:
        return self

    def __next__(self) -> Take:
        take = None if self.pull is None else self.pull()
        if take is None:
            raise StopIteration
        self.taken.append(take)
        return take


class WorkersEngine:
    """num_workers > 0: a second DataLoader with the same settings, its workers kept across epochs and switches.

    The workers get the numbers of their batch from a live sampler. Where the wrapped loader does not keep its
    workers, new ones are made at the start of an epoch, so that changes of the data set are seen, as in torch. Once
    DALI runs in the process they are not forked any more, which takes some seconds: then only where `outdated`.

    Args:
        keyed: the data set by keys.
        wrapped: whose other settings the workers get.
        workers: how many.
        prefetch: batches in flight for each; None: as the wrapped loader has it.
        careful: whether to start them by another method where a fork would not be safe, instead of all the same; may
            be set for those that are started next.
    """

    name = NAME

    def __init__(
        self,
        keyed: KeyedDataset,
        wrapped: DataLoader[Any],
        workers: int,
        prefetch: int | None,
        *,
        careful: bool = False,
    ) -> None:
        self.broken = False
        self.careful = careful
        self._keyed = keyed
        self._wrapped = wrapped
        self._workers = workers
        self._prefetch = wrapped.prefetch_factor if prefetch is None else prefetch  # per worker
        self._sampler = _LiveSampler()
        self._inner: DataLoader[Any] | None = None
        self._iterator: Any = None
        self._sent = b""  # fingerprint of what the workers were given
        self.generator: torch.Generator | None = None  # in the state from which torch would seed the workers

    @property
    def depth(self) -> int:
        return self._workers * (self._prefetch or PREFETCH)

    @property
    def started(self) -> bool:
        return self._iterator is not None

    @property
    def pids(self) -> list[int]:
        """The process numbers of its workers; may be asked by any thread."""
        workers = getattr(self._iterator, "_workers", ())
        return [worker.pid for worker in list(workers) if worker.pid is not None]

    @property
    def forks(self) -> bool:
        """Whether its workers would now be made by a fork of this process."""
        return forks(self._wrapped) and (fork_is_safe() or not self.careful)

    def prepare(self) -> None:
        """Start the workers and hear from each; those made by a fork start later, on the thread that iterates."""
        if self.started or self.forks:
            return
        greetings = iter([Take(GREETING, 0, 0, [], []) for _ in range(self._workers)])
        try:
            self.start(lambda: next(greetings, None))
            for _ in range(self._workers):
                next(self._iterator)
        except BaseException:
            self.release()
            raise
        self._sampler.taken.clear()

    def ensure(self) -> None:
        """Start the workers if they are not running, with nothing to do yet."""
        if not self.started:
            self.start(lambda: None)

    def outdated(self, dataset: Any, *, shared: bool) -> bool:
        """Whether an epoch that begins now needs new workers, which then are started without a fork once DALI runs.

        Args:
            dataset: as the epoch is to see it.
            shared: whether another iteration uses the workers, which then stay for as long as nothing has changed.
        """
        if not self.started:
            return False
        if not shared and not (forks(self._wrapped) and dali_runs()):
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
                self._iterator = iter(self._inner)  # only tells the workers to go on
                self.broken = False
                return
            except Exception as error:  # noqa: BLE001 - whatever a worker that is just ending leaves in the queues
                # A process counts as alive until its last thread has ended; by then its shared memory is gone.
                log.warning("the workers do not go on (%s); starting new ones", error)
                self.release()
                self.broken = True
                self._sampler.pull = pull
        self._inner = self._build()
        self._iterator = iter(self._inner)  # starts the workers
        self.broken = False
        if not self._wrapped.persistent_workers:
            self._sent = self._fingerprint(self._keyed.source.dataset)  # while they begin to work

    def _build(self) -> DataLoader[Any]:
        wrapped = self._wrapped
        context: Any = wrapped.multiprocessing_context
        init: Callable[[int], None] = KeyedInit(wrapped.worker_init_fn)
        if forks(wrapped) and not self.forks:
            obstacle = why_not_sent(self._keyed, wrapped)
            if obstacle is not None:
                raise MonitorError(sentence(obstacle))
            context, init = without_fork(), InheritingInit(init)
        return DataLoader(
            self._keyed,  # type: ignore[arg-type]
            batch_sampler=self._sampler,  # type: ignore[arg-type]
            num_workers=self._workers,
            collate_fn=KeyedCollate(wrapped.collate_fn),  # type: ignore[arg-type]
            pin_memory=wrapped.pin_memory,
            timeout=wrapped.timeout,
            worker_init_fn=init,
            multiprocessing_context=context,
            generator=self.generator or torch.Generator(),
            prefetch_factor=self._prefetch,
            persistent_workers=True,
        )

    def _alive(self) -> bool:
        """Whether all workers live: a notebook's interrupt reaches them too, and ends them."""
        return all(worker.is_alive() for worker in getattr(self._iterator, "_workers", ()))

    def pump(self, most: int | None = None) -> None:
        """Nothing to do: the DataLoader takes by itself, at its start and for each batch it hands out."""

    def offer(self) -> None:
        """Let it ask `pull` for one batch more than it would take by itself."""
        self._iterator._try_put_index()

    def receive(self) -> Delivery:
        take = self._sampler.taken[0]
        try:
            fetched = Fetched(*next(self._iterator))
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            # A worker that is killed while it hands over its memory: torch says so only if it sees it dead already.
            workers = {worker.sentinel: worker for worker in self._iterator._workers}
            dead = [workers[ended] for ended in wait(list(workers), timeout=DYING)]
            if not dead:
                raise
            for worker in dead:
                worker.join(DYING)  # else torch's own handler finds it later, and raises a second time
            pids = ", ".join(str(worker.pid) for worker in dead)
            raise RuntimeError(f"DataLoader worker (pid(s) {pids}) exited unexpectedly") from error
        self._sampler.taken.popleft()
        return answer(take, fetched)

    def release(self) -> None:
        iterator, self._iterator, self._inner = self._iterator, None, None
        self._sampler.pull = None
        self._sampler.taken.clear()
        self.broken = False
        # Explicitly, because somebody may still hold a reference (a traceback does after an error).
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
