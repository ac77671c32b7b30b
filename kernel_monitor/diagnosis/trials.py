"""The figures of what delivered in the loop, and the sentence of *Diagnose*. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..analysis.advice import CLEAR
from ..analysis.frames import Floats, Frames, Steps, counted
from ..analysis.results import Advice, Point, faster, plain
from ..analysis.segments import REPLAYS
from ..analysis.step_times import finite
from ..protocol.analysis_states import DiagnosisResult, GainState
from ..steps.measured_step import ON_DEVICE, PHASES, WARM_UP, Step
from ..store import STEP, Rows

_EPOCH_GAP_S = 0.5  # between two epochs: what takes longer is the user's code, such as an evaluation
FEWEST = 3  # with fewer steps an engine has no figures
_QUARTILES = 1.35  # standard deviations of a normal distribution that its quartiles lie apart
_FEWEST_PARTS = 4  # a trial is cut into single seconds, or into this many parts if it is shorter
_NO_CEILING = (
    "The share of the compute ceiling is not known: allow synthetic, or watch the model: "
    "monitor.watch(model, optimizer)."
)
_CEILING_OF_PHASES = (
    "The ceiling is computed from the phases; where loading and training share cores the loop alone may be faster: "
    "allow synthetic to measure it."
)


class Candidate(NamedTuple):
    """A setting of a loader: an engine and all knobs, of which it heeds some."""

    engine: str
    workers: int
    prefetch: int | None  # None: as it was when the run began
    threads: int | None  # None: nothing here has threads

    @property
    def label(self) -> str:
        """Its engine and the knobs that this heeds, as `torchvision, 4 workers`."""
        words = [self.engine]
        if self.engine == TORCHVISION:
            words.append(f"{self.workers} worker{'' if self.workers == 1 else 's'}")
        elif self.engine in THREADED and self.threads is not None:
            words.append(f"{self.threads} thread{'' if self.threads == 1 else 's'}")
        if self.prefetch is not None:
            words.append(f"prefetch {self.prefetch}")
        return ", ".join(words)


TORCHVISION = "torchvision"
THREADED = ("threads", "dali-cpu", "dali-gpu")
"""The engines that have threads."""


@dataclass(frozen=True)
class Trial:
    """One engine in the running loop."""

    backend: str  # the engine
    start: float = math.nan  # start, end: session s
    end: float = math.nan
    seconds: float = 0.0  # that the loop spent in steps that count
    steps: int = 0  # that count (`frames.counted`); `samples` are theirs
    batches: int = 0  # all steps that ended
    samples: int = 0
    rate: float = math.nan  # samples per second; `rate_low`, `rate_high`: quartiles of the rates of its single seconds
    rate_low: float = math.nan
    rate_high: float = math.nan
    step: float = math.nan  # step, wait: ms, means
    wait: float = math.nan
    # cpu_p50, cpu_p95, gpu_p50: %, over the sampler's rows; None where nothing was measured
    cpu_p50: float | None = None
    cpu_p95: float | None = None
    gpu_p50: float | None = None
    # ms per step that the loop itself takes, from the measured phases; None where no model is watched
    work: float | None = None
    of_ceiling: float | None = None  # its rate over the loop's own, 0 to 1; None where that is not known
    problem: str | None = None  # why there are no figures, or why they are not to be trusted
    label: str = ""  # what delivered: the engine, or that with its knobs


def step_rows(steps: Sequence[Step]) -> Steps:
    """Return the steps of one loader as `STEP`[n]."""
    return np.array([(0, *step) for step in steps], dtype=STEP)


def covered(rows: Steps) -> Floats:
    """float64[n], seconds that each step adds to the time in which the loop was stepping; 0 where it does not count.

    Two iterations of one loader at a time overlap: their time counts once.
    """
    whole = rows["step"].astype(np.float64)
    began = rows["end"][:1] - whole[:1]
    adds: Floats = np.where(counted(rows), np.minimum(whole, np.diff(rows["end"], prepend=began)), 0.0)
    return adds.clip(min=0.0)


def trial(backend: str, steps: Sequence[Step], table: Rows, loader: str, start: float, end: float) -> Trial:
    """Return an engine's figures from the steps that ended in its trial (oldest first) and the sampler's rows of then.

    `start` and `end` (session s) are the first step's beginning and the last one's end.
    """
    rows = step_rows(steps)
    adds = covered(rows)
    used = adds > 0
    kept, adds = rows[used], adds[used]
    seconds, samples = float(adds.sum()), int(kept["images"].sum())
    frames = Frames(table, start=start, end=end)
    places = frames.delivery_rows(loader)
    cpu, gpu = (finite(values[places]) for values in (frames.cpu, frames.mean("gpu", "utilisation")))
    known = Trial(
        backend,
        start=start,
        end=end,
        seconds=seconds,
        steps=len(kept),
        batches=len(rows),
        samples=samples,
        cpu_p50=_percentile(cpu, 50),
        cpu_p95=_percentile(cpu, 95),
        gpu_p50=_percentile(gpu, 50),
    )
    if len(kept) < FEWEST:
        return replace(known, problem=f"only {len(kept)} steps ended in {seconds:.0f} s")
    low, high = map(float, np.percentile(per_second(adds, kept["images"].astype(np.float64)), (25, 75)))
    step, wait = (1e3 * float(kept[name].mean(dtype=np.float64)) for name in ("step", "wait"))
    rate = samples / seconds
    return replace(known, rate=rate, rate_low=low, rate_high=high, step=step, wait=wait, work=_work(kept))


def over_epochs(trial: Trial, steps: Sequence[Step], batches: int) -> Trial:
    """Return a trial with the figures of whole epochs of so many batches; as it is where none was seen.

    Any `batches` steps in a row have one beginning of an epoch among them, in which workers start or hand out what they
    have ready: to leave it out, as other rates do, favours settings of which many batches come at once. The quartiles
    are of single epochs, or of as many together as last a second; of fewer than four of these they are as far from the
    rate as those of the single seconds.
    """
    if trial.problem is not None or batches < 2 or not steps:
        return trial
    epochs = [run[len(run) % batches :] for run in _consecutive(steps)]
    rows = step_rows([step for run in epochs for step in run])
    seconds = np.concatenate([_durations(run) for run in epochs])
    if not seconds.sum() > 0:
        return trial
    used = seconds > 0  # without steps in which the loop paused
    samples = np.where(used, rows["images"], 0.0)
    rate = float(samples.sum() / seconds.sum())
    parts = np.array_split(
        np.arange(len(rows)).reshape(-1, batches), max(1, min(len(rows) // batches, int(seconds.sum())))
    )
    if len(parts) >= _FEWEST_PARTS:
        low, high = map(float, np.percentile([samples[part].sum() / seconds[part].sum() for part in parts], (25, 75)))
    else:
        low, high = (rate * quartile / trial.rate for quartile in (trial.rate_low, trial.rate_high))
    return replace(
        trial,
        seconds=float(seconds.sum()),
        steps=int(used.sum()),
        samples=int(samples.sum()),
        rate=rate,
        rate_low=low,
        rate_high=high,
        step=1e3 * float(seconds[used].mean()),
        wait=1e3 * float(rows["wait"][used].mean(dtype=np.float64)),
    )


def epoch_seconds(steps: Sequence[Step], batches: int) -> float:
    """Return how long an epoch of so many batches takes, by the steps that were seen; NaN where none was."""
    firsts = [step.step for step in steps if step.flags & WARM_UP]
    others = [step.step for step in steps if not step.flags & WARM_UP]
    if not others:
        return math.nan
    other = sum(others) / len(others)
    return (sum(firsts) / len(firsts) if firsts else other) + (batches - 1) * other


def _consecutive(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the runs of consecutive steps: the list is cut where a step is missing."""
    runs: list[list[Step]] = []
    for step in steps:
        before = runs[-1][-1] if runs else None
        if before is None or (step.epoch, step.batch) not in (
            (before.epoch, before.batch + 1),
            (before.epoch + 1, 0),
        ):
            runs.append([])
        runs[-1].append(step)
    return runs


