"""The result types of an analysis as plain values: segments, verdicts, findings, gains, costs. NumPy only.

Shares are 0 to 1, times in seconds of the session, durations in the unit that the field names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

_LOSS = 1e-3  # share by which a rate and the step time that it comes from may differ

Kind = Literal["input-bound", "copy-bound", "compute-bound", "residual-heavy", "undetermined"]
State = Literal["fired", "quiet", "abstained"]
Stance = Literal["for", "against", "neutral"]
_MOST_FACTOR = 100.0  # a change is called at most so many times faster or slower


@dataclass(frozen=True)
class Point:
    """The change that a piece of advice is for or against; `neutral` where its effect is not known."""

    about: str  # `engine`, `workers`, `threads`, `batch`, `cores`, `loading`, `storage`
    target: str  # which one (`dali-cpu`), or which way (`more`, `fewer`, `larger`, `faster`)
    stance: Stance


@dataclass(frozen=True)
class Advice:
    """A sentence on what to do, or what would not help: `text` for people, `points` that it is for or against (none
    where no other advice could say the opposite), `segment` that it is for (its key; None: the session)."""

    text: str
    points: tuple[Point, ...] = ()
    segment: str | None = None


def prose(advised: Sequence[Advice]) -> str:
    """Return the sentences one after the other."""
    return " ".join(advice.text for advice in advised)


class Advised:
    advised: tuple[Advice, ...]

    @property
    def advice(self) -> str:
        """The sentences of `advised`, one after the other."""
        return prose(self.advised)


@dataclass(frozen=True)
class Quantiles:
    """The spread of `count` values, in their unit, by linear interpolation as `numpy.percentile`; NaN for none."""

    count: int
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Statistic:
    """The spread of one metric (of `segments.METRICS`) of one segment; `label` and `unit` are for people."""

    metric: str
    label: str
    unit: str
    values: Quantiles


@dataclass(frozen=True)
class Segment:
    """A loader between two changes: a switch, a turned knob, a user's mark, the beginning, the end."""

    key: str  # `<loader's name>/<number from 1>`, what people name it by
    loader: str  # its id
    name: str
    backend: str  # the engine that delivered
    began_by: str  # `start`, `switch`, `knobs` or `mark`
    label: str | None  # the mark's words; None where no mark began it
    knobs: dict[str, int]  # `workers`, `prefetch`, `threads`, as far as they are known
    start: float  # start, end: session s, without the change-over at its start
    end: float
    seconds: float  # how long the loader was delivering in it
    steps: int  # steps that ended in it and count (`frames.counted`); `left_out`: the others
    left_out: int
    batches: int  # batches, samples: really delivered in `seconds`
    samples: int
    rate: float  # samples per second; NaN when no time was counted
    wait: float  # wait, step: ms, means over the steps; NaN where there are none
    step: float
    phases: dict[str, float]  # ms, means of `copy`, `forward`, `backward`, `optimizer`, `other`, if they were measured
    on_device: bool  # the phases are times of the GPU, not of the host
    statistics: tuple[Statistic, ...]  # in a fixed order; a metric that was not measured is left out
    # share of the GPU's samples in each of 50 bins of width 2 %, all GPUs together; empty without one
    gpu_histogram: tuple[float, ...] = ()
    cpu_seconds: float = math.nan  # of one core, taken by kernel and workers in `seconds`; NaN: not measured
    synthetic: bool = False  # the batches were replayed
    workers_cpu_seconds: float = math.nan  # the workers' part of `cpu_seconds`; NaN where there were none
    evaluates: bool = False  # most of its steps were without gradients
    # %, median of what was taken of the usable cores, or of the quota where that binds; NaN: not measured
    load: float = math.nan
    nodes: int = 0  # other machines that delivered batches in it
    tried: bool = False  # *Diagnose* or *Tune* only tried it: comparisons leave it out, and no rule judges it

    @property
    def worker_knob(self) -> str:
        """The name of the knob that says how many load: `threads` of a pipeline, else `workers`."""
        return "threads" if self.in_threads else "workers"

    @property
    def in_threads(self) -> bool:
        """Whether threads of the training's own process load: DALI's, or those of the engine `threads`."""
        return self.backend.startswith("dali") or self.backend == "threads"

    @property
    def wait_share(self) -> float:
        """The share of the step time that the loop waits for data, 0 to 1; NaN where it is not known."""
        return self.wait / self.step if self.step > 0 else math.nan

    def median(self, metric: str) -> float:
        """Return the median of one of `statistics`; NaN where it was not measured."""
        return self.quantile(metric, "p50")

    def quantile(self, metric: str, name: str) -> float:
        """Return a quantile (`p50`, `p95`, …) of one of `statistics`; NaN where it was not measured."""
        return next((getattr(found.values, name) for found in self.statistics if found.metric == metric), math.nan)

    def contradictions(self) -> list[str]:
        """Return a sentence for each pair of figures that cannot both be true: none, unless this code has a fault."""
        found = []
        if self.wait < 0 or self.wait > self.step * (1 + _LOSS):
            found.append(f"{self.key}: a wait of {self.wait} ms in a step of {self.step} ms")
        if self.batches and self.rate > 0 and self.step > 0:
            batch = self.rate * self.step / 1e3
            if abs(batch - self.samples / self.batches) > _LOSS * batch:
                found.append(f"{self.key}: {self.samples} samples in {self.batches} batches, but {batch} by the rate")
        if self.seconds > 0 and abs(self.rate - self.samples / self.seconds) > _LOSS * self.rate:
            found.append(f"{self.key}: {self.rate} images/s, but {self.samples} in {self.seconds} s")
        return found


