"""The live verdict on the running loop, and the gain predicted for each requested switch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ..analysis.gains import Pair, pairs
from ..analysis.live_segment import CHANGES, live_verdict
from ..analysis.loops import LoopTimes
from ..analysis.results import Advice, Verdict, plain
from ..protocol.analysis_states import GainState, Kind, VerdictState
from ..store import Store
from .loop_warnings import LoopWarnings
from .offers import Offers, under_way

PERIOD_S = 2.0  # between two verdicts while a page is watching
STALE = 0.02  # of the time since the newest change: so old may be what is known of switches
LOOKED_AT_S = 75.0  # length of the past that is analysed, so that the cost does not grow with the session
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
        self._switched: tuple[Pair, ...] = ()  # what switches measured, at `_switched_at` (session s), of events
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
        self.offers.look(states, diagnosing="diagnosing" in busy)
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
        """The kind of the newest verdict; None if there is none, it is out of date, or its loop is over."""
        known = self.verdict
        return None if known is None or known["over"] or now > self._due + PERIOD_S else known["kind"]

    @property
    def main(self) -> str | None:
        """The id of the loader whose loop trains, as last looked at; None before the first step."""
        return self._loops.main()

    def judge(self, now: float, states: Sequence[State], *, loader: str | None = None) -> VerdictState | None:
        """The verdict at a session time on a loader (its id; by default the loop under way, else the last), or None."""
        found = self._judge(now, states, loader=loader)
        self._calibrate_if_bound(found)
        if found is None and loader is None:
            found = self._ended(now, states)
        return self._warned(found, now, states)

    def _warned(self, found: dict[str, Any] | None, now: float, states: Sequence[State]) -> VerdictState | None:
        """A verdict as sent to pages: without the offer, and with the warnings."""
        if found is None:
            return None
        sent = {name: value for name, value in found.items() if name != "offer"}
        return cast("VerdictState", {**sent, "warnings": self._warnings.of(found["loader"], now, states)})

    def _calibrate_if_bound(self, found: dict[str, Any] | None) -> None:
        if found is not None and found["kind"] == "input-bound":
            self._calibrate(found["loader"])

    def _judge(
        self, now: float, states: Sequence[State], *, before: int | None = None, loader: str | None = None
    ) -> dict[str, Any] | None:
        """The verdict at `now`, without the event with the id `before` and later ones; `offer`: the switch to offer."""
        store = self._store
        rows = store.rows(store.seq_before(now - LOOKED_AT_S), CHARTS)
        steps = store.steps.table(now - LOOKED_AT_S)
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
            aside=self._loops.aside(),
        )

    def _ended(self, now: float, states: Sequence[State]) -> dict[str, Any] | None:
        """The verdict on the loop that ended last, by all its steps since the last change; None if there was none."""
        store, loader = self._store, self._loops.main()
        if loader is None:
            return None
        self._switched_due = now  # no figure of a moment before the last steps stays
        events, steps = store.events(), store.steps.table()
        switched = self._pairs(now, events)
        aside = self._loops.aside()
        rows = store.rows(charts=CHARTS)
        return live_verdict(rows, steps, events, states, loader=loader, switched=switched, aside=aside, over=True)

    def gains(self, now: float, state: State, *, before: int | None = None) -> list[GainState]:
        """The predicted gains of changes of one loader, as `analysis.results.Gain` in JSON; see `_judge`."""
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

    def _pairs(self, now: float, events: Sequence[Mapping[str, Any]]) -> tuple[Pair, ...]:
        """What was measured before and after each switch; the longer ago the newest is, the more rarely computed."""
        cuts = [event for event in events if event["kind"] in CHANGES]
        ids = [event["id"] for event in cuts]
        if not any(event["kind"] == "switch" for event in cuts):
            return ()
        if ids != self._switched_of or not self._switched_at <= now < self._switched_due:
            self._switched, self._switched_of, self._switched_at = pairs(self._store.steps.table(), cuts), ids, now
            self._switched_due = now + STALE * max(0.0, now - float(cuts[-1]["time"]))
        return self._switched

    def _failed(self, error: Exception, states: Sequence[State]) -> VerdictState | None:
        """An undetermined verdict with the error as its reason; a repeated error is logged once."""
        cause = f"{type(error).__name__}: {error}"
        if cause != self._last_error:
            self._last_error = cause
            log.error("no verdict can be reached", exc_info=error)
        if not states:
            return None
        sentence = f"No verdict can be reached: {cause}"
        verdict = Verdict("undetermined", None, sentence, (Advice("Please report this error."),))
        return cast("VerdictState", {**plain(verdict), "loader": states[-1]["id"], "over": False})
