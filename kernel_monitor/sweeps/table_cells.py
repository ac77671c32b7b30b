"""The cells of a sweep's table, from its passes: what each engine delivered, saved, cost, and was expected to save."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ..analysis import analyse
from ..analysis.advice import CLEAR
from ..analysis.cost import cost_per_step
from ..analysis.frames import Frames
from ..analysis.gains import gains, resources
from ..analysis.results import Analysis, Segment, plain
from ..analysis.segments import REPLAYS
from ..analysis.step_times import histogram, timings_of_steps
from ..store import Snapshot
from .presets import backend_of
from .training import Timed

Figures = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One engine in one row, over all its passes; what is not known is NaN, None or empty.

    Attributes:
        problem: why it was not measured; the figures are then those of the passes that were.
        seconds, steps, batches, samples, replaced: of all windows together.
        rate: images/s really delivered (of `synthetic`: replayed); `rates` by pass.
        epoch: s for as many images as the data set has: measured where `whole`, else from the rate.
        saved: share of the time of the row's first engine that it saves; negative: it takes longer.
        noise: what of `saved` is within the noise, see `noise_of`.
        ceiling: share of the rate of `synthetic`, where that was measured.
        wait, step, own_work: ms, means over the steps; `own_work` is the step without its wait.
        slower: by how much the own work takes longer than with the row's first engine, a share.
        low, high: of the share that was expected to be saved; `sign_right` as `sign_right` has it.
        cost: of an epoch, at the price of an hour.
        windows: the figures of each pass.
    """

    row: str
    engine: str
    problem: str | None = None
    seconds: float = 0.0
    steps: int = 0
    batches: int = 0
    samples: int = 0
    replaced: int = 0
    decoded: dict[str, int] = field(default_factory=dict)
    rate: float = math.nan
    rates: tuple[float, ...] = ()
    epoch: float = math.nan
    whole: bool = False
    saved: float = math.nan
    noise: float = math.nan
    ceiling: float = math.nan
    wait: float = math.nan
    step: float = math.nan
    own_work: float = math.nan
    slower: float = math.nan
    low: float = math.nan
    high: float = math.nan
    basis: str = ""
    sign_right: bool | None = None
    cost: float = math.nan
    kind: str | None = None
    sentence: str | None = None
    rules: tuple[Figures, ...] = ()
    windows: tuple[Figures, ...] = ()

    def to_json(self) -> Figures:
        return {name: value for name, value in asdict(self).items() if name != "windows"}


def cells(content: Mapping[str, Any], price: float | None = None) -> list[list[Cell]]:
    """Return the cells of each row, in the order of the grid; of rows that were not measured yet, cells without
    figures.
    """
    grid = content["grid"]
    return [_row(row, content, int(grid["images"]), price) for row in grid["rows"]]


def _row(row: Mapping[str, Any], content: Mapping[str, Any], images: int, price: float | None) -> list[Cell]:
    passes = [one for one in content["passes"] if one["row"] == row["name"]]
    engines = list(row["engines"])
    windows = {engine: [one["windows"][engine] for one in passes] for engine in engines}
    good = {engine: [one for one in found if "problem" not in one] for engine, found in windows.items()}
    ceiling = _rate(good.get(REPLAYS, []))
    predicted: Figures = next((one["predicted"] for one in passes if one["predicted"]), {})
    made = []
    for engine in engines:
        known, rate = good[engine], _rate(good[engine])
        problem = next((one["problem"] for one in windows[engine] if "problem" in one), None)
        if not passes:
            problem = "not measured yet"
        cell: Figures = {"row": row["name"], "engine": engine, "problem": problem}
        if known:
            base = good[engines[0]]
            saved = _saved(_rate(base), rate) if engine != engines[0] else math.nan
            noise = noise_of(base, known) if engine != engines[0] else math.nan
            whole = all(one["epochs"] for one in known)
            epoch = (
                sum(one["seconds"] for one in known) / sum(one["epochs"] for one in known) if whole else images / rate
            )
            own, first = _mean(known, "own_work"), _mean(base, "own_work")
            said = predicted.get(engine) or {}
            low, high = _number(said.get("low")), _number(said.get("high"))
            decoded: dict[str, int] = {}
            for one in known:
                for name, count in one["decoded"].items():
                    decoded[name] = decoded.get(name, 0) + count
            cell |= {
                **{name: sum(one[name] for one in known) for name in
                   ("seconds", "steps", "batches", "samples", "replaced")},
                "decoded": decoded,
                "rate": rate,
                "rates": tuple(one["rate"] for one in known),
                "epoch": epoch,
                "whole": whole,
                "saved": saved,
                "noise": noise,
                "ceiling": rate / ceiling if ceiling > 0 else math.nan,
                **{name: _mean(known, name) for name in ("wait", "step")},
                "own_work": own,
                "slower": own / first - 1 if engine != engines[0] and first > 0 else math.nan,
                "low": low,
                "high": high,
                "basis": str(said.get("basis") or ""),
                "sign_right": sign_right(low, high, saved, noise),
                "cost": math.nan if price is None else cost_per_step(price, epoch),
                "kind": known[-1].get("kind"),
                "sentence": known[-1].get("sentence"),
                "rules": tuple({rule["rule"]: rule for one in known for rule in one.get("rules", ())}.values()),
                "windows": tuple(known),
            }  # fmt: skip
        made.append(Cell(**cell))
    return made


