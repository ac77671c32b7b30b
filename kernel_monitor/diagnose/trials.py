"""What engines did in the running loop, one after the other: *Diagnose*'s figures and its sentence. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..steps.records import ON_DEVICE, PROFILED
from .decision import CLEAR
from .measured import measure
from .model import Advice, Point, plain
from .switches import REPLAYS

if TYPE_CHECKING:
    from ..steps.records import Step
    from .measured import Floats
    from .table import Table

FEWEST = 3
"""Steps below which nothing is said of an engine."""
FEWEST_PARTS = 4
"""A stretch is cut into single seconds, or into this many parts if it is shorter."""
PAUSE_S = 3.0
"""A step whose own work (without the wait) takes longer than this, and than five of its kind, is a pause of the loop:
an evaluation, a checkpoint. The wait for a batch is never left out: it is what is measured."""


@dataclass(frozen=True)
class Trial:
    """One engine's stretch in the running loop.

    Attributes:
        backend: the engine.
        start, end: session s.
        seconds: how long the loop was stepping in it, without its pauses.
        steps, batches, samples: that ended in it; `steps` without pauses and profiled ones, which count for nothing.
        rate: samples per second; `rate_low`, `rate_high`: quartiles of the rates of its single seconds.
        step, wait: ms, means.
        cpu_p50, cpu_p95, gpu_p50: %, over the sampler's frames; None where nothing was measured.
        work: ms per step that the loop itself takes, from the measured phases; None where no model is watched.
        of_ceiling: its rate over the loop's own, 0 to 1; None where that is not known.
        problem: why there are no figures, or why they are not to be trusted.
    """

    backend: str
    start: float = float("nan")
    end: float = float("nan")
    seconds: float = 0.0
    steps: int = 0
    batches: int = 0
    samples: int = 0
    rate: float = float("nan")
    rate_low: float = float("nan")
    rate_high: float = float("nan")
    step: float = float("nan")
    wait: float = float("nan")
    cpu_p50: float | None = None
    cpu_p95: float | None = None
    gpu_p50: float | None = None
    work: float | None = None
    of_ceiling: float | None = None
    problem: str | None = None

    @property
    def counts(self) -> bool:
        """Whether its figures may be compared."""
        return self.problem is None


def covered(steps: Sequence[Step]) -> Floats:
    """Seconds that each step adds to the time in which the loop was stepping; 0 for a pause and a profiled step.

    Two iterations of one loader at a time overlap: their time counts once.
    """
    if not steps:
        return np.empty(0)
    end, whole = np.array([one.end for one in steps]), np.array([one.step for one in steps])
    own = whole - np.nan_to_num([one.wait for one in steps])
    left_out = own > max(PAUSE_S, 5 * float(np.median(own)))
    left_out |= np.array([bool(one.flags & PROFILED) for one in steps])
    adds: Floats = np.where(left_out, 0.0, np.minimum(whole, np.diff(end, prepend=end[0] - whole[0])))
    return adds.clip(min=0.0)


def trial(backend: str, steps: Sequence[Step], table: Table, loader: str, start: float, end: float) -> Trial:
    """An engine's figures.

    Args:
        backend: the engine.
        steps: those that ended in its stretch, oldest first.
        table: the sampler's rows of that time.
        loader: id of the loader.
        start, end: session s of the first step's beginning and of the last one's end.
    """
    adds = covered(steps)
    used = adds > 0
    count, seconds = int(used.sum()), float(adds.sum())
    images = np.where(used, [one.images for one in steps], 0) if len(steps) else np.empty(0)
    seen = measure(table, loader, start, end)
    known = Trial(
        backend,
        start=start,
        end=end,
        seconds=seconds,
        steps=count,
        batches=len(steps),
        samples=int(images.sum()),
        cpu_p50=_percentile(seen.cpu, 50),
        cpu_p95=_percentile(seen.cpu, 95),
        gpu_p50=_percentile(seen.gpu, 50),
    )
    if count < FEWEST:
        return replace(known, problem=f"only {count} steps ended in {seconds:.0f} s")
    counted = [one for one, use in zip(steps, used, strict=True) if use]
    rates = per_second(adds[used], images[used])
    return replace(
        known,
        rate=float(images.sum()) / seconds,
        rate_low=float(np.percentile(rates, 25)),
        rate_high=float(np.percentile(rates, 75)),
        step=1e3 * float(np.mean([one.step for one in counted])),
        wait=1e3 * float(np.mean([one.wait for one in counted])),
        work=_work(counted),
    )


def per_second(seconds: Floats, images: Floats) -> Floats:
    """Rates of the single seconds (at least four parts) of a stretch; a step's samples are spread over its time.

    Args:
        seconds: of each step.
        images: of each step.
    """
    time, sum_ = np.concatenate([[0.0], np.cumsum(seconds)]), np.concatenate([[0.0], np.cumsum(images)])
    cuts = np.linspace(0.0, time[-1], max(FEWEST_PARTS, round(float(time[-1]))) + 1)
    rates: Floats = np.diff(np.interp(cuts, time, sum_)) / np.diff(cuts)
    return rates


def _work(steps: Sequence[Step]) -> float | None:
    """Ms per step that are the loop's own: by the host's clock what is no wait, by the GPU's the phases' sum if longer.

    A host that waits while the GPU still has work queued does not starve it.
    """
    phases = np.array([[one.copy, one.forward, one.backward, one.optimizer] for one in steps], dtype=np.float64)
    known = np.isfinite(phases).any(axis=1)
    if known.sum() < FEWEST:
        return None
    own = np.array([one.step - one.wait for one in steps])
    device = np.array([bool(one.flags & ON_DEVICE) for one in steps])
    own = np.where(device, np.maximum(own, np.nansum(phases, axis=1)), own)
    return 1e3 * float(own[known].mean())


def with_ceiling(trials: Sequence[Trial]) -> tuple[list[Trial], str | None]:
    """The trials with `of_ceiling`, and what keeps the ceiling from being known or exact, as a sentence.

    The ceiling is what replayed batches reached; without them the rate at which the loop's own work alone would run,
    taken from the trial in which it was disturbed least.
    """
    counted = [one for one in trials if one.counts]
    replayed = next((one.rate for one in counted if one.backend == REPLAYS), None)
    known = [one.samples / one.steps / (1e-3 * one.work) for one in counted if one.work]
    caveat = None
    if replayed is not None:
        ceiling = replayed
    elif known:
        ceiling = max(known)
        caveat = (
            "The ceiling is reckoned from the phases; where loading and training share cores the loop alone may be "
            "faster: allow synthetic to measure it."
        )
    else:
        return list(trials), (
            "The share of the compute ceiling is not known: allow synthetic, or watch the model: "
            "monitor.watch(model, optimizer)."
        )
    shares = {one.backend: min(1.0, one.rate / ceiling) for one in counted if ceiling > 0}
    return [replace(one, of_ceiling=shares.get(one.backend)) for one in trials], caveat


def diagnosis(
    loader: str,
    name: str,
    trials: Sequence[Trial],
    *,
    first: str,
    back_to: str,
    predicted: Sequence[Mapping[str, Any]] = (),
    message: str = "",
    cannot: Sequence[str] = (),
) -> dict[str, Any]:
    """What *Diagnose* found, as docs/architecture.md has it (*Diagnosis*).

    Args:
        loader, name: its id and its name.
        trials: in the order in which they ran, the first of them of the engine that was in use.
        first: that engine.
        back_to: the engine in use afterwards.
        predicted: gains (`model.Gain` as JSON) reckoned before any other engine had run.
        message: how it ended.
        cannot: sentences on what could not be measured.
    """
    trials, caveat = with_ceiling(trials)
    counted = {one.backend: one for one in trials if one.counts}
    loading = [one for one in counted.values() if one.backend != REPLAYS]
    best = _best(counted, first, loading)
    said = Advice(sentence(counted, first, best), _points(counted, first, best))
    problems = [f"{one.backend}: {one.problem}." for one in trials if one.problem is not None]
    runs = [{key: value for key, value in plain(one).items() if key != "work"} for one in trials]
    return {
        "loader": loader,
        "name": name,
        "began": plain(min((one.start for one in trials if np.isfinite(one.start)), default=float("nan"))),
        "ended": plain(max((one.end for one in trials if np.isfinite(one.end)), default=float("nan"))),
        "back_to": back_to,
        "synthetic": REPLAYS in counted,
        "message": message,
        "runs": runs,
        "predicted": [dict(one) for one in predicted],
        "measured": measured_gains(counted, first, predicted),
        "best": best,
        "sentence": said.text,
        "advised": [plain(said)],
        "cannot": [*problems, *cannot, *([] if caveat is None or not counted else [caveat])],
    }


def measured_gains(
    counted: Mapping[str, Trial], first: str, predicted: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Share of the step time that each other engine saved; with what was predicted for it, if anything was.

    What replayed batches saved is measured for the action `loader`: it leaves no wait for data.
    """
    base = counted.get(first)
    if base is None:
        return []
    told = {str(gain["action"]): gain for gain in predicted}
    gains = []
    for one in counted.values():
        if one is base:
            continue
        action = "loader" if one.backend == REPLAYS else one.backend
        gain = told.get(action, {})
        gains.append(
            {
                "action": action,
                "low": gain.get("low"),
                "high": gain.get("high"),
                "measured": 1 - one.step / base.step,
                "basis": f"{base.step:,.1f} → {one.step:,.1f} ms per step ({base.steps:,} → {one.steps:,} steps)",
            }
        )
    return gains


