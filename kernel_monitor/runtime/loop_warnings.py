"""Warnings that stand with the live verdict: what a change did to the training, and epochs that delivered nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..analysis.live_segment import CHANGES
from ..analysis.live_warnings import change_warnings, epoch_warnings
from ..analysis.switches import LONGEST_S, asked, first
from ..store import Store

PERIOD_S = 5.0  # between two looks at a change
SETTLED_S = 15.0  # the change-over, which belongs to neither side, is over by then
EARLIER_S = 1.0  # rows before the minute that is compared, so that its first step is whole

State = Mapping[str, Any]


class LoopWarnings:
    """Sentences for each loader, computed on the sampler's reader thread.

    `past` returns the counts of the epochs before each loader's newest, by loader id; a new object when they changed.
    """

    def __init__(self, store: Store, past: Callable[[], Mapping[str, Sequence[State]]]) -> None:
        self._store = store
        self._past = past
        self._changes: dict[str, tuple[int, float, tuple[str, ...]]] = {}  # event id, when to look again, sentences
        self._counted: tuple[Any, ...] = ()
        self._of_epochs: tuple[str, ...] = ()

    def of(self, loader: str, now: float, states: Sequence[State]) -> list[str]:
        """The warnings at `now` (session s) on a loader (its id), and on the epochs of all."""
        return [*self._of_change(loader, now, states), *self._of_epoch(states)]

    def _of_change(self, loader: str, now: float, states: Sequence[State]) -> tuple[str, ...]:
        changes = [
            event
            for event in self._store.events()
            if event["kind"] in CHANGES and event.get("loader") in (None, loader) and first(event) <= now
        ]
        newest = max(changes, key=first, default=None)
        if newest is None or newest["kind"] == "mark":
            return ()
        known, due, sentences = self._changes.get(loader, (-1, 0.0, ()))
        if known != newest["id"] or now >= due:
            since = asked(newest) - LONGEST_S - EARLIER_S
            rows, steps = self._store.rows(self._store.seq_before(since)), self._store.steps.table(since)
            sentences = change_warnings(rows, steps, self._store.events(), states, loader)
            # A minute on each side is compared: after that nothing can change.
            over = now > first(newest) + LONGEST_S + SETTLED_S
            self._changes[loader] = newest["id"], float("inf") if over else now + PERIOD_S, sentences
        return sentences

    def _of_epoch(self, states: Sequence[State]) -> tuple[str, ...]:
        past = self._past()
        counted = (past, *((state["id"], state.get("epoch"), state.get("finished")) for state in states))
        if not self._counted or counted[1:] != self._counted[1:] or past is not self._counted[0]:
            self._counted = counted
            told = [{**state, "epochs": past.get(state["id"], [])} for state in states if "samples" in state]
            self._of_epochs = epoch_warnings(self._store.rows(self._store.last_seq), told)
        return self._of_epochs