def noise_of(base: Sequence[Figures], other: Sequence[Figures]) -> float:
    """Return what of a saving is within the noise: a share of the time.

    Each pass has measured the saving once. Twice the standard error of their mean (the sample's standard deviation over
    the root of the count) is what the machine's own changes make of it; at least `decision.CLEAR`, below which no
    engine is called faster, and that where there is one pass.
    """
    savings = [_saved(one["rate"], two["rate"]) for one, two in zip(base, other, strict=False)]
    if not savings:
        return math.nan
    return max(CLEAR, 2 * statistics.stdev(savings) / math.sqrt(len(savings)) if len(savings) > 1 else 0.0)


def sign_right(low: float, high: float, saved: float, noise: float) -> bool | None:
    """Return whether the predicted sign of a change is the measured one; None where one of them is not known.

    The predicted sign is that of the middle of the interval `low` to `high`, the measured one that of `saved`. What
    is within the noise is no change, in both. Where one of them is no change and the other is not, the prediction was
    right if what was measured lies in its interval, which the noise widens.
    """
    if not all(map(math.isfinite, (low, high, saved, noise))):
        return None
    said, came = (0 if abs(one) <= noise else math.copysign(1, one) for one in ((low + high) / 2, saved))
    return said == came or (0 in (said, came) and low - noise <= saved <= high + noise)


def signs(found: Sequence[Sequence[Cell]]) -> tuple[int, int]:
    """Return how many predicted signs were right, and how many there were to judge."""
    known = [cell.sign_right for row in found for cell in row if cell.sign_right is not None]
    return sum(known), len(known)