def sentence(counted: Mapping[str, Trial], first: str, best: str | None) -> str:
    """What it comes to, with figures, their spread and their counts."""
    if best is None:
        return "No engine could be measured."
    base, top = counted.get(first), counted[best]
    if base is None:
        return f"{first} could not be measured; {_figures(top)}."
    rivals = [one for one in counted.values() if one.backend not in (best, REPLAYS)]
    if not rivals:
        return f"{_figures(top)}{_share(top)}. No other engine was measured."
    runner_up = max(rivals, key=lambda one: one.rate)
    if best == first and runner_up.rate_high < top.rate_low:
        return f"{first} is the fastest here already: {_figures(top)}, against {_figures(runner_up)}{_share(top)}."
    if best == first or _least_saved(base, top) < CLEAR:
        other = runner_up if best == first else base
        return (
            f"No engine is clearly faster than {first}: {_figures(top)}, {_figures(other)}; the spreads overlap or "
            f"nearly do{_share(top)}."
        )
    faster = 100 * (top.rate / base.rate - 1)
    shifts = "".join(
        f"; {label} {before:.0f} % → {after:.0f} %"
        for label, before, after in (("CPU p95", base.cpu_p95, top.cpu_p95), ("GPU p50", base.gpu_p50, top.gpu_p50))
        if before is not None and after is not None
    )
    if runner_up is not base and runner_up.rate_high >= top.rate_low:
        words = f"{best} is faster here than {first}, by {faster:.0f} %, and {runner_up.backend} is about as fast as it"
        return f"{words}: {_figures(base)}, {_figures(top)}, {_figures(runner_up)}{_share(top)}{shifts}."
    return f"{best} is the fastest here, by {faster:.0f} %: {_figures(base)}, {_figures(top)}{_share(top)}{shifts}."


