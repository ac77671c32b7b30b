"""Commands of users to the loaders of this process: switch the engine, set knobs, answer offers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from ..errors import MonitorError
from ..text import line, quoted

if TYPE_CHECKING:
    from ..loaders import AnyLoader, Backend, Switch
    from ..protocol.states import LoaderState
    from .current_verdict import Offers
    from .loader_tracker import LoaderTracker
    from .optional_parts import JobLoader, LiveRanks

Found = TypeVar("Found", bound="AnyLoader | JobLoader")


class LiveLoader:
    """A loader of this process that can be switched, held weakly: once it is gone, its methods raise MonitorError.

    Attributes:
        id, name: its id and its name, as `monitor.switch(…, loader=…)` takes them.
        kind: `attached` for a DataLoader as the user's code made it, `wrapped` for one from `switchable`.
    """

    def __init__(self, loader: AnyLoader) -> None:
        self.id, self.name, self.kind = loader.id, loader.name, loader.kind
        self._loader = weakref.ref(loader)

    def __repr__(self) -> str:
        found = self._loader()
        return f"<{self.name}: {self.kind}, {'ended' if found is None else found.state()['status']}>"

    @property
    def backend(self) -> str:
        """The engine in use: of the batch delivered last."""
        return self._live.backend

    @property
    def backends(self) -> dict[str, Backend]:
        """Every engine by name: whether it can run here, and why not."""
        return self._live.backends

    @property
    def history(self) -> list[Switch]:
        """The switches of its engine that took place, oldest first."""
        return self._live.history

    def switch(self, name: str) -> None:
        """Ask for an engine and return at once; it takes over at a batch boundary. See `SwitchableLoader.switch`."""
        self._live.switch(name)

    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None:
        """Change knobs; see `Monitor.set`."""
        self._live.set(workers=workers, prefetch=prefetch, threads=threads)

    def code(self, *, compare: bool = True) -> str:
        """Return a Python file that delivers its batches without this package. See `SwitchableLoader.code`."""
        return self._live.code(compare=compare)

    def state(self) -> LoaderState:
        """Return its state, as pages show it."""
        return self._live.state()

    @property
    def _live(self) -> AnyLoader:
        found = self._loader()
        if found is None:
            raise MonitorError(f"{self.name} is gone: nothing in this process refers to it any more.")
        return found


class LoaderCommands:
    """The commands of one process."""

    def __init__(self, tracker: LoaderTracker, offers: Offers, ranks: LiveRanks) -> None:
        """`ranks` are those that joined this process's session."""
        self._tracker = tracker
        self._offers = offers
        self._ranks = ranks

    def live(self) -> list[LiveLoader]:
        """Return the loaders of this process that can be switched."""
        return [LiveLoader(loader) for loader in self._tracker.loaders()]

    def switch(self, backend: str, *, loader: str | None = None, confirmed: bool = False) -> LoaderState:
        """Ask a loader to continue with another engine from its next batch; returns its state at once.

        See `Monitor.switch`.
        """
        question = None if confirmed else self.question(backend, loader=loader)
        if question is not None:
            raise MonitorError(f"{question} Nothing was switched: this has to be confirmed, by confirmed=True.")
        chosen = self.choose(loader)
        chosen.switch(backend)
        self._switch_beside(chosen, backend)
        state: LoaderState = chosen.state()
        self._offers.chosen(state)
        return state

    def _switch_beside(self, chosen: AnyLoader | JobLoader, backend: str) -> None:
        """Switch the other ranks' loaders, too, where this process is a rank of the same job: one click is for all."""
        own = self._tracker.loaders()
        if any(loader is chosen for loader in own):
            self._ranks.lead(chosen.name, backend)
            return
        for loader in own:
            if loader.name == cast("JobLoader", chosen).beside:
                loader.switch(backend)

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

    def choose(self, loader: str | None) -> AnyLoader | JobLoader:
        """Return the live loader with an id or name; the only one for None. MonitorError if there is none, or several.

        Those of this process come before those of jobs, which have the job's number in their names. Where this process
        is a rank of a job, its own loader stands for the job's of the same name, unless that is named.
        """
        jobs = [job for job in self._ranks.loaders() if loader is not None or job.beside is None]
        if not jobs:
            return self.choose_own(loader)
        known: list[AnyLoader | JobLoader] = [*self._tracker.loaders(), *jobs]
        return _chosen(known, loader)

    def choose_own(self, loader: str | None) -> AnyLoader:
        """Choose as `choose` does, among the loaders of this process alone."""
        live = self._tracker.loaders()
        if not live:
            raise MonitorError(
                "This kernel has no loader to switch yet. A DataLoader is known once your loop iterates it while the "
                "monitor runs (%monitor); a wrapped one at once: loader = switchable(loader)  # from kernel_monitor "
                "import switchable"
            )
        return _chosen(live, loader)


def _chosen(live: Sequence[Found], loader: str | None) -> Found:
    chosen = [found for found in live if loader is None or line(loader) in (found.id, found.name)]
    if len(chosen) != 1:
        names = line(", ".join(found.name for found in live), 120)
        several = "Several are live: name one, as in --loader NAME or loader=NAME"
        problem = several if loader is None else f"No single loader is called {quoted(loader)}"
        raise MonitorError(f"{problem}. The loaders are: {names}.")
    return chosen[0]