def _durations(steps: Sequence[Step]) -> Floats:
    """float64[n], seconds of each of consecutive steps: as `covered`, and those of the first step of each epoch, with
    the time since the epoch before, unless that was other work, such as an evaluation.
    """
    seconds = covered(step_rows(steps))
    for place, step in enumerate(steps):
        if step.flags & WARM_UP:
            since = step.end - steps[place - 1].end if place else math.inf
            seconds[place] = since if since - step.step < _EPOCH_GAP_S else step.step
    return seconds


def per_second(seconds: Floats, images: Floats) -> Floats:
    """Return rates of the single seconds (at least four parts) of a trial; each step's `images` are spread over its
    time.
    """
    time, samples = np.concatenate([[0.0], np.cumsum(seconds)]), np.concatenate([[0.0], np.cumsum(images)])
    cuts = np.linspace(0.0, time[-1], max(_FEWEST_PARTS, round(float(time[-1]))) + 1)
    rates: Floats = np.diff(np.interp(cuts, time, samples)) / np.diff(cuts)
    return rates


def _work(rows: Steps) -> float | None:
    """Return the ms of a step that are the loop's own.

    By the host's clock these are what is no wait, by the GPU's the phases' sum if that is longer.

    A host that waits while the GPU still has work queued does not starve it.
    """
    phases = np.stack([rows[name] for name in PHASES], axis=1)
    known = np.isfinite(phases).any(axis=1)
    if known.sum() < FEWEST:
        return None
    own = rows["step"] - rows["wait"]
    own = np.where(rows["flags"] & ON_DEVICE != 0, np.maximum(own, np.nansum(phases, axis=1)), own)
    return 1e3 * float(own[known].mean(dtype=np.float64))