@dataclass(frozen=True)
class EpochCount:
    """One epoch of a loader, with what it really delivered."""

    loader: str  # loader, name, epoch: which (epochs from 0)
    name: str
    epoch: int
    batches: int  # batches, samples: delivered
    samples: int
    planned: int | None  # samples that its plan has; None where that is not known
    seconds: float  # from its first batch asked for to its last step's end; NaN where no step of it is known
    finished: bool  # its loop went to the end
    # why its time must not be compared with another's (`delivered 0 of 9,469 samples`); None if it may
    problem: str | None
    ended: bool = False  # its iterator said that it was at its end: the loop was not left early
    passed: int = 0  # samples that were delivered, skipped as unreadable or replaced by replayed ones


@dataclass(frozen=True)
class Evidence:
    """The evidence of a rule: a `text`, a `value` against a `threshold` in `unit`, a `share` of the samples, a time."""

    text: str
    value: float = math.nan
    threshold: float = math.nan
    unit: str = ""
    share: float = math.nan
    start: float = math.nan
    end: float = math.nan


@dataclass(frozen=True)
class Finding(Advised):
    """The result of one rule for one segment or for the session."""

    rule: str  # its id, as in `docs/rules.md`
    title: str  # for people
    state: State  # `fired`, `quiet`, or `abstained`: `missing` says which signal it would need
    severity: str = "note"  # `warning` or `critical`; `note` where it did not fire
    segment: str | None = None  # the segment's key; None: the session
    samples: int = 0  # values looked at
    times: int = 0  # how often it fired (windows, steps, GPUs)
    evidence: tuple[Evidence, ...] = ()  # with figures
    advised: tuple[Advice, ...] = ()  # what to do; empty unless it fired
    missing: tuple[str, ...] = ()
    parameters: dict[str, float] = field(default_factory=dict)  # the thresholds that were used


def faster(low: float, high: float | None = None) -> str:
    """Return a share of the step time saved, or a range of it, as a factor: `1.48 × faster`, `1.20 to 1.60 × slower`.

    The page has the same function (widgets/src/analysis/gains.ts).
    """
    ends = (low, low if high is None else high)
    factors = [min(_MOST_FACTOR, 1 - share if share < 0 else 1 / max(1 - share, 1 / _MOST_FACTOR)) for share in ends]
    digits = 1 if max(factors) >= 2 else 2
    first, last = (f"{factor:.{0 if factor >= 10 else digits}f}" for factor in factors)
    way, other = ("slower" if share < 0 else "faster" for share in ends)
    same = f"{1:.{digits}f}"
    if first == last == same:
        return "as fast"
    if first == last and way == other:
        return f"{first} × {way}"
    if same in (first, last):
        return f"up to {last} × {other}" if first == same else f"up to {first} × {way}"
    if way != other:
        return f"between {first} × slower and {last} × faster"
    return f"{first} to {last} × faster" if way == "faster" else f"{last} to {first} × slower"


@dataclass(frozen=True)
class Gain:
    """The expected or measured effect of a change."""

    action: str  # what would be changed: `loader` (no wait for data left), or the engine
    low: float  # low, high: share of the step time that it would save (0.46: steps take 54 % of the time);
    high: float  # negative: longer
    measured: float = math.nan  # what it did save; NaN until it was done
    basis: str = ""  # one sentence that says what it was computed from
    by: str = ""  # what measured it, `Diagnose` or `switch`; empty where it is a prediction

    @property
    def words(self) -> str:
        """The expected and the measured effect, for people: `dali-cpu: expected 1.20 to 1.50 × faster`.

        Of an engine that was tried (`by`) `low` and `high` are the spread of its measurement: where they lie on both
        sides of *as fast*, the steps vary too much.
        """
        what = "Without any wait for data" if self.action == "loader" else self.action
        bounds, measured = math.isfinite(self.low + self.high), math.isfinite(self.measured)
        if self.by and measured:
            unsure = bounds and self.low < 0 < self.high
            return f"{what}: measured {faster(self.measured)}{', but the steps vary too much to be sure' * unsure}"
        parts = [f"expected {faster(self.low, self.high)}"] if bounds else []
        parts += [f"measured {faster(self.measured)}"] if measured else []
        return f"{what}: {'; '.join(parts) or 'not known'}"


