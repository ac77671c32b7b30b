"""The verdict on the loop as it runs, and what a switch is expected to bring when somebody asks for one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnose.live import live_verdict
from ..diagnose.model import Advice, Verdict, plain
from ..diagnose.switches import LONGEST_S, asked, first
from ..diagnose.tried import Pair, pair
from .offering import Offers, under_way

if TYPE_CHECKING:
    from ..store import Store

PERIOD_S = 2.0
"""Between two verdicts while somebody looks."""
LOOKED_AT_S = 75.0
"""At most so much of the past is looked at: what costs nothing of the loop's time must not grow with the session."""
CHARTS = ("cpu", "gpu", "images", "wait", "processes")
"""Whose series a verdict is reached from."""

State = Mapping[str, Any]
log = logging.getLogger(__name__)


class Judging:
    """Verdicts of one session, reached on the sampler's reader thread.

    Args:
        store: what was measured.
    """

    def __init__(self, store: Store) -> None:
        self.verdict: dict[str, Any] | None = None
        self.offers = Offers()
        self._store = store
        self._due = 0.0
        self._told = ""
        self._heard = 0  # the newest event that was looked at
        self._switched: dict[int, Pair | None] = {}  # by the switch's event, once its minute after it is over

    def refresh(
        self, now: float, states: Sequence[State], tasks: State | None = None, strip: State | None = None
    ) -> None:
        """Reach a verdict if it is time for one, and see what may be offered.

        Args:
            now: session s.
            states: of the loaders.
            tasks: what a person has started and how far it is (`diagnosing`, `profiling`).
            strip: what the last switch changed: the way back is not offered once more.
        """
        busy = under_way(tasks)
        self.offers.look(states, diagnosing="diagnosing" in busy)
        if now < self._due:
            return
        self._due = now + PERIOD_S
        try:
            found = self._judge(now, states)
            backs = () if strip is None else ((strip["loader"], strip.get("back")),)
            self.offers.judge(now, found, states, busy=bool(busy), backs=backs)
            self.verdict = _told(found)
        except Exception as error:  # noqa: BLE001 - frames and the recording must not end with it
            self.verdict = self._failed(error, states)

    def kind(self, now: float) -> str | None:
        """The kind of the newest verdict; None without one, and of one from before `refresh` was last called."""
        return None if self.verdict is None or now > self._due + PERIOD_S else str(self.verdict["kind"])

    def judge(
        self, now: float, states: Sequence[State], *, before: int | None = None, loader: str | None = None
    ) -> dict[str, Any] | None:
        """The verdict of the stretch under way at a moment, as JSON with `loader`; None where no loader delivers.

        Args:
            now: session s; nothing later is looked at.
            states: of the loaders.
            before: an event's id: it and those after it are not looked at.
            loader: the id of the one to judge; the one that delivered last if left out.
        """
        return _told(self._judge(now, states, before=before, loader=loader))

    def _judge(
        self, now: float, states: Sequence[State], *, before: int | None = None, loader: str | None = None
    ) -> dict[str, Any] | None:
        """The same with the switch that may be offered."""
        store = self._store
        rows = store.rows(store.seq_before(now - LOOKED_AT_S), CHARTS)
        steps = store.steps.table(now - LOOKED_AT_S)
        events = [event for event in store.events() if before is None or event["id"] < before]
        if before is not None:
            kept = int(np.searchsorted(rows.time, now, side="right"))
            rows = replace(rows, seq=rows.seq[:kept], time=rows.time[:kept], values=rows.values[:kept])
            steps = replace(steps, rows=steps.rows[: int(np.searchsorted(steps.rows["end"], now, side="right"))])
        switched = self._pairs(now, events)
        return live_verdict(rows, steps, events, states, last=self.verdict, loader=loader, switched=switched)

    def gains(self, now: float, state: State, *, before: int | None = None) -> list[dict[str, Any]]:
        """What can be expected of changes of one loader, as `model.Gain` in JSON; arguments as for `judge`."""
        verdict = self.judge(now, [state], before=before, loader=state["id"])
        return [] if verdict is None else list(verdict["gains"])

    def predict(self, states: Sequence[State], add_event: Callable[..., object]) -> None:
        """Note what was to be expected of each switch that was asked for since the last time.

        As an event `prediction` (`loader, source, target, gains`): what is measured afterwards stands beside it.
        """
        store = self._store
        if store.last_event <= self._heard:
            return
        events = store.events(self._heard)
        self._heard = events[-1]["id"]
        for event in events:
            if event["kind"] != "switch-asked":
                continue
            state = next((one for one in states if one["id"] == event["loader"]), None)
            if state is None:
                continue
            then: dict[str, Any] = {**state, "backend": event["source"], "wanted": None}
            try:
                gains = self.gains(event["time"], then, before=event["id"])
            except Exception as error:  # noqa: BLE001 - the switch takes place all the same
                self._failed(error, states)
                continue
            if gains:
                fields = {key: event[key] for key in ("loader", "source", "target")}
                add_event("prediction", event["time"], **fields, gains=gains)

    def _pairs(self, now: float, events: Sequence[Mapping[str, Any]]) -> list[Pair]:
        """What the switches until now measured; each is looked at until nothing more can be added to it."""
        done = [event for event in events if event["kind"] == "switch"]
        fresh = [event for event in done if event["id"] not in self._switched]
        found: dict[int, Pair | None] = {}
        if fresh:
            steps = self._store.steps.table(min(asked(dict(event)) for event in fresh) - LONGEST_S)
            found = {event["id"]: pair(steps, events, event) for event in fresh}
            settled = [event for event in fresh if now > first(dict(event)) + LONGEST_S]
            self._switched |= {event["id"]: found[event["id"]] for event in settled}
        both = {**self._switched, **found}
        made = [both[event["id"]] for event in done]
        return [one for one in made if one is not None]

    def _failed(self, error: Exception, states: Sequence[State]) -> dict[str, Any] | None:
        """A verdict that says that there is none because of an error; logged when it is another one than before."""
        cause = f"{type(error).__name__}: {error}"
        if cause != self._told:
            self._told = cause
            log.error("no verdict can be reached", exc_info=error)
        if not states:
            return None
        said = Verdict(
            "undetermined", None, f"No verdict can be reached: {cause}", (Advice("Please report this error."),)
        )
        return {**plain(said), "loader": states[-1]["id"]}


def _told(verdict: dict[str, Any] | None) -> dict[str, Any] | None:
    """As pages are sent it: what may be offered is no part of a verdict."""
    return None if verdict is None else {name: value for name, value in verdict.items() if name != "offer"}
