"""Offers of a faster engine to loops that wait for data: made once per loader, the same on all pages."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..protocol.analysis_states import OfferState

BOUND_S = 10.0  # a loop must have been input-bound for this long before an engine is offered
OVER_S = 30.0  # an offer is withdrawn when the loop has not been input-bound for this long
GAP_S = 5.0  # time between two verdicts counts at most this much: what happened in a longer gap is unknown

State = Mapping[str, Any]
Key = tuple[str, Any]


class Offers:
    """The offers of one session. Thread-safe; `judge` and `look` are called by the sampler's reader thread.

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
            passed = min(now - last[1], GAP_S) if last is not None and last[0] == loader else 0.0
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

    def look(self, states: Sequence[State], *, diagnosing: bool = False) -> None:
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
    """The names of the running ones among the states of *Diagnose* and *Profile* (None if never started).

    What else is among them, such as a rank that runs alone, is in a process of its own and disturbs no measurement.
    """
    return {name for name, state in (tasks or {}).items() if state is not None and state.get("state") == "running"}


def _chosen(state: State) -> Any:
    return state["wanted"] or state["backend"]


def _by(offer: State | OfferState) -> str | None:
    """The measurement that an offer's gain rests on; "" for a prediction, None without a gain."""
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
