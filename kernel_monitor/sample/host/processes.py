"""What the kernel and its child processes use, by role."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..probe import NAN, Probe
from .descendants import Usage, source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .descendants import Source

ROLES = ("kernel", "workers", "sampler", "others")
_PARTS = (("cpu", "%"), ("memory", "B"), ("read", "B/s"), ("write", "B/s"), ("count", "1"))
_MOVED = ("read", "write")
_WORKER = "pt_data_worker"  # what torch calls a DataLoader's worker (torch/utils/data/_utils/worker.py)
_LOOKS = 2  # at a child's command line: at the first it may be forked and not yet have called exec


@dataclass(slots=True)
class _Member:
    """A process of the tree as the last read saw it."""

    usage: Usage
    looks: int = 0  # how often its command line was read
    forked: bool = False  # it has the kernel's own command line


@dataclass(slots=True)
class _Sum:
    """What the processes of a role used in the window; NaN: unknown."""

    count: int = 0
    resident: float = NAN
    cpu: float = NAN
    read: float = NAN
    written: float = NAN

    def add(self, now: Usage, before: Usage | None, *, born: bool) -> None:
        """Add a process: `before` is None if the last read did not see it, `born` if it began since."""
        if not now.ended:  # a zombie holds nothing any more
            self.count += 1
            self.resident = _plus(self.resident, now.resident)
        if before is None and not born:
            return
        # Counters never fall; where they seem to (the kernel scales user and system time) nothing was used.
        self.cpu = _plus(self.cpu, max(0.0, now.cpu - (before.cpu if before else 0.0)))
        since = before.moved if before else (0, 0)
        if now.moved is not None and since is not None:
            self.read = _plus(self.read, max(0, now.moved[0] - since[0]))
            self.written = _plus(self.written, max(0, now.moved[1] - since[1]))


def _plus(known: float, more: float) -> float:
    return more if known != known else known + more


class ProcessTree(Probe):
    """CPU time, resident memory, bytes read and written, and number of the processes of each role, at 1 Hz.

    The roles: the kernel; the workers of its data loaders (those that the kernel names, children with torch's name for
    workers, and forked children, which have the kernel's own command line); this sampler; other descendants. A role
    without processes has a count of 0 and no other value.

    A process counts from the first read that sees it, with all that it used since it began, to the last: what it used
    after that is unknown.

    Args:
        pid: the kernel's process.
        processes: where its descendants are found; this system's source by default.
    """

    group = "process"
    period = 1.0

    def __init__(self, pid: int, processes: Source | None = None) -> None:
        self._kernel = pid
        self._own = os.getpid()
        self._processes = source(pid) if processes is None else processes
        self._named: frozenset[int] = frozenset()
        self._members: dict[int, _Member] | None = None
        self._at = NAN
        why_not = self._processes.io_reason
        self._moved = not why_not
        self.series = tuple(
            (f"process/{role}/{part}", unit)
            for role in ROLES
            for part, unit in _PARTS
            if self._moved or part not in _MOVED
        )
        self.reasons = {f"process/{role}/{part}": why_not for role in ROLES for part in _MOVED if why_not}

    @property
    def pids(self) -> frozenset[int]:
        """The processes that the last read found; from any thread."""
        return frozenset(self._members or ())

    def set_workers(self, pids: Iterable[int]) -> None:
        """Set the numbers of the worker processes; from any thread."""
        self._named = frozenset(pids)

    def read(self, now: float, /) -> list[float]:
        before, elapsed = self._members, (now - self._at) or NAN
        sums = {role: _Sum() for role in ROLES}
        members: dict[int, _Member] = {}
        command: object = None
        for pid in tuple(self._processes.pids()):
            usage = self._processes.usage(pid)
            if usage is None:
                continue
            if pid == self._own:  # it uses about a tick of 10 ms in a second: its own clock is finer
                usage = usage._replace(cpu=time.process_time())
            member = before.get(pid) if before else None
            last = None if member is None else member.usage
            if member is None or member.usage.start != usage.start:
                member, last = _Member(usage), None
            member.usage = usage
            members[pid] = member
            if member.looks < _LOOKS:
                command = command or self._processes.command(self._kernel)
                member.looks += 1
                member.forked = bool(command) and self._processes.command(pid) == command
            sums[self._role(pid, member)].add(usage, last, born=before is not None)
        self._members, self._at = members, now
        return [value for role in ROLES for value in self._values(sums[role], elapsed)]

    def _role(self, pid: int, member: _Member) -> str:
        if pid == self._kernel:
            return "kernel"
        if pid == self._own:
            return "sampler"
        if pid in self._named or member.usage.name == _WORKER or member.forked:
            return "workers"
        return "others"

    def _values(self, found: _Sum, elapsed: float) -> list[float]:
        """One role's values; the rates are NaN where the sums are."""
        moved = [found.read / elapsed, found.written / elapsed] if self._moved else []
        return [100.0 * found.cpu / elapsed, found.resident, *moved, float(found.count)]
