"""The workers on the nodes: how many, where, and what becomes of them. In the driver process, on its one thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ..node_sources import RayNode
from . import node_worker
from .node_worker import NodeWorker, Place, Sending, Work, read_files

MOVES_AFTER = 60.0  # s until a worker that has got no core is started on another node, if one has room
LOOKS_AGAIN = 30.0  # s at most, until a node whose workers did not start is tried again
TRIES = 3  # of a node, one after the other without success, where it is not that they were killed; then it is left out
_GIVES_UP = 60.0  # s without any worker, after which slots are no longer kept waiting
_SMALL = 1 << 30  # bytes of /dev/shm below which Ray may keep batches on the disk
_NOTE = "when serializing "  # begins the lines that Python 3.14 adds below an error of pickle's


def last_line(error: BaseException) -> str:
    """Return what an error of Ray's comes to: it quotes whole tracebacks, at whose end the cause is."""
    return _last_of(str(getattr(error, "cause", None) or error)) or type(error).__name__


def _last_of(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith(_NOTE)), "")


class _WorkerLost(Exception):
    """The worker that was to answer is gone."""


class NoWorkers(Exception):
    """No node can work for the loader."""


@dataclass(eq=False)
class _Remote:
    """One worker as the driver sees it."""

    handle: Any
    node: str  # id
    number: int
    begun: bool = False  # it has its core, and starts
    ready: bool = False
    leaving: bool = False  # gets no more slots, and is ended when it has answered
    calls: dict[asyncio.Future[Any], float] = field(default_factory=dict)  # under way, with when they began


@dataclass
class Node:
    """One node of the cluster."""

    id: str
    address: str
    cores: int
    store: int  # bytes of its object store
    is_ours: bool  # the driver process runs on it
    is_sent_files: bool = False  # with each batch, as it does not see them
    alive: bool = True
    reason: str | None = None  # why it is left out
    note: str | None = None  # what slows it down
    failures: int = 0  # workers that did not start, since the last one that did
    waits_until: float = 0.0  # s (monotonic), before which no worker is started on it
    answered: int = 0  # slots


