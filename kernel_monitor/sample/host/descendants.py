"""The descendants of a process, and what each has used."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from typing import NamedTuple, Protocol

import psutil

from .. import procfs
from ..procfs import LINUX

_BYTES = re.compile(rb"^(?:read|write)_bytes: (\d+)$", re.MULTILINE)


class Usage(NamedTuple):
    """A process and what it has used since it began."""

    start: float  # when it began, in seconds of a clock of the source's own
    parent: int  # the number of its parent
    name: str  # its name, or its main thread's
    ended: bool  # it is a zombie, which holds nothing any more
    cpu: float  # CPU time of all its threads, in seconds
    resident: int  # its memory in RAM, in bytes; pages shared with others count in each
    moved: tuple[int, int] | None  # bytes read from and written to storage for it; None where they cannot be read


class Source(Protocol):
    """Where a process's descendants are found. `io_reason`: why `Usage.moved` is never known here, or nothing."""

    io_reason: str

    def pids(self) -> Collection[int]:
        """The process and all its descendants, including those that got another parent."""
        ...

    def usage(self, pid: int) -> Usage | None:
        """What a process has used; None if it has ended, even if its number was used again."""
        ...

    def command(self, pid: int) -> object:
        """The command line of a process, to be compared; None if it has ended."""
        ...


class ProcSource:
    """From Linux' `/proc`.

    One listing gives all processes; parents are read only of those that were not in the listing before. That is
    cheaper than the `children` files of all threads of the tree, of which a training process has hundreds, and needs
    no kernel built with them.
    """

    def __init__(self, root: int, proc: str = "/proc") -> None:
        self._proc = proc
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._ours: dict[int, float] = {}
        self._others: set[int] = set()
        self._root = root
        self.io_reason = ""
        try:
            procfs.read(f"{proc}/{root}/io")
        except OSError as error:
            self.io_reason = f"/proc/<pid>/io cannot be read: {error.strerror}"

    def pids(self) -> Collection[int]:
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
        # A parent's number may be the higher one: repeat until none is added.
        while born := [pid for pid, found in fresh.items() if found.parent in self._ours]:
            for pid in born:
                self._ours[pid] = fresh.pop(pid).start
        self._others |= fresh.keys()
        return self._ours.keys()

    def usage(self, pid: int) -> Usage | None:
        found = self._stat(pid, moved=not self.io_reason)
        if found is not None and found.start != self._ours.get(pid, found.start):
            del self._ours[pid]  # another process of this number: the next listing reads its parent
            return None
        return found

    def command(self, pid: int) -> object:
        try:
            return procfs.read(f"{self._proc}/{pid}/cmdline")
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _stat(self, pid: int, *, moved: bool = False) -> Usage | None:
        """From `/proc/<pid>/stat` (man 5 proc); its resident pages are those of `statm`."""
        try:
            head, _, tail = procfs.read(f"{self._proc}/{pid}/stat").rpartition(b")")
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
            read, written = _BYTES.findall(procfs.read(f"{self._proc}/{pid}/io"))
        except OSError:
            return None  # it has ended, or belongs to another user
        return int(read), int(written)


class PsutilSource:
    """From psutil, for systems without `/proc`."""

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


def source(root: int) -> Source:
    return ProcSource(root) if LINUX else PsutilSource(root)