def ratios(content: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Return the rate of each engine over that of its row's first, by row and engine."""
    found = {}
    for row in cells(content):
        for cell in row[1:]:
            if row[0].rate > 0 and math.isfinite(cell.rate):
                found[cell.row, cell.engine] = cell.rate / row[0].rate
    return found


def _rate(windows: Sequence[Figures]) -> float:
    """Images/s of some windows together; NaN of none."""
    seconds = sum(one["seconds"] for one in windows)
    return sum(one["samples"] + one["replaced"] for one in windows) / seconds if seconds > 0 else math.nan


def _saved(before: float, after: float) -> float:
    return 1 - before / after if after > 0 else math.nan


def _mean(windows: Sequence[Figures], name: str) -> float:
    """Return the mean of a figure in ms, weighted by the steps that it is the mean of."""
    known = [(one[name], one["timed_steps"]) for one in windows if one.get(name) is not None and one.get("timed_steps")]
    steps = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / steps if steps else math.nan


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


# ---- The overlaid histograms of a row: how busy GPUs or cores were with each engine, as paths of an SVG.

BINS = 20
"""Of 5 % each: a window has some tens of samples."""
LEFT, RIGHT, HIGH, BASE = 34.0, 312.0, 8.0, 92.0  # edges of the frame, in units of the drawing
CLASSES = ("before", "after", "third", "fourth", "fifth", "sixth")
"""Of the style sheet, one for each engine."""


@dataclass(frozen=True)
class Side:
    """One engine of a histogram: the `path` of its outline, and how it is described."""

    engine: str
    style: str
    path: str
    samples: int
    mode: str


@dataclass(frozen=True)
class Drawn:
    """The histograms of a row; the highest bin has the share `top` of its samples."""

    row: str
    top: float
    sides: tuple[Side, ...]


def drawn(row: str, engines: Sequence[tuple[str, Sequence[dict[str, Any]]]], metric: str) -> Drawn | None:
    """Return the histograms of the engines of a row from the figures of their windows; None where nothing was
    measured.
    """
    shares = {engine: _joined(windows, metric) for engine, windows in engines}
    known = {engine: found for engine, found in shares.items() if found is not None}
    if not known:
        return None
    top = max(float(bins.max()) for bins, _ in known.values())
    sides = []
    for style, (engine, (bins, samples)) in zip(CLASSES, known.items(), strict=False):
        k = int(bins.argmax())
        mode = f"mostly {k * 100 // BINS} to {(k + 1) * 100 // BINS} %"
        sides.append(Side(engine, style, _path(bins, top, closed=style == CLASSES[0]), samples, mode))
    return Drawn(row, top, tuple(sides))


def _joined(windows: Sequence[dict[str, Any]], metric: str) -> tuple[Any, int] | None:
    """Return the shares of all windows together, in `BINS` bins, and how many samples they are of."""
    total, samples = np.zeros(BINS), 0
    for window in windows:
        bins, spread = window.get(f"{metric}_histogram"), window.get(metric)
        if not bins or not spread:
            continue
        # Bins of 2 % into wider ones: each goes where its middle lies.
        places = ((np.arange(len(bins)) + 0.5) * BINS / len(bins)).astype(int)
        np.add.at(total, places, np.asarray(bins) * spread["count"])
        samples += int(spread["count"])
    return (total / samples, samples) if samples else None


def _path(shares: Any, top: float, *, closed: bool) -> str:
    wide, high = (RIGHT - LEFT) / BINS, (BASE - HIGH) / top
    steps = "".join(f"V{BASE - share * high:.1f}H{LEFT + (k + 1) * wide:.1f}" for k, share in enumerate(shares))
    return f"M{LEFT} {BASE}{steps}V{BASE}{'Z' if closed else ''}"


# ---- The figures of one window: what the loader's counters say, and what the analysis says of its segment.


def of_windows(timed: Mapping[str, Timed], snapshot: Snapshot, loader: str) -> dict[str, Figures]:
    """Return the figures of the windows of one pass, by engine, in the order in which they were measured.

    The rules look at the segments as the switches made them: a mark behind a switch, which takes its warm-up off the
    window, would hide the switch from rules that compare both of its sides.
    """
    analysis = analyse(snapshot)
    marks = {one.label for one in list(timed.values())[1:]}
    events = [event for event in snapshot.events if event["kind"] != "mark" or event.get("label") not in marks]
    switched = analyse(replace(snapshot, events=events)) if marks else analysis
    return {engine: _of_window(one, snapshot, analysis, switched, loader) for engine, one in timed.items()}


def _of_window(timed: Timed, snapshot: Snapshot, analysis: Analysis, switched: Analysis, loader: str) -> Figures:
    """Return the figures of a window as JSON-able values; what is not known is None.

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
    segment = _segment_of(analysis, timed.label, loader)
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
        "cpu_histogram": list(histogram(frames.cpu[frames.delivery_rows(loader)])),
        "gpu_histogram": list(segment.gpu_histogram),
        "kind": None if verdict is None else verdict.kind,
        "sentence": None if verdict is None else verdict.sentence,
        "rules": _rules_of(switched, _around(switched, segment)),
        "segment": segment.key,
    }
    return dict(plain(found))


def _around(analysis: Analysis, segment: Segment) -> str | None:
    """Return the key of the segment of another analysis that has most of this segment's time; None where there is
    none.
    """
    same = [one for one in analysis.segments if one.loader == segment.loader]
    shared = {one.key: min(one.end, segment.end) - max(one.start, segment.start) for one in same}
    key = max(shared, key=lambda one: shared[one], default=None)
    return key if key is not None and shared[key] > 0 else None


def _rules_of(analysis: Analysis, key: str | None) -> list[dict[str, Any]]:
    """Return the rules that fired on a segment (None: on the session)."""
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
    ]


def _segment_of(analysis: Analysis, label: str, loader: str) -> Segment | None:
    """Return the segment of a loader that the mark of this label began."""
    return next((one for one in reversed(analysis.segments) if (one.label, one.loader) == (label, loader)), None)


def own_work(segment: Segment) -> float:
    """Return the part of a mean step that is not waiting for data, ms; on a GPU at least the GPU's own time."""
    own = segment.step - segment.wait
    if segment.on_device:
        own = max(own, sum(time for phase, time in segment.phases.items() if phase != "other"))
    return own


def expected(label: str, snapshot: Snapshot, state: Mapping[str, Any], engines: tuple[str, ...]) -> dict[str, Figures]:
    """Return what the analysis expects of each other engine, from the window that this label marks, before the switch.

    `low` and `high` are shares of the step time that it would save, `kind` what the step is bound by. Where nothing is
    expected of an engine it is left out, and `unknown` has the reasons. Unlike on the page of a live session, where a
    loop that does not wait for its data gets no advice, the prediction is there for every loop: the other engine also
    takes another share of the processor from the training.
    """
    analysis = analyse(snapshot)
    loader = str(state["id"])
    segment = _segment_of(analysis, label, loader)
    if segment is None:
        return {}
    frames = Frames(snapshot)
    rows = frames.steps(loader, segment.start, segment.end)
    reckoned = gains(segment, timings_of_steps(rows), resources(segment, frames.schema, len(rows)), state)
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
