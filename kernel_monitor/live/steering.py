"""What a person does to the loaders of this process: switch them, turn their knobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..text import line
from .offering import under_way

if TYPE_CHECKING:
    from ..loaders import SwitchableLoader
    from .offering import Offers


class Steering(ABC):
    """The part of the monitor that acts on loaders."""

    @abstractmethod
    def loaders(self) -> list[SwitchableLoader]:
        """The live switchable loaders of this process, oldest first."""

    @abstractmethod
    def loader_states(self) -> list[dict[str, Any]]:
        """The states of the live loaders, and the last states of the newest that are gone (``"ended": true``)."""

    @abstractmethod
    def _tasks(self) -> dict[str, Any]:
        """What a person has started and how far it is: `diagnosing`, `profiling`."""

    @property
    @abstractmethod
    def _offers(self) -> Offers:
        """Those of this session."""

    def switch(self, backend: str, *, loader: str | None = None, confirmed: bool = False) -> dict[str, Any]:
        """Ask a loader to go on with another backend; returns its state at once.

        Args:
            backend: a backend's name.
            loader: the loader's id or name; may be left out where there is one.
            confirmed: a person has said yes to what `question` asks.

        Raises:
            MonitorError: there is no such loader, or there is a question and nobody has said yes.
            BackendUnavailable: there is no such backend, or it cannot run here.
        """
        chosen = self._choose(loader)
        question = None if confirmed else _question(chosen, backend)
        if question is not None:
            raise MonitorError(f"{question} Nothing was switched: this has to be confirmed.")
        chosen.switch(backend)
        state = dict(chosen.state())
        self._offers.chosen(state)
        return state

    @property
    def offers(self) -> list[dict[str, Any]]:
        """Switches that are offered, to loops that have waited for their data for some time, each once.

        Each has `loader` (its id), `source` (the engine in use), `engine`, `sentence`, and `gain` (what to expect,
        `diagnose.model.Gain` as JSON, or None). Found while a page shows the loop. `switch` takes one, `decline` says
        no.
        """
        self._offers.look(self.loader_states(), diagnosing="diagnosing" in under_way(self._tasks()))
        return list(self._offers.standing)

    def decline(self, loader: str | None = None) -> bool:
        """No to the engine that is offered to a loader (see `offers`); it is not offered again in this session.

        Args:
            loader: the loader's id or name; may be left out where there is one.

        Returns:
            False where nothing was offered.

        Raises:
            MonitorError: there is no such loader.
        """
        return self._offers.decline(self._choose(loader).id)

    def question(self, backend: str, *, loader: str | None = None) -> str | None:
        """What a person is to be asked before `switch` to a backend; None where there is nothing to ask.

        Raises:
            MonitorError: there is no such loader.
        """
        return _question(self._choose(loader), backend)

    def set(
        self,
        *,
        loader: str | None = None,
        workers: int | None = None,
        prefetch: int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Change a loader's knobs from its next batch boundary on; returns its state at once.

        Args:
            loader: the loader's id or name; may be left out where there is one.
            workers: processes that load for `torchvision`.
            prefetch: batches in flight: per worker for `torchvision`, in all for DALI.
            threads: threads of DALI.

        Raises:
            MonitorError: there is no such loader, nothing is to be set, or a value cannot be taken.
        """
        if workers is None and prefetch is None and threads is None:
            raise MonitorError("Say what to set: workers, prefetch or threads.")
        chosen = self._choose(loader)
        chosen.set(workers=workers, prefetch=prefetch, threads=threads)
        return dict(chosen.state())

    def _choose(self, loader: str | None) -> SwitchableLoader:
        """The live loader of that id or name; the only one for None."""
        live = self.loaders()
        if not live:
            raise MonitorError(
                "This kernel has no switchable loader. "
                "Wrap yours: loader = switchable(loader)  # from kernel_monitor import switchable"
            )
        chosen = [one for one in live if loader is None or line(loader) in (one.id, one.name)]
        if len(chosen) != 1:
            names = ", ".join(one.name for one in live)
            problem = "Several are live: say which" if loader is None else f"No single loader is called {loader!r}"
            raise MonitorError(f"{problem}. The loaders are: {names}.")
        return chosen[0]


def _question(loader: SwitchableLoader, backend: str) -> str | None:
    state = loader.state()
    if backend == (state["wanted"] or state["backend"]):
        return None
    return next((one["confirm"] for one in state["backends"] if one["name"] == backend), None)
