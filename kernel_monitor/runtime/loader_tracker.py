"""Follows everything that steps in this process: switchable loaders, watched loaders and steps marked by hand."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..steps import attached, slow_samples, watched_loader
from ..steps.attached_loader import AttachedLoader, import_loaders
from ..steps.measured_step import PHASES, Step
from ..steps.step_meter import Meter, Totals
from ..store import Store
from ..text import printable_in

if TYPE_CHECKING:
    from types import ModuleType

    from ..loaders import AnyLoader
    from ..protocol.states import EpochCounts, LoaderState, ReportedState
    from ..steps.watched_loader import EpochLog, Source


KEPT_ENDED = 4  # ended loaders still shown: one made in a function ends with it, but its curves are the session's
_KEPT_EPOCHS = 100  # finished epochs whose counts are kept for the report, per loader
_SAMPLES_S = 4.0  # between two figures of the samples' times
_SAMPLES_LONGEST_S = 600.0  # between two events with such figures that say the same; at first it is less
MOST_STEPS_A_SECOND = 200  # per loader; of a faster one, evenly chosen steps are kept and the number of dropped ones


class _Stepped(NamedTuple):
    """The steps of one loader that ended since the last call, with their ends in session s, and how many more did."""

    loader: str
    rows: list[Step]
    dropped: int


class LoaderTracker:
    """States, steps and epochs of the loaders, polled on the sampler's reader thread.

    `add_event` is called with `(kind, time, **fields)` on the thread on which an event happened.

    Attributes:
        phased: ids of the loaders of whose steps phases were measured.
        past: counts of the epochs before each loader's newest, by loader id; a new object when they changed.
    """

    def __init__(
        self, store: Store, session_time: Callable[[float], float | None], add_event: Callable[..., object]
    ) -> None:
        self._store = store
        self._session_time = session_time
        self._add_event = add_event
        self._states: dict[str, LoaderState] = {}
        self._epochs: dict[str, dict[int, EpochCounts]] = {}
        self.past: dict[str, list[EpochCounts]] = {}
        self._totals: dict[str, Totals] = {}
        self._listening = False
        self._named: dict[str, tuple[str, bool]] = {}
        self._counted: dict[str, int] = {}
        self._logs: dict[str, EpochLog] = {}  # as the meters, of watched sources
        self._meters: dict[str, Meter] = {}  # that of an ended loader is kept until its last steps have been read
        self.phased: set[str] = set()
        self._reading = threading.Lock()  # `steps` is called by the reader thread and by snapshots
        self._read: dict[str, int] = {}
        self._attaching = False
        self._samples_due = 0.0  # time.monotonic
        self._samples_told: dict[str, tuple[float, Any]] = {}  # by loader id: when (session s), and in short what

    def attach(self, wanted: bool) -> None:
        """Begin or end to measure every DataLoader that this process iterates; it begins once torch is imported."""
        self._attaching = wanted
        if wanted:
            attached.attach(import_loaders)
        else:
            attached.detach()

    def begin(self) -> None:
        """Leave out all steps up to now: the monitor starts."""
        with self._reading:
            for source in self.sources():
                self._totals[source.id] = source.meter.totals()
                self._read[source.id] = source.meter.steps_since(self._totals[source.id].steps)[1]

    def loaders(self) -> list[AnyLoader]:
        """Return the live loaders that can be switched, wrapped and attached, oldest first."""
        module = _loaders_module()
        return [] if module is None else list(module.live())

    def stop_calibrations(self) -> None:
        """End the calibrations that are under way, and wait for their end."""
        module = _loaders_module()
        if module is not None:
            module.stop_calibrations()

    def sources(self) -> list[AnyLoader | Source]:
        """Return the live loaders that can be switched, then the other watched sources."""
        loaders = self.loaders()
        known = {loader.id for loader in loaders}
        return [*loaders, *(source for source in watched_loader.live() if source.id not in known)]

    def states(self) -> list[LoaderState]:
        """Return the states of the live loaders, and the last states of the most recently ended ones (`"ended":
        true`).
        """
        live: dict[str, LoaderState] = {
            source.id: {**printable_in(source.state()), "ended": False} for source in self.sources()
        }
        ended: list[LoaderState] = [{**state, "ended": True} for key, state in self._states.items() if key not in live]
        return [*ended[-KEPT_ENDED:], *live.values()]

    def reported(self) -> list[ReportedState]:
        """Return the states with the counts of every epoch before the newest, as `epochs`."""
        self._counted = {}  # the epochs in progress went on since the last count
        self.refresh()
        return [{**state, "epochs": self.past.get(key, [])} for key, state in self._states.items()]

    def refresh(self) -> list[LoaderState]:
        """Register new and ended loaders and finished epochs; returns `states`."""
        if self._attaching:
            attached.attach(import_loaders)  # once torch is imported
        module = _loaders_module()
        if module is not None and not self._listening:
            self._listening = True
            module.listen(self._add_loader_event)
        self._read_last_epochs()
        self._read_samples()
        states = self.states()
        if not states and not self._named:
            return states
        self._meters.update((source.id, source.meter) for source in self.sources())
        named = {state["id"]: (state["name"], state["id"] in self.phased) for state in states}
        epochs = {state["id"]: state["epoch"] for state in states}
        if epochs != self._counted:
            self._counted = epochs
            self._count_epochs(epochs)
        self._states = {state["id"]: state for state in states}
        if named != self._named:
            self._named = named
            self.phased &= named.keys()
            self._store.set_loaders(
                [{"id": key, "name": name, "phased": phased} for key, (name, phased) in named.items()]
            )
        return states

    def _read_last_epochs(self) -> None:
        """Read once more the counts of sources that ended: their last epochs may have passed since the last refresh."""
        counted = {loader.id for loader in self.loaders() if not getattr(loader, "taken_over", True)}
        counted |= {source.id for source in self.sources()} - {loader.id for loader in self.loaders()}
        live = {source.id: source.log for source in watched_loader.live() if source.id in counted}
        for key, log in self._logs.items():
            state, counts = self._states.get(key), log.counts()
            if key not in live and state is not None and counts:
                self._epochs[key] = _newest(self._epochs.get(key, {}), counts)
                last = {**counts[-1], "batch": counts[-1]["batches"], "batches": state["batches"]}
                self._states[key] = cast("LoaderState", {**state, **last, "status": watched_loader.status(counts[-1])})
        self._logs = live

    def _read_samples(self) -> None:
        """Read the times of the samples of attached loaders; add an event when there is something new to say."""
        sources = [source for source in watched_loader.live() if isinstance(source, AttachedLoader)]
        for source in sources:
            source.samples.read()
        now = time.monotonic()
        if now < self._samples_due:
            return
        self._samples_due = now + _SAMPLES_S
        if not sources:
            return
        at = self._session_time(now)
        for source in sources:
            if at is None or not source.samples.fresh(now - _SAMPLES_S):
                continue
            steps = self._store.steps.table(at - slow_samples.WINDOW_S).of(source.id)
            dataset = getattr(source.loader, "dataset", None)
            figures = source.samples.figures(steps, now, at - now, dataset)
            if figures is None:
                continue
            began, before = self._samples_told.get(source.id, (-math.inf, None))
            told = slow_samples.holds_up(figures), figures["cause"]
            if told != before or at - began >= min(max(began, 2 * _SAMPLES_S), _SAMPLES_LONGEST_S):
                self._samples_told[source.id] = at, told
                self._add_event("sample-times", at, loader=source.id, **figures)

    def _count_epochs(self, newest: Mapping[str, int]) -> None:
        epochs = {key: self._epochs.get(key, {}) for key in newest}
        for source in self.sources():
            if source.id in epochs:
                epochs[source.id] = _newest(epochs[source.id], source.epochs())
        self._epochs = epochs
        self.past = {
            key: [counts for number, counts in known.items() if number != newest[key]] for key, known in epochs.items()
        }

    def values(self, window: float) -> dict[str, float]:
        """Return the loaders' series for the last `window` s, from the differences of the meters' totals."""
        values: dict[str, float] = {}
        columns = self._store.schema.columns
        for key, meter in list(self._meters.items()):
            new = meter.totals()
            old = self._totals.get(key)
            self._totals[key] = new
            if new.phased:
                self.phased.add(key)
            if f"loader/{key}/images" not in columns:
                continue  # made since the last `refresh`
            part = {f"loader/{key}/{name}": value for name, value in _between(old, new, window).items()}
            values |= {name: value for name, value in part.items() if name in columns}
        return values

    def steps(self, seconds: float) -> list[_Stepped]:
        """Return the steps of each loader that ended since the last call, `seconds` ago."""
        found = []
        with self._reading:
            live = {source.id: source.meter for source in self.sources()}
            self._meters |= live
            for key, meter in list(self._meters.items()):
                known = self._read.get(key, 0)
                steps, self._read[key] = meter.steps_since(known)
                found.append(self._in_session_time(key, steps, self._read[key] - known, seconds))
            for key in self._meters.keys() - live.keys():
                del self._meters[key], self._read[key]
                self._totals.pop(key, None)
        return [stepped for stepped in found if stepped.rows or stepped.dropped]

    def _in_session_time(self, key: str, steps: list[Step], ended: int, seconds: float) -> _Stepped:
        """At most `MOST_STEPS_A_SECOND` of the steps, in session time; those outside the session are dropped."""
        rows, lost = [], ended - len(steps)
        for step in steps:
            at = self._session_time(step.end)
            if at is not None and math.isfinite(at) and at >= 0:
                rows.append(step._replace(end=at))
            else:
                lost += 1
        most = max(1, round(MOST_STEPS_A_SECOND * seconds))
        chosen = rows if len(rows) <= most else [rows[k * len(rows) // most] for k in range(most)]
        return _Stepped(key, chosen, lost + len(rows) - len(chosen))

    def _add_loader_event(self, event: dict[str, Any]) -> None:
        at = self._session_time(event["monotonic"])
        if at is None:
            return
        fields = {key: value for key, value in event.items() if key not in ("kind", "monotonic")}
        fields |= {stamp: self._session_time(fields[stamp]) for stamp in ("asked", "first") if stamp in fields}
        self._add_event(event["kind"], at, **fields)


def _newest(known: Mapping[int, EpochCounts], newer: Sequence[EpochCounts]) -> dict[int, EpochCounts]:
    found = {**known, **{counts["epoch"]: counts for counts in newer}}
    return dict(list(found.items())[-_KEPT_EPOCHS:])


def _between(old: Totals | None, new: Totals, window: float) -> dict[str, float]:
    """Images/s, and mean durations in ms, of the steps that ended between two readings; unknown ones are left out."""
    part = new if old is None else Totals(*map(sub, new, old))
    found = {"images": part.images / window}
    if part.steps:
        found["step"] = 1e3 * part.step_s / part.steps
    if part.waited:
        found["wait"] = 1e3 * part.wait_s / part.waited
    if part.phased:
        # Phases that never occurred are left out: without a GPU there is no copy.
        phases = {phase: getattr(part, f"{phase}_s") for phase in PHASES if getattr(new, f"{phase}_s") > 0}
        phases["other"] = max(0.0, part.phased_step_s - part.phased_wait_s - sum(phases.values()))
        found |= {phase: 1e3 * seconds / part.phased for phase, seconds in phases.items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _loaders_module() -> ModuleType | None:
    # Not imported here, as that would import torch.
    module = sys.modules.get("kernel_monitor.loaders")
    return module if hasattr(module, "__all__") else None  # set last: without it another thread is still importing
