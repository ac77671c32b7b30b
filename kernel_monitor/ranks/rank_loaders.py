"""The rank's switchable loaders: their states and what they delivered go with its frames, and commands come back."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from typing import Any, Protocol, cast

from ..errors import MonitorError
from ..text import line
from .rank_frames import EPOCHS, HANDLED, LOADER_FIELDS, MOST_LOADERS, SENTENCE, Chunk

_MOST_INDICES = 16_000  # that a frame carries: 32,000 samples a second
UNKNOWN = "it has no such loader any more"
COUNTS = ("samples", "planned", "lost", "doubled", "skipped", "replaced", "decoded")


class Record(Protocol):
    """The fields of `loaders.plan.EpochRecord` that are read here."""

    number: int
    indices: array[int]
    ends: array[int]
    passed: int
    answered: int
    batches: int
    finished: bool
    length: int | None
    shared: bool
    skipped: int
    replaced: int
    lost: int
    doubled: int

    @property
    def planned(self) -> int: ...

    def counts(self) -> Any: ...


class _Known:
    """The record of a loader, kept after its end too: its last samples may not have been sent yet."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.records: dict[int, Record] = {}
        self.had: dict[int, int] = {}  # how much of each epoch the kernel has
        self.live = True


class RankLoaders:
    """Used by the client's thread alone. Imports no torch: without it there are no such loaders."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self.handled: dict[int, str | None] = {}
        """The commands that were obeyed, and why one was refused."""

    def report(self) -> tuple[list[dict[str, Any]], list[Chunk], bytes]:
        """States, newest loaders last; pieces of what was delivered and not yet acknowledged; their indices, uint32."""
        self._refresh()
        states, chunks, parts, room = [], [], [], _MOST_INDICES
        for key, known in list(self._known.items())[-MOST_LOADERS:]:
            states.append({"id": key, **known.state})
            for number, record in known.records.items():
                chunk, indices = _chunk(key, record, known.had.get(number), room)
                room -= chunk.samples
                chunks.append(chunk)
                parts.append(indices)
        return states, chunks, b"".join(parts)

    def acknowledge(self, had: Mapping[str, Mapping[str, int]]) -> None:
        """Note how much the kernel has of each loader's epochs."""
        for key, epochs in had.items():
            if key in self._known:
                self._known[key].had = {int(number): int(place) for number, place in epochs.items()}

    def obey(self, commands: list[dict[str, Any]]) -> bool:
        """Carry out the commands that are new; whether there was one."""
        fresh = [command for command in commands if command["id"] not in self.handled]
        for command in fresh:
            try:
                _obey(command)
                refusal = None
            except Exception as error:  # noqa: BLE001 - whatever an engine raises is the rank's answer
                refusal = line(str(error) or type(error).__name__, SENTENCE)
            self.handled[command["id"]] = refusal
            while len(self.handled) > HANDLED:
                del self.handled[next(iter(self.handled))]
        return bool(fresh)

    def _refresh(self) -> None:
        live = {loader.id: loader for loader in _live()}
        for key, loader in live.items():
            known = self._known.setdefault(key, _Known())
            state = cast("dict[str, Any]", loader.state())
            known.state = _short({name: state[name] for name in LOADER_FIELDS})
            known.records = {record.number: record for record in loader.records()[-EPOCHS:]}
        for key, known in list(self._known.items()):
            if key not in live:
                known.live = False
                if known.records:  # what was delivered since the last refresh
                    newest = known.records[max(known.records)]
                    counts: dict[str, Any] = {**newest.counts()}
                    known.state |= {name: counts[name] for name in COUNTS} | {"batch": newest.batches}
                if len(self._known) > MOST_LOADERS:
                    del self._known[key]


def _short(value: Any) -> Any:
    """Nested lists and dicts with texts that are no longer than a frame may have them."""
    if isinstance(value, str):
        return value if len(value) <= SENTENCE else line(value, SENTENCE)
    if isinstance(value, dict):
        return {name: _short(entry) for name, entry in value.items()}
    return [_short(entry) for entry in value] if isinstance(value, list) else value


def _chunk(key: str, record: Record, had: int | None, room: int) -> tuple[Chunk, bytes]:
    """Return what comes next of an epoch, as far as there is room."""
    import numpy as np  # with torch it is there

    answered, finished = record.answered, record.finished
    first = record.ends[record.passed - 1] if record.passed else 0
    end = record.ends[answered - 1] if answered else 0
    start = max(first, had or 0)
    # A copy: an array that lends its memory cannot grow, and the training makes it grow.
    indices = record.indices[start : min(end, start + room)] if start < end else record.indices[:0]
    sent = np.frombuffer(indices, dtype=np.int64).astype("<u4").tobytes() if indices else b""
    length, planned = record.length or 0, record.planned
    plan = (key, record.number, first, start, len(indices), planned, length, record.shared, finished, end)
    return Chunk(*plan, record.skipped + record.replaced, record.lost, record.doubled), sent


def _obey(command: dict[str, Any]) -> None:
    """Carry one out. A MonitorError where it cannot be."""
    loader = next((loader for loader in _live() if loader.id == command["loader"]), None)
    if loader is None:
        raise MonitorError(UNKNOWN)
    if command["do"] == "switch":
        loader.switch(str(command["backend"]))
    elif command["do"] == "set":
        loader.set(**{name: int(value) for name, value in command["knobs"].items()})
    else:
        raise MonitorError(f"it knows no command {command['do']!r:.40}")


def _live() -> list[Any]:
    module = sys.modules.get("kernel_monitor.loaders.takeover")
    return [] if module is None or not hasattr(module, "live") else list(module.live())
