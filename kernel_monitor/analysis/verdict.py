"""The verdict on one segment: what the time of its steps is bound by, as far as it was measured. docs/verdict.md

`judge` takes a segment's steps to the verdict with its gains, `advised` that to its advice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .advice import Decision, decide, next_step, percent
from .frames import Frames, usable_cores
from .gains import ExpectedGains, gains, resources
from .results import Gain, Kind, Segment, Verdict
from .step_times import Share, Shares, Timings, block_steps, shares, timings_of_frames, timings_of_steps

THRESHOLDS = {
    "wait": 0.10,
    "wait_serial": 0.34,
    "copy": 0.15,
    "other": 0.20,
    "gpu_busy": 95.0,
    "gpu_working": 90.0,
    "steps": 10.0,
    "mixed": 0.20,
}
"""Shares of the step time from which each part is called a bottleneck, and what a verdict needs; docs/verdict.md."""

_SLACK = 1.2
"""A part that is above its threshold by less than this factor is named only where its interval is above it too."""
BATCHES_AHEAD, MOST_STEPS = 10, 200
"""Steps per batch in flight before the absence of waiting means something, and the most that are asked for."""
WATCH = "phases: monitor.watch(model, optimizer)"
KINDS: dict[str, Kind] = {"wait": "input-bound", "copy": "copy-bound", "other": "residual-heavy"}

_IS = re.compile(r"(of each step|%|GPU|loading) is\b")
"""The verbs in the sentences below that are put into the past for a loop that has ended."""


class _Judged(NamedTuple):
    """The kind of a verdict, with its reasons."""

    kind: Kind
    sentence: str
    missing: tuple[str, ...] = ()


def judge(
    frames: Frames,
    segment: Segment,
    state: Mapping[str, Any],
    thresholds: Mapping[str, float],
    known: Sequence[Gain],
) -> Verdict:
    """Return the verdict on one segment, with the gains to expect; `advised` adds the advice.

    `state` is its loader's (empty where it is not known). What was measured already (`known`) stands in place of
    predictions.
    """
    rows = frames.steps(segment.loader, segment.start, segment.end)
    # Where no single step was kept, there are only the means of the rows.
    timings = (
        timings_of_steps(rows) if len(rows) else timings_of_frames(frames, segment.loader, segment.start, segment.end)
    )
    expected = ExpectedGains()
    if len(timings) and not segment.synthetic:
        given = resources(segment, frames.schema, len(rows) or timings.steps)
        expected = gains(segment, timings, given, state, known)
    # Where the loader could decode on a GPU, the training may run on one that NVML does not report.
    decodes = any(one.get("name") == "dali-gpu" and one.get("available") for one in state.get("backends") or ())
    return verdict(segment, timings, gpu=bool(frames.schema.gpus) or decodes, expected=expected, thresholds=thresholds)


def with_advice(
    frames: Frames, segment: Segment, found: Verdict, state: Mapping[str, Any], withheld: str | None = None
) -> tuple[Verdict, Decision]:
    """Return the verdict `found` with its advice, and the decision that all advice on the segment is made from."""
    decision = decide(segment, found, state, usable_cores(frames.schema), withheld)
    return replace(found, advised=next_step(decision, found.missing)), decision


def verdict(
    segment: Segment,
    timings: Timings,
    *,
    gpu: bool | None = None,
    expected: ExpectedGains | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> Verdict:
    """Judge one segment; what to do about it is `advice.py`'s.

    `gpu`: whether a GPU may be at work (None: if it was measured). Of the gains `expected` predictions are kept where
    the loop is input-bound. `thresholds` replaces some of `THRESHOLDS`.
    """
    limits, expected = {**THRESHOLDS, **(thresholds or {})}, expected or ExpectedGains()
    found = shares(timings, block_steps(segment)) if len(timings) else None
    judged = _judge(segment, timings, found, limits, math.isfinite(segment.median("gpu")) if gpu is None else gpu)
    values = {}
    if found is not None and not segment.synthetic:
        values = {"wait": found.wait.value, **{name: share.value for name, share in found.parts.items()}}
        if found.parts and "copy" in found.missing:
            del values["copy"]
    waits = judged.kind == "input-bound"
    return Verdict(
        kind=judged.kind,
        segment=segment.key,
        sentence=judged.sentence,
        shares=values,
        steps=timings.steps,
        missing=(*judged.missing, *(expected.unknown if waits else ())),
        gains=tuple(gain for gain in expected.gains if waits or np.isfinite(gain.measured)),
    )


def _judge(segment: Segment, timings: Timings, found: Shares | None, limits: Mapping[str, float], gpu: bool) -> _Judged:
    if segment.synthetic:
        rate = f"{segment.rate:,.0f} images/s" if np.isfinite(segment.rate) else "the rate is not known"
        text = f"Replayed batches: {rate}. That is the ceiling that any loader can reach, not the speed of one."
        return _Judged("undetermined", text)
    if found is None or timings.steps < limits["steps"]:
        left = f" ({segment.left_out} of warm-up and profiling left out)" if segment.left_out else ""
        text = f"{_steps(timings)} {'is' if timings.steps == 1 else 'are'} too few to judge{left}."
        return _Judged("undetermined", text, (f"at least {limits['steps']:.0f} steps",))
    mixed = _mixed(found, timings, limits)
    if mixed is not None:
        return _Judged("undetermined", mixed, ("a mark where the loop changes: monitor.mark(…)",))
    return _input(segment, timings, found, limits, gpu) or _not_input(segment, timings, found, limits, gpu)


def _input(segment: Segment, timings: Timings, found: Shares, limits: Mapping[str, float], gpu: bool) -> _Judged | None:
    """Return `input-bound`, or `undetermined` with the reason; None if the segment is not input-bound."""
    wait, threshold = found.wait, limits["wait"]
    serial = not (segment.in_threads or segment.backend == "ray") and segment.knobs.get("workers", 0) == 0
    what = "the GPU waiting for data" if timings.on_device and found.parts else "waiting for data"
    text = f"{_part_of(wait.value)} {what} ({_ms(timings, wait.value)}, {_steps(timings)})."
    if wait.low < threshold:
        if wait.high < threshold:
            return None
        larger = max((found.parts[name].low for name in ("copy", "other") if name in found.parts), default=0.0)
        if larger > 2 * wait.high and wait.value < threshold:
            return None
        between = f"{text} {_range(wait)}, and a loop is input-bound from {percent(threshold)} on."
        return _Judged("undetermined", between, ("more steps",))
    busy = segment.median("gpu")
    phased = timings.on_device and bool(found.parts) and not {"copy", "optimizer"} & set(found.missing)
    if gpu and not phased and not busy < limits["gpu_busy"]:
        seen = f"The GPU is busy (median {busy:.0f} %)" if math.isfinite(busy) else "The GPU's load was not measured"
        return _Judged("undetermined", f"{text} {seen}: it may work on queued steps during that wait.", (WATCH,))
    if serial and not found.parts and wait.low < limits["wait_serial"]:
        rest = f"{text} The loop may load its batches itself, and its own computing was not measured."
        return _Judged("undetermined", rest, (WATCH,))
    if serial:
        larger_name = max(found.parts, key=lambda name: _bottleneck_share(found, name, limits), default=None)
        if larger_name in ("copy", "other") and found.parts[larger_name].value > wait.value:
            return None
    return _Judged("input-bound", text, () if found.parts else (WATCH,))


def _bottleneck_share(found: Shares, name: str, limits: Mapping[str, float]) -> float:
    """Return the share of a part that is a bottleneck by itself; 0 of any other."""
    share = found.parts[name]
    return share.value if name in limits and share.low >= limits[name] else 0.0


def _not_input(segment: Segment, timings: Timings, found: Shares, limits: Mapping[str, float], gpu: bool) -> _Judged:
    """Return what the step is bound by, where waiting for data is not it."""
    wait = f"{_part_of(found.wait.value)} waiting for data"
    needed = _steps_needed(segment, limits)
    if timings.steps < needed:
        text = f"{wait} ({_steps(timings)}). Batches loaded in advance may still hide a slow loader."
        return _Judged("undetermined", text, (f"at least {needed} steps",))
    if not found.parts:
        busy = segment.median("gpu")
        if busy >= limits["gpu_working"]:
            text = f"{wait} ({_steps(timings)}), and the GPU is busy (median {busy:.0f} %)."
            return _Judged("compute-bound", text, (WATCH,))
        text = f"{wait} ({_steps(timings)}): loading is fast enough. The parts of the rest were not measured."
        return _Judged("undetermined", text, (WATCH,))
    # Host and device work side by side: what the host adds holds the device up, a copy then does not.
    order = ["other", "copy"] if timings.on_device else sorted(("other", "copy"), key=lambda n: -found.parts[n].value)
    for name in order:
        part, threshold = found.parts[name], limits[name]
        if part.low >= threshold or (part.value >= _SLACK * threshold and part.low >= threshold / _SLACK):
            return _part(timings, found, name, gpu)
        if part.high >= threshold and part.value > threshold / _SLACK:
            text = f"{_words(name, found)} ({_steps(timings)}). {_range(part)}; much is {percent(threshold)} or more."
            return _Judged("undetermined", text, ("more steps",))
    share = found.parts["compute"].value
    text = f"{_part_of(share)} forward, backward and optimizer ({_ms(timings, share)}, {_steps(timings)});"
    return _Judged("compute-bound", f"{text} {percent(found.wait.value)} is waiting for data.")


def _part(timings: Timings, found: Shares, name: str, gpu: bool) -> _Judged:
    text = f"{_words(name, found)} ({_ms(timings, found.parts[name].value)}, {_steps(timings)})."
    needed = {"optimizer", *(["copy"] if gpu or timings.on_device else [])}
    blind = [phase for phase in found.missing if phase in needed]
    if name == "other" and blind:
        missing = tuple(f"{phase}: monitor.phase({phase!r})" for phase in blind)
        return _Judged("undetermined", f"{text} It may include the {' and the '.join(blind)}, not measured.", missing)
    return _Judged(KINDS[name], text)


def _steps_needed(segment: Segment, limits: Mapping[str, float]) -> int:
    """Return how many steps a slow loader can hide: the batches in flight times 1 / (the threshold of the wait)."""
    flight = max(1, segment.knobs.get("workers", 1)) * max(1, segment.knobs.get("prefetch", 2))
    if segment.in_threads:
        flight = segment.knobs.get("prefetch", 4)
    return int(max(limits["steps"], min(BATCHES_AHEAD * flight, MOST_STEPS)))


def _mixed(found: Shares, timings: Timings, limits: Mapping[str, float]) -> str | None:
    """Return why a segment is mixed: a part is a bottleneck for some of the time and far from one for some of it."""
    if len(found.seconds) < 8:
        return None
    total = found.seconds.sum()
    for name, column in (("wait", 0), ("other", 3), ("copy", 1)):
        if column >= found.blocks.shape[1]:
            continue
        values = found.blocks[:, column]
        much = values >= 2 * limits[name]
        little = values <= limits[name] / 2
        if min(found.seconds[much].sum(), found.seconds[little].sum()) < limits["mixed"] * total:
            continue
        high = float(np.average(values[much], weights=found.seconds[much]))
        low = float(np.average(values[little], weights=found.seconds[little]))
        share = found.wait.value if name == "wait" else found.parts[name].value
        return (
            f"{_words(name, found)} ({_ms(timings, share)}, {_steps(timings)}), but not evenly: {percent(low)} in a "
            f"part of the time, {percent(high)} in another."
        )
    return None


def past(sentence: str) -> str:
    """Return the sentence of a verdict on a loop that has ended."""
    return _IS.sub(r"\1 was", sentence)


def _range(share: Share) -> str:
    return f"By the spread of the steps it may be {100 * share.low:.0f} to {100 * share.high:.0f} %"


def _steps(timings: Timings) -> str:
    return f"{timings.steps:,} step{'' if timings.steps == 1 else 's'}"


def _ms(timings: Timings, share: float) -> str:
    mean = 1e3 * timings.mean
    part = share * mean
    return f"{part:,.1f} of {mean:,.1f} ms" if mean < 10 else f"{part:,.0f} of {mean:,.0f} ms"


def _words(name: str, found: Shares) -> str:
    share = found.wait.value if name == "wait" else found.parts[name].value
    what = {
        "wait": "waiting for data",
        "copy": "copying to the device",
        "other": "something else than waiting, copying, forward, backward and optimizer",
    }
    return f"{_part_of(share)} {what[name]}"


def _part_of(share: float) -> str:
    text = f"{percent(share)} of each step is"
    return text[0].upper() + text[1:]
