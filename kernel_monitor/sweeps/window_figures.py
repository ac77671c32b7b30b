"""The figures of one window: what the loader's counters say, and what the analysis says of its segment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..analysis import analyse
from ..analysis.frames import Frames
from ..analysis.gains import gains, resources
from ..analysis.results import Analysis, Segment, plain
from ..analysis.statistics import histogram
from ..analysis.step_times import of_steps
from ..analysis.switches import REPLAYS
from ..store import Snapshot
from .grid import backend_of
from .training_loop import Timed

Figures = dict[str, Any]


def of_windows(timed: Mapping[str, Timed], snapshot: Snapshot, loader: str) -> dict[str, Figures]:
    """The figures of the windows of one pass, by engine, in the order in which they were measured.

    The rules look at the segments as the switches made them: a mark behind a switch, which takes its warm-up off the
    window, would hide the switch from rules that compare both of its sides.
    """
    analysis = analyse(snapshot)
    marks = {one.label for one in list(timed.values())[1:]}
    events = [event for event in snapshot.events if event["kind"] != "mark" or event.get("label") not in marks]
    switched = analyse(replace(snapshot, events=events)) if marks else analysis
    return {engine: _of_window(one, snapshot, analysis, switched, loader) for engine, one in timed.items()}


def _of_window(timed: Timed, snapshot: Snapshot, analysis: Analysis, switched: Analysis, loader: str) -> Figures:
    """The figures of a window as JSON-able values; what is not known is None.

    `rate` is what was delivered (of `synthetic`: replayed) in a second of wall time. `wait`, `step` and `own_work`
    are ms, means over the steps of the window's segment; `own_work` is the training's own part of a step.
    """
    counted = timed.counted
    found: Figures = {
        "seconds": timed.seconds,
        "steps": timed.steps,
        "batches": counted.batches,
        "samples": counted.samples,
        "replaced": counted.replaced,
        "skipped": counted.skipped,
        "decoded": counted.decoded,
        "epochs": timed.epochs,
        "rate": (counted.samples + counted.replaced) / timed.seconds,
    }
    segment = segment_of(analysis, timed.label, loader)
    if segment is None:
        return found
    verdict = next((one for one in analysis.verdicts if one.segment == segment.key), None)
    spread = {one.metric: one.values for one in segment.statistics}
    frames = Frames(snapshot, start=segment.start, end=segment.end)
    found |= {
        "wait": segment.wait,
        "step": segment.step,
        "own_work": own_work(segment),
        "timed_steps": segment.steps,
        "cpu": spread.get("cpu"),
        "gpu": spread.get("gpu"),
        "steal": segment.median("steal"),
        "cpu_histogram": list(histogram(frames.cpu[frames.of(loader)])),
        "gpu_histogram": list(segment.gpu_histogram),
        "kind": None if verdict is None else verdict.kind,
        "sentence": None if verdict is None else verdict.sentence,
        "rules": rules_of(switched, _around(switched, segment)),
        "segment": segment.key,
    }
    return dict(plain(found))


def _around(analysis: Analysis, segment: Segment) -> str | None:
    """The key of the segment of another analysis that has most of this segment's time; None where there is none."""
    same = [one for one in analysis.segments if one.loader == segment.loader]
    shared = {one.key: min(one.end, segment.end) - max(one.start, segment.start) for one in same}
    key = max(shared, key=lambda one: shared[one], default=None)
    return key if key is not None and shared[key] > 0 else None


def rules_of(analysis: Analysis, key: str | None, *, about: str = "") -> list[dict[str, Any]]:
    """The rules that fired on a segment (None: on the session), with evidence that begins with the words `about`."""
    return [
        {
            "rule": finding.rule,
            "title": finding.title,
            "severity": finding.severity,
            "evidence": [evidence.text for evidence in finding.evidence],
            "advice": finding.advice,
        }
        for finding in analysis.findings
        if finding.state == "fired" and finding.segment == key
        if any(evidence.text.startswith(about) for evidence in finding.evidence)
    ]


def segment_of(analysis: Analysis, label: str, loader: str) -> Segment | None:
    """The segment of a loader that the mark of this label began."""
    return next((one for one in reversed(analysis.segments) if (one.label, one.loader) == (label, loader)), None)


def own_work(segment: Segment) -> float:
    """The part of a mean step that is not waiting for data, ms; on a GPU at least the GPU's own time."""
    own = segment.step - segment.wait
    if segment.on_device:
        own = max(own, sum(time for phase, time in segment.phases.items() if phase != "other"))
    return own


def expected(label: str, snapshot: Snapshot, state: Mapping[str, Any], engines: tuple[str, ...]) -> dict[str, Figures]:
    """What the analysis expects of each other engine, from the window that this label marks, before the switch.

    `low` and `high` are shares of the step time that it would save, `kind` what the step is bound by. Where nothing is
    expected of an engine it is left out, and `unknown` has the reasons. Unlike on the page of a live session, where a
    loop that does not wait for its data gets no advice, the prediction is there for every loop: the other engine also
    takes another share of the processor from the training.
    """
    analysis = analyse(snapshot)
    loader = str(state["id"])
    segment = segment_of(analysis, label, loader)
    if segment is None:
        return {}
    frames = Frames(snapshot)
    rows = frames.steps(loader, segment.start, segment.end)
    reckoned = gains(segment, of_steps(rows), resources(segment, frames.schema, len(rows)), state)
    kind = next((one.kind for one in analysis.verdicts if one.segment == segment.key), None)
    actions = {one.action: one for one in reckoned.gains}
    found: dict[str, Figures] = {}
    for engine in engines:
        gain = actions.get("loader" if engine == REPLAYS else backend_of(engine))
        if gain is not None and math.isfinite(gain.low) and math.isfinite(gain.high):
            found[engine] = {"low": gain.low, "high": gain.high, "basis": gain.basis, "kind": kind}
        else:
            reasons = [text for text in reckoned.unknown if backend_of(engine) in text]
            found[engine] = {"low": None, "high": None, "basis": " ".join(reasons), "kind": kind}
    return found
