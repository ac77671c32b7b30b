"""Use of CPU, memory and storage by the kernel and its child processes, by role."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from ...os_process import FORK_SERVER
from .. import probe
from ..probe import LINUX, NAN, Probe

ROLES = ("kernel", "workers", "sampler", "others")
_PARTS = (("cpu", "%"), ("memory", "B"), ("read", "B/s"), ("write", "B/s"), ("count", "1"))
_MOVED = ("read", "write")
_WORKER = "pt_data_worker"  # torch's process name of a DataLoader's worker (torch/utils/data/_utils/worker.py)
_COMMAND_READS = 2  # reads of a child's command line: at the first it may be forked and not yet have called exec
_BYTES = re.compile(rb"^(?:read|write)_bytes: (\d+)$", re.MULTILINE)


class Usage(NamedTuple):
    """The use of a process since its start."""

    start: float  # its start, in seconds of a clock of the source's own
    parent: int  # its parent's pid
    name: str  # its name, or its main thread's
    ended: bool  # it is a zombie, which holds no memory
    cpu: float  # CPU time of all its threads, in seconds
    resident: int  # its memory in RAM, in bytes; pages shared with others count in each
    moved: tuple[int, int] | None  # bytes read from and written to storage for it; None if they cannot be read


class ProcSource:
    """A reader of a process and its descendants from Linux' `/proc`.

    One listing gives all processes; only for processes that are new in it are the parents read. That is cheaper than
    the `children` files of all threads of the tree, of which a training process has hundreds, and works on kernels
    built without them.

    Attributes:
        io_reason: why `Usage.moved` is never known here; empty if it is.
    """

    def __init__(self, root: int, proc: str = "/proc") -> None:
        self._proc = proc
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._ours: dict[int, float] = {}  # the start of each process
        self._others: set[int] = set()
        self._root = root
        self.io_reason = ""
        try:
            probe.read(f"{proc}/{root}/io")
        except OSError as error:
            self.io_reason = f"/proc/<pid>/io cannot be read: {error.strerror}"

    def pids(self) -> Collection[int]:
        """Return the pids of the process and its descendants, including those whose parent has ended."""
        running = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}  # noqa: PTH208 - as text, unsorted
        for pid in self._ours.keys() - running:
            del self._ours[pid]
        self._others &= running
        fresh: dict[int, Usage] = {}
        for pid in running - self._ours.keys() - self._others:
            found = self._stat(pid)
            if found is not None:
                fresh[pid] = found
        if self._root in fresh:
            self._ours[self._root] = fresh.pop(self._root).start
        # A parent's pid may be higher than its child's: repeat until none is added.
        while born := [pid for pid, found in fresh.items() if found.parent in self._ours]:
            for pid in born:
                self._ours[pid] = fresh.pop(pid).start
        self._others |= fresh.keys()
        return self._ours.keys()

    def usage(self, pid: int) -> Usage | None:
        """Return the use of a process; None if it has ended, even if its pid was used again."""
        found = self._stat(pid, moved=not self.io_reason)
        if found is not None and found.start != self._ours.get(pid, found.start):
            del self._ours[pid]  # another process has this pid: the next listing reads its parent
            return None
        return found

    def command(self, pid: int) -> object:
        """Return the command line of a process, for comparison; None if it has ended."""
        try:
            return probe.read(f"{self._proc}/{pid}/cmdline")
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _stat(self, pid: int, *, moved: bool = False) -> Usage | None:
        """Return the use from `/proc/<pid>/stat` (man 5 proc); its resident pages equal those of `statm`."""
        try:
            head, _, tail = probe.read(f"{self._proc}/{pid}/stat").rpartition(b")")
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, parent, *fields = tail.split(None, 22)
        return Usage(
            start=int(fields[17]) * self._tick,
            parent=int(parent),
            name=head.partition(b"(")[2].decode(errors="replace"),
            ended=state in (b"Z", b"X"),
            cpu=(int(fields[9]) + int(fields[10])) * self._tick,
            resident=int(fields[19]) * self._page,
            moved=self._moved(pid) if moved else None,
        )

    def _moved(self, pid: int) -> tuple[int, int] | None:
        try:
            read, written = _BYTES.findall(probe.read(f"{self._proc}/{pid}/io"))
        except OSError:
            return None  # it has ended, or belongs to another user
        return int(read), int(written)


class PsutilSource:
    """A reader with the methods of `ProcSource`, by psutil, for systems without `/proc`."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._known: dict[int, psutil.Process] = {}
        self.io_reason = "" if hasattr(self._root, "io_counters") else "this system does not count what a process reads"

    def pids(self) -> Collection[int]:
        try:
            found = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            found = []
        kept = {pid: process for pid, process in self._known.items() if process.is_running()}
        self._known = kept | {process.pid: kept.get(process.pid, process) for process in found}
        return self._known.keys()

    def usage(self, pid: int) -> Usage | None:
        process = self._known[pid]
        try:
            with process.oneshot():
                ended = process.status() == psutil.STATUS_ZOMBIE
                times = process.cpu_times()
                return Usage(
                    start=process.create_time(),
                    parent=process.ppid(),
                    name=process.name(),
                    ended=ended,
                    cpu=times.user + times.system,
                    resident=process.memory_info().rss,
                    moved=None if self.io_reason else self._moved(process),
                )
        except psutil.Error:
            return None  # it has ended, or belongs to another user

    def command(self, pid: int) -> object:
        try:
            return tuple(self._known[pid].cmdline())
        except psutil.Error:
            return None

    @staticmethod
    def _moved(process: psutil.Process) -> tuple[int, int] | None:
        try:
            counters = process.io_counters()
        except psutil.Error:
            return None
        return counters.read_bytes, counters.write_bytes


