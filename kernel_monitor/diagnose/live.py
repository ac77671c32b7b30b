"""The verdict on the stretch under way: cheap enough for every two seconds of a training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..steps.records import ON_DEVICE, PHASES
from .judging import advised, judge
from .limits import allowed_cores
from .loops import beside, of_steps
from .measured import IDLE_S, in_steps
from .model import Kind, Statistic, Stretch, plain
from .offer import offer
from .statistics import quantiles
from .tried import pairs
from .verdict import THRESHOLDS

if TYPE_CHECKING:
    from ..store import Rows
    from ..store.steps import StepTable
    from .tried import Pair

LONGEST_S = 60.0
"""Only so much of the newest past is judged: the words follow the loop."""
MOST_STEPS = 2000
CHANGES = ("switch", "knobs", "mark")
HYSTERESIS = 0.8
"""What was said last time goes on being said until its share is below the threshold by this factor."""


def live_verdict(
    rows: Rows,
    steps: StepTable,
    events: Sequence[Mapping[str, Any]],
    loaders: Sequence[Mapping[str, Any]],
    last: Mapping[str, Any] | None = None,
    *,
    loader: str | None = None,
    switched: Sequence[Pair] | None = None,
) -> dict[str, Any] | None:
    """The verdict on the loader that delivered last, as JSON of `Verdict` with `loader` (its id).

    `offer` is the switch that may be offered, as JSON of `offer.Offer`, or None; of an evaluation beside a training
    there is none.

    Args:
        rows: of the last minute at least.
        steps: likewise.
        events: of the session.
        loaders: their states.
        last: what was returned last time: its kind is kept while the loop is near a threshold.
        loader: the id of the one to judge, whenever it delivered last.
        switched: what switches of the session measured; those of these steps if left out.

    Returns:
        None where no loader has delivered in the last few seconds, or that one has not in these rows.
    """
    if not len(rows.time):
        return None
    now = float(rows.time[-1])
    newest = _newest(steps, rows, now) if loader is None else _last_of(steps, loader)
    if newest is None:
        return None
    loader, ended = newest
    state = next((dict(one) for one in loaders if str(one.get("id")) == loader), {})
    stretch = _under_way(rows, steps, events, state, loader, ended)
    limits = _limits(last, loader, stretch)
    with np.errstate(all="ignore"):
        known = pairs(steps, events) if switched is None else switched
        found = judge(rows, steps, stretch, state, limits, events=events, switched=known)
        found, decision = advised(rows, stretch, found, state)
        may = offer(decision, state)
    if may is not None and loader in beside(of_steps(steps, -math.inf, math.inf)):
        may = None
    made: dict[str, Any] = plain(found)
    return {**made, "loader": loader, "offer": plain(may)}


def _limits(last: Mapping[str, Any] | None, loader: str, stretch: Stretch) -> dict[str, float]:
    limits = dict(THRESHOLDS)
    if last is None or last.get("loader") != loader or last.get("stretch") != stretch.key:
        return limits
    kinds: dict[Kind, str] = {"input-bound": "wait", "copy-bound": "copy", "residual-heavy": "other"}
    held = kinds.get(last["kind"])
    if held is not None:
        limits[held] *= HYSTERESIS
    elif last["kind"] == "compute-bound":
        for name in kinds.values():
            limits[name] /= HYSTERESIS
    return limits


def _newest(steps: StepTable, rows: Rows, now: float) -> tuple[str, float] | None:
    """The loader whose step ended last, and when; None after a pause of the loop."""
    if len(steps):
        newest = steps.rows[-1]
        ended = float(newest["end"])
        return (steps.loaders[int(newest["loader"])], ended) if now - ended <= max(IDLE_S, 5 * newest["step"]) else None
    for info in rows.schema.loaders:
        column = rows.schema.columns.get(f"loader/{info.id}/step")
        if column is None:
            continue
        with_steps = np.flatnonzero(np.isfinite(rows.values[:, column]))
        if len(with_steps) and now - float(rows.time[with_steps[-1]]) <= IDLE_S:
            return info.id, float(rows.time[with_steps[-1]])
    return None


def _last_of(steps: StepTable, loader: str) -> tuple[str, float] | None:
    """The loader and when its last step ended."""
    rows = steps.of(loader)
    return (loader, float(rows["end"][-1])) if len(rows) else None


def _under_way(
    rows: Rows,
    steps: StepTable,
    events: Sequence[Mapping[str, Any]],
    state: Mapping[str, Any],
    loader: str,
    ended: float,
) -> Stretch:
    """What a stretch needs to be judged, since the last change and at most a minute."""
    own = [
        event
        for event in events
        if event.get("kind") in CHANGES and event.get("loader") in (None, loader) and _began(event) <= ended
    ]
    change = max(own, key=_began, default=None)
    began = _began(change) if change is not None else -math.inf
    start = max(began, ended - LONGEST_S)
    chosen = steps.of(loader, start, ended)[-MOST_STEPS:]
    if len(chosen):
        start = max(start, float(chosen["end"][0]) - float(chosen["step"][0]) - 1e-9)
    else:
        start = max(start, float(rows.time[0]))
    # What passes between its steps (an evaluation after each epoch) is none of it.
    seconds = max(float(chosen["step"].sum()) if len(chosen) else ended - start, 1e-9)
    images = float(chosen["images"].sum()) if len(chosen) else math.nan
    backend = str(state.get("backend", "loader"))
    knobs = {name: int(value) for name, value in (state.get("knobs") or {}).items() if value is not None}
    window = rows.time > start
    if len(chosen):
        window &= in_steps(chosen, rows.time, np.diff(rows.time, prepend=rows.time[0] - rows.schema.interval))
    kernel, workers = (_mean(rows, window, f"process/{role}/cpu") for role in ("kernel", "workers"))
    busy = _across(rows, window, [f"cpu/{core}/busy" for core in sorted(allowed_cores(rows.schema))])
    gpu = _across(rows, window, [f"gpu/{one.index}/utilisation" for one in rows.schema.gpus])
    quota = _column(rows, window, "container/cpu")
    loads = [float(np.median(values)) for values in (busy, quota) if len(values)]
    device = bool((chosen["flags"] & ON_DEVICE).any())
    phases = {name: 1e3 * float(np.nan_to_num(chosen[name]).mean()) for name in PHASES} if device else {}
    found = []
    for metric, values in (("cpu", busy), ("gpu", gpu)):
        if len(values):
            found.append(Statistic(metric, metric, "%", quantiles(values)))
    return Stretch(
        key=f"{state.get('name', loader)}@{began:.3f}" if change is not None else str(state.get("name", loader)),
        loader=loader,
        name=str(state.get("name", loader)),
        backend=backend,
        began_by=str(change["kind"]) if change is not None else "start",
        label=None,
        knobs=knobs,
        start=start,
        end=ended,
        seconds=seconds,
        steps=len(chosen),
        left_out=0,
        batches=len(chosen),
        samples=int(images) if math.isfinite(images) else 0,
        rate=images / seconds,
        wait=1e3 * float(np.nan_to_num(chosen["wait"]).mean()) if len(chosen) else math.nan,
        step=1e3 * float(chosen["step"].mean()) if len(chosen) else math.nan,
        phases=phases,
        on_device=device,
        statistics=tuple(found),
        cpu_seconds=(kernel + (0.0 if math.isnan(workers) else workers)) / 100 * seconds,
        synthetic=backend == "synthetic",
        workers_cpu_seconds=workers / 100 * seconds,
        load=max(loads, default=math.nan),
    )


def _began(event: Mapping[str, Any]) -> float:
    first = event.get("first")
    return float(event["time"] if first is None else first)


def _mean(rows: Rows, window: Any, name: str) -> float:
    values = _column(rows, window, name)
    return float(values.mean()) if len(values) else math.nan


def _column(rows: Rows, window: Any, name: str) -> Any:
    column = rows.schema.columns.get(name)
    if column is None:
        return np.empty(0)
    values = rows.values[window, column]
    return values[np.isfinite(values)]


def _across(rows: Rows, window: Any, names: list[str]) -> Any:
    columns = [rows.schema.columns[name] for name in names if name in rows.schema.columns]
    if not columns:
        return np.empty(0)
    values = rows.values[window][:, columns].astype(np.float64)
    present = np.isfinite(values)
    counts = present.sum(axis=1)
    sums = np.where(present, values, 0.0).sum(axis=1)[counts > 0]
    return sums / counts[counts > 0]
