"""Follows the ranks of this kernel's session: offers it to them, and has columns for those that joined."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ..analysis.frames import Frames
from ..analysis.job_figures import job_phases
from ..analysis.slow_rank import WINDOW_S, JobPeriod, SlowRank, job_period, slow_rank
from ..errors import MonitorError
from ..rank import Rank, Row
from ..sample.gpu.nvml import index_of
from ..store import StepTable, Store
from ..store.schema import ranks_series
from ..text import cause, line, log_failed
from .rank_server import RankServer
from .session_files import KEYS, VARIABLE, JoinError, SessionFiles, read

if TYPE_CHECKING:
    from ..protocol.states import LoaderState


# ---- A loader of all ranks of a job, for the commands of users: the same questions as to a loader of this process.


class JobLoader:
    """One that ranks of a job had when it was made; each rank carries a command out at its own batch boundary."""

    def __init__(self, server: RankServer, state: LoaderState, changed: Callable[[], object]) -> None:
        """`changed` is called after a command: the states are others then."""
        self.id, self.name = state["id"], state["name"]
        self.beside = server.beside(self.id)
        self._server = server
        self._changed = changed

    def state(self) -> LoaderState:
        """Return its state now. MonitorError: no rank has it any more."""
        for state in self._server.loader_states():
            if state["id"] == self.id:
                return state
        raise MonitorError(f"No rank that has the loader {self.name} is alive any more.")

    def switch(self, backend: str) -> None:
        """Ask every rank to switch; returns at once. Raises as `SwitchableLoader.switch`, if no rank can."""
        self._server.switch(self.id, backend)
        self._changed()

    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None:
        """Ask every rank to set knobs; returns at once. A rank that cannot says so in the job's status."""
        knobs = {"workers": workers, "prefetch": prefetch, "threads": threads}
        self._server.set(self.id, {name: value for name, value in knobs.items() if value is not None})
        self._changed()


# ---- Looks for patterns in the single steps of the jobs' ranks, now and then, and notes each as an event.

_PATTERNS_S = 2.0  # between two searches
FRESH = 16  # new steps between two searches that both must have found a pattern


class JobPeriods:
    """The patterns of one session's jobs, asked on the sampler's reader thread.

    Attributes:
        found: the pattern of each job that has one now, by the job's number.
    """

    def __init__(self, add_event: Callable[..., object]) -> None:
        self.found: dict[int, JobPeriod] = {}
        self._add_event = add_event
        self._due = 0.0
        self._last: dict[int, float] = {}  # by the job's number: the end of the newest step that was searched
        self._once: dict[int, JobPeriod | None] = {}  # what the last search found

    def refresh(self, at: float, recent: Callable[[], Mapping[Rank, Sequence[Row]]]) -> None:
        """Look at the newest steps if it is due; `at`: session s."""
        if at < self._due:
            return
        self._due = at + _PATTERNS_S
        jobs: dict[int, dict[Rank, Sequence[Row]]] = defaultdict(dict)
        for rank, rows in recent().items():
            if rows:
                jobs[rank.job][rank] = rows
        for gone in self.found.keys() - jobs.keys():
            del self.found[gone]
        for kept in (self._last, self._once):
            for ended in kept.keys() - jobs.keys():
                del kept[ended]
        for job, steps in jobs.items():
            rows = max(steps.values(), key=len)
            if sum(row[0] > self._last.get(job, 0.0) for row in rows) >= FRESH:
                self._last[job] = rows[-1][0]
                self._judge(job, at, job_period(job, steps))

    def _judge(self, job: int, at: float, period: JobPeriod | None) -> None:
        before, self._once[job] = self._once.get(job), period
        if period is not None and before is not None and period.period.steps == before.period.steps:
            if job not in self.found:
                self._add_event("step-period", at, job=job, steps=period.period.steps, message=period.sentence)
            self.found[job] = period
        elif period is None and before is None:
            self.found.pop(job, None)


REFRESH_S = 0.5  # between two checks of who has joined
SPARING = 10  # refreshes that take long are rarer: ranks that come and go without end must not hold the other rows up
FEW = 32  # ranks that are judged at each refresh; more of them less often, as it takes longer
_PHASES_S = 0.25  # between two choices of which ranks are the slowest and the median one: frames come half as often
_SAID_S = 2.0  # how long a sentence on a slow rank is shown at least
HELD_S = 4.0  # how long it stays when nothing is found any more: a rank that is slow now and then is one that is slow
_BOUNDS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
_NOT_OFFERED = "Ranks cannot join: the monitor does not run; %monitor start starts it."
log = logging.getLogger(__name__)


