"""Follows what steps in this process, live and gone: switchable loaders, watched ones, steps marked by hand."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..steps.records import PHASES
from ..text import shown_in

if TYPE_CHECKING:
    from types import ModuleType

    from ..loaders import SwitchableLoader
    from ..steps.meter import Meter, Totals
    from ..steps.records import Step
    from ..steps.registry import Source
    from ..store import Store

    AddEvent = Callable[..., object]

KEPT_ENDED = 4
"""Loaders that are gone and still shown: one made inside a function ends with it, its curves belong to the session."""
KEPT_EPOCHS = 100
"""Finished epochs whose counts are kept for the report, per loader."""

MOST_STEPS_A_SECOND = 200
"""Of one loader; of a faster one evenly chosen steps are kept, and the number of the others."""

State = dict[str, Any]


class Stepped(NamedTuple):
    """The steps of a loader since the last look.

    Attributes:
        loader: its id.
        rows: with their ends in session s.
        dropped: steps that are not among them.
    """

    loader: str
    rows: list[Step]
    dropped: int


class Following:
    """What the loaders did since the last look.

    Args:
        store: gets a loader's columns when it comes.
        session_time: seconds into the session for a `time.monotonic()`; None before the session began.
        add_event: is given each event of a loader: `(kind, time, **fields)`, on the thread on which it happened.

    Attributes:
        past: counts of the epochs before each loader's newest, by its id; another object when they have changed.
    """

    def __init__(self, store: Store, session_time: Callable[[float], float | None], add_event: AddEvent) -> None:
        self._store = store
        self._session_time = session_time
        self._add_event = add_event
        self._states: dict[str, State] = {}
        self._epochs: dict[str, dict[int, State]] = {}
        self.past: dict[str, list[State]] = {}
        self._totals: dict[str, Totals] = {}
        self._listening = False
        self._named: dict[str, tuple[str, bool]] = {}
        self._counted: dict[str, int] = {}
        # A loader that ends leaves its meter until its last steps have been read.
        self._meters: dict[str, Meter] = {}
        self._phased: set[str] = set()
        self._reading = threading.Lock()  # steps are asked for by the frames' thread, and by whoever wants all of them
        self._read: dict[str, int] = {}

    @property
    def phased(self) -> bool:
        """Whether phases of steps were measured, of any loader."""
        return bool(self._phased)

    def begin(self) -> None:
        """What was done up to now is no part of what is measured: the monitor starts."""
        with self._reading:
            for source in self.sources():
                self._totals[source.id] = source.meter.totals()
                self._read[source.id] = source.meter.steps_since(self._totals[source.id].steps)[1]

    def loaders(self) -> list[SwitchableLoader]:
        """The live switchable loaders, oldest first."""
        module = _loaders_module()
        return [] if module is None else list(module.live())

    def sources(self) -> list[SwitchableLoader | Source]:
        """All that steps: the live switchable loaders, then what is watched besides."""
        live = getattr(sys.modules.get("kernel_monitor.steps.registry"), "live", list)
        return [*self.loaders(), *live()]

    def states(self) -> list[State]:
        """The states of the live loaders and the last ones of those gone last (``"ended": true``)."""
        live = {source.id: {**shown_in(source.state()), "ended": False} for source in self.sources()}
        gone = [{**state, "ended": True} for key, state in self._states.items() if key not in live]
        return [*gone[-KEPT_ENDED:], *live.values()]

    def reported(self) -> list[State]:
        """The states with the counts of every epoch before the newest, as `epochs`."""
        self._counted = {}  # those under way have counted on since
        self.look()
        return [{**state, "epochs": self.past.get(key, [])} for key, state in self._states.items()]

    def look(self) -> list[State]:
        """Take notice of loaders that came or went and of finished epochs; returns `states`."""
        module = _loaders_module()
        if module is not None and not self._listening:
            self._listening = True
            module.listen(self._happened)
        states = self.states()
        if not states and not self._named:
            return states
        self._meters.update((source.id, source.meter) for source in self.sources())
        named = {state["id"]: (state["name"], state["id"] in self._phased) for state in states}
        epochs = {state["id"]: state["epoch"] for state in states}
        if epochs != self._counted:
            self._counted = epochs
            self._count_epochs(epochs)
        self._states = {state["id"]: state for state in states}
        if named != self._named:
            self._named = named
            self._phased &= named.keys()
            self._store.set_loaders(
                [{"id": key, "name": name, "phased": phased} for key, (name, phased) in named.items()]
            )
        return states

    def _count_epochs(self, newest: Mapping[str, int]) -> None:
        self._epochs = {key: self._epochs.get(key, {}) for key in newest}
        for source in self.sources():
            known = self._epochs.get(source.id)
            if known is not None:
                known.update({epoch["epoch"]: dict(epoch) for epoch in source.epochs()})
                for number in list(known)[:-KEPT_EPOCHS]:
                    del known[number]
        self.past = {
            key: [counts for number, counts in known.items() if number != newest[key]]
            for key, known in self._epochs.items()
        }

    def values(self, window: float) -> dict[str, float]:
        """The loaders' series for the last ``window`` seconds, from the differences of the meters' totals."""
        values: dict[str, float] = {}
        columns = self._store.schema.columns
        for key, meter in list(self._meters.items()):
            new = meter.totals()
            old = self._totals.get(key)
            self._totals[key] = new
            if new.phased:
                self._phased.add(key)
            if f"loader/{key}/images" not in columns:
                continue  # it was made since the last look
            part = _between(old, new)
            values[f"loader/{key}/images"] = part.pop("images") / window
            values |= {name: mean for one, mean in part.items() if (name := f"loader/{key}/{one}") in columns}
        return values

    def steps(self, seconds: float) -> list[Stepped]:
        """The steps of each loader that ended since the last call, ``seconds`` ago."""
        found = []
        with self._reading:
            live = {source.id: source.meter for source in self.sources()}
            self._meters |= live
            for key, meter in list(self._meters.items()):
                known = self._read.get(key, 0)
                steps, newest = meter.steps_since(known)
                self._read[key] = newest
                if newest > known:
                    found.append(self._placed(key, steps, newest - known, seconds))
            for key in self._meters.keys() - live.keys():
                del self._meters[key], self._read[key]
                self._totals.pop(key, None)
        return [one for one in found if one.rows or one.dropped]

    def _placed(self, key: str, steps: list[Step], ended: int, seconds: float) -> Stepped:
        """So many of the steps as are kept, in session time; one whose end is no moment of the session is dropped."""
        rows, lost = [], ended - len(steps)
        for step in steps:
            at = self._session_time(step.end)
            if at is not None and math.isfinite(at) and at >= 0:
                rows.append(step._replace(end=at))
            else:
                lost += 1
        most = max(1, round(MOST_STEPS_A_SECOND * seconds))
        chosen = rows if len(rows) <= most else [rows[k * len(rows) // most] for k in range(most)]
        return Stepped(key, chosen, lost + len(rows) - len(chosen))

    def _happened(self, event: dict[str, Any]) -> None:
        at = self._session_time(event["monotonic"])
        if at is None:
            return
        fields = {key: value for key, value in event.items() if key not in ("kind", "monotonic")}
        for stamp in ("asked", "first"):
            if stamp in fields:
                fields[stamp] = self._session_time(fields[stamp])
        self._add_event(event["kind"], at, **fields)


def _between(old: Totals | None, new: Totals) -> dict[str, float]:
    """Images, and in ms the means over the steps that ended between two readings; what no step says is left out."""

    def gone(name: str) -> float:
        before: float = 0.0 if old is None else getattr(old, name)
        return float(getattr(new, name)) - before

    part = {"images": gone("images")}
    steps, waited, phased = gone("steps"), gone("waited"), gone("phased")
    if steps:
        part["step"] = 1e3 * gone("step_s") / steps
    if waited:
        part["wait"] = 1e3 * gone("wait_s") / waited
    if phased:
        # Of a phase that was never seen nothing is said: without a GPU there is no copy.
        phases = {phase: gone(f"{phase}_s") for phase in PHASES if getattr(new, f"{phase}_s") > 0}
        phases["other"] = max(0.0, gone("phased_step_s") - gone("phased_wait_s") - sum(phases.values()))
        part |= {phase: 1e3 * seconds / phased for phase, seconds in phases.items()}
    return {name: value for name, value in part.items() if not math.isnan(value)}


def _loaders_module() -> ModuleType | None:
    # Importing it would import torch: without a switchable in the process there is nothing to follow.
    module = sys.modules.get("kernel_monitor.loaders")
    return module if hasattr(module, "__all__") else None  # its last name: before, another thread is importing it
