"""The live verdict on the running loop, its warnings, predicted gains, and the offers of a faster engine."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ..analysis.gains import SwitchPair, switch_pairs
from ..analysis.live_verdict import CHANGES, change_warnings, epoch_warnings, live_verdict, sample_warnings
from ..analysis.loops import LoopTimes
from ..analysis.results import Advice, Verdict, plain
from ..analysis.segments import LONGEST_S, change_time, request_time
from ..protocol.analysis_states import GainState, Kind, OfferState, VerdictState
from ..store import Store

# ---- Warnings that stand with the live verdict: what a change did to the training, and epochs that delivered nothing.

_WARNINGS_PERIOD_S = 5.0  # between two comparisons around a change
SETTLED_S = 15.0  # the change-over, which belongs to neither side, is over by then
_EARLIER_S = 1.0  # rows before the minute that is compared, so that its first step is whole


class LoopWarnings:
    """Sentences for each loader, computed on the sampler's reader thread.

    `past` returns the counts of the epochs before each loader's newest, by loader id; a new object when they changed.
    """

    def __init__(self, store: Store, past: Callable[[], Mapping[str, Sequence[State]]]) -> None:
        self._store = store
        self._past = past
        self._changes: dict[str, tuple[int, float, tuple[str, ...]]] = {}  # event id, when to compare again, sentences
        self._counted: tuple[Any, ...] = ()
        self._of_epochs: tuple[str, ...] = ()

    def of(self, loader: str, now: float, states: Sequence[State], *, over: bool = False) -> list[str]:
        """Return the warnings at `now` (session s) on a loader (its id), and on the epochs of all.

        `over`: its loop has ended: they are made from its last steps, as the verdict beside them is.
        """
        return [
            *self._of_change(loader, now, states, over),
            *self._of_epoch(states),
            *self._of_samples(loader, states),
        ]

    def _of_change(self, loader: str, now: float, states: Sequence[State], over: bool) -> tuple[str, ...]:
        changes = [
            event
            for event in self._store.events()
            if event["kind"] in CHANGES and event.get("loader") in (None, loader) and change_time(event) <= now
        ]
        newest = max(changes, key=change_time, default=None)
        if newest is None or newest["kind"] == "mark":
            return ()
        known, due, sentences = self._changes.get(loader, (-1, 0.0, ()))
        if known != newest["id"] or now >= due or (over and not math.isinf(due)):
            since = request_time(newest) - LONGEST_S - _EARLIER_S
            rows, steps = self._store.rows(self._store.seq_before(since)), self._store.steps.table(since)
            sentences = change_warnings(rows, steps, self._store.events(), states, loader)
            # A minute on each side is compared: after that nothing can change.
            final = now > change_time(newest) + LONGEST_S + SETTLED_S
            self._changes[loader] = newest["id"], math.inf if final else now + _WARNINGS_PERIOD_S, sentences
        return sentences

    def _of_samples(self, loader: str, states: Sequence[State]) -> tuple[str, ...]:
        """Return warnings on the slow samples of a loader since its newest change."""
        newest: Mapping[str, Any] | None = None
        for event in self._store.events():
            if event["kind"] == "sample-times" and event["loader"] == loader:
                newest = event
            elif event["kind"] in ("switch", "knobs") and event.get("loader") in (None, loader):
                newest = None
        if newest is None:
            return ()
        return sample_warnings(self._store.rows(self._store.last_seq), newest, states)

    def _of_epoch(self, states: Sequence[State]) -> tuple[str, ...]:
        past = self._past()
        counted = (past, *((state["id"], state.get("epoch"), state.get("finished")) for state in states))
        if not self._counted or counted[1:] != self._counted[1:] or past is not self._counted[0]:
            self._counted = counted
            told = [{**state, "epochs": past.get(state["id"], [])} for state in states if "samples" in state]
            self._of_epochs = epoch_warnings(self._store.rows(self._store.last_seq), told)
        return self._of_epochs


# ---- Offers of a faster engine to loops that wait for data: made once per loader, the same on all pages.

BOUND_S = 10.0  # a loop must have been input-bound for this long before an engine is offered
OVER_S = 30.0  # an offer is withdrawn when the loop has not been input-bound for this long
_GAP_S = 5.0  # time between two verdicts counts at most this much: what happened in a longer gap is unknown

Key = tuple[str, Any]


class Offers:
    """The offers of one session. Thread-safe; `judge` and `refresh` are called by the sampler's reader thread.

    A loader is identified by its name, so that running a cell again does not repeat an offer; without a name, by the
    number of batches of its epochs. An offer that was accepted, declined, withdrawn or followed by another choice is
    never made again; if its loader ended before that, it may be.

    Attributes:
        standing: the open offers as sent to pages. Replaced, never modified.
    """

    def __init__(self) -> None:
        self.standing: list[OfferState] = []
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Key, OfferState]] = {}  # by loader id
        self._closed: set[Key] = set()
        self._slower: set[tuple[Key, str]] = set()
        self._bound: dict[str, tuple[Any, float]] = {}  # by id: the segment, and for how many s it has been input-bound
        self._over: dict[str, float] = {}  # by id: s for which a loop with an offer has not been input-bound
        self._judged: tuple[str, float] | None = None  # the loader of the last verdict, and when

    def judge(
        self, now: float, verdict: State | None, states: Sequence[State], *, busy: bool, backs: Collection[Any] = ()
    ) -> None:
        """Update the offers with a new verdict (`analysis.live_verdict`) at `now` (session s).

        Args:
            busy: a diagnosis or a profile runs, which changes the loop.
            backs: (loader id, engine) that the page already offers as the way back.
        """
        with self._lock:
            last, self._judged = self._judged, None
            live = {state["id"]: state for state in states if not state.get("ended")}
            self._bound = {loader: bound for loader, bound in self._bound.items() if loader in live}
            if verdict is None or busy or verdict["loader"] not in live:
                return
            loader = str(verdict["loader"])
            state, candidate = live[loader], verdict.get("offer")
            # Known again when it is made again: by its name, or by the length of its epochs.
            key = (state["name"], None) if state["name"] != loader else ("", state.get("batches"))
            self._judged = loader, now
            passed = min(now - last[1], _GAP_S) if last is not None and last[0] == loader else 0.0
            bound = self._count(loader, verdict, passed)
            measured = [gain for gain in verdict["gains"] if gain["measured"] is not None]
            self._slower |= {(key, gain["action"]) for gain in measured if gain["measured"] <= 0}
            if loader in self._open:
                self._refresh(loader, candidate, measured)
            elif (
                bound >= BOUND_S
                and candidate is not None
                and key not in self._closed
                and state["wanted"] is None
                and (key, candidate["engine"]) not in self._slower
                and (loader, candidate["engine"]) not in backs
            ):
                self._open[loader] = key, _message(loader, state["backend"], candidate)
            self._update_standing()

    def refresh(self, states: Sequence[State], *, diagnosing: bool = False) -> None:
        """Drop the offers of loaders that ended, and close those of loaders whose engine the user changed.

        While `diagnosing`, the engines in use are not the user's choice.
        """
        if not self._open:
            return
        with self._lock:
            live = {state["id"]: state for state in states if not state.get("ended")}
            for loader, (_, offer) in list(self._open.items()):
                if loader not in live:
                    self._forget(loader)
                elif not diagnosing and _chosen(live[loader]) != offer["source"]:
                    self._close(loader)
            self._update_standing()

    def chosen(self, state: State) -> None:
        """Close the offer to a loader whose engine the user has just changed."""
        with self._lock:
            loader = state["id"]
            if loader in self._open and _chosen(state) != self._open[loader][1]["source"]:
                self._close(loader)
                self._update_standing()

    def decline(self, loader: str) -> bool:
        """Close the offer to a loader (its id) for good. Returns False if there is none."""
        with self._lock:
            found = loader in self._open
            if found:
                self._close(loader)
                self._update_standing()
            return found

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _count(self, loader: str, verdict: State, passed: float) -> float:
        """Count for how many s the loop has (or has not) been input-bound in this segment; returns the former."""
        if verdict["kind"] != "input-bound":
            self._bound.pop(loader, None)
            self._over[loader] = self._over.get(loader, 0.0) + passed
            return 0.0
        self._over.pop(loader, None)
        segment, bound = self._bound.get(loader, (verdict["segment"], -passed))
        bound = bound + passed if segment == verdict["segment"] else 0.0
        self._bound[loader] = verdict["segment"], bound
        return bound

    def _refresh(self, loader: str, candidate: State | None, measured: Sequence[State]) -> None:
        """Change an open offer only when a newer measurement says more about it."""
        key, offer = self._open[loader]
        newer = [gain for gain in measured if gain["by"] != _by(offer)]
        if self._over.get(loader, 0.0) >= OVER_S:
            self._close(loader)
        elif candidate is not None and _by(candidate) in {gain["by"] for gain in newer}:
            self._open[loader] = key, _message(loader, offer["source"], candidate)
        elif any(gain["action"] == offer["engine"] for gain in newer):
            self._close(loader)  # measured since, and not worth a switch

    def _close(self, loader: str) -> None:
        self._closed.add(self._open[loader][0])
        self._forget(loader)

    def _forget(self, loader: str) -> None:
        self._open.pop(loader, None)
        self._bound.pop(loader, None)
        self._over.pop(loader, None)

    def _update_standing(self) -> None:
        messages = [offer for _, offer in self._open.values()]
        if messages != self.standing:
            self.standing = messages


def under_way(tasks: Mapping[str, Any] | None) -> set[str]:
    """Return the names of the running ones among the states of *Diagnose* and *Profile* (None if never started)."""
    return {name for name, state in (tasks or {}).items() if state is not None and state.get("state") == "running"}


def _chosen(state: State) -> Any:
    return state["wanted"] or state["backend"]


def _by(offer: State | OfferState) -> str | None:
    """Return the measurement that an offer's gain rests on; "" for a prediction, None without a gain."""
    gain = offer["gain"]
    return None if gain is None else gain["by"]