def with_ceiling(trials: Sequence[Trial]) -> tuple[list[Trial], str | None]:
    """Return the trials with `of_ceiling`, and what keeps the ceiling from being known or exact, as a sentence.

    The ceiling is what replayed batches reached; without them the rate at which the loop's own work alone would run,
    taken from the trial in which it was disturbed least.
    """
    usable = [trial for trial in trials if trial.problem is None]
    replayed = next((trial.rate for trial in usable if trial.backend == REPLAYS), None)
    own_rates = [trial.samples / trial.steps / (1e-3 * trial.work) for trial in usable if trial.work]
    if replayed is None and not own_rates:
        return list(trials), _NO_CEILING
    ceiling = max(own_rates) if replayed is None else replayed
    shares = {trial.backend: min(1.0, trial.rate / ceiling) for trial in usable if ceiling > 0}
    caveat = _CEILING_OF_PHASES if replayed is None else None
    return [replace(trial, of_ceiling=shares.get(trial.backend)) for trial in trials], caveat


def diagnosis(
    loader: str,
    name: str,
    trials: Sequence[Trial],
    *,
    first: str,
    back_to: str,
    predicted: Sequence[GainState] = (),
    message: str = "",
    cannot: Sequence[str] = (),
) -> DiagnosisResult:
    """Return what *Diagnose* found.

    `trials` are in the order in which they ran, the first of them of the engine that was in use (`first`); `back_to` is
    the engine in use afterwards. `predicted` are gains (`results.Gain` as JSON) from before any other engine had run,
    `message` is how it ended, `cannot` are sentences on what could not be measured.
    """
    trials, caveat = with_ceiling(trials)
    usable = {trial.backend: trial for trial in trials if trial.problem is None}
    best = _best(usable, first)
    advice = Advice(_sentence(usable, first, best), _points(usable, first, best))
    problems = [f"{trial.backend}: {trial.problem}." for trial in trials if trial.problem is not None]
    return {
        "kind": "diagnose",
        "loader": loader,
        "name": name,
        "began": began_of(trials),
        "ended": ended_of(trials),
        "back_to": back_to,
        "synthetic": REPLAYS in usable,
        "message": message,
        "runs": runs_of(trials),
        "predicted": list(predicted),
        "measured": _measured_gains(usable, first, predicted),
        "best": best,
        "sentence": advice.text,
        "advised": [plain(advice)],
        "cannot": [*problems, *cannot, *([] if caveat is None or not usable else [caveat])],
    }


def runs_of(trials: Sequence[Trial]) -> list[Any]:
    """Return trials as JSON."""
    return [{key: value for key, value in plain(trial).items() if key != "work"} for trial in trials]


def began_of(trials: Sequence[Trial]) -> float | None:
    """Return when the first trial began, session s; None where nothing was measured."""
    return min((trial.start for trial in trials if math.isfinite(trial.start)), default=None)


def ended_of(trials: Sequence[Trial]) -> float | None:
    """Return when the last trial ended, session s; None where nothing was measured."""
    return max((trial.end for trial in trials if math.isfinite(trial.end)), default=None)


def _measured_gains(usable: Mapping[str, Trial], first: str, predicted: Sequence[GainState]) -> list[GainState]:
    """Return share of the step time that each other engine saved; with what was predicted for it, if anything was.

    What replayed batches saved is measured for the action `loader`: it leaves no wait for data.
    """
    base = usable.get(first)
    expected = {gain["action"]: gain for gain in predicted}
    gains: list[GainState] = []
    for trial in usable.values():
        if base is None or trial is base:
            continue
        action = "loader" if trial.backend == REPLAYS else trial.backend
        low, high = (expected[action]["low"], expected[action]["high"]) if action in expected else (None, None)
        saved = 1 - trial.step / base.step
        basis = f"{base.step:,.1f} → {trial.step:,.1f} ms per step ({base.steps:,} → {trial.steps:,} steps)"
        gains.append({"action": action, "low": low, "high": high, "measured": saved, "basis": basis, "by": "Diagnose"})
    return gains