def _best(counted: Mapping[str, Trial], first: str, loading: Sequence[Trial]) -> str | None:
    """The engine that surely saves most (as `decision.Decision.best`); where none does so, that of the highest rate."""
    base = counted.get(first)
    saved = {} if base is None else {one.backend: _least_saved(base, one) for one in loading if one is not base}
    sure = max(saved, key=lambda name: saved[name], default=None)
    if sure is not None and saved[sure] >= CLEAR:
        return sure
    return max(loading, key=lambda one: one.rate).backend if loading else None


def _points(counted: Mapping[str, Trial], first: str, best: str | None) -> tuple[Point, ...]:
    """What the sentence says of each engine that could take the place of the first."""
    base = counted.get(first)
    if base is None:
        return ()
    found = []
    for one in counted.values():
        if one.backend in (first, REPLAYS):
            continue
        sure = one.backend == best and _least_saved(base, one) >= CLEAR
        slower = 1 - base.rate_low / one.rate_high < CLEAR
        found.append(Point("engine", one.backend, "for" if sure else "against" if slower else "neutral"))
    return tuple(found)


def _least_saved(base: Trial, other: Trial) -> float:
    """Share of the step time, by the quartiles that lie closest."""
    return 1 - base.rate_high / other.rate_low if other.rate_low > 0 else -math.inf


def _figures(one: Trial) -> str:
    spread = f"quartiles {one.rate_low:,.0f} to {one.rate_high:,.0f}"
    return f"{one.backend} {one.rate:,.0f} images/s ({spread}; {one.samples:,} in {one.seconds:.0f} s)"


def _share(one: Trial) -> str:
    return "" if one.of_ceiling is None else f", {100 * one.of_ceiling:.0f} % of what the loop can take"


def _percentile(values: Floats, q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None
