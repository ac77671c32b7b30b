"""A loader of all ranks of a job, for the commands of users: the same questions as to a loader of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import MonitorError

if TYPE_CHECKING:
    from ..protocol.states import LoaderState
    from ..ranks.rank_server import RankServer


class JobLoader:
    """One that ranks of a job had when it was made; each rank carries a command out at its own batch boundary."""

    def __init__(self, server: RankServer, state: LoaderState, changed: Callable[[], object]) -> None:
        """`changed` is called after a command: the states are others then."""
        self.id, self.name = state["id"], state["name"]
        self._server = server
        self._changed = changed

    def state(self) -> LoaderState:
        """Its state now. MonitorError: no rank has it any more."""
        for state in self._server.loader_states():
            if state["id"] == self.id:
                return state
        raise MonitorError(f"No rank that has the loader {self.name} is alive any more.")

    def switch(self, backend: str) -> None:
        """Ask every rank to switch; returns at once. Raises as `SwitchableLoader.switch`, if no rank can."""
        self._server.switch(self.id, backend)
        self._changed()

    def set(self, *, workers: int | None = None, prefetch: int | None = None, threads: int | None = None) -> None:
        """Ask every rank to turn knobs; returns at once. A rank that cannot says so in the job's status."""
        knobs = {"workers": workers, "prefetch": prefetch, "threads": threads}
        self._server.set(self.id, {name: value for name, value in knobs.items() if value is not None})
        self._changed()
