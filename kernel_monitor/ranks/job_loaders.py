"""The switchable loaders of jobs: one for all ranks of a job that have one of the same name, and commands to them."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ..errors import BackendUnavailable, MonitorError
from ..protocol.states import EngineState, KnobsState, LoaderState
from ..rank import Rank
from . import identity
from .coverage import Coverage, Covered
from .rank_frames import Frame, Identity
from .rank_loaders import COUNTS

if TYPE_CHECKING:
    from ..protocol.states import LoaderState


# ---- One state of a loader that all ranks of a job have, from theirs: what the page shows, and one click switches.

States = Sequence[tuple[Rank, Mapping[str, Any]]]
_ALIAS = "dali"  # `dali-cpu` or `dali-gpu`, whichever is better on that rank
_OWN_CLUSTER = "Each rank would start a Ray of its own; start one first and set RAY_ADDRESS for all ranks."


def merged(loader: str, name: str, states: States, status: str, wanted: str | None, covered: Covered | None) -> Any:
    """Return the `LoaderState` of a job.

    Args:
        loader, name: its id, and what people read.
        states: of the ranks that have the loader, at least one.
        status: as `status` makes it.
        wanted: the engine that was asked for and that not all ranks have taken.
        covered: what all ranks delivered of the newest epoch, where that can be said.
    """
    newest = max(state["epoch"] for _, state in states)
    own = [state for _, state in states if state["epoch"] == newest]  # the others have not begun it
    counts: dict[str, Any] = {
        key: sum(state[key] for state in own) for key in ("samples", "lost", "doubled", "skipped", "replaced")
    }
    planned = [state["planned"] for state in own]
    decoded: Counter[str] = Counter()
    for state in own:
        decoded.update(state["decoded"])
    if covered is not None:
        counts["lost"], counts["doubled"] = covered.lost, covered.doubled
        if None not in planned:
            counts["padded"] = max(0, sum(planned) - covered.length)
    knobs = [state["knobs"] for _, state in states]
    alike = {key: value if all(other[key] == value for other in knobs) else None for key, value in knobs[0].items()}
    engines = _engines(states)
    if wanted is not None:
        wanted = _meant(engines, wanted)
    batches = [state["batches"] for state in own if state["batches"] is not None]
    found: dict[str, Any] = {
        "id": loader,
        "name": name,
        "backend": Counter(state["backend"] for _, state in states).most_common(1)[0][0],
        "wanted": wanted,
        "status": status,
        "backends": engines,
        "epoch": newest,
        "batch": min(state["batch"] for state in own) if len(own) == len(states) else 0,
        "batches": max(batches, default=None),
        "planned": None if None in planned else sum(planned),
        **counts,
        "skips": [],
        "knobs": cast("KnobsState", alike),
        "decoded": dict(decoded),
        "calibration": {},
        "ranks": len(states),
        "once": covered is not None,
    }
    return cast("LoaderState", found)


def status(states: States, target: str | None, waiting: Iterable[str], refusals: Mapping[str, str]) -> tuple[str, bool]:
    """Return how far a switch has come, and whether all ranks have answered.

    Args:
        states: of the ranks that are alive.
        target: the engine that was asked for last; None: none was.
        waiting: ids of ranks that have not answered yet.
        refusals: what ranks said that could not.
    """
    count = f"{len(states)} rank{'s' if len(states) > 1 else ''}"
    if target is None:
        engines = Counter(state["backend"] for _, state in states)
        return _on(engines, len(states), count), True
    there = [rank for rank, state in states if reached(state["backend"], target)]
    under_way, left = [], []
    missing = set(waiting)
    for rank, state in states:
        if rank in there:
            continue
        if rank.id in missing or state["wanted"] is not None:
            under_way.append(rank)
        else:
            untouched = state["status"].partition(",")[0] == state["backend"]
            why = refusals.get(rank.id) or ("" if untouched else state["status"])
            left.append((rank, f"stays on {state['backend']}: {why}" if why else f"on {state['backend']}"))
    # `dali` is another engine on a rank with a GPU than on one without: those that run are named.
    running = Counter(state["backend"] for rank, state in states if rank in there)
    words = [_on(running or {_meant(_engines(states), target): 0}, len(states), count)]
    words += [f"{numbers(ranks)} {why}" for why, ranks in alike(left)]
    return "; ".join(words), not under_way


def _meant(engines: Sequence[EngineState], target: str) -> str:
    """Return the engine that a name means, as each rank resolves it: `dali` is `dali-gpu` where that can run."""
    able = [one["name"] for one in engines if one["available"] and reached(one["name"], target)]
    return max(able, default=target)  # dali-gpu before dali-cpu


def _on(engines: Mapping[str, int], ranks: int, count: str) -> str:
    """Return words such as `dali-cpu on 2 ranks`, or `dali-gpu on 1, dali-cpu on 1 of 2 ranks`."""
    if len(engines) == 1 and sum(engines.values()) == ranks:
        return f"{next(iter(engines))} on {count}"
    return f"{', '.join(f'{name} on {number}' for name, number in engines.items())} of {count}"


def reached(backend: str, target: str) -> bool:
    """Return whether an engine is the one that was asked for."""
    return backend == target or (target == _ALIAS and backend.startswith(f"{_ALIAS}-"))


def numbers(ranks: Sequence[Rank]) -> str:
    """Return words such as `rank 1`, or `ranks 0, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank.number) for rank in ranks)}"


def _engines(states: States) -> list[EngineState]:
    """Return every engine of any rank: it can be chosen where one rank has it; which have not, and why, is its note."""
    names = dict.fromkeys(engine["name"] for _, state in states for engine in state["backends"])
    return [_engine(name, states) for name in names]


def _engine(name: str, states: States) -> EngineState:
    own: list[tuple[Rank, EngineState]] = [
        (rank, engine) for rank, state in states for engine in state["backends"] if engine["name"] == name
    ]
    confirm = next((engine["confirm"] for _, engine in own if engine["confirm"]), None)
    if name == "ray" and confirm:
        return EngineState(name=name, available=False, reason=_OWN_CLUSTER, confirm=None, note=None)
    lacking = [(rank, engine["reason"] or "not available") for rank, engine in own if not engine["available"]]
    if len(lacking) == len(own):
        reasons = alike(lacking)
        reason = reasons[0][0] if len(reasons) == 1 else "; ".join(f"{numbers(who)}: {why}" for why, who in reasons)
        return EngineState(name=name, available=False, reason=reason, confirm=None, note=None)
    notes = [f"not on {numbers(ranks)}: {why}" for why, ranks in alike(lacking)]
    notes += dict.fromkeys(engine["note"] for _, engine in own if engine["available"] and engine["note"])
    return EngineState(name=name, available=True, reason=None, confirm=confirm, note="; ".join(notes) or None)


def alike(said: Iterable[tuple[Rank, str]]) -> list[tuple[str, list[Rank]]]:
    """Return the ranks whose loaders have the same state."""
    found: dict[str, list[Rank]] = {}
    for rank, words in said:
        found.setdefault(words, []).append(rank)
    return list(found.items())


KEPT = 4  # newest epochs of a loader whose samples are counted: short ones follow each other within a frame
_KEPT_COMMANDS = 64
KEPT_TOLD = 1024  # epochs of which it was said that they are finished
_MOST_TOLD = 32  # epochs that are said to be finished at once; the others at the next refresh
_MOST_SHOWN = 64  # loaders of all jobs
MOST_COUNTED = 64_000_000  # samples of all epochs whose deliveries are counted, a byte each
HELD_S = 2.0  # how long ranks may be in different epochs before that is shown
EPOCH = (*COUNTS, "epoch", "batch", "batches", "padded", "once")  # of a state, what is of its newest epoch
Key = tuple[int, str]  # of a job's loader: the job's number and the loader's name


@dataclass
class _Command:
    """A command to all ranks of a job that have a loader, also to those that have it later."""

    id: int
    of: Key
    message: dict[str, Any]
    waiting: dict[str, str]  # ids of ranks that have not answered: their loader's id
    asked: dict[str, tuple[Any, str]] = field(default_factory=dict)  # by the rank's id: its process, its loader's id
    refusals: dict[str, str] = field(default_factory=dict)  # by the rank's id
    told: bool = False  # whether it was said that all have answered
    holds: bool = True  # until a newer one of its kind, and while a rank of the job is alive

    def ask(self, rank: str, process: object, loader: str) -> None:
        """Ask a rank, unless its loader was asked before."""
        if self.asked.get(rank) != (process, loader):
            self.asked[rank] = process, loader
            self.waiting[rank] = loader
            self.refusals.pop(rank, None)

    def to(self, rank: str) -> dict[str, Any]:
        return {"id": self.id, "loader": self.waiting[rank], **self.message}


@dataclass
class _Process:
    """The newest state of a rank's loader."""

    rank: Rank
    process: tuple[str, int, float]
    states: dict[str, dict[str, Any]]  # by the name that its loaders have in the job


@dataclass(frozen=True)
class JobEpoch:
    """An epoch that all ranks have finished, whose samples were counted."""

    job: int
    loader: str
    epoch: int
    ranks: int
    covered: Covered

    @property
    def sentence(self) -> str:
        """Its counts, for people. The first epoch is 1."""
        own = self.covered
        padded = f", {own.padded:,} again so that each rank has as many" if own.padded else ""
        skipped = f", {own.skipped:,} skipped or replaced" if own.skipped else ""
        once = f"{own.once:,} of {own.length:,} samples once{padded}{skipped}"
        wrong = f"{own.lost:,} lost, {own.doubled:,} delivered twice"
        return f"epoch {self.epoch + 1} over {self.ranks} ranks: {once}, {wrong}"


class JobLoaders:
    """Is told of frames on the server's thread, and asked by others under its lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._whole: dict[Key, tuple[float, LoaderState]] = {}  # when all ranks were in one epoch, and their state then
        self._processes: dict[str, _Process] = {}  # by the rank's id
        self._coverage: dict[Key, dict[int, Coverage]] = {}
        self._commands: list[_Command] = []
        self._numbers = itertools.count(1)
        self._told: dict[tuple[Key, int], None] = {}  # the newest last
        self._own_job: set[int] = set()  # numbers of jobs of which this process is a rank
        self._led: dict[str, str] = {}  # the engine that was asked for last of this process's loader, by its name

    def heard(self, rank: Rank, frame: Frame) -> dict[str, Any]:
        """Take what a frame says of its loaders; returns what goes into its answer."""
        process = (frame.identity.host, frame.identity.pid, frame.identity.start)
        before = self._processes.get(rank.id)
        if before is not None and before.process != process:  # started again: it begins its epochs anew
            self._forget(rank)
            for command in self._commands:
                command.waiting.pop(rank.id, None)
        names = _names(frame.loaders)
        states = {names[state["id"]]: state for state in frame.loaders}
        self._processes[rank.id] = _Process(rank, process, states)
        had: dict[str, dict[int, int]] = {}
        for chunk, indices in frame.parts():
            if chunk.loader in names:
                coverage = self._of(rank, names[chunk.loader], chunk.epoch, chunk.length)
                had.setdefault(chunk.loader, {})[chunk.epoch] = coverage.add(rank.number, chunk, indices)
        if is_beside(frame.identity, identity.own()):
            self._own_job.add(rank.job)
        for name in states.keys() & self._led.keys():
            if rank.job in self._own_job and not self._held((rank.job, name)):
                self._command((rank.job, name), [(rank, states[name])], {"do": "switch", "backend": self._led[name]})
        for command in self._commands:
            if command.holds and command.of[0] == rank.job and command.of[1] in states:
                command.ask(rank.id, process, states[command.of[1]]["id"])
            if rank.id in command.waiting and command.id in frame.handled:
                del command.waiting[rank.id]
                refusal = frame.handled[command.id]
                if refusal is not None:
                    command.refusals[rank.id] = refusal
        return {"had": had, "commands": self.pending(rank.id)}

    def pending(self, rank: str) -> list[dict[str, Any]]:
        """Return the commands that a rank (its id) has not answered."""
        return [command.to(rank) for command in self._commands if rank in command.waiting]

    def states(self, ranks: Sequence[Rank]) -> list[LoaderState]:
        """Return a state for each loader of each job that has ranks which are alive, sorted by job and name.

        Args:
            ranks: of all jobs, as they are now.
        """
        return [self._state(key, own) for key, own in self._own(ranks).items()]

    def settled(self, ranks: Sequence[Rank]) -> list[tuple[Key, str]]:
        """Return the switches that all ranks have answered since the last call, with how they ended."""
        found = []
        for key, own in self._own(ranks).items():
            command = self._switch(key)
            if command is not None and not command.told:
                words, done = status(own, command.message["backend"], command.waiting, command.refusals)
                if done:
                    command.told = True
                    found.append((key, words))
        return found

    def finished(self, ranks: Sequence[Rank]) -> list[JobEpoch]:
        """Return the epochs that all ranks have finished since the last call; frees what is kept of jobs that have
        ended.
        """
        found: list[JobEpoch] = []
        for key, epochs in self._coverage.items():
            for number, coverage in epochs.items():
                covered = coverage.covered()
                fresh = covered is not None and covered.finished and not coverage.told
                if covered is not None and fresh and len(found) < _MOST_TOLD:
                    coverage.told = True
                    if (key, number) not in self._told:
                        self._told[key, number] = None
                        found.append(JobEpoch(*key, number, coverage.world, covered))
        while len(self._told) > KEPT_TOLD:
            del self._told[next(iter(self._told))]
        self.prune(ranks)
        return found

    def prune(self, ranks: Sequence[Rank]) -> None:
        """Free what is kept of ranks that are shown no more, of jobs that have ended, and of loaders they do not have.

        Args:
            ranks: of all jobs, as they are now.
        """
        known = {rank.id for rank in ranks}
        alive = {rank.job for rank in ranks if rank.alive}
        self._processes = {rank: process for rank, process in self._processes.items() if rank in known}
        said = {(process.rank.job, name) for process in self._processes.values() for name in process.states}
        kept = {key for key in said if key[0] in alive}
        self._coverage = {key: epochs for key, epochs in self._coverage.items() if key in kept}
        self._whole = {key: whole for key, whole in self._whole.items() if key in kept}
        for command in self._commands:
            command.holds = command.holds and command.of[0] in alive

    def switch(self, loader: str, backend: str, ranks: Sequence[Rank]) -> None:
        """Ask all ranks of a job to switch a loader (its id). Raises what `SwitchableLoader.switch` does."""
        key, own = self._find(loader, ranks)
        engines = {engine["name"]: engine for engine in self._state(key, own)["backends"]}
        wanted = [engines[name] for name in engines if name == backend or (backend == _ALIAS and name[:5] == "dali-")]
        if not wanted:
            known = ", ".join(engines)
            raise BackendUnavailable(f"There is no backend {backend!r:.40}. There are: {known}.")
        if not any(engine["available"] for engine in wanted):
            raise BackendUnavailable(f"{backend} cannot be used on any rank: {wanted[0]['reason']}")
        self._command(key, own, {"do": "switch", "backend": backend})

    def lead(self, name: str, backend: str, ranks: Sequence[Rank]) -> None:
        """Have a switch of this process's own loader hold for the other ranks of its job, also for those that join."""
        self._led[name] = backend
        for key, own in self._own(ranks).items():
            if key[0] in self._own_job and key[1] == name:
                self._command(key, own, {"do": "switch", "backend": backend})

    def beside(self, loader: str) -> str | None:
        """Return the name of a job's loader (its id) if this process is a rank of the job, else None."""
        number, _, name = loader.removeprefix("job-").partition("/")
        return name if number.isdecimal() and int(number) in self._own_job else None

    def set(self, loader: str, knobs: dict[str, int], ranks: Sequence[Rank]) -> None:
        """Ask all ranks of a job to set a loader's knobs."""
        key, own = self._find(loader, ranks)
        self._command(key, own, {"do": "set", "knobs": knobs})

    def _forget(self, rank: Rank) -> None:
        """Count the epochs anew in which a rank had a part; the other ranks send what they have delivered again."""
        for (job, name), epochs in self._coverage.items():
            for number in [number for number, coverage in epochs.items() if coverage.has(rank.number)]:
                if job == rank.job:
                    del epochs[number]
                    self._told.pop(((job, name), number), None)

    def _command(self, key: Key, own: list[tuple[Rank, dict[str, Any]]], message: dict[str, Any]) -> None:
        for earlier in self._commands:
            if earlier.of == key and earlier.message["do"] == message["do"]:
                earlier.waiting.clear()  # the newest one counts
                earlier.holds = False
        command = _Command(next(self._numbers), key, message, {})
        for rank, state in own:
            command.ask(rank.id, self._processes[rank.id].process, state["id"])
        self._commands.append(command)
        del self._commands[:-_KEPT_COMMANDS]

    def _find(self, loader: str, ranks: Sequence[Rank]) -> tuple[Key, list[tuple[Rank, dict[str, Any]]]]:
        for key, own in self._own(ranks).items():
            if _id(key) == loader:
                return key, own
        raise MonitorError("No rank that has this loader is alive any more.")

    def _own(self, ranks: Sequence[Rank]) -> dict[Key, list[tuple[Rank, dict[str, Any]]]]:
        """Return the ranks that are alive and have a loader, by the loader."""
        found: dict[Key, list[tuple[Rank, dict[str, Any]]]] = {}
        for rank in ranks:
            process = self._processes.get(rank.id)
            if process is not None and rank.alive:
                for name, state in process.states.items():
                    if len(found) < _MOST_SHOWN or (rank.job, name) in found:
                        found.setdefault((rank.job, name), []).append((rank, state))
        return found

    def _state(self, key: Key, own: list[tuple[Rank, dict[str, Any]]]) -> LoaderState:
        command = self._switch(key)
        target = None if command is None else command.message["backend"]
        waiting, refusals = ({}, {}) if command is None else (command.waiting, command.refusals)
        words, done = status(own, target, waiting, refusals)
        words = "; ".join([words, *self._knobs_refused(key, own)])
        newest = max(state["epoch"] for _, state in own)
        coverage = self._coverage.get(key, {}).get(newest)
        covered = None if coverage is None else coverage.covered()
        wanted = None if done else target
        state: LoaderState = merged(_id(key), f"{key[1]} · job {key[0]}", own, words, wanted, covered)
        now = self._clock()
        if all(each["epoch"] == newest for _, each in own):
            self._whole[key] = now, state
        elif key in self._whole and now - self._whole[key][0] < HELD_S:
            # The ranks' frames come one after the other: until all have begun the epoch, the one before is shown.
            counts = {name: value for name, value in self._whole[key][1].items() if name in EPOCH}
            return cast("LoaderState", {**state, **counts})
        return state

    def _switch(self, key: Key) -> _Command | None:
        """Return the newest switch of a loader."""
        return self._newest(key, "switch")

    def _held(self, key: Key) -> bool:
        command = self._switch(key)
        return command is not None and command.holds

    def _newest(self, key: Key, what: str) -> _Command | None:
        own = [command for command in self._commands if command.of == key and command.message["do"] == what]
        return own[-1] if own else None

    def _knobs_refused(self, key: Key, own: Sequence[tuple[Rank, dict[str, Any]]]) -> list[str]:
        """Return which ranks did not take the newest knobs, and why."""
        command = self._newest(key, "set")
        said = {} if command is None else command.refusals
        return [
            f"{numbers(who)}: {why}" for why, who in alike((rank, said[rank.id]) for rank, _ in own if rank.id in said)
        ]

    def _of(self, rank: Rank, name: str, epoch: int, length: int) -> Coverage:
        epochs = self._coverage.get((rank.job, name), {})
        if epoch in epochs:
            return epochs[epoch]
        world = rank.world or sum(known.rank.job == rank.job for known in self._processes.values())
        if not epochs and len(self._coverage) >= _MOST_SHOWN:
            return Coverage(0, world)
        self._coverage[rank.job, name] = epochs
        size = sum(each.size for kept in self._coverage.values() for each in kept.values())
        for old in sorted(epochs):  # the older ones make room
            if size + length > MOST_COUNTED and old < epoch:
                size -= epochs.pop(old).size
        epochs[epoch] = Coverage(length if size + length <= MOST_COUNTED else 0, world)
        for old in sorted(epochs)[:-KEPT]:
            del epochs[old]
        return epochs.get(epoch) or Coverage(0, world)


def is_beside(rank: Identity, own: Identity) -> bool:
    """Return whether a rank is another one of the job of which this process is one, too."""
    return own.rank is not None and (rank.job, rank.world) == (own.job, own.world) and rank.rank != own.rank


def _id(key: Key) -> str:
    return f"job-{key[0]}/{key[1]}"


def _names(states: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return what the loaders of a rank are called in its job, by their ids: two of one name are told apart."""
    found: dict[str, str] = {}
    for state in states:
        name, number = state["name"], 1
        while name in found.values():
            number += 1
            name = f"{state['name']} ({number})"
        found[state["id"]] = name
    return found
