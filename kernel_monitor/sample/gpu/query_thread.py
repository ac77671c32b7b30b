"""A thread that queries NVML, and the newest answers of one GPU's queries, which another thread reads.

Some of NVML's calls block for tens of milliseconds, and on a GPU in trouble for ever.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..probe import NAN
from .nvml import Device, Part, Query

SILENT_S = 3.0  # after this long without an answer the values held are no longer shown
SHARE = 0.2  # at most this share of the time is spent in NVML: where a round takes long, rounds come less often


class Table(NamedTuple):
    """Parts and their values, which go together: when the parts change, there is another table."""

    parts: tuple[Part, ...]
    values: list[float]


class GroupTime(NamedTuple):
    """When a group was read (`time.monotonic()`) and what time that covers, in s."""

    at: float
    window: float


class Change(NamedTuple):
    """A part that went missing, with the reason, or came back."""

    gpu: int
    part: str
    words: str


def in_words(changes: Iterable[Change]) -> list[str]:
    """A sentence for all parts of a GPU that changed for the same reason."""
    together: dict[tuple[int, str], list[str]] = {}
    for gpu, part, words in changes:
        together.setdefault((gpu, words), []).append(part)
    return [f"GPU {gpu} {', '.join(parts)}: {words}" for (gpu, words), parts in together.items()]


class QueryTable:
    """The newest values of some queries, and NVML's reasons for those that are missing. Written by one thread."""

    def __init__(self, device: Device, queries: Sequence[Query]) -> None:
        self.device = device
        self.reasons: dict[str, str] = {}  # by part, why it is missing
        self.queries: list[Query] = []
        self.lay_out(queries)

    def lay_out(self, queries: Sequence[Query]) -> None:
        """Have these queries from now on."""
        self.close()
        self.queries = list(queries)
        earlier: dict[str, frozenset[str]] = {}
        parts: list[Part] = []
        for query in queries:
            query.place, query.earlier = len(parts), earlier.get(query.group, frozenset())
            earlier[query.group] = query.earlier | {query.parts[0][0]}
            parts += query.parts
        self.groups = tuple(earlier)  # of the queries, in order
        names = {name for name, _ in parts}
        self.reasons = {name: words for name, words in self.reasons.items() if name in names}
        self.times: dict[str, GroupTime] = {}  # of the first of a group's queries that has an answer
        self.table = Table(tuple(parts), [NAN] * len(parts))

    def ask(self, now: float, tolerance: float = 0.0) -> list[Change]:
        """Ask what is due, or will be within `tolerance` (s); returns what changed."""
        changes: list[Change] = []
        soon = now + tolerance
        for query in self.queries:
            if query.due <= soon:
                self._ask(query, now, changes)
        return changes

    def _ask(self, query: Query, now: float, changes: list[Change]) -> None:
        values = self.table.values
        refused = known = 0
        for place, ((part, _), answer) in enumerate(zip(query.parts, query.answers(now), strict=False), query.place):
            if isinstance(answer, str):
                values[place] = NAN
                refused += 1
                if self.reasons.get(part) != answer:
                    self.reasons = {**self.reasons, part: answer}
                    changes.append(Change(self.device.index, part, answer))
            else:
                values[place] = answer
                known += answer == answer
                if part in self.reasons:
                    self.reasons = {name: words for name, words in self.reasons.items() if name != part}
                    changes.append(Change(self.device.index, part, "is back"))
        # Where NVML refuses only some of the parts, the query is repeated for the others.
        query.due = now + (query.retry if refused == len(query.parts) else query.period)
        if known and query.earlier <= self.reasons.keys():
            self.times[query.group] = GroupTime(query.at, query.window)

    def close(self) -> None:
        """Give everything back to NVML, as far as it is there to take it."""
        for query in self.queries:
            try:
                query.close()
            except self.device.nvml.NVMLError as error:
                self.device.refused(error)


@dataclass(eq=False)
class QueryThread:
    """A thread that asks all queries of its tables, round after round."""

    name: str  # of the thread
    subject: str  # what is missing while NVML does not answer, in words
    tables: Sequence[QueryTable]  # one per GPU, or several
    interval: float  # seconds between the beginnings of two rounds

    def __post_init__(self) -> None:
        self.answered = time.monotonic()  # when the newest answer came
        self.first = threading.Event()  # set when every table was asked once
        self.changes: deque[Change] = deque()  # another thread takes them out
        self.thread = threading.Thread(target=self.rounds, name=self.name, daemon=True)
        self._stop = threading.Event()
        self._wake = threading.Event()

    def stop(self) -> None:
        """Ask no more after the query that runs."""
        self._stop.set()
        self._wake.set()

    def set_interval(self, interval: float) -> None:
        """Begin a round every `interval` seconds, the first one at once."""
        if interval != self.interval:
            self.interval = interval
            self._wake.set()

    def silent(self, now: float) -> bool:
        """Whether a call to NVML has blocked this thread for too long."""
        return now - self.answered > max(SILENT_S, 3 * self.interval)

    def rounds(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Ask until `stop`, or until `ended()` is true after a round."""
        while not self._stop.is_set():
            began = time.monotonic()
            for table in self.tables:
                changes = table.ask(time.monotonic(), self.interval / 2)
                self.answered = time.monotonic()
                if self._stop.is_set():
                    return
                self.changes.extend(changes)
            self.first.set()
            if ended():
                return
            took = self.answered - began
            self._wake.wait(max(self.interval, took / SHARE) - took)
            self._wake.clear()
