"""What an analysis says, as plain values: what measures makes them, what shows them reads them. NumPy only.

Shares are 0 to 1, times in seconds of the session, durations in the unit that the field names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

Kind = Literal["input-bound", "copy-bound", "compute-bound", "residual-heavy", "undetermined"]
State = Literal["fired", "quiet", "abstained"]
Stance = Literal["for", "against", "neutral"]


@dataclass(frozen=True)
class Point:
    """What a piece of advice is for or against.

    Attributes:
        about: `engine`, `workers`, `threads`, `batch`, `cores`, `loading`, `storage`.
        target: which one (`dali-cpu`), or which way (`more`, `fewer`, `larger`, `faster`).
        stance: `neutral` where it is only named: what it would bring is not known.
    """

    about: str
    target: str
    stance: Stance


@dataclass(frozen=True)
class Advice:
    """A sentence that says what to do, or what would not help; `advice.py` makes those on a loader and its machine.

    Attributes:
        text: for people.
        points: what it is for or against; none where nothing of this project could say the opposite.
        stretch: key of the stretch that it is for; None: the session.
    """

    text: str
    points: tuple[Point, ...] = ()
    stretch: str | None = None


def prose(advised: Sequence[Advice]) -> str:
    """The sentences one after the other."""
    return " ".join(one.text for one in advised)


@dataclass(frozen=True)
class Quantiles:
    """How values are spread; NaN throughout when there are none.

    Attributes:
        count: values that it is of.
        min, p50, p90, p95, p99, max: as `numpy.percentile` gives them by linear interpolation, in the values' unit.
    """

    count: int
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True)
class Statistic:
    """One metric of one stretch.

    Attributes:
        metric: `cpu`, `iowait`, `steal`, `gpu`, `gpu_memory`, `memory`, `received`, `sent`, `disk`, `images` (per
            second), or a part of the step: `wait`, `copy`, `forward`, `backward`, `optimizer`, `other`, `step`.
        label, unit: for people.
        values: its spread.
    """

    metric: str
    label: str
    unit: str
    values: Quantiles


@dataclass(frozen=True)
class Stretch:
    """A loader between two changes: a switch, a turned knob, a user's mark, the beginning, the end.

    Attributes:
        key: `<loader's name>/<number from 1>`, what people name it by.
        loader, name: its id and its name.
        backend: the engine that delivered.
        began_by: `start`, `switch`, `knobs` or `mark`.
        label: the mark's words; None where no mark began it.
        knobs: `workers`, `prefetch`, `threads`, as far as they are known.
        start, end: session s, without the change-over at its start.
        seconds: how long the loader was delivering in it.
        steps: steps that ended in it, without those of warm-up and profiling and those in which the loop paused.
        left_out: those steps.
        batches, samples: really delivered in `seconds`.
        rate: samples per second; NaN when no time was counted.
        wait, step: ms, means over the steps; NaN where there are none.
        phases: ms, means of `copy`, `forward`, `backward`, `optimizer`, `other`; only those that were measured.
        on_device: the phases are times of the GPU, not of the host.
        statistics: the spreads, in a fixed order; a metric that was not measured is left out.
        gpu_histogram: share of the GPU's samples in each of 50 bins of width 2 %, all GPUs together; empty without one.
        cpu_seconds: of one core, taken by kernel and workers in `seconds`; NaN where it was not measured.
        synthetic: the batches were replayed.
        workers_cpu_seconds: the workers' part of `cpu_seconds`; NaN where there were none.
        evaluates: most of its steps were without gradients.
        load: %, median of what was taken of the usable cores, or of the quota where that binds; NaN: not measured.
    """

    key: str
    loader: str
    name: str
    backend: str
    began_by: str
    label: str | None
    knobs: dict[str, int]
    start: float
    end: float
    seconds: float
    steps: int
    left_out: int
    batches: int
    samples: int
    rate: float
    wait: float
    step: float
    phases: dict[str, float]
    on_device: bool
    statistics: tuple[Statistic, ...]
    gpu_histogram: tuple[float, ...] = ()
    cpu_seconds: float = math.nan
    synthetic: bool = False
    workers_cpu_seconds: float = math.nan
    evaluates: bool = False
    load: float = math.nan


@dataclass(frozen=True)
class EpochCount:
    """One epoch of a loader, with what it really delivered.

    Attributes:
        loader, name, epoch: which (epochs from 0).
        batches, samples: delivered.
        planned: samples that its plan has; None where that is not known.
        seconds: from its first batch asked for to its last step's end; NaN where no step of it is known.
        finished: its loop went to the end.
        problem: why its time must not be compared with another's (`delivered 0 of 9,469 samples`); None if it may.
    """

    loader: str
    name: str
    epoch: int
    batches: int
    samples: int
    planned: int | None
    seconds: float
    finished: bool
    problem: str | None


@dataclass(frozen=True)
class Evidence:
    """Why a rule fired: `text` for people; `value` against `threshold`, in `unit`; `share` of the samples; when."""

    text: str
    value: float = math.nan
    threshold: float = math.nan
    unit: str = ""
    share: float = math.nan
    start: float = math.nan
    end: float = math.nan


@dataclass(frozen=True)
class Finding:
    """What one rule says of one stretch or of the session.

    Attributes:
        rule: its id, as in `docs/rules.md`.
        title: for people.
        state: `fired`, `quiet`, or `abstained`: `missing` says which signal it would need.
        severity: `warning` or `critical`; `note` of rules that only tell.
        stretch: the stretch's key; None: the session.
        samples: values looked at.
        times: how often it fired (windows, steps, GPUs).
        evidence: with figures.
        advised: what to do; empty unless it fired. `advice` is the same as prose.
        parameters: the thresholds that were used.
    """

    rule: str
    title: str
    state: State
    severity: str = "note"
    stretch: str | None = None
    samples: int = 0
    times: int = 0
    evidence: tuple[Evidence, ...] = ()
    advised: tuple[Advice, ...] = ()
    missing: tuple[str, ...] = ()
    parameters: dict[str, float] = field(default_factory=dict)

    @property
    def advice(self) -> str:
        """`advised` as prose."""
        return prose(self.advised)


@dataclass(frozen=True)
class Gain:
    """What a change would bring or brought.

    Attributes:
        action: `loader` (no wait for data left), `dali-cpu`, `dali-gpu`, …: what would be changed.
        low, high: share of the step time that it would save (0.46: steps take 54 % of the time); negative: longer.
        measured: what it did save; NaN until it was done.
        basis: one sentence that says how it was reckoned.
        by: what measured it, `Diagnose` or `switch`; empty where it is a prediction.
    """

    action: str
    low: float
    high: float
    measured: float = math.nan
    basis: str = ""
    by: str = ""


@dataclass(frozen=True)
class Verdict:
    """Where the time of a step goes.

    Attributes:
        kind: what the step is bound by.
        stretch: key of the stretch that it is of; None when there was none to judge.
        sentence: the one sentence why, with its figures and their counts.
        advised: what to do next. `advice` is the same as prose.
        shares: share of the step's time by part: `wait`, `copy`, `compute`, `other`; only those that are known.
        steps: steps that it rests on.
        missing: what would have to be measured to say more (`phases: monitor.watch(model, optimizer)`).
        gains: what to expect, the most promising first; of a step that is not input-bound only what was measured.
    """

    kind: Kind
    stretch: str | None
    sentence: str
    advised: tuple[Advice, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    missing: tuple[str, ...] = ()
    gains: tuple[Gain, ...] = ()

    @property
    def advice(self) -> str:
        """`advised` as prose."""
        return prose(self.advised)


@dataclass(frozen=True)
class Change:
    """Two stretches side by side; `before` and `after` are keys.

    Attributes:
        faster: rate after over rate before; NaN where one of them is unknown.
        saved: share of the step time saved (1 − step after / step before).
        histogram_distance: of the GPU histograms, 0 (equal) to 1 (disjoint): half the sum of absolute differences.
        predicted: the gain that was said before the change, if one was; with `measured` filled in.
        caveats: why it may not be taken at face value (`after: 12 steps`, `an epoch delivered too little`).
    """

    before: str
    after: str
    faster: float
    saved: float
    histogram_distance: float
    predicted: Gain | None = None
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """What a stretch cost at a price per hour; `currency` is what stands before or after the figures.

    Attributes:
        per_hour: the price.
        per_step, per_epoch, per_thousand: in whole units of the currency; NaN where it cannot be said.
    """

    stretch: str
    per_hour: float
    currency: str
    per_step: float
    per_epoch: float
    per_thousand: float


@dataclass(frozen=True)
class Feeding:
    """What it would take to feed this loop without a wait.

    Attributes:
        stretch: the stretch that the figures were reckoned from; the advice is for the newest one.
        cpu_per_image: CPU seconds per image of loading, measured; NaN where it was not.
        cores_needed: cores to deliver as fast as the loop can take; NaN where that is not known.
        cores: cores that this process may use (a quota counts).
        advised: the next thing to do, in the decision order of `docs/rules.md`. `advice` is the same as prose.
    """

    stretch: str
    cpu_per_image: float
    cores_needed: float
    cores: float
    advised: tuple[Advice, ...] = ()

    @property
    def advice(self) -> str:
        """`advised` as prose."""
        return prose(self.advised)


@dataclass(frozen=True)
class Analysis:
    """Everything that can be said of a session; made by `kernel_monitor.diagnose.analyse`.

    Attributes:
        stretches: in the order of time.
        epochs: of every loader.
        verdict: of the stretch that stands for the session: the newest that has enough steps, of a loop that trains.
        verdicts: one for each stretch.
        changes: neighbouring stretches of one loader.
        findings: every rule, those that fired first.
        costs: empty without a price.
        feeding: None without a loader's deliveries.
        diagnoses: what *Diagnose* found, oldest first (events `diagnosis`, as they are).
        profiles: operator tables (events `profile`, as they are).
        cannot: what could not be said and why, a sentence each.
    """

    stretches: tuple[Stretch, ...]
    epochs: tuple[EpochCount, ...]
    verdict: Verdict
    verdicts: tuple[Verdict, ...]
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    costs: tuple[Cost, ...]
    feeding: Feeding | None
    diagnoses: tuple[dict[str, Any], ...] = ()
    profiles: tuple[dict[str, Any], ...] = ()
    cannot: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON-able values; what is not a number (NaN, infinity) is None."""
        made: dict[str, Any] = plain(self)
        return made


def plain(value: Any) -> Any:
    """A value of this module, or of what it holds, as JSON-able values."""
    if is_dataclass(value) and not isinstance(value, type):
        made = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        return {**made, "advice": prose(value.advised)} if hasattr(value, "advised") else made
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