Source = ProcSource | PsutilSource


@dataclass(slots=True)
class _Member:
    """A process of the tree at the last read."""

    usage: Usage
    command_reads: int = 0  # how often its command line was read
    forked: bool = False  # its command line is the kernel's own


class ProcessTree(Probe):
    """A probe of the kernel's process tree: CPU time, memory, bytes read and written, and count per role, at 1 Hz.

    The roles are: the kernel; the workers of its data loaders (those that the kernel names, children with torch's name
    for workers, and forked children, which have the kernel's own command line); this sampler; other descendants. A role
    without processes has a count of 0 and no other value.

    The first read that sees a process counts all that it used since its start; use after the last read is unknown.
    """

    group = "process"
    period = 1.0

    def __init__(self, pid: int, processes: Source | None = None) -> None:
        self._kernel = pid
        self._own = os.getpid()
        self._processes = processes or (ProcSource(pid) if LINUX else PsutilSource(pid))
        self._named: frozenset[int] = frozenset()
        self._members: dict[int, _Member] | None = None
        self._at = NAN
        io_reason = self._processes.io_reason
        self._parts = [(part, unit) for part, unit in _PARTS if not io_reason or part not in _MOVED]
        self.series = tuple((f"process/{role}/{part}", unit) for role in ROLES for part, unit in self._parts)
        self.reasons = {f"process/{role}/{part}": io_reason for role in ROLES for part in _MOVED if io_reason}

    @property
    def pids(self) -> frozenset[int]:
        """The processes that the last read found; from any thread."""
        return frozenset(self._members or ())

    def set_workers(self, pids: Iterable[int]) -> None:
        """Set the pids of the worker processes; from any thread."""
        self._named = frozenset(pids)

    def read(self, now: float, /) -> list[float]:
        before, elapsed = self._members, (now - self._at) or NAN
        used = {(role, "count"): 0.0 for role in ROLES}  # metrics that are not in it are unknown
        members: dict[int, _Member] = {}
        command: object = None
        for pid in tuple(self._processes.pids()):
            usage = self._processes.usage(pid)
            if usage is None:
                continue
            if pid == self._own:  # it uses about one tick of 10 ms per second: `process_time` is finer
                usage = usage._replace(cpu=time.process_time())
            member = before.get(pid) if before else None
            last = None if member is None else member.usage
            if member is None or member.usage.start != usage.start:
                member, last = _Member(usage), None
            member.usage = usage
            members[pid] = member
            if member.command_reads < _COMMAND_READS:
                command = command or self._processes.command(self._kernel)
                member.command_reads += 1
                member.forked = bool(command) and self._processes.command(pid) == command
            role = self._role(pid, member)
            for part, more in _used(usage, last, born=before is not None):
                used[role, part] = used.get((role, part), 0.0) + more
        self._members, self._at = members, now
        factor = {"cpu": 100.0 / elapsed, "read": 1.0 / elapsed, "write": 1.0 / elapsed}
        return [used.get((role, part), NAN) * factor.get(part, 1.0) for role in ROLES for part, _ in self._parts]

    def _role(self, pid: int, member: _Member) -> str:
        if pid == self._kernel:
            return "kernel"
        if pid == self._own:
            return "sampler"
        # The fork server is a copy of the kernel, too, but loads no data.
        forked = member.forked and member.usage.name != FORK_SERVER
        if pid in self._named or member.usage.name == _WORKER or forked:
            return "workers"
        return "others"


def _used(now: Usage, before: Usage | None, *, born: bool) -> Iterator[tuple[str, float]]:
    """Yield the use that a process adds to its role since the last read.

    `before` is None if the last read did not see the process; `born` means that it started since then.
    """
    if not now.ended:  # a zombie holds no memory
        yield "count", 1.0
        yield "memory", now.resident
    if before is None and not born:
        return
    # Counters never fall. If one seems to (the kernel scales user and system time), the process used nothing.
    yield "cpu", max(0.0, now.cpu - (before.cpu if before else 0.0))
    since = before.moved if before else (0, 0)
    if now.moved is not None and since is not None:
        for part, new, old in zip(_MOVED, now.moved, since, strict=True):
            yield part, max(0, new - old)