def _message(loader: str, source: str, candidate: State) -> OfferState:
    return {
        "loader": loader,
        "source": source,
        "engine": candidate["engine"],
        "sentence": candidate["advice"],
        "gain": candidate["gain"],
    }


# ---- The live verdict on the running loop, and the gain predicted for each requested switch.

PERIOD_S = 2.0  # between two verdicts while a page is watching
_STALE = 0.02  # of the time since the newest change: so old may be what is known of switches
_LOOKED_AT_S = 75.0  # length of the past that is analysed, so that the cost does not grow with the session
CHARTS = ("cpu", "gpu", "images", "wait", "processes")  # whose series a verdict needs

State = Mapping[str, Any]
log = logging.getLogger(__name__)


class CurrentVerdict:
    """Verdicts of one session, computed on the sampler's reader thread from its store.

    `calibrate` is called with the id of each loader whose loop is input-bound, to measure other engines on its files.
    `past` is that of `LoopWarnings`.
    """

    def __init__(
        self,
        store: Store,
        calibrate: Callable[[str], object],
        past: Callable[[], Mapping[str, Sequence[State]]] = dict,
    ) -> None:
        self.verdict: VerdictState | None = None  # of the loop under way, or of the one that ended last (`over`)
        self.offers = Offers()
        self._loops = LoopTimes()
        self._warnings = LoopWarnings(store, past)
        self._store = store
        self._calibrate = calibrate
        self._due = 0.0
        self._judged_to = -1.0  # when the newest step ended that `verdict` knows of
        self._last_error = ""
        self._last_event = 0  # the newest event that `predict` has seen
        self._switched: tuple[SwitchPair, ...] = ()  # what switches measured, at `_switched_at` (session s), of events
        self._switched_at = self._switched_due = 0.0
        self._switched_of: list[int] = []  # their ids

    def refresh(
        self, now: float, states: Sequence[State], tasks: State | None = None, strip: State | None = None
    ) -> None:
        """Compute a verdict if one is due at `now` (session s), and update the offers.

        Args:
            tasks: progress of `diagnosing` and `profiling`.
            strip: of the last switch; it has a way back of its own, which is not offered again.
        """
        busy = under_way(tasks)
        self.offers.refresh(states, diagnosing="diagnosing" in busy)
        if now < self._due:
            return
        self._due = now + PERIOD_S
        try:
            found = self._judge(now, states)
            if not busy:
                self._calibrate_if_bound(found)
            backs = () if strip is None else ((strip["loader"], strip.get("back")),)
            self.offers.judge(now, found, states, busy=bool(busy), backs=backs)
            newest = self._store.steps.newest
            if found is None and self.verdict is not None and self.verdict["over"] and self._judged_to == newest:
                return  # it was judged with its last steps
            self._judged_to = newest
            self.verdict = self._warned(self._ended(now, states) if found is None else found, now, states)
        except Exception as error:  # noqa: BLE001 - frames and the recording must go on
            self.verdict = self._failed(error, states)

    def kind(self, now: float) -> Kind | None:
        """Return the kind of the newest verdict; None if there is none, it is out of date, or its loop is over."""
        known = self.verdict
        return None if known is None or known["over"] or now > self._due + PERIOD_S else known["kind"]

    @property
    def main(self) -> str | None:
        """The id of the loader whose loop trains, as of the last verdict; None before the first step."""
        return self._loops.main()

    def judge(self, now: float, states: Sequence[State], *, loader: str | None = None) -> VerdictState | None:
        """Return the verdict at a session time on a loader (its id; by default the loop under way, else the last), or
        None.
        """
        found = self._judge(now, states, loader=loader)
        self._calibrate_if_bound(found)
        if found is None and loader is None:
            found = self._ended(now, states)
        return self._warned(found, now, states)

    def _warned(self, found: dict[str, Any] | None, now: float, states: Sequence[State]) -> VerdictState | None:
        """Return a verdict as sent to pages: without the offer, and with the warnings."""
        if found is None:
            return None
        sent = {name: value for name, value in found.items() if name != "offer"}
        warnings = self._warnings.of(found["loader"], now, states, over=found["over"])
        return cast("VerdictState", {**sent, "warnings": warnings})

    def _calibrate_if_bound(self, found: dict[str, Any] | None) -> None:
        if found is not None and found["kind"] == "input-bound":
            self._calibrate(found["loader"])

    def _judge(
        self, now: float, states: Sequence[State], *, before: int | None = None, loader: str | None = None
    ) -> dict[str, Any] | None:
        """Return the verdict at `now`, without the event with the id `before` and later ones; `offer`: the switch to
        offer.
        """
        store = self._store
        rows = store.rows(store.seq_before(now - _LOOKED_AT_S), CHARTS)
        steps = store.steps.table(now - _LOOKED_AT_S)
        events = [event for event in store.events() if before is None or event["id"] < before]
        if before is not None:
            kept = int(np.searchsorted(rows.time, now, side="right"))
            rows = replace(rows, seq=rows.seq[:kept], time=rows.time[:kept], values=rows.values[:kept])
            steps = replace(steps, rows=steps.rows[: int(np.searchsorted(steps.rows["end"], now, side="right"))])
        self._loops.add(store.steps.table(self._loops.since))
        return live_verdict(
            rows,
            steps,
            events,
            states,
            last=self.verdict,
            loader=loader,
            switched=self._pairs(now, events),
            secondary_ids=self._loops.secondary_ids(),
        )

    def _ended(self, now: float, states: Sequence[State]) -> dict[str, Any] | None:
        """Return the verdict on the loop that ended last, by all its steps since the last change; None if there was
        none.
        """
        store, loader = self._store, self._loops.main()
        if loader is None:
            return None
        self._switched_due = now  # no figure of a moment before the last steps stays
        events, steps = store.events(), store.steps.table()
        switched = self._pairs(now, events)
        secondary_ids = self._loops.secondary_ids()
        rows = store.rows(charts=CHARTS)
        return live_verdict(
            rows, steps, events, states, loader=loader, switched=switched, secondary_ids=secondary_ids, over=True
        )

    def gains(self, now: float, state: State, *, before: int | None = None) -> list[GainState]:
        """Return the predicted gains of changes of one loader, as `analysis.results.Gain` in JSON; see `_judge`."""
        verdict = self._judge(now, [state], before=before, loader=state["id"])
        return [] if verdict is None else verdict["gains"]

    def predict(self, states: Sequence[State], add_event: Callable[..., object]) -> None:
        """Add an event `prediction` (`loader, source, target, gains`) for each switch requested since the last call.

        It is compared with what is measured after the switch.
        """
        store = self._store
        if store.last_event <= self._last_event:
            return
        events = store.events(self._last_event)
        self._last_event = events[-1]["id"]
        for event in events:
            if event["kind"] != "switch-asked":
                continue
            state = next((state for state in states if state["id"] == event["loader"]), None)
            if state is None:
                continue
            then = {**state, "backend": event["source"], "wanted": None}
            try:
                gains = self.gains(event["time"], then, before=event["id"])
            except Exception as error:  # noqa: BLE001 - the switch goes on
                self._failed(error, states)
                continue
            if gains:
                fields = {key: event[key] for key in ("loader", "source", "target")}
                add_event("prediction", event["time"], **fields, gains=gains)

    def _pairs(self, now: float, events: Sequence[Mapping[str, Any]]) -> tuple[SwitchPair, ...]:
        """Return what was measured before and after each switch.

        The longer ago the newest is, the more rarely computed.
        """
        cuts = [event for event in events if event["kind"] in CHANGES]
        ids = [event["id"] for event in cuts]
        if not any(event["kind"] == "switch" for event in cuts):
            return ()
        if ids != self._switched_of or not self._switched_at <= now < self._switched_due:
            self._switched, self._switched_of, self._switched_at = (
                switch_pairs(self._store.steps.table(), cuts),
                ids,
                now,
            )
            self._switched_due = now + _STALE * max(0.0, now - float(cuts[-1]["time"]))
        return self._switched

    def _failed(self, error: Exception, states: Sequence[State]) -> VerdictState | None:
        """Return an undetermined verdict with the error as its reason; a repeated error is logged once."""
        cause = f"{type(error).__name__}: {error}"
        if cause != self._last_error:
            self._last_error = cause
            log.error("no verdict can be reached", exc_info=error)
        if not states:
            return None
        sentence = f"No verdict can be reached: {cause}"
        verdict = Verdict("undetermined", None, sentence, (Advice("Please report this error."),))
        return cast("VerdictState", {**plain(verdict), "loader": states[-1]["id"], "over": False})
