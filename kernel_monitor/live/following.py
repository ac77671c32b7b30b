"""Follows the switchable loaders of this process, live and gone, for the monitor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from ..loaders import SwitchableLoader
    from ..store import Store

    AddEvent = Callable[..., object]

KEPT_ENDED = 4
"""Loaders that are gone and still shown: one made inside a function ends with it, its curves belong to the session."""
KEPT_EPOCHS = 100
"""Finished epochs whose counts are kept for the report, per loader."""

State = dict[str, Any]


class Following:
    """What the loaders did since the last look.

    Args:
        store: gets a loader's columns when it comes.
        session_time: seconds into the session for a `time.monotonic()`; None before the session began.
        add_event: is given each event of a loader: `(kind, time, **fields)`, on the thread on which it happened.
    """

    def __init__(self, store: Store, session_time: Callable[[float], float | None], add_event: AddEvent) -> None:
        self._store = store
        self._session_time = session_time
        self._add_event = add_event
        self._states: dict[str, State] = {}
        self._epochs: dict[str, dict[int, State]] = {}
        self._totals: dict[str, tuple[int, int, float, float]] = {}
        self._listening = False
        self._named: dict[str, str] = {}
        self._counted: dict[str, int] = {}

    def loaders(self) -> list[SwitchableLoader]:
        """The live loaders, oldest first."""
        module = _loaders_module()
        return [] if module is None else list(module.live())

    def states(self) -> list[State]:
        """The states of the live loaders and the last ones of those gone last (``"ended": true``)."""
        live = {loader.id: {**loader.state(), "ended": False} for loader in self.loaders()}
        gone = [{**state, "ended": True} for key, state in self._states.items() if key not in live]
        return [*gone[-KEPT_ENDED:], *live.values()]

    def reported(self) -> list[State]:
        """The states with the counts of every epoch before the newest, as `epochs`."""
        self._counted = {}  # those under way have counted on since
        self.look()
        return [
            {**state, "epochs": [one for number, one in self._epochs[state["id"]].items() if number != state["epoch"]]}
            for state in self._states.values()
        ]

    def look(self) -> list[State]:
        """Take notice of loaders that came or went and of finished epochs; returns `states`."""
        module = _loaders_module()
        if module is None:
            return []
        if not self._listening:
            self._listening = True
            module.listen(self._happened)
        states = self.states()
        named = {state["id"]: state["name"] for state in states}
        epochs = {state["id"]: state["epoch"] for state in states}
        if epochs != self._counted:
            self._counted = epochs
            self._count_epochs(named)
        self._states = {state["id"]: state for state in states}
        if named != self._named:
            self._named = named
            self._store.set_loaders([{"id": key, "name": name} for key, name in named.items()])
        return states

    def _count_epochs(self, named: Mapping[str, str]) -> None:
        self._epochs = {key: self._epochs.get(key, {}) for key in named}
        for loader in self.loaders():
            known = self._epochs.get(loader.id)
            if known is not None:
                known.update({epoch["epoch"]: dict(epoch) for epoch in loader.epochs()})
                for number in list(known)[:-KEPT_EPOCHS]:
                    del known[number]

    def values(self, window: float) -> dict[str, float]:
        """The loaders' series for the last ``window`` seconds, from the differences of the meters' totals."""
        values: dict[str, float] = {}
        for loader in self.loaders():
            totals = loader.meter.totals()
            new = (totals.images, totals.steps, totals.wait_s, totals.step_s)
            old = self._totals.get(loader.id, (0, 0, 0.0, 0.0))
            self._totals[loader.id] = new
            images, steps, wait, step = (a - b for a, b in zip(new, old, strict=True))
            if f"loader/{loader.id}/images" not in self._store.schema.columns:
                continue  # it was made since the last look
            values[f"loader/{loader.id}/images"] = images / window
            if steps:
                values[f"loader/{loader.id}/wait"] = 1e3 * wait / steps
                values[f"loader/{loader.id}/step"] = 1e3 * step / steps
        return values

    def _happened(self, event: dict[str, Any]) -> None:
        at = self._session_time(event["monotonic"])
        if at is None:
            return
        fields = {key: value for key, value in event.items() if key not in ("kind", "monotonic")}
        for stamp in ("asked", "first"):
            if stamp in fields:
                fields[stamp] = self._session_time(fields[stamp])
        self._add_event(event["kind"], at, **fields)


def _loaders_module() -> ModuleType | None:
    # Importing it would import torch: without a switchable in the process there is nothing to follow.
    return sys.modules.get("kernel_monitor.loaders")
