"""Commands of users to the loaders of this process: switch the engine, set knobs, answer offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..errors import MonitorError
from ..text import line

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from ..protocol.states import LoaderState
    from .current_verdict import Offers
    from .loader_tracker import LoaderTracker
    from .optional_parts import JobLoader

Found = TypeVar("Found", bound="SwitchableLoader | JobLoader")


class LoaderCommands:
    """The commands of one process."""

    def __init__(self, tracker: LoaderTracker, offers: Offers, jobs: Callable[[], Sequence[JobLoader]]) -> None:
        """`jobs` returns the loaders of jobs whose ranks joined this process's session."""
        self._tracker = tracker
        self._offers = offers
        self._jobs = jobs

    def switch(self, backend: str, *, loader: str | None = None, confirmed: bool = False) -> LoaderState:
        """Ask a loader to continue with another engine from its next batch; returns its state at once.

        See `Monitor.switch`.
        """
        question = None if confirmed else self.question(backend, loader=loader)
        if question is not None:
            raise MonitorError(f"{question} Nothing was switched: this has to be confirmed.")
        chosen = self.choose(loader)
        chosen.switch(backend)
        state: LoaderState = chosen.state()
        self._offers.chosen(state)
        return state

    def decline(self, loader: str | None = None) -> bool:
        """Refuse the offer to a loader (its id or name) for this session; returns False if nothing was offered."""
        return self._offers.decline(self.choose(loader).id)

    def question(self, backend: str, *, loader: str | None = None) -> str | None:
        """Return the question to ask before switching to an engine, or None."""
        state = self.choose(loader).state()
        if backend == (state["wanted"] or state["backend"]):
            return None
        return next((engine["confirm"] for engine in state["backends"] if engine["name"] == backend), None)

    def set(
        self,
        *,
        loader: str | None = None,
        workers: int | None = None,
        prefetch: int | None = None,
        threads: int | None = None,
    ) -> LoaderState:
        """Change a loader's knobs from its next batch on; returns its state at once.

        See `Monitor.set`.
        """
        if workers is None and prefetch is None and threads is None:
            raise MonitorError("Say what to set: workers, prefetch or threads.")
        chosen = self.choose(loader)
        chosen.set(workers=workers, prefetch=prefetch, threads=threads)
        state: LoaderState = chosen.state()
        return state

    def choose(self, loader: str | None) -> SwitchableLoader | JobLoader:
        """Return the live loader with an id or name; the only one for None. MonitorError if there is none, or several.

        Those of this process come before those of jobs, which have the job's number in their names.
        """
        jobs = self._jobs()
        if not jobs:
            return self.choose_own(loader)
        known: list[SwitchableLoader | JobLoader] = [*self._tracker.loaders(), *jobs]
        return _chosen(known, loader)

    def choose_own(self, loader: str | None) -> SwitchableLoader:
        """Choose as `choose` does, among the loaders of this process alone."""
        live = self._tracker.loaders()
        if not live:
            raise MonitorError(
                "This kernel has no switchable loader. "
                "Wrap yours: loader = switchable(loader)  # from kernel_monitor import switchable"
            )
        return _chosen(live, loader)


def _chosen(live: Sequence[Found], loader: str | None) -> Found:
    chosen = [found for found in live if loader is None or line(loader) in (found.id, found.name)]
    if len(chosen) != 1:
        names = ", ".join(found.name for found in live)
        problem = "Several are live: say which" if loader is None else f"No single loader is called {loader!r}"
        raise MonitorError(f"{problem}. The loaders are: {names}.")
    return chosen[0]
