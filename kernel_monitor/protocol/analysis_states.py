"""Verdicts, gains, offers, diagnoses and profiles, as sent to pages and recorded."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

Kind = Literal["input-bound", "copy-bound", "compute-bound", "residual-heavy", "undetermined"]


class AdvicePoint(TypedDict):
    """The change that a piece of advice is for or against."""

    about: str
    target: str
    stance: Literal["for", "against", "neutral"]


class AdviceState(TypedDict):
    """A sentence of advice; `segment`: the key of its segment, or None for the session."""

    text: str
    points: list[AdvicePoint]
    segment: str | None


class GainState(TypedDict):
    """The share of the step time that a change saves (negative: longer steps); `action`: an engine, or `loader`."""

    action: str
    low: float | None
    high: float | None
    measured: float | None
    basis: str
    by: str


class VerdictState(TypedDict):
    """The verdict on a loader's steps (see `analysis.results.Verdict`). `warnings`: sentences of rules.

    `over`: its loop has ended, or pauses; the sentence is of all its steps since the last change.
    """

    kind: Kind
    segment: str | None
    sentence: str
    advised: list[AdviceState]
    advice: str
    shares: dict[str, float | None]
    steps: int
    missing: list[str]
    gains: list[GainState]
    warnings: list[str]
    loader: str
    over: bool


class OfferState(TypedDict):
    """A switch offered to a loop that waits for its data."""

    loader: str
    source: str
    engine: str
    sentence: str
    gain: GainState | None


LoopRunKind = Literal["diagnose", "tune"]


class Trial(TypedDict):
    """The figures of one engine in a diagnosis, of one setting in a tune (`label`: in words).

    `rate` in images/s with quartiles, `step` and `wait` in ms.
    """

    backend: str
    start: float | None
    end: float | None
    seconds: float | None
    steps: int
    batches: int | None
    samples: int | None
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    step: float | None
    wait: float | None
    of_ceiling: float | None
    cpu_p50: float | None
    cpu_p95: float | None
    gpu_p50: float | None
    problem: str | None
    label: NotRequired[str]


class DiagnosisResult(TypedDict):
    """The result of a diagnosis or a tune; `cannot`: what could not be measured, and why.

    Of a tune: `line` is the setting that goes on as code, `undo` the one from before it; both null where it changed
    nothing.
    """

    kind: NotRequired[LoopRunKind]
    loader: str
    name: str
    began: float | None
    ended: float | None
    back_to: str | None
    synthetic: bool
    message: str | None
    runs: list[Trial]
    predicted: list[GainState]
    measured: list[GainState]
    best: str | None
    sentence: str
    advised: list[AdviceState]
    cannot: list[str]
    line: NotRequired[str | None]
    undo: NotRequired[str | None]


class DiagnosisState(TypedDict):
    """Progress of a diagnosis or a tune; `backend`: the engine under measurement; `done` of `total` engines, or as many
    settings of a tune, whose total is not known (0)."""

    kind: NotRequired[LoopRunKind]
    state: Literal["running", "done", "failed", "cancelled"]
    loader: str
    name: str
    backend: str | None
    done: int
    total: int
    seconds_left: float | None
    message: str
    result: DiagnosisResult | None


TaskState = Literal["running", "done", "failed"]


class Operator(TypedDict):
    """A CPU operator of a profile: its share of all operators' time, own ms and calls in all steps."""

    name: str
    share: float | None
    self_ms: float | None
    count: int | None


class GpuKernel(TypedDict):
    """A GPU kernel of a profile: its share of all kernels' time, ms and launches in all steps."""

    name: str
    share: float | None
    ms: float | None
    launches: int | None


class ProfileResult(TypedDict):
    """The result of a profile; `gpu_reason`: why there are no GPU kernels; `trace`: name of its file."""

    loader: str | None
    name: str | None
    backend: str | None
    began: float | None
    ended: float | None
    steps: int
    cpu: list[Operator]
    gpu: list[GpuKernel]
    gpu_reason: str | None
    wall_ms: float | None
    cpu_ms: float | None
    gpu_ms: float | None
    trace: str | None


class ProfileState(TypedDict):
    """Progress of a profile: `done` of `total` steps."""

    state: TaskState
    loader: str | None
    name: str | None
    done: int
    total: int
    message: str
    result: ProfileResult | None


class Findings(TypedDict):
    """The results of the live analysis; a frame has only the fields that changed. `ranks`: sentences on jobs of ranks.

    `main`: the id of the loader whose loop trains, where several take turns; None before the first step. `notices`:
    sentences on GPUs that the kernel holds while no cell runs, and on experiment logs that fail.
    """

    verdict: NotRequired[VerdictState | None]
    offers: NotRequired[list[OfferState]]
    diagnosing: NotRequired[DiagnosisState | None]
    profiling: NotRequired[ProfileState | None]
    ranks: NotRequired[list[str]]
    notices: NotRequired[list[str]]
    main: NotRequired[str | None]
