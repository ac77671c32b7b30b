"""The jobs of a session and their ranks: who they are, what they did last, and how they ended."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import psutil

from .. import node_sources
from ..os_process import is_alive, start_of
from ..rank import Rank, Row
from .hosts import node_key
from .identity import host_key, job_of, ranks_of
from .rank_frames import Frame, Identity

SILENT_S = 5.0  # a rank of which nothing is heard for so long counts as gone, until it is heard again
_FRAME_S = 1.5  # how long the values of a frame hold: three periods
_KEPT_STEPS = 80  # the newest of each rank, one by one
KEPT_ENDED = 16  # ranks that have ended whose rows stay
MOST_RANKS = 256  # at once; those that have ended make room for others
_MOST_IDS = 50_000  # ranks of a session in all: each may have columns in its recording
MOST_JOBS = 256  # whose number is remembered
LONGEST_S = 600.0  # how long the values of one step hold at most
ENDED = "its process has ended"
_SILENT = f"nothing was heard of it for {SILENT_S:g} s"
_COPY = 6  # the place of the first phase in a frame's step
PHASES = ("copy", "forward", "backward", "optimizer")


@dataclass
class _Process:
    """The facts that are known about one rank."""

    rank: Rank
    identity: Identity
    heard: float  # s, by our clock
    key: tuple[str, int, float]  # `_key` of its identity
    values: dict[str, float] = field(default_factory=dict)  # of its last frame, by the series' names
    stepped: dict[str, float] = field(default_factory=dict)  # of its last steps
    step_until: float = 0.0  # how long the values of its last steps hold
    bound: float | None = 0.0  # s: how exactly its clock is known; None: not yet
    steps: int = 0  # that have come
    dropped: int = 0  # frames that it could not send
    left_out: int = 0  # steps that no frame had
    recent: deque[Row] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))  # its newest steps


class Jobs:
    """Is told of frames and of found processes, on the server's thread. `clock` gives s of our monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._processes: list[_Process] = []  # in the order in which they came
        self._ended: deque[str] = deque()  # ids, the one that ended first before the others
        self._numbers: dict[tuple[str, int | None], int] = {}  # of jobs, by what their ranks have in common
        self._count = 0
        self._ids = 0  # ranks that came, in all

    def ranks(self) -> list[Rank]:
        """Return all ranks that are shown, sorted by job and number."""
        return sorted((process.rank for process in self._processes), key=lambda rank: (rank.job, rank.number))

    def values(self) -> dict[str, float]:
        """Return the newest values of the ranks that are alive, by the series' names."""
        now = self._clock()
        found: dict[str, float] = {}
        for process in list(self._processes):
            if not process.rank.alive or now - process.heard > max(_FRAME_S, SILENT_S * (not process.rank.steps)):
                continue
            found |= process.values
            if now <= process.step_until:
                found |= process.stepped
        return found

    def heard(self, frame: Frame, gpu: int | None = None) -> Rank:
        """Take a frame; returns whose it is. A ValueError if that is one rank too many.

        `gpu`: the index of its rank's GPU on its host, if that is known.
        """
        now = self._clock()
        process = self._process(frame.identity, steps=True)
        process.heard, process.bound = now, frame.bound
        process.dropped, process.left_out = frame.dropped, frame.left_out
        if not process.rank.alive:
            self._revive(process)
        if gpu is not None and gpu != process.rank.gpu:
            process.rank = replace(process.rank, gpu=gpu)
        process.steps += len(frame.steps)
        self._set(process, {"cpu": frame.cpu, "images": frame.images, "steps": float(process.steps)}, frame.steps)
        if frame.steps:
            process.recent.extend(frame.steps)
            longest = max(row[5] for row in frame.steps)
            process.step_until = now + min(LONGEST_S, max(_FRAME_S, 2 * longest))
        if frame.bye is not None:
            self._end(process, frame.bye)
        return process.rank

    def has_steps(self, pid: int) -> bool:
        """Return whether this process of this machine has sent steps."""
        return any(
            process.recent and process.identity.pid == pid for process in self._processes if self._is_here(process)
        )

    def recent(self) -> dict[Rank, list[Row]]:
        """Return the newest steps of each rank that is alive, oldest first."""
        return {process.rank: list(process.recent) for process in self._processes if process.rank.alive}

    def found(self, identity: Identity, cpu: float) -> None:
        """Note a process of a job that was found and sends nothing; `cpu` is in % of a core."""
        try:
            process = self._process(identity, steps=False)
        except ValueError:
            return
        if not process.rank.steps:
            process.heard = self._clock()
            self._set(process, {"cpu": cpu}, ())
            if not process.rank.alive:
                self._revive(process)

    def refresh(self) -> None:
        """Note who has ended, and forget those that ended long before."""
        now = self._clock()
        for process in self._processes:
            if process.rank.alive:
                if not self._exists(process):
                    self._end(process, ENDED)
                elif now - process.heard > SILENT_S:
                    self._end(process, _SILENT)
        while len(self._ended) > KEPT_ENDED:
            self._drop_oldest()

    def pids(self) -> set[int]:
        """Return the numbers of the processes here that send their steps."""
        return {process.identity.pid for process in self._processes if process.rank.steps and self._is_here(process)}

    def hosts(self) -> set[str]:
        """Return the `host_key` of each host that has ranks which are alive."""
        return {process.identity.host for process in self._processes if process.rank.alive}

    def bound(self) -> float | None:
        """Return the bound, in s, on the difference between our clock and those of living ranks; None if not known."""
        bounds = [process.bound for process in self._processes if process.rank.alive]
        known = [bound for bound in bounds if bound is not None]
        return max(known, default=0.0) if len(known) == len(bounds) else None

    def lost(self) -> tuple[int, int]:
        """Frames that could not be sent and steps that no frame had, of all ranks."""
        return sum(each.dropped for each in self._processes), sum(each.left_out for each in self._processes)

    def _process(self, identity: Identity, *, steps: bool) -> _Process:
        """Return the rank that this process is; a new one where it is none yet.

        A ValueError if that is one too many.
        """
        key = _key(identity)
        same = [process for process in self._processes if process.key == key]
        for process in same:
            if (process.identity.rank, process.identity.world) == (identity.rank, identity.world):
                if steps and not process.rank.steps:
                    process.rank = replace(process.rank, steps=True)
                return process
            # It has joined its process group since: it is another rank than it seemed.
            self._forget(process)
        return self._add(identity, steps=steps)

    def _add(self, identity: Identity, *, steps: bool) -> _Process:
        common = (identity.job, identity.world)
        job = self._numbers.get(common)
        own = [process for process in self._processes if process.rank.job == job]
        number = identity.rank
        if number is None:
            number = next(k for k in range(len(own) + 1) if all(k != process.rank.number for process in own))
        place = next((process for process in own if process.rank.number == number), None)
        if place is not None and place.rank.alive and self._exists(place):
            job = place = None  # two of them at once: another job that meets at the same address
        if place is None:
            self._make_room()
        if job is None:
            self._count += 1
            job = self._count
        self._remember(common, job)
        host = "" if identity.host == host_key() else identity.name
        node = node_sources.node_id(node_key(identity.host), host) if host else ""
        gpu = None if place is None else place.rank.gpu
        rank = Rank(f"{job}-{number}", job, number, identity.world, host, steps, node=node, gpu=gpu)
        process = _Process(rank, identity, self._clock(), _key(identity))
        if place is not None:  # started again: the row goes on
            self._forget(place)
        self._processes.append(process)
        return process

    def _make_room(self) -> None:
        """Drop the rank that ended first if there are too many; a ValueError if none has ended."""
        if self._ids >= _MOST_IDS:
            raise ValueError(f"{_MOST_IDS:,} ranks have joined this session; start the kernel again for more")
        if len(self._processes) >= MOST_RANKS:
            if not self._ended:
                raise ValueError(f"more than {MOST_RANKS} ranks at once")
            self._drop_oldest()
        self._ids += 1

    def _drop_oldest(self) -> None:
        gone = self._ended.popleft()
        self._processes = [process for process in self._processes if process.rank.id != gone]

    def _remember(self, common: tuple[str, int | None], job: int) -> None:
        """Note a job's number, and forget those that were noted longest ago and have no rank any more."""
        self._numbers.pop(common, None)
        self._numbers[common] = job
        if len(self._numbers) > MOST_JOBS:
            shown = {process.rank.job for process in self._processes} | {job}
            idle = [key for key, number in self._numbers.items() if number not in shown]
            for key in idle[: len(self._numbers) - MOST_JOBS]:
                del self._numbers[key]

    @staticmethod
    def _set(process: _Process, values: dict[str, float], steps: Sequence[Row]) -> None:
        """Note its values; those of its steps stay until others come."""
        name = f"rank/{process.rank.id}/"
        process.values = {name + part: value for part, value in values.items() if math.isfinite(value)}
        if steps:
            process.stepped = {name + part: value for part, value in means(steps).items()}

    def _forget(self, process: _Process) -> None:
        self._processes = [other for other in self._processes if other is not process]
        if process.rank.id in self._ended:
            self._ended.remove(process.rank.id)

    def _end(self, process: _Process, reason: str) -> None:
        process.rank = replace(process.rank, alive=False, reason=reason)
        process.values, process.stepped = {}, {}
        self._ended.append(process.rank.id)

    def _revive(self, process: _Process) -> None:
        process.rank = replace(process.rank, alive=True, reason=None)
        if process.rank.id in self._ended:
            self._ended.remove(process.rank.id)

    @staticmethod
    def _is_here(process: _Process) -> bool:
        return process.identity.host == host_key()

    def _exists(self, process: _Process) -> bool:
        """Return whether its process runs, as far as that can be seen from here."""
        return not self._is_here(process) or is_alive(process.identity.pid, process.identity.start)