class RankTracker:
    """The ranks of one session, asked on the sampler's reader thread. Nothing raises here.

    Attributes:
        ranks: those that have columns; a new object when anything about them changed.
        reason: why no rank can join; None where they can.
        slow: the slow rank of each job that has one now, by the job's number.
        periods: the patterns of the jobs' steps.
    """

    def __init__(self, store: Store, complain: Callable[[str], object], add_event: Callable[..., object]) -> None:
        self.ranks: tuple[Rank, ...] = ()
        self.reason: str | None = _NOT_OFFERED
        self.slow: dict[int, SlowRank] = {}
        self.periods = JobPeriods(add_event)
        self._store = store
        self._complain = complain
        self._add_event = add_event
        self._server: RankServer | None = None
        self._files: SessionFiles | None = None  # of the last server: its ranks come back to the next one
        self._kept: list[RankServer] = []  # of the parent of a fork: ZeroMQ's objects must not be freed in a child
        self._states: list[LoaderState] = []  # of the jobs' loaders
        self._due = self._judge_due = self._phases_due = 0.0
        self._phases: dict[str, float] = {}
        self._clock: float | None = None  # ms, as of `coarse`
        self._said: dict[int, float] = {}  # by the job's number, in session s: since when its sentence is shown
        self._seen: dict[int, float] = {}  # when it was last found to have a slow rank
        self._series: frozenset[str] = frozenset()
        self._failures, self._failure = 0, ""  # of what is computed here, and the last one

    @property
    def server(self) -> RankServer | None:
        return self._server

    def begin(self, address: str | None) -> None:
        """Offer the session to ranks; a process that is a rank itself joins one and offers none."""
        if self._server is not None:
            return
        if VARIABLE in os.environ and "RANK" in os.environ:
            self.reason = "Ranks cannot join: this process is a rank itself."
            return
        try:
            self._server = RankServer(address, self._files, index_of)
            self._files, self.reason = self._server.files, None
        except Exception as error:  # noqa: BLE001 - whatever it is, the session goes on without ranks
            self._files, self.reason = (
                None,
                str(error) if isinstance(error, JoinError) else f"Ranks cannot join: {cause(error)}.",
            )
            if address is not None:
                self._complain(self.reason)

    def end(self) -> None:
        """Offer it no more, until it begins again: the ranks that are alive then come back by themselves."""
        server, self._server = self._server, None
        self.reason = _NOT_OFFERED
        if server is not None:
            server.stop(keep=True)

    def forget_in_child(self) -> None:
        """Detach a forked child: it offers nothing, and is perhaps a rank."""
        if self._server is not None:
            self._server.forget_in_child()
            self._kept.append(self._server)
        self._server, self._files, self.reason = None, None, _NOT_OFFERED

    def sentences(self) -> list[str]:
        """Return sentences on the jobs now: their slow ranks, and patterns of their steps."""
        found = [slow.sentence for slow in self.slow.values()]
        return found + [period.sentence for period in self.periods.found.values()]

    def lines(self) -> list[str]:
        """Return lines for the status: each job, and what is not known exactly."""
        found = []
        for job in dict.fromkeys(rank.job for rank in self.ranks):
            own = [rank for rank in self.ranks if rank.job == job]
            alive = sum(rank.alive for rank in own)
            whole = own[-1].world or len(own)
            found.append(f"job {job}: {alive} of {whole} ranks run" if alive else f"job {job} has ended")
        found += self.sentences()
        server = self._server
        if server is not None and found:
            bound, (frames, steps) = server.accuracy()
            if bound is None or bound > 0:
                exact = "not compared yet" if bound is None else f"± {1e3 * bound:.1f} ms"
                found.append(f"clocks of the ranks' machines: {exact}")
            if frames or steps:
                found.append(f"ranks could not send {frames:,} frames; {steps:,} of their steps are missing")
        if server is not None:
            found += server.faults()
        if self._failures:
            found.append(f"the ranks' charts failed {self._failures:,} times, the last time: {self._failure}")
        return found

    def loader_states(self) -> list[LoaderState]:
        """Return the states of the switchable loaders that a job's ranks have, one for each job and name."""
        return self._states if self._server is not None else []

    def loaders(self) -> list[JobLoader]:
        """Return the same loaders, to command."""
        server = self._server
        return [] if server is None else [JobLoader(server, state, self._read_states) for state in self._states]

    def lead(self, name: str, backend: str) -> None:
        """Have the other ranks of this process's own job follow a switch of its loader, now and when they join."""
        if self._server is not None:
            self._server.lead(name, backend)
            self._read_states()

    def _read_states(self) -> None:
        server = self._server
        if server is not None:
            self._states = server.loader_states()

    def join_words(self) -> str:
        """Return what to set so that a rank started elsewhere joins. JoinError: none can, with the reason."""
        server = self._server
        if server is None:
            raise JoinError(self.reason)
        lines = [
            "Processes started from this notebook join by themselves. In another terminal of this machine:",
            f"export {VARIABLE}={server.folder}",
            f"or kernel-monitor run --join {server.folder} -- torchrun …",
        ]
        remote = server.remote_address
        if remote is None:
            lines.append("For ranks on other machines: monitor.configure(ranks='tcp://HOST:PORT') before they start.")
        else:
            lines += [
                "On other machines (who has these keys can join this session, until this kernel ends):",
                f"export {VARIABLE}={remote}",
                f"export {KEYS}='{read(server.folder).keys}'",
            ]
        return "\n".join(lines)

    def refresh(self) -> None:
        """Register ranks that came, changed or ended; at most once in `REFRESH_S`."""
        server, now = self._server, time.monotonic()
        if server is None or now < self._due:
            return
        self._due = now + REFRESH_S
        try:
            server.revive()
            self._refresh(server, now)
        except Exception as error:  # noqa: BLE001 - whatever it is: the other rows go on, and the status says so
            self._failed(error)
        self._due = max(self._due, now + SPARING * (time.monotonic() - now))

    def _failed(self, error: Exception) -> None:
        if not self._failures:
            log_failed(log, "the ranks' charts failed; this is logged once")
        self._failures += 1
        self._failure = line(f"{type(error).__name__}: {error}")

    def _refresh(self, server: RankServer, now: float) -> None:
        self._clock = coarse(server.accuracy()[0], self._clock)
        ranks = tuple(replace(rank, clock=self._clock if rank.node else None) for rank in server.ranks())
        if ranks != self.ranks:
            self.ranks = ranks
            self._series = frozenset(series.name for series in ranks_series(ranks))
            self._store.set_ranks(ranks)
            shown = {rank.job for rank in ranks}
            for kept in (self._said, self._seen):
                for job in kept.keys() - shown - self.slow.keys():
                    del kept[job]
        self._read_states()
        if ranks and self._store.last_seq:
            if now >= self._judge_due:
                self._judge_due = now + REFRESH_S * max(1.0, len(ranks) / FEW)
                self._judge(server)
            self._tell(server)

    def _tell(self, server: RankServer) -> None:
        """Note switches that all ranks have answered, and epochs that all have finished."""
        at = float(self._store.rows(self._store.last_seq - 1).time[-1])
        switches, epochs = server.outcomes()
        for (job, loader), words in switches:
            self._add_event("job-switch", at, job=job, name=loader, label=words)
        for epoch in epochs:
            counts = asdict(epoch.covered)
            del counts["finished"]
            self._add_event(
                "job-epoch", at, job=epoch.job, name=epoch.loader, epoch=epoch.epoch, ranks=epoch.ranks, **counts,
                message=epoch.sentence,
            )  # fmt: skip

    def _judge(self, server: RankServer) -> None:
        """Find patterns and the slow rank of each job in the newest rows; an event notes when one becomes slow."""
        rows = self._store.rows(max(0, self._store.last_seq - round(WINDOW_S / self._store.schema.interval) - 1))
        frames, end = Frames(rows, StepTable()), float(rows.time[-1])
        self.periods.refresh(end, server.recent)
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
            known = None if before is None else (before.rank.id, before.cause)
            same = slow is not None and known == (slow.rank.id, slow.cause)
            if before is not None and (same or slow is None) and end - self._said[job] < _SAID_S:
                shown[job] = before  # numbers that change more often cannot be read
            elif slow is not None:
                if not same:
                    self._add_event("slow-rank", end, rank=slow.rank.id, cause=slow.cause, message=slow.sentence)
                shown[job], self._said[job] = slow, end
            elif before is not None and end - self._seen[job] < HELD_S:
                shown[job] = before
        self.slow = shown

    def values(
        self, host: Mapping[str, float] = MappingProxyType({}), nodes: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, float]:
        """Return the newest values of the ranks that are alive and of their jobs, by the series' names.

        `host`, `nodes`: the newest values of this machine and of the others, of which ranks get those of their GPU.
        """
        server = self._server
        if server is None or not self.ranks:
            return {}
        try:
            return self._values(server, host, nodes)
        except Exception as error:  # noqa: BLE001 - as in `refresh`
            self._failed(error)
            return {}

    def _values(self, server: RankServer, host: Mapping[str, float], nodes: Mapping[str, float]) -> dict[str, float]:
        found = server.values()
        for rank in self.ranks:
            if rank.gpu is not None and rank.alive:
                known, name = (nodes, f"node/{rank.node}/gpu/{rank.gpu}") if rank.node else (host, f"gpu/{rank.gpu}")
                parts = (("gpu", "utilisation"), ("gpu_clock", "clock" if rank.node else "clock_sm"))
                found |= {f"rank/{rank.id}/{part}": known.get(f"{name}/{of}", math.nan) for part, of in parts}
        now = time.monotonic()
        if now >= self._phases_due:
            self._phases_due = now + _PHASES_S
            self._phases = job_phases(self.ranks, found, self.slow)
        found |= self._phases
        return {name: value for name, value in found.items() if name in self._series}


def coarse(bound: float | None, before: float | None) -> float | None:
    """Return a bound (s) as one of `_BOUNDS_MS` that is not below it; `before` while that is less than five times
    as wide.

    Each change makes pages load their charts again, and what is known of a clock improves with every quick exchange.
    """
    if bound is None:
        return before
    found = next((most for most in _BOUNDS_MS if 1e3 * bound <= most), _BOUNDS_MS[-1])
    return before if before is not None and found <= before < 5 * found else found
