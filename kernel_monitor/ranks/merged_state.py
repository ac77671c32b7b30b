"""One state of a loader that all ranks of a job have, from theirs: what the page shows, and one click switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ..protocol.states import EngineState, KnobsState, LoaderState
from .coverage import Covered
from .rank import Rank

States = Sequence[tuple[Rank, Mapping[str, Any]]]
ALIAS = "dali"  # `dali-cpu` or `dali-gpu`, whichever is better on that rank
OWN_CLUSTER = "Each rank would start a Ray of its own; start one first and set RAY_ADDRESS for all ranks."


def merged(loader: str, name: str, states: States, status: str, wanted: str | None, covered: Covered | None) -> Any:
    """The `LoaderState` of a job.

    Args:
        loader, name: its id, and what people read.
        states: of the ranks that have the loader, at least one.
        status: as `status` makes it.
        wanted: the engine that was asked for and that not all ranks have taken.
        covered: what all ranks delivered of the newest epoch, where that can be said.
    """
    newest = max(state["epoch"] for _, state in states)
    own = [state for _, state in states if state["epoch"] == newest]  # the others have not begun it
    counts: dict[str, Any] = {
        key: sum(state[key] for state in own) for key in ("samples", "lost", "doubled", "skipped", "replaced")
    }
    planned = [state["planned"] for state in own]
    decoded: Counter[str] = Counter()
    for state in own:
        decoded.update(state["decoded"])
    if covered is not None:
        counts["lost"], counts["doubled"] = covered.lost, covered.doubled
        if None not in planned:
            counts["padded"] = max(0, sum(planned) - covered.length)
    knobs = [state["knobs"] for _, state in states]
    alike = {key: value if all(other[key] == value for other in knobs) else None for key, value in knobs[0].items()}
    engines = _engines(states)
    if wanted is not None:
        wanted = _meant(engines, wanted)
    batches = [state["batches"] for state in own if state["batches"] is not None]
    found: dict[str, Any] = {
        "id": loader,
        "name": name,
        "backend": Counter(state["backend"] for _, state in states).most_common(1)[0][0],
        "wanted": wanted,
        "status": status,
        "backends": engines,
        "epoch": newest,
        "batch": min(state["batch"] for state in own) if len(own) == len(states) else 0,
        "batches": max(batches, default=None),
        "planned": None if None in planned else sum(planned),
        **counts,
        "skips": [],
        "knobs": cast("KnobsState", alike),
        "decoded": dict(decoded),
        "calibration": {},
        "ranks": len(states),
        "once": covered is not None,
    }
    return cast("LoaderState", found)


def status(states: States, target: str | None, waiting: Iterable[str], refusals: Mapping[str, str]) -> tuple[str, bool]:
    """How far a switch has come, and whether all ranks have answered.

    Args:
        states: of the ranks that are alive.
        target: the engine that was asked for last; None: none was.
        waiting: ids of ranks that have not answered yet.
        refusals: what ranks said that could not.
    """
    count = f"{len(states)} rank{'s' if len(states) > 1 else ''}"
    if target is None:
        engines = Counter(state["backend"] for _, state in states)
        return _on(engines, len(states), count), True
    there = [rank for rank, state in states if reached(state["backend"], target)]
    under_way, left = [], []
    missing = set(waiting)
    for rank, state in states:
        if rank in there:
            continue
        if rank.id in missing or state["wanted"] is not None:
            under_way.append(rank)
        else:
            why = refusals.get(rank.id) or (state["status"] if state["status"] != state["backend"] else "")
            left.append((rank, f"stays on {state['backend']}: {why}" if why else f"on {state['backend']}"))
    # `dali` is another engine on a rank with a GPU than on one without: those that run are named.
    running = Counter(state["backend"] for rank, state in states if rank in there)
    words = [_on(running or {_meant(_engines(states), target): 0}, len(states), count)]
    words += [f"{numbers(ranks)} {why}" for why, ranks in alike(left)]
    return "; ".join(words), not under_way


def _meant(engines: Sequence[EngineState], target: str) -> str:
    """The engine that a name means, as each rank resolves it: `dali` is `dali-gpu` where that can run."""
    able = [one["name"] for one in engines if one["available"] and reached(one["name"], target)]
    return max(able, default=target)  # dali-gpu before dali-cpu


def _on(engines: Mapping[str, int], ranks: int, count: str) -> str:
    """`dali-cpu on 2 ranks`, or `dali-gpu on 1, dali-cpu on 1 of 2 ranks`."""
    if len(engines) == 1 and sum(engines.values()) == ranks:
        return f"{next(iter(engines))} on {count}"
    return f"{', '.join(f'{name} on {number}' for name, number in engines.items())} of {count}"


def reached(backend: str, target: str) -> bool:
    """Whether an engine is the one that was asked for."""
    return backend == target or (target == ALIAS and backend.startswith(f"{ALIAS}-"))


def numbers(ranks: Sequence[Rank]) -> str:
    """`rank 1`, or `ranks 0, 2`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank.number) for rank in ranks)}"


def _engines(states: States) -> list[EngineState]:
    """Every engine of any rank: it can be chosen where one rank has it; which have not, and why, is its note."""
    names = dict.fromkeys(engine["name"] for _, state in states for engine in state["backends"])
    return [_engine(name, states) for name in names]


def _engine(name: str, states: States) -> EngineState:
    own: list[tuple[Rank, EngineState]] = [
        (rank, engine) for rank, state in states for engine in state["backends"] if engine["name"] == name
    ]
    confirm = next((engine["confirm"] for _, engine in own if engine["confirm"]), None)
    if name == "ray" and confirm:
        return EngineState(name=name, available=False, reason=OWN_CLUSTER, confirm=None, note=None)
    lacking = [(rank, engine["reason"] or "not available") for rank, engine in own if not engine["available"]]
    if len(lacking) == len(own):
        reasons = alike(lacking)
        reason = reasons[0][0] if len(reasons) == 1 else "; ".join(f"{numbers(who)}: {why}" for why, who in reasons)
        return EngineState(name=name, available=False, reason=reason, confirm=None, note=None)
    notes = [f"not on {numbers(ranks)}: {why}" for why, ranks in alike(lacking)]
    notes += dict.fromkeys(engine["note"] for _, engine in own if engine["available"] and engine["note"])
    return EngineState(name=name, available=True, reason=None, confirm=confirm, note="; ".join(notes) or None)


def alike(said: Iterable[tuple[Rank, str]]) -> list[tuple[str, list[Rank]]]:
    """Who said the same."""
    found: dict[str, list[Rank]] = {}
    for rank, words in said:
        found.setdefault(words, []).append(rank)
    return list(found.items())