@dataclass(frozen=True)
class Verdict(Advised):
    """The verdict on where the time of a step goes."""

    kind: Kind  # what the step is bound by
    segment: str | None  # key of the segment that it is of; None when there was none to judge
    sentence: str  # the one sentence why, with its figures and their counts
    advised: tuple[Advice, ...] = ()  # what to do next
    # share of the step's time by part: `wait`, `copy`, `compute`, `other`; only those that are known
    shares: dict[str, float] = field(default_factory=dict)
    steps: int = 0  # that it rests on
    missing: tuple[str, ...] = ()  # what to measure to say more (`phases: monitor.watch(model, optimizer)`)
    # what to expect, the most promising first; of a step that is not input-bound only what was measured
    gains: tuple[Gain, ...] = ()
    warnings: tuple[str, ...] = ()  # what rules found that must be seen with it, each with what to do


@dataclass(frozen=True)
class Change:
    """Two neighbouring segments of a loader side by side; `before` and `after` are keys. Made by `changes.change`."""

    before: str
    after: str
    faster: float  # rate after over rate before; NaN where one of them is unknown
    saved: float  # share of the step time saved (1 − step after / step before)
    histogram_distance: float  # of the GPU histograms, 0 (equal) to 1 (disjoint): `step_times.distance`
    # the gain that was predicted before the change, if one was; with `measured` filled in
    predicted: Gain | None = None
    # why it may not be taken at face value (`after: 12 steps`, `an epoch delivered too little`)
    caveats: tuple[str, ...] = ()
    switch: dict[str, Any] | None = None  # the event (`source`, `target`, `epoch`, `batch`, …) if a switch lies between
    # what is missing for a comparison (`too little was measured after the switch: 96 images in 1.2 s`); None: nothing
    reason: str | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of a segment at a price per hour, in whole units of the `currency`; NaN where it cannot be said."""

    segment: str  # its key; of a job of ranks `job 1`
    per_hour: float
    currency: str
    per_step: float
    per_epoch: float
    per_thousand: float
    nodes: int = 0  # other machines that worked for it
    priced: bool = True  # whether their price is in it
    basis: str = ""  # of a job: its machines, and what it was computed from


@dataclass(frozen=True)
class Feeding(Advised):
    """The cores that are needed to feed this loop without a wait."""

    segment: str  # that the figures were computed from; the advice is for the newest one
    cpu_per_image: float  # CPU seconds per image of loading, measured; NaN where it was not
    cores_needed: float  # to deliver as fast as the loop can take; NaN where that is not known
    cores: float  # that this process may use (a quota counts)
    advised: tuple[Advice, ...] = ()  # the next thing to do, in the decision order of `docs/rules.md`


@dataclass(frozen=True)
class Analysis:
    """Everything that can be said of a session; made by `kernel_monitor.analysis.analyse`."""

    segments: tuple[Segment, ...]  # in the order of time
    epochs: tuple[EpochCount, ...]  # of every loader
    verdict: Verdict  # of the segment that stands for the session: the newest of a training with enough steps
    verdicts: tuple[Verdict, ...]  # one for each segment
    changes: tuple[Change, ...]  # neighbouring segments of one loader
    findings: tuple[Finding, ...]  # of every rule, those that fired first
    costs: tuple[Cost, ...]  # empty without a price
    feeding: Feeding | None  # None without a loader's deliveries
    # diagnoses, profiles: results of *Diagnose* and of *Profile* (events `diagnosis`, `profile`), oldest first
    diagnoses: tuple[dict[str, Any], ...] = ()
    profiles: tuple[dict[str, Any], ...] = ()
    cannot: tuple[str, ...] = ()  # what could not be said and why, a sentence each
    # of `changes`, the switch that says most (`changes.headline`); None where no switch can be compared
    headline: Change | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the analysis as JSON-able values; NaN and infinity become None."""
        return dict(plain(self))


def plain(value: Any) -> Any:
    """Return a value of this module, or of what it holds, as JSON-able values."""
    if is_dataclass(value) and not isinstance(value, type):
        made = {item.name: plain(getattr(value, item.name)) for item in fields(value)}
        return {**made, "advice": prose(value.advised)} if hasattr(value, "advised") else made
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