class Pool:
    """`changed` is called when a worker is ready for a slot, lost or given up."""

    def __init__(
        self, ray: Any, place: Place, sending: Sending, workers: int, prefetch: int, changed: Callable[[], None]
    ) -> None:
        self.wanted = workers
        self.prefetch = prefetch  # slots under way for each
        self.nodes: dict[str, Node] = {}
        self.workers: list[_Remote] = []
        self.version = 0  # of the data set
        self.sent_bytes = 0.0  # of the files that go with a batch, moving mean
        self._ray = ray
        self._place = place
        self._sending = sending
        self._changed = changed
        self._blob: Any = None
        self._numbers = itertools.count()
        # By value: a node without this package can then say so.
        ray.cloudpickle.register_pickle_by_value(node_worker)
        self._actor = ray.remote(NodeWorker)
        self._ours = ray.get_runtime_context().get_node_id()
        self._without_since: float | None = None  # s (monotonic), since when no worker is there; None before the first
        self.last_failure: str | None = None  # why a worker did not start
        self._tasks: set[asyncio.Task[Any]] = set()  # asyncio itself keeps none

    # ---- what there is

    @property
    def ready(self) -> list[_Remote]:
        """The workers that take slots."""
        return [worker for worker in self.workers if worker.ready and not worker.leaving]

    @property
    def hopeless(self) -> str | None:
        """The reason why there will be no worker; None while there is one, or may be one."""
        if self.ready:
            return None
        if self._without_since is not None and time.monotonic() - self._without_since > _GIVES_UP:
            return f"No worker was there for {_GIVES_UP:.0f} s: {self.last_failure or 'none starts'}"
        ours = self.nodes.get(self._ours)
        if ours is not None and not ours.alive:
            return "Ray on this machine has ended."
        if any(not worker.leaving for worker in self.workers) or any(not node.reason for node in self.candidates()):
            return None
        left_out = [f"{node.address}: {node.reason}" for node in self.nodes.values() if node.alive and node.reason]
        if not left_out and self._without_since is None:  # they may still come
            return None
        return f"No node can work for the loader. {'; '.join(left_out) or 'None has a core for Ray.'}"

    def shown(self) -> list[RayNode]:
        """The nodes for the kernel; those that are left out with the reason."""
        working = Counter(worker.node for worker in self.ready)
        return [
            RayNode(node.id, node.address, working[node.id], node.answered, node.alive, node.reason, node.note,
                    node.is_ours, node.is_sent_files)
            for node in self.nodes.values()
        ]  # fmt: skip

    # ---- changes of it

    def give(self, blob: bytes) -> None:
        """Let every worker have this state of the data set before its next slot."""
        self.version += 1
        self._blob = self._ray.put(blob)  # once, not for each worker; Ray passes it on from node to node
        for worker in self.workers:
            if not worker.leaving:
                worker.handle.load.remote(self._blob, self.version)

    async def look(self) -> None:
        """Look at the nodes, and act on what has changed."""
        self._note_nodes(await asyncio.to_thread(self._ray.nodes))  # waits long where the head is gone
        self.arrange()

    def arrange(self) -> None:
        """Start or end workers until there are as many as wanted, on nodes that live."""
        for worker in list(self.workers):
            if not self.nodes[worker.node].alive:
                self.lose(worker, "its node is gone")
        staying = [worker for worker in self.workers if not worker.leaving]
        missing = self.wanted - len(staying)
        for worker in sorted(staying, key=lambda one: (one.ready, len(one.calls), -one.number))[: max(0, -missing)]:
            worker.leaving = True
            self._end_if_done(worker)
        for _ in range(missing):
            node = self._roomiest()
            if node is None:
                break
            self._start(node)
        self._changed()

    def _note_nodes(self, nodes: list[dict[str, Any]]) -> None:
        alive = set()
        for found in nodes:
            if not found["Alive"]:
                continue
            name, resources = found["NodeID"], found["Resources"]
            alive.add(name)
            if name not in self.nodes:
                self.nodes[name] = Node(name, found["NodeManagerAddress"], 0, 0, name == self._ours)
            node = self.nodes[name]
            node.cores, node.store = int(resources.get("CPU", 0)), int(resources.get("object_store_memory", 0))
        for name, node in self.nodes.items():
            node.alive = name in alive

    def candidates(self) -> list[Node]:
        """The nodes that may work: others than the one that trains; that one only where it is alone."""
        alive = [node for node in self.nodes.values() if node.alive and node.cores > 0]
        return [node for node in alive if not node.is_ours] or alive

    def _roomiest(self, but: Node | None = None) -> Node | None:
        now, load = time.monotonic(), dict.fromkeys(self.nodes, 0)
        for worker in self.workers:
            load[worker.node] += 1
        free = [
            node
            for node in self.candidates()
            if node is not but and node.reason is None and load[node.id] < node.cores and now >= node.waits_until
        ]
        return min(free, key=lambda node: load[node.id] / node.cores, default=None)

    def _start(self, node: Node) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        number = next(self._numbers)
        options = self._actor.options(
            num_cpus=1,
            # Another one is started in its place: at once, and where there is room. Ray's own restart takes 8 s.
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        handle = options.remote(self._blob, self.version, number, max(1, self.wanted), self._place)
        worker = _Remote(handle, node.id, number)
        self.workers.append(worker)
        self._run(self._greet(worker, node))

    def _run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _greet(self, worker: _Remote, node: Node) -> None:
        try:
            begun = self._asked(worker.handle.__ray_ready__.remote())
            # Without a limit: others may keep the cores for long, and a busy machine takes minutes to import torch.
            while not (await asyncio.wait([begun], timeout=MOVES_AFTER))[0]:
                if self._roomiest(but=node) is not None:
                    node.waits_until = time.monotonic() + LOOKS_AGAIN
                    self.lose(worker, "its node has no free core")
                    return
            worker.begun = begun.result() or True
            found = await self._asked(worker.handle.hello.remote())
        except Exception as error:  # noqa: BLE001 - Ray's, or of the user's own modules on that node
            self._not_started(worker, node, last_line(error), lasting=not self.is_loss(error))
        else:
            node.reason = self._unusable(found)
            if node.reason is not None:
                self.lose(worker, node.reason)
                return
            node.is_sent_files = self._sending.always or not found["sees_files"]
            size = found["shared_memory"]
            if size is not None and size < min(_SMALL, node.store):
                node.note = (
                    f"its /dev/shm has {size / 2**20:,.0f} MB, so that Ray keeps batches on the disk, which is slow; "
                    "give its container more (--shm-size=4g)"
                )
            worker.ready, node.failures = True, 0
            self._without_since = None
            self._changed()

    def _unusable(self, found: dict[str, Any]) -> str | None:
        """Return why a node cannot work, by what its first worker found."""
        if found["differs"] is not None:
            return f"it has {found['differs']}"
        if found["sees_files"] or self._sending.refusal is None:
            return None
        return f"it does not see the data set's files; {self._sending.refusal}"

    def _not_started(self, worker: _Remote, node: Node, why: str, *, lasting: bool) -> None:
        """`lasting`: it is not that somebody has killed it."""
        if worker not in self.workers:  # lost meanwhile
            return
        node.failures += 1
        node.waits_until = time.monotonic() + min(LOOKS_AGAIN, 2.0 ** (node.failures - 2))
        self.last_failure = why
        if lasting and node.failures >= TRIES:
            node.reason = why
        self.lose(worker, why)

    def lose(self, worker: _Remote, why: str) -> None:
        """A worker is gone, or is to go at once: who waits for it gets `_WorkerLost`."""
        if worker not in self.workers:
            return
        self.workers.remove(worker)
        if worker.ready and not self.ready:
            self._without_since = time.monotonic()
        self._ray.kill(worker.handle, no_restart=True)
        calls, worker.calls = worker.calls, {}
        for call in calls:
            if not call.done():
                call.set_exception(_WorkerLost(why))
        self._changed()

    # ---- slots

    def can_take(self, worker: _Remote, work: Work) -> bool:
        """Return whether a worker sees the files of a slot, or gets their contents."""
        return work.rows is not None or not self.nodes[worker.node].is_sent_files

    def is_lost_to_all(self, work: Work) -> bool:
        """Return whether a slot was taken for nodes that see the files, and there are none any more."""
        staying = [worker for worker in self.workers if not worker.leaving]
        return bool(self.ready) and not any(self.can_take(worker, work) for worker in staying)

    def issue(self, worker: _Remote, work: Work) -> asyncio.Future[Any]:
        """Let a worker compute a slot. The future gives what `NodeWorker.compute` returned.

        Its exceptions: `_WorkerLost`, or what the call itself raised.
        """
        if self.nodes[worker.node].is_sent_files:
            answered = self._asked_with_files(worker, work)
        else:
            answered = self._asked(worker.handle.compute.remote(self.version, work.slot))
        worker.calls[answered] = time.monotonic()
        answered.add_done_callback(lambda call: self._answered(worker, call))
        return answered

    def _answered(self, worker: _Remote, call: asyncio.Future[Any]) -> None:
        worker.calls.pop(call, None)
        if call.cancelled():
            return
        error = call.exception()
        if error is None:
            self.nodes[worker.node].answered += 1
        elif self.is_loss(error):
            self.lose(worker, last_line(error))
        self._end_if_done(worker)
        self._changed()

    def is_loss(self, error: BaseException) -> bool:
        """Return whether a call failed because of its worker or its node, not by itself."""
        ours = self._ray.exceptions
        return isinstance(error, _WorkerLost | ours.RayError) and not isinstance(error, ours.RayTaskError)

    def _end_if_done(self, worker: _Remote) -> None:
        if worker.leaving and not worker.calls:
            self.lose(worker, "fewer workers are wanted")

    def _asked_with_files(self, worker: _Remote, work: Work) -> asyncio.Future[Any]:
        async def ask() -> Any:
            contents = await asyncio.to_thread(read_files, work.paths)
            size = float(sum(one.nbytes for one in contents if not isinstance(one, tuple)))
            self.sent_bytes = size if not self.sent_bytes else 0.9 * self.sent_bytes + 0.1 * size
            return await self._asked(worker.handle.compute.remote(self.version, work.slot, work.rows, contents))

        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._run(ask()).add_done_callback(lambda answer: _settle(waiting, answer))
        return waiting

    def _asked(self, reference: Any) -> asyncio.Future[Any]:
        """A future on this thread's loop for a call; what comes after it was set otherwise is dropped."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Any] = loop.create_future()

        def came(answer: concurrent.futures.Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, waiting, answer)

        reference.future().add_done_callback(came)
        return waiting


def _settle(waiting: asyncio.Future[Any], answer: Any) -> None:
    """Give a future what another one has got."""
    error = None if answer.cancelled() else answer.exception()
    if waiting.done() or answer.cancelled():
        return
    if error is None:
        waiting.set_result(answer.result())
    else:
        waiting.set_exception(error)


# ---- Hands slots to workers, oldest first, and again to another worker where no answer comes; the first answer
# counts.

MOST = 64  # slots under way
_DEATHS = 3  # of workers while they had the same slot: it is the slot that kills them
_MEASURED = 64  # answers whose times are kept
ENOUGH = 8  # of them, before a slow one can be told
_FIRST_PATIENCE = 60.0  # s, before so many are known
_LEAST_PATIENCE = 1.0  # s, so that a pause of a busy machine doubles no work
SLOW = 4.0  # times the usual time
_STORE_SHARE = 0.5  # of the smallest object store, for batches that have not been fetched

UNSEEN = "The nodes that see the data set's files are gone"

Issued = tuple[_Remote, asyncio.Future[Any]]
Send = Callable[[int, int, str, list[Any]], None]


class Dispatch:
    """`send(run, number, node, answer)` is given each answer, `fail(run, number, why)` each slot that gets none."""

    def __init__(self, send: Send, fail: Callable[[int, int, str], None]) -> None:
        self.pool: Pool  # set once the cluster was joined, before the first slot
        self._send = send
        self._fail = fail
        self._run = 0
        self._waiting: list[tuple[int, int, Work, asyncio.Future[Issued]]] = []  # a heap, by number
        self._order = 0
        self._times: deque[float] = deque(maxlen=_MEASURED)  # s from the issue to the answer
        self._bytes = 0.0  # of a batch, moving mean
        self._tasks: set[asyncio.Task[None]] = set()
        self.again = 0  # slots that were issued more than once
        self.answered = 0  # slots, those of earlier runs too

    @property
    def awaited(self) -> bool:
        """Whether any slot has no answer yet; for any thread."""
        return bool(self._tasks)

    def begin(self, run: int) -> None:
        """From now on slots are of this run; those of others that wait are dropped."""
        self._run = run
        waiting, self._waiting = self._waiting, []
        for *_, turn in waiting:
            turn.cancel()

    def take(self, run: int, number: int, work: Work) -> None:
        """Have a slot computed."""
        task = asyncio.create_task(self._answer(run, number, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def match(self) -> None:
        """Give waiting slots to workers with room."""
        pool = self.pool
        hopeless = pool.hopeless if self._waiting else None
        while self._waiting:
            work = self._waiting[0][2]
            why = UNSEEN if hopeless is None and pool.is_lost_to_all(work) else hopeless
            worker = self._free(work) if why is None else None
            if worker is None and why is None:
                return
            *_, turn = heapq.heappop(self._waiting)
            if turn.done():
                continue
            if worker is None:
                turn.set_exception(NoWorkers(why))
            else:
                turn.set_result((worker, pool.issue(worker, work)))

    def patience(self) -> float:
        """s after which a slot is given to another worker too."""
        if len(self._times) < ENOUGH:
            return _FIRST_PATIENCE
        return max(_LEAST_PATIENCE, SLOW * statistics.quantiles(self._times, n=10)[-1])

    def _limit(self) -> int:
        """Slots under way, by number and by what they take of an object store."""
        each = self._bytes + self.pool.sent_bytes
        if not each:
            return MOST
        smallest = min((node.store for node in self.pool.nodes.values() if node.alive and node.store), default=0)
        return min(MOST, max(1, int(_STORE_SHARE * smallest / each))) if smallest else MOST

    def _free(self, work: Work, but: tuple[_Remote, ...] = ()) -> _Remote | None:
        """The worker with the fewest slots, if it has room."""
        ready = self.pool.ready
        if sum(len(worker.calls) for worker in self.pool.workers) >= self._limit() and not but:
            return None
        room = [worker for worker in ready if len(worker.calls) < self.pool.prefetch and worker not in but]
        room = [worker for worker in room if self.pool.can_take(worker, work)]
        return min(room, key=lambda worker: len(worker.calls), default=None)

    def _queue(self, number: int, work: Work) -> asyncio.Future[Issued]:
        """A future of the worker that has been given the slot, and of its answer."""
        turn: asyncio.Future[Issued] = asyncio.get_running_loop().create_future()
        self._order += 1
        heapq.heappush(self._waiting, (number, self._order, work, turn))
        self.match()
        return turn

    async def _answer(self, run: int, number: int, work: Work) -> None:
        pool = self.pool
        calls: dict[asyncio.Future[Any], tuple[_Remote, float]] = {}
        deaths, patience = 0, 0.0
        try:
            while run == self._run:
                if not calls:
                    worker, call = await self._queue(number, work)
                    calls[call] = worker, time.monotonic()
                    patience = self.patience()
                done, _ = await asyncio.wait(calls, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    other = self._free(work, but=tuple(worker for worker, _ in calls.values()))
                    if other is not None:
                        self.again += 1
                        calls[pool.issue(other, work)] = other, time.monotonic()
                    patience *= 2
                for call in done:
                    worker, began = calls.pop(call)
                    error = call.exception()
                    if error is None:
                        self._note(time.monotonic() - began, call.result())
                        if run == self._run:
                            self._send(run, number, worker.node, call.result())
                        return
                    if not pool.is_loss(error):
                        raise error
                    deaths += 1
                    self.again += 1
                    if deaths == _DEATHS:
                        raise NoWorkers(f"{_DEATHS} workers ended while they computed batch {number}")
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - reported to the kernel, where the engine fails
            if run == self._run:
                self._fail(run, number, _last_of(str(error)) or type(error).__name__)
        finally:
            for call in calls:  # the first answer counts; nobody waits for the others
                call.add_done_callback(lambda late: late.cancelled() or late.exception())

    def _note(self, seconds: float, answer: list[Any]) -> None:
        self.answered += 1
        self._times.append(seconds)
        size = float(sum(part.nbytes for part in answer[1:]))
        self._bytes = size if not self._bytes else 0.9 * self._bytes + 0.1 * size
