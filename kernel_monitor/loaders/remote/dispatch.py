"""Hands slots to workers, oldest first, and again to another worker where no answer comes; the first answer counts.

In the driver process, on its one thread.
"""

from __future__ import annotations

import asyncio
import heapq
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .node_files import Work
from .pool import NoWorkers, Pool, Remote

MOST = 64  # slots under way
DEATHS = 3  # of workers while they had the same slot: it is the slot that kills them
MEASURED = 64  # answers whose times are kept
ENOUGH = 8  # of them, before a slow one can be told
FIRST_PATIENCE = 60.0  # s, before so many are known
LEAST_PATIENCE = 1.0  # s, so that a pause of a busy machine doubles no work
SLOW = 4.0  # times the usual time
STORE_SHARE = 0.5  # of the smallest object store, for batches that have not been fetched

UNSEEN = "The nodes that see the data set's files are gone"

Issued = tuple[Remote, asyncio.Future[Any]]
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
        self._times: deque[float] = deque(maxlen=MEASURED)  # s from the issue to the answer
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
            return FIRST_PATIENCE
        return max(LEAST_PATIENCE, SLOW * statistics.quantiles(self._times, n=10)[-1])

    def _limit(self) -> int:
        """Slots under way, by number and by what they take of an object store."""
        each = self._bytes + self.pool.sent_bytes
        if not each:
            return MOST
        smallest = min((node.store for node in self.pool.nodes.values() if node.alive and node.store), default=0)
        return min(MOST, max(1, int(STORE_SHARE * smallest / each))) if smallest else MOST

    def _free(self, work: Work, but: tuple[Remote, ...] = ()) -> Remote | None:
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
        calls: dict[asyncio.Future[Any], tuple[Remote, float]] = {}
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
                    if deaths == DEATHS:
                        raise NoWorkers(f"{DEATHS} workers ended while they computed batch {number}")
        except asyncio.CancelledError:
            return
        except Exception as error:  # noqa: BLE001 - reported to the kernel, where the engine fails
            if run == self._run:
                lines = str(error).strip().splitlines()
                self._fail(run, number, lines[-1] if lines else type(error).__name__)
        finally:
            for call in calls:  # the first answer counts; nobody waits for the others
                call.add_done_callback(lambda late: late.cancelled() or late.exception())

    def _note(self, seconds: float, answer: list[Any]) -> None:
        self.answered += 1
        self._times.append(seconds)
        size = float(sum(part.nbytes for part in answer[1:]))
        self._bytes = size if not self._bytes else 0.9 * self._bytes + 0.1 * size
