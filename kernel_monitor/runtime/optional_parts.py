"""The optional packages `ranks` and `profiler` as the monitor uses them, and what takes their place without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..plugins import missing, plugin

if TYPE_CHECKING:
    from ..protocol.analysis_states import ProfileState
    from ..protocol.states import LoaderState
    from ..rank import Rank
    from ..store import Store

PATIENCE_S = 10.0  # how long a profile waits for a step before there is no loop to profile


class JobLoader(Protocol):
    """A loader of all ranks of a job: it takes the commands of a loader of this process."""

    id: str
    name: str
    beside: str | None  # what the loader is called in this process, where that is a rank of the same job

    def state(self) -> LoaderState: ...
    def switch(self, backend: str) -> None: ...
    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None: ...


class LiveRanks(Protocol):
    """The ranks that join this process's session. `refresh` and `values` are called on the sampler's reader thread."""

    @property
    def ranks(self) -> tuple[Rank, ...]: ...
    def begin(self, address: str | None) -> None: ...
    def end(self) -> None: ...
    def forget_in_child(self) -> None: ...
    def refresh(self) -> None: ...
    def values(self, host: Mapping[str, float], nodes: Mapping[str, float]) -> dict[str, float]: ...
    def sentences(self) -> list[str]: ...
    def lines(self) -> list[str]: ...
    def loader_states(self) -> list[LoaderState]: ...
    def loaders(self) -> Sequence[JobLoader]: ...
    def lead(self, name: str, backend: str) -> None: ...


class Profiler(Protocol):
    """Profiles steps of the running loop (`Monitor.profile`)."""

    @property
    def state(self) -> ProfileState | None: ...
    def start(self, steps: int, *, loader: str | None, wait: bool, patience: float) -> dict[str, Any] | None: ...
    def ended(self, seconds: float) -> ProfileState | None: ...
    def end_here(self) -> None: ...
    def forget_in_child(self) -> None: ...


class _NoRanks:
    """Takes the place of `LiveRanks` where the package `ranks` is not installed: no rank ever joins."""

    ranks: tuple[Rank, ...] = ()

    def begin(self, address: str | None) -> None:
        """Offer nothing."""

    def end(self) -> None:
        """Do nothing: nothing was offered."""

    forget_in_child = refresh = end

    def values(self, _host: object, _nodes: object) -> dict[str, float]:
        return {}

    def sentences(self) -> list[str]:
        return []

    def lines(self) -> list[str]:
        return []

    def loader_states(self) -> list[LoaderState]:
        return []

    def loaders(self) -> Sequence[JobLoader]:
        return []

    def lead(self, _name: str, _backend: str) -> None:
        """Do nothing: no other rank has joined."""


class _NoProfiler:
    """Takes the place of `Profiler` where the package `profiler` is not installed."""

    state: ProfileState | None = None

    def start(self, *_: object, **__: object) -> dict[str, Any] | None:
        raise missing("profiler")

    def ended(self, _seconds: float) -> ProfileState | None:
        return None

    def end_here(self) -> None:
        """Do nothing: nothing was started."""

    forget_in_child = end_here


def live_ranks(store: Store, complain: Callable[[str], object], add_event: Callable[..., object]) -> LiveRanks:
    """Return the ranks of a session. `complain` is called with a reason why none can join."""
    ranks = plugin("ranks")
    if ranks is None:
        return _NoRanks()
    made: LiveRanks = ranks.live_ranks(store, complain, add_event)
    return made


def profiler(session: object, start: Callable[[], None]) -> Profiler:
    """Return the profiler of a session (`runtime.session.Session`). `start` starts the monitor."""
    found = plugin("profiler")
    if found is None:
        return _NoProfiler()
    made: Profiler = found.profiler(session, start)
    return made
