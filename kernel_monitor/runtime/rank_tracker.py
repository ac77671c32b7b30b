"""Follows the ranks of this kernel's session: offers it to them, and has columns for those that joined."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable

import numpy as np

from ..analysis.frames import Frames
from ..analysis.slow_rank import WINDOW_S, SlowRank, slow_rank
from ..ranks.rank import Rank, rank_series
from ..ranks.rank_server import RankServer
from ..ranks.session_files import VARIABLE, JoinError
from ..store import StepTable, Store
from .job_commands import JobCommands
from .job_periods import JobPeriods

LOOK_S = 0.5  # between two looks at who has joined
SAID_S = 2.0  # how long a sentence on a slow rank is shown at least
HELD_S = 4.0  # how long it stays when nothing is found any more: a rank that is slow now and then is one that is slow
MOST = 256  # ranks that have columns
NOT_OFFERED = "the monitor does not run"
log = logging.getLogger(__name__)


class RankTracker:
    """The ranks of one session, asked on the sampler's reader thread. Nothing raises here.

    Attributes:
        ranks: those that have columns; a new object when anything about them changed.
        reason: why no rank can join; None where they can.
        slow: the slow rank of each job that has one now, by the job's number.
        periods, commands: the patterns of the jobs' steps, and how they were started.
        notes: how well a job scales, in words, by the job's number, where one rank of it was run alone.
        running_alone: what runs alone now, in words.
    """

    def __init__(self, store: Store, complain: Callable[[str], object], add_event: Callable[..., object]) -> None:
        self.ranks: tuple[Rank, ...] = ()
        self.reason: str | None = NOT_OFFERED
        self.slow: dict[int, SlowRank] = {}
        self.periods = JobPeriods(add_event)
        self.commands = JobCommands()
        self.notes: dict[int, str] = {}
        self.running_alone: Callable[[], str | None] = lambda: None
        self._store = store
        self._complain = complain
        self._add_event = add_event
        self._server: RankServer | None = None
        self._kept: list[RankServer] = []  # of the parent of a fork: ZeroMQ's objects must not be freed in a child
        self._due = 0.0
        self._said: dict[int, float] = {}  # by the job's number, in session s: since when its sentence is shown
        self._seen: dict[int, float] = {}  # when it was last found to have a slow rank
        self._series: frozenset[str] = frozenset()

    @property
    def server(self) -> RankServer | None:
        return self._server

    def begin(self, address: str | None) -> None:
        """Offer the session to ranks; a process that is a rank itself joins one and offers none."""
        if self._server is not None:
            return
        if VARIABLE in os.environ and "RANK" in os.environ:
            self.reason = "this process is a rank itself"
            return
        try:
            self._server = RankServer(address)
            self.reason = None
        except JoinError as error:
            self.reason = str(error)
            if address is not None:
                self._complain(self.reason)

    def end(self) -> None:
        """Offer it no more; ranks that are alive are shown as left."""
        server, self._server = self._server, None
        self.reason = NOT_OFFERED
        if server is not None:
            server.stop()

    def forget_in_child(self) -> None:
        """Detach a forked child: it offers nothing, and is perhaps a rank."""
        if self._server is not None:
            self._kept.append(self._server)
        self._server, self.reason = None, NOT_OFFERED

    def sentences(self) -> list[str]:
        """On the jobs now: their slow ranks, and patterns of their steps."""
        found = [slow.sentence for slow in self.slow.values()]
        found += [period.sentence for period in self.periods.found.values()]
        alone = self.running_alone()
        return [*found, *self.notes.values(), *([] if alone is None else [alone])]

    def lines(self) -> list[str]:
        """For the status: each job, and what is not known exactly."""
        found = []
        for job in dict.fromkeys(rank.job for rank in self.ranks):
            own = [rank for rank in self.ranks if rank.job == job]
            alive = sum(rank.alive for rank in own)
            found.append(f"job {job}: {alive} of {own[-1].world or len(own)} ranks run")
        found += self.sentences()
        server = self._server
        if server is not None and found:
            bound, (frames, steps) = server.accuracy()
            if bound is None or bound > 0:
                exact = "not compared yet" if bound is None else f"± {1e3 * bound:.1f} ms"
                found.append(f"clocks of the ranks' machines: {exact}")
            if frames or steps:
                found.append(f"ranks could not send {frames:,} frames; {steps:,} of their steps are missing")
        return found

    def join_words(self) -> str:
        """What to set so that a rank started elsewhere joins. JoinError: none can."""
        server = self._server
        if server is None:
            raise JoinError(f"No rank can join: {self.reason}.")
        remote = next((address for address in server.addresses if address.startswith("tcp:")), None)
        others = (
            "For ranks on other machines: monitor.configure(ranks='tcp://HOST:PORT') before they start."
            if remote is None
            else f"On other machines (they join at {remote}) copy that folder first, readable by you alone."
        )
        return (
            f"Processes started from this notebook join by themselves. In another terminal of this machine:\n"
            f"export {VARIABLE}={server.folder}\n"
            f"or kernel-monitor run --join {server.folder} -- torchrun …\n{others}"
        )

    def look(self) -> None:
        """Register ranks that came, changed or ended; at most once in `LOOK_S`."""
        server, now = self._server, time.monotonic()
        if server is None or now < self._due:
            return
        self._due = now + LOOK_S
        ranks = tuple(server.ranks()[-MOST:])
        if ranks != self.ranks:
            self.ranks = ranks
            self._series = frozenset(name for rank in ranks for name, _ in rank_series(rank.id, steps=rank.steps))
            self._store.set_ranks(ranks)
            self.commands.look(server.leads())
            for job in {rank.job for rank in ranks if rank.alive}:
                self.notes.pop(job, None)  # it has begun again
        if ranks and self._store.last_seq:
            self._judge(server)

    def _judge(self, server: RankServer) -> None:
        """Find patterns and the slow rank of each job in the newest rows; an event notes when one becomes slow."""
        rows = self._store.rows(max(0, self._store.last_seq - round(WINDOW_S / self._store.schema.interval) - 1))
        frames, end = Frames(rows, StepTable()), float(rows.time[-1])
        self.periods.look(end, server.recent)
        found: dict[int, SlowRank] = {}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
            for job in dict.fromkeys(rank.job for rank in self.ranks if rank.alive and rank.steps):
                own = [rank for rank in self.ranks if rank.job == job and rank.alive]
                slow = slow_rank(frames, own, end - WINDOW_S, end)
                if slow is not None:
                    found[job] = slow
        shown: dict[int, SlowRank] = {}
        for job in {**self.slow, **found}:
            before, slow = self.slow.get(job), found.get(job)
            if slow is not None:
                self._seen[job] = end
            same = (
                before is not None
                and slow is not None
                and (before.rank.id, before.cause)
                == (
                    slow.rank.id,
                    slow.cause,
                )
            )
            if before is not None and (same or slow is None) and end - self._said[job] < SAID_S:
                shown[job] = before  # numbers that change more often cannot be read
            elif slow is not None:
                if not same:
                    self._add_event("slow-rank", end, rank=slow.rank.id, cause=slow.cause, message=slow.sentence)
                shown[job], self._said[job] = slow, end
            elif before is not None and end - self._seen[job] < HELD_S:
                shown[job] = before
        self.slow = shown

    def values(self) -> dict[str, float]:
        """The newest values of the ranks that are alive, by the series' names."""
        server = self._server
        if server is None or not self.ranks:
            return {}
        return {name: value for name, value in server.values().items() if name in self._series}
