"""`ray`: the user's own data set and collate function, in workers on other machines."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ..errors import MonitorError
from ..loaders.data.examination import DEVIATING, LEAST_READ
from ..loaders.data.file_check import FileTable
from ..loaders.data.file_source import FileSource
from ..loaders.data.fingerprint import fingerprint
from ..loaders.data.keyed_dataset import BadSample, Fetched, KeyedCollate, KeyedDataset, KeyedInit
from ..loaders.data.worker_settings import Inherited
from ..loaders.engines.engine import Delivery, EngineFailed, Patient, Pull
from ..loaders.engines.torch_engine import PREFETCH, answer
from ..loaders.engines.worker_pickle import for_other_machines
from ..loaders.plan import Slot
from ..node_sources import RayNode
from ..protocol.states import RemoteLimits
from . import cluster
from .cluster import NAME
from .driver_process import DriverProcess
from .node_worker import PROBES, Sending, probes
from .pool import MOST

_RUNS = itertools.count(1)  # so that no answer for one run can pass for another's


def packed(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> bytes:
    """Return what a worker needs, by value where it is defined in the notebook.

    In the order that `NodeWorker.load` expects.

    Raises:
        Exception: the user's objects cannot be pickled.
    """
    return for_other_machines(
        (Inherited.now(), keyed, KeyedCollate(wrapped.collate_fn), KeyedInit(wrapped.worker_init_fn))
    )


class RayEngine(Patient):
    """See the module's text. `workers` counts processes on all nodes, `prefetch` slots under way for each of them.

    Like the workers of `torchvision`, its own have the data set as it was at the start of the epoch, or of the first
    one where the wrapped loader keeps its workers.
    """

    name = NAME

    def __init__(self, keyed: KeyedDataset, wrapped: DataLoader[Any], workers: int, prefetch: int | None) -> None:
        self.broken = False
        self._keyed = keyed
        self._wrapped = wrapped
        self._workers, self._prefetch = _numbers(wrapped, workers, prefetch)
        self._pin = bool(wrapped.pin_memory) and torch.accelerator.is_available()
        self._driver: DriverProcess | None = None
        self._run = 0
        self._pull: Pull | None = None
        self._taken: deque[Slot] = deque()
        self._epoch: int | None = None  # in which the workers were last known to have the data set as it is
        self._sent = b""  # a digest of it
        self._files = FileTable(keyed.source.files)
        self._rows = self._rows_here = 0  # samples for nodes that are sent the files; of them, those computed here
        self._abandoned = 0  # times

    @property
    def depth(self) -> int:
        return min(MOST, self._workers * self._prefetch)

    @property
    def nodes(self) -> list[RayNode]:
        """The nodes of the cluster; empty while it is not joined. For any thread."""
        driver = self._driver
        return [] if driver is None or not driver.alive else driver.nodes

    @property
    def limits(self) -> RemoteLimits | None:
        """Images/s that can reach this kernel at most; None while that is not known. For any thread."""
        driver = self._driver
        return None if driver is None or not driver.alive else driver.passed_on.limits(driver.nodes)

    def turn(self, workers: int, prefetch: int | None) -> None:
        """Change the knobs of the engine as it runs; by any thread."""
        self._workers, self._prefetch = _numbers(self._wrapped, workers, prefetch)
        driver = self._driver
        if driver is not None:
            driver.turn(self._workers, self._prefetch)

    def prepare(self) -> None:
        """Join the cluster and wait for the first worker, unless that was done before."""
        self._joined(self.tell)

    def abandon(self) -> None:
        self._abandoned += 1
        driver = self._driver
        if driver is not None:
            driver.give_up("it was given up")

    def _joined(self, tell: Callable[[str], None]) -> DriverProcess:
        if self._driver is not None and self._driver.alive:
            return self._driver
        abandoned = self._abandoned
        self.release()
        address = cluster.address()
        self._sent = self._digest()
        try:
            blob = packed(self._keyed, self._wrapped)
        except Exception as error:  # whatever the user's own classes raise
            raise MonitorError(f"The data set cannot be sent to other machines: {error}") from error
        source = self._keyed.source
        sending = _sending(source)
        seen = probes(map(source.absolute, source.known_paths(PROBES)))
        driver = DriverProcess(address, blob, self._workers, self._prefetch, self._finished, seen, sending)
        self._driver = driver
        try:
            if self._abandoned != abandoned:
                self.abandon()
            driver.await_ready(address, tell)
        except BaseException:  # an interrupt, too, must not leave it behind
            self.release()
            raise
        return driver

    def start(self, pull: Pull) -> None:
        self.broken = True  # until it has started
        self._taken.clear()
        driver = self._joined(_do_not_wait)
        self._run = next(_RUNS)
        driver.begin(self._run)
        if self._wrapped.num_workers == 0:  # the data set may have been changed since, and is to be seen as it is
            self._epoch = None
        self._pull = pull
        self.broken = False

    def pump(self, most: int | None = None) -> None:
        """Take as many as fit, and have them sent to the workers."""
        driver, pull = self._driver, self._pull
        if driver is None or pull is None:
            return
        depth = self.depth if most is None else min(self.depth, len(self._taken) + most)
        while len(self._taken) < depth:
            slot = pull()
            if slot is None:
                return
            self._taken.append(slot)
            if slot.number == 0 or slot.epoch != self._epoch:
                self._renew(slot.epoch)
            driver.take(self._run, slot, *(self._sent_with(slot) if driver.sends_files else (None, ())))

    def receive(self) -> Delivery:
        if not self._taken or self._driver is None:
            raise EngineFailed("no batch was asked for")
        slot = self._taken[0]
        found = self._driver.wait(slot.number, self._wrapped.timeout or None)
        if found.why is not None:
            raise EngineFailed(found.why)
        unseen = next(filter(None, map(_is_here, _unread(found.fetched))), None)
        if unseen is not None:
            raise EngineFailed(f"{unseen} is on this machine and not on a node; share the folder with the nodes")
        self._taken.popleft()
        delivery = answer(slot, found.fetched)
        delivery.decoders = [NAME] * len(delivery.decoders)
        self.pump()
        return delivery

    def release(self) -> None:
        driver, self._driver = self._driver, None
        self._pull = None
        self._taken.clear()
        self.broken = False
        if driver is not None:
            driver.close()

    def _sent_with(self, slot: Slot) -> tuple[bytes, tuple[str, ...]]:
        """Return what a worker needs that does not see the files, and the files whose contents it then gets."""
        try:
            rows = self._keyed.to_send(slot, self._files)
            self._rows += len(rows)
            self._rows_here += sum(row.whole is not None for row in rows)
            if self._rows > LEAST_READ and self._rows_here > DEVIATING * self._rows:
                raise EngineFailed(f"{self._rows_here} of {self._rows} samples had to be computed on this machine")
            return for_other_machines(rows), tuple(row.path for row in rows if row.path is not None)
        except EngineFailed:
            raise
        except Exception as error:  # the user's own code, or classes: `torchvision` meets it where it belongs
            raise EngineFailed(f"a batch cannot be sent to a node: {type(error).__name__}: {error}") from error

    def _finished(self, fetched: Fetched) -> Fetched:
        """A batch as the loop wants it; on the thread that receives."""
        if not self._pin or fetched.content is None:
            return fetched
        accelerator = torch.accelerator.current_accelerator()
        return fetched._replace(content=pin_memory(fetched.content, accelerator and accelerator.type))

    def _renew(self, epoch: int) -> None:
        """At the start of an epoch: send the data set again if it has changed."""
        self._epoch = epoch
        if self._wrapped.persistent_workers or self._driver is None:
            return
        now = self._digest()
        if now != self._sent:
            self._driver.give(packed(self._keyed, self._wrapped))
            self._sent = now

    def _digest(self) -> bytes:
        wrapped = self._wrapped
        return fingerprint(self._keyed.source.dataset, wrapped.collate_fn, wrapped.worker_init_fn, Inherited.now())


def _do_not_wait(sentence: str) -> None:
    """Let another engine go on: the loop waits for a batch."""
    raise EngineFailed(sentence)


def _sending(source: FileSource) -> Sending:
    """Return which nodes get the files' contents, as it was configured and as the data set allows.

    Raises:
        MonitorError: they must, and cannot.
    """
    chosen = cluster.Chosen.send_files
    if chosen is False:
        return Sending(always=False, refusal="share the folder, or allow monitor.configure(send_files='auto')")
    refusal = source.unsendable
    if refusal is None:
        return Sending(always=chosen is True, refusal=None)
    because = f"they cannot be sent to nodes, as {type(source.dataset).__name__} {refusal}"
    if chosen:
        raise MonitorError(f"send_files=True: the data set's files are to be sent, and {because}.")
    return Sending(always=False, refusal=f"share the folder: {because}")


def _unread(fetched: Fetched) -> list[BadSample]:
    """The samples of a batch whose files could not be read."""
    return [*([fetched.failure] if isinstance(fetched.failure, BadSample) else []), *fetched.bad.values()]


def _is_here(bad: BadSample) -> str | None:
    """The file of a sample that was not found on a node, if this machine has it."""
    cause = bad.error().__cause__
    path = getattr(cause, "filename", None) if isinstance(cause, FileNotFoundError) else None
    return path if isinstance(path, str) and Path(path).exists() else None


def _numbers(wrapped: DataLoader[Any], workers: int, prefetch: int | None) -> tuple[int, int]:
    """Workers and slots for each. A loader without workers has one here."""
    return max(1, workers), prefetch or wrapped.prefetch_factor or PREFETCH