def _key(identity: Identity) -> tuple[str, int, float]:
    return identity.host, identity.pid, identity.start


def means(steps: Sequence[Row]) -> dict[str, float]:
    """Return mean durations of these steps in ms by the parts of the series' names, and the share of the wait in %.

    What was not measured in any of them is left out.
    """

    columns = list(zip(*steps, strict=True))

    def mean(values: Sequence[float]) -> float:
        total = sum(values)
        if math.isfinite(total):
            return 1e3 * total / len(values)
        known = [value for value in values if math.isfinite(value)]
        return 1e3 * sum(known) / len(known) if known else math.nan

    found = {"step": mean(columns[5]), "wait": mean(columns[4])}
    phases = {part: mean(columns[_COPY + k]) for k, part in enumerate(PHASES)}
    known = {part: value for part, value in phases.items() if not math.isnan(value)}
    if known and not math.isnan(found["wait"]):
        found["other"] = max(0.0, found["step"] - found["wait"] - sum(known.values()))
    if found["step"] > 0:
        found["wait_percent"] = 100 * found["wait"] / found["step"]
    return {part: value for part, value in {**found, **known}.items() if not math.isnan(value)}


# ---- Ranks among the kernel's descendants that use nothing of this package: their environment says that they are
# ranks.


class _Seen(NamedTuple):
    """A process that was read before."""

    process: psutil.Process
    identity: Identity | None  # None: it is no rank


