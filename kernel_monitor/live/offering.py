"""Which loaders a faster engine is offered to, once: all pages show the same, and no is remembered."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

BOUND_S = 10.0
"""An engine is offered to a loop that has been input-bound for so long."""
OVER_S = 30.0
"""An offer is withdrawn from a loop that has been anything else for so long."""
GAP_S = 5.0
"""At most so much passes between two verdicts of a loop that is followed: what passed unseen does not count."""

State = Mapping[str, Any]
Key = tuple[str, Any]


class Standing(NamedTuple):
    """An offer that was made and not answered; `told` is what pages are sent."""

    key: Key
    told: dict[str, Any]
    by: str | None


class Offers:
    """The offers of one session. Thread-safe; `judge` and `look` are called by the sampler's reader thread.

    A loader is known by its name, so that a cell that is run again and wraps it anew asks nothing again. One that was
    given no name is known by the length of its epochs. An offer that was taken, declined, passed over by another
    choice or withdrawn is never made again; one whose loader ended before that is open still.

    Attributes:
        standing: as pages are sent them: `loader` (id), `source` (the engine in use), `engine`, `sentence`, `gain`
            (`diagnose.model.Gain` as JSON, or None). Replaced, not changed.
    """

    def __init__(self) -> None:
        self.standing: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._made: dict[str, Standing] = {}  # by the loader's id
        self._closed: set[Key] = set()
        self._slower: set[tuple[Key, str]] = set()
        self._bound: dict[str, tuple[Any, float]] = {}  # by id: the stretch, and s that it has been input-bound
        self._over: dict[str, float] = {}  # by id: s that a loop with an offer has not been
        self._judged: tuple[str, float] | None = None  # the loader of the last verdict, and when

    def judge(
        self, now: float, verdict: State | None, states: Sequence[State], *, busy: bool, backs: Collection[Any] = ()
    ) -> None:
        """A new verdict came.

        Args:
            now: session s.
            verdict: as `diagnose.live_verdict` gives it.
            states: of the loaders.
            busy: engines are being tried, or steps profiled: what is measured then is not the loop as it is.
            backs: pairs of a loader's id and an engine that the page offers otherwise: the way back.
        """
        with self._lock:
            last, self._judged = self._judged, None
            ids = {one["id"] for one in states if not one.get("ended")}
            self._bound = {loader: known for loader, known in self._bound.items() if loader in ids}
            if verdict is None or busy:
                return
            loader = str(verdict["loader"])
            state = next((one for one in states if one["id"] == loader and not one.get("ended")), None)
            if state is None:
                return
            self._judged = loader, now
            passed = min(now - last[1], GAP_S) if last is not None and last[0] == loader else 0.0
            key = _key(state)
            for gain in verdict.get("gains", ()):
                if gain["measured"] is not None and gain["measured"] <= 0:
                    self._slower.add((key, str(gain["action"])))
            bound = self._count(loader, verdict, passed)
            if loader in self._made:
                self._refresh(loader, verdict)
            elif bound >= BOUND_S and key not in self._closed and state["wanted"] is None:
                may = verdict.get("offer")
                if may is not None and (loader, may["engine"]) not in backs:
                    self._make(key, state, may)
            self._tell()

    def look(self, states: Sequence[State], *, diagnosing: bool = False) -> None:
        """Take notice of loaders that ended, or for which a person has chosen an engine.

        Args:
            states: of the loaders.
            diagnosing: what they use now nobody has chosen.
        """
        if not self._made:
            return
        with self._lock:
            live = {one["id"]: one for one in states if not one.get("ended")}
            for loader, made in list(self._made.items()):
                if loader not in live:
                    self._forget(loader)
                elif not diagnosing and _chosen(live[loader]) != made.told["source"]:
                    self._close(loader)
            self._tell()

    def chosen(self, state: State) -> None:
        """A person has chosen an engine for a loader, whose state this is since."""
        with self._lock:
            made = self._made.get(state["id"])
            if made is not None and _chosen(state) != made.told["source"]:
                self._close(state["id"])
                self._tell()

    def decline(self, loader: str) -> bool:
        """No to the offer to a loader (its id); False where it has none."""
        with self._lock:
            found = loader in self._made
            if found:
                self._close(loader)
                self._tell()
            return found

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _count(self, loader: str, verdict: State, passed: float) -> float:
        """How long the loop has been input-bound in this stretch, s; and how long it has not."""
        if verdict["kind"] != "input-bound":
            self._bound.pop(loader, None)
            self._over[loader] = self._over.get(loader, 0.0) + passed
            return 0.0
        self._over.pop(loader, None)
        stretch, bound = self._bound.get(loader, (verdict["stretch"], -passed))
        bound = bound + passed if stretch == verdict["stretch"] else 0.0
        self._bound[loader] = verdict["stretch"], bound
        return bound

    def _make(self, key: Key, state: State, may: State) -> None:
        if (key, may["engine"]) in self._slower:
            return
        told = {"loader": state["id"], "source": state["backend"], **_words(may)}
        self._made[state["id"]] = Standing(key, told, _by(may))

    def _refresh(self, loader: str, verdict: State) -> None:
        """An offer stays as it is until something better than what it rests on is known."""
        made, may = self._made[loader], verdict.get("offer")
        fresh = [one for one in verdict["gains"] if one["measured"] is not None and one["by"] != made.by]
        if self._over.get(loader, 0.0) >= OVER_S:
            self._close(loader)
        elif may is not None and _by(may) in {one["by"] for one in fresh}:
            self._made[loader] = Standing(made.key, {**made.told, **_words(may)}, _by(may))
        elif any(one["action"] == made.told["engine"] for one in fresh):
            self._close(loader)  # it was measured meanwhile, and is not worth a switch

    def _close(self, loader: str) -> None:
        self._closed.add(self._made[loader].key)
        self._forget(loader)

    def _forget(self, loader: str) -> None:
        self._made.pop(loader, None)
        self._bound.pop(loader, None)
        self._over.pop(loader, None)

    def _tell(self) -> None:
        told = [one.told for one in self._made.values()]
        if told != self.standing:
            self.standing = told


def under_way(tasks: Mapping[str, Any] | None) -> set[str]:
    """Of the states of *Diagnose* and *Profile* (None: never begun), the names of those that run."""
    return {name for name, one in (tasks or {}).items() if one is not None and one["state"] == "running"}


def _key(state: State) -> Key:
    """What a loader is known by."""
    return (state["name"], None) if state["name"] != state["id"] else ("", state.get("batches"))


def _chosen(state: State) -> Any:
    return state["wanted"] or state["backend"]


def _by(may: State) -> str | None:
    """What its gain was measured by; "" of a prediction, None where there is none."""
    gain = may["gain"]
    return None if gain is None else str(gain["by"])


def _words(may: State) -> dict[str, Any]:
    return {"engine": may["engine"], "sentence": may["advice"], "gain": may["gain"]}