def _sentence(usable: Mapping[str, Trial], first: str, best: str | None) -> str:
    """Return the result, with figures, their spread and their counts."""
    if best is None:
        return "No engine could be measured."
    base, top = usable.get(first), usable[best]
    if base is None:
        return f"{first} could not be measured; {_figures(top)}."
    rivals = [trial for trial in usable.values() if trial.backend not in (best, REPLAYS)]
    if not rivals:
        return f"{_figures(top)}{_share(top)}. No other engine was measured."
    runner_up = max(rivals, key=lambda trial: trial.rate)
    if best == first and runner_up.rate_high < top.rate_low:
        return f"{first} is the fastest here already: {_figures(top)}, against {_figures(runner_up)}{_share(top)}."
    if best == first or least_saved(base, top) < CLEAR:
        other = runner_up if best == first else base
        return (
            f"No engine is clearly faster than {first}: {_figures(top)}, {_figures(other)}; the spreads overlap or "
            f"nearly do{_share(top)}."
        )
    words = f"{faster(1 - base.rate / top.rate)} than {first}"
    shifts = "".join(
        f"; {label} {before:.0f} % → {after:.0f} %"
        for label, before, after in (("CPU p95", base.cpu_p95, top.cpu_p95), ("GPU p50", base.gpu_p50, top.gpu_p50))
        if before is not None and after is not None
    )
    if runner_up is not base and runner_up.rate_high >= top.rate_low:
        both = f"{best} is {words} here, and {runner_up.backend} is about as fast as {best}"
        return f"{both}: {_figures(base)}, {_figures(top)}, {_figures(runner_up)}{_share(top)}{shifts}."
    return f"{best} is the fastest here, {words}: {_figures(base)}, {_figures(top)}{_share(top)}{shifts}."


def _best(usable: Mapping[str, Trial], first: str) -> str | None:
    """Return the engine that surely saves most (as `decision.Decision.best`); where none does so, that of the highest
    rate.
    """
    base = usable.get(first)
    loading = [trial for trial in usable.values() if trial.backend != REPLAYS]
    saved = {} if base is None else {trial.backend: least_saved(base, trial) for trial in loading if trial is not base}
    sure = max(saved, key=lambda name: saved[name], default=None)
    if sure is not None and saved[sure] >= CLEAR:
        return sure
    return max(loading, key=lambda trial: trial.rate).backend if loading else None


def _points(usable: Mapping[str, Trial], first: str, best: str | None) -> tuple[Point, ...]:
    """Return what speaks for and against each engine that could replace the first."""
    base = usable.get(first)
    if base is None:
        return ()
    found = []
    for trial in usable.values():
        if trial.backend in (first, REPLAYS):
            continue
        sure = trial.backend == best and least_saved(base, trial) >= CLEAR
        slower = 1 - base.rate_low / trial.rate_high < CLEAR
        found.append(Point("engine", trial.backend, "for" if sure else "against" if slower else "neutral"))
    return tuple(found)


def least_saved(base: Trial, other: Trial) -> float:
    """Return share of the step time, by the quartiles that lie closest."""
    return 1 - base.rate_high / other.rate_low if other.rate_low > 0 else -math.inf


def surely_saved(base: Trial, other: Trial) -> float:
    """Return share of the step time that `other` saves, less twice the standard error of the two means.

    Single seconds have the standard deviation of a normal distribution of their quartiles, which is a 1.35th of the
    distance between these; the mean of n of them errs by that over the root of n.
    """
    if not (base.rate > 0 and other.rate > 0):
        return -math.inf
    errors = [
        (trial.rate_high - trial.rate_low) / _QUARTILES / math.sqrt(max(_FEWEST_PARTS, trial.seconds)) / trial.rate
        for trial in (base, other)
    ]
    ratio = base.rate / other.rate
    return 1 - ratio - 2 * ratio * math.hypot(*errors)


def _figures(trial: Trial) -> str:
    spread = f"quartiles {trial.rate_low:,.0f} to {trial.rate_high:,.0f}"
    return f"{trial.backend} {trial.rate:,.0f} images/s ({spread}; {trial.samples:,} in {trial.seconds:.0f} s)"


def _share(trial: Trial) -> str:
    return "" if trial.of_ceiling is None else f", {100 * trial.of_ceiling:.0f} % of what the loop can take"


def _percentile(values: Floats, q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None