class Descendants:
    """Looks for them; what a process is, is read once."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], _Seen] = {}

    def refresh(self, joined: set[int], helpers: int = 1) -> list[tuple[Identity, float]]:
        """Return ranks that run and are none of the processes `joined`, with their CPU since the last call, in %.

        `helpers`: how many children of this process are the monitor's own.
        """
        if not _has_children(helpers) or start_of(os.getpid()) is None:  # /proc is hidden, as the sampler says
            self._seen.clear()
            return []
        found: list[tuple[Identity, float]] = []
        seen: dict[tuple[int, float], _Seen] = {}
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                key = (process.pid, process.create_time())
                known = self._seen.get(key)
                fresh = known is None
                known = seen[key] = known or _Seen(process, _identity(process))
                if known.identity is not None and process.pid not in joined:
                    used = known.process.cpu_percent(None)  # since the call before
                    found.append((known.identity, math.nan if fresh else used))
        self._seen = seen
        return found


def _identity(process: psutil.Process) -> Identity | None:
    """Return which rank a process is; None where its environment does not say, or it was started by such a rank."""
    environment = process.environ()
    rank, world = ranks_of(environment)
    start = start_of(process.pid)
    if rank is None or start is None:
        return None
    parent = process.ppid()
    with suppress(psutil.Error, OSError):
        if ranks_of(psutil.Process(parent).environ())[0] == rank:
            return None  # a rank's own child, such as a worker of its loader
    return Identity(
        host=host_key(),
        name="",
        pid=process.pid,
        start=start,
        parent=parent,
        rank=rank,
        world=world,
        job=job_of(environment, parent),
    )


def _has_children(helpers: int) -> bool:
    """Return whether this process has more children than these: to know more, all processes must be read."""
    if not sys.platform.startswith("linux"):
        return True
    with suppress(OSError):
        tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
        return sum(len((task / "children").read_bytes().split()) for task in tasks) > helpers
    return True
