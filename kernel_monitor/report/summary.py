"""The summary of a report: what held the training up, what was changed, and what that brought.

All figures are of one comparison (`results.Change`) of two segments. Where nothing was changed it says what to do
next, and where no loader was watched what the machine did.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..analysis import allowed_cores
from ..analysis.changes import amount, factor, figure, headline, percent
from ..analysis.frames import Frames
from ..analysis.results import Change, Segment, Verdict
from ..analysis.segments import change_time, switches
from ..analysis.switch_comparison import change_rows
from ..store import Snapshot
from .formats import duration, is_known, plural
from .sections import Subject

# ---- A small picture of the heatmaps around a change: CPU cores and GPUs, some seconds before to some seconds after
# it.

AROUND_S = 15.0  # shown before the change, and after it
_FEWEST_COLUMNS = 4  # on each side, however long the bins of a recording are
MOST_COLUMNS, MOST_ROWS = 200, {"CPU core": 16, "GPU": 8}
MISSING = 255  # the colour of a value that is not there: transparent
_VIRIDIS = (
    "440154", "471669", "472a79", "433c84", "3c4d8a", "355d8c", "2e6c8e", "287a8e", "23898d", "1e978a", "20a585",
    "2eb27c", "45bf6f", "64cb5d", "88d547", "afdc2e", "d7e219", "fde724",
)  # fmt: skip
"""Every 15th of the heatmaps' 256 colours, whose import with Bokeh takes longer than the whole picture."""
LABEL, GAP = 17, 6  # px, of a line of words and between two parts
Cells = npt.NDArray[np.uint8]


def picture(snapshot: Snapshot, at: float, loader: str | None = None) -> dict[str, Any] | None:
    """Return the parts of the picture, their places in px, and the change's place `line` in %; None without rows.

    It ends at other switches of this `loader`.
    """
    cells = {label: values for label, values in _rows(snapshot).items() if len(values)}
    interval = max([snapshot.schema.interval, *(_intervals(snapshot)[-1:])])
    around = max(AROUND_S, _FEWEST_COLUMNS * interval)
    time = snapshot.time
    others = [change_time(event) for event in switches(snapshot.events) if event["loader"] == loader]
    earliest = max([at - around, *(other for other in others if other < at)])
    latest = min([at + around, *(other for other in others if other > at)])
    near = time[(time >= earliest) & (time <= latest)]
    if not cells or not len(near):
        return None
    start, end = max(earliest, float(near[0]) - interval), min(latest, float(near[-1]))
    if not start < at < end:
        return None
    count = min(max(math.ceil((end - start) / interval), 1), MOST_COLUMNS)
    columns = _columns(time, start + (np.arange(count) + 0.5) * (end - start) / count, interval)
    parts, y = [], LABEL + GAP
    for label, values in cells.items():
        rows, each = _few(values, MOST_ROWS[label])
        shown = _cells(rows[:, columns])
        shown[:, columns < 0] = MISSING
        height = min(max(len(shown) * (9 if label == "CPU core" else 16), 48 if label == "CPU core" else 18), 120)
        name = plural(len(values), label) + (f", means of {each}" if each > 1 else "")
        parts.append({"name": name, "y": y + LABEL, "height": height, "image": png(shown)})
        y += LABEL + height + GAP
    return {
        "parts": parts,
        "line": 100 * (at - start) / (end - start),
        "before": round(at - start),
        "after": round(end - at),
        "height": y + LABEL,
        "bottom": y,
    }


def _rows(snapshot: Snapshot) -> dict[str, npt.NDArray[np.float64]]:
    """Return the rows of cores and of GPUs, by their label: float64[rows, samples], in %."""
    schema = snapshot.schema
    cores = sorted(allowed_cores(schema))
    names = {
        "CPU core": [f"cpu/{core}/busy" for core in cores],
        "GPU": [f"gpu/{gpu.index}/utilisation" for gpu in schema.gpus],
    }
    places = {label: [schema.columns[name] for name in own if name in schema.columns] for label, own in names.items()}
    tables = {label: snapshot.values[:, own].T.astype(np.float64) for label, own in places.items()}
    return {label: table for label, table in tables.items() if np.isfinite(table).any()}


def _intervals(snapshot: Snapshot) -> list[float]:
    """Return the longest time that a row covers, where rows say it."""
    column = snapshot.schema.columns.get("sample/interval")
    intervals = (
        [] if column is None else [float(value) for value in snapshot.values[:, column] if is_known(float(value))]
    )
    return [float(np.median(intervals))] if intervals else []


def _columns(time: npt.NDArray[np.float64], middles: npt.NDArray[np.float64], interval: float) -> npt.NDArray[np.intp]:
    """Return, for each moment, the row that covers it (a row is of the time since the row before); -1: none."""
    found = np.searchsorted(time, middles)
    inside = found < len(time)
    found = np.where(inside, found, len(time) - 1)
    covered = inside & (time[found] - middles <= 1.5 * interval)
    return np.where(covered, found, -1)


def _few(values: npt.NDArray[np.float64], most: int) -> tuple[npt.NDArray[np.float64], int]:
    """Return at most so many rows, and of how many neighbours each is the mean."""
    each = -(-len(values) // most)
    if each == 1:
        return values, 1
    return np.array([_mean(values[k : k + each]) for k in range(0, len(values), each)]), each


def _mean(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan))


def _cells(values: npt.NDArray[np.float64]) -> Cells:
    known = np.isfinite(values)
    scaled = np.clip(np.where(known, values, 0.0), 0.0, 100.0) / 100 * (MISSING - 1)
    return np.where(known, np.round(scaled), MISSING).astype(np.uint8)


def palette() -> Cells:
    """Return the colours of 0 to 100 %, uint8[255, 3]."""
    stops = np.array([list(bytes.fromhex(color)) for color in _VIRIDIS], dtype=np.float64)
    at = np.linspace(0, len(stops) - 1, MISSING)
    columns = [np.interp(at, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.round(np.column_stack(columns)).astype(np.uint8)


def png(cells: Cells) -> str:
    """Return an indexed PNG as a data address; the highest row of the picture is the first of the table."""
    height, width = cells.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    lines = np.column_stack([np.zeros(height, dtype=np.uint8), cells]).tobytes()  # 0: rows are stored as they are
    parts = (
        (b"IHDR", head),
        (b"PLTE", palette().tobytes() + bytes(3)),
        (b"tRNS", bytes([255] * MISSING + [0])),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


HELD_UP, CHANGED, BROUGHT = "What held the training up", "What was changed", "What it brought"
SPEED, NEXT, MACHINE = "How fast it was", "What to do next", "What the machine did"
_LARGER_PARTS = {"copy-bound": ("copy", "copying to the device"), "residual-heavy": ("other", "in no measured phase")}
"""By the kind of a verdict, the part of a step that it names, and that part's name for people."""
IN_ANSWERS = ("images/s", "waiting for data", "samples", "counted over")  # rows whose figures the answers have
MOST_LOADERS = 4  # that have a line beside the main one's answers; how many more there are is main


@dataclass(frozen=True)
class Answer:
    """One question of a reader with its answer: `text` large, `details` a small line each."""

    question: str
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line on a loader beside the main one; `quiet` where little depends on it."""

    name: str
    text: str
    quiet: bool


def summary(subject: Subject) -> dict[str, Any]:
    change = subject.change
    if change is None:
        answers = list(_unchanged(subject))
        return {"answers": answers, "others": _others(subject), "rows": [], "gain": None, "picture": None}
    before, after = subject.pair
    at = change_time(change.switch) if change.switch is not None else after.start
    source, target = _engines(change, before, after)
    return {
        "answers": [
            _held_up(before, subject.verdicts.get(before.key)),
            _changed(subject, change, at),
            _brought(change, before, after),
        ],
        "others": _others(subject),
        "rows": [row for row in change_rows(before, after) if row["label"] not in IN_ANSWERS]
        if change.reason is None
        else [],
        "gain": change.predicted,
        "measured": change.saved,
        "picture": picture(subject.snapshot, at, after.loader),
        "at": at,
        "sides": (source, target) if source != target else ("before", "after"),
    }


def _engines(change: Change, before: Segment, after: Segment) -> tuple[str, str]:
    switch = change.switch or {}
    return str(switch.get("source", before.backend)), str(switch.get("target", after.backend))


def _held_up(segment: Segment, found: Verdict | None) -> Answer:
    kind = "undetermined" if found is None else found.kind
    part, called = _LARGER_PARTS.get(kind, ("", ""))
    share = found.shares.get(part, math.nan) if found is not None else math.nan
    if math.isfinite(share) and share > 0:
        text, spent = f"{percent(share)} % of each step was {called}", share * segment.step
    elif math.isfinite(segment.wait_share):
        text, spent = f"{percent(segment.wait_share)} % of each step was waiting for data", segment.wait
        if kind == "compute-bound":
            text = f"Computing: only {text}"
    else:
        return Answer(HELD_UP, "Not known: no time of a step was measured")
    counted = f"{figure(spent)} of {figure(segment.step)} ms, {plural(segment.steps, 'step')}"
    return Answer(HELD_UP, text, (f"{counted}, {segment.name} on {segment.backend}",))


def _changed(subject: Subject, change: Change, at: float) -> Answer:
    before, after = subject.pair
    source, target = _engines(change, before, after)
    knobs = [
        f"{name} {before.knobs.get(name, '-')} → {value}"
        for name, value in after.knobs.items()
        if value != before.knobs.get(name)
    ]
    if source != target:
        what = f"{source} → {target}"
    elif after.label:
        what = f"“{after.label}”"
    else:
        what = ", ".join(knobs) or "nothing but a new start"
    place = ""
    event = change.switch or {}
    if event.get("batch") is not None:
        place = f"at batch {event['batch']:,}"
        place += f" of epoch {event['epoch'] + 1:,}, " if event.get("epoch") is not None else ", "
    return Answer(CHANGED, f"{after.name}: {what}", (f"{place}{subject.clock(at)}",))


def _gain_text(change: Change, before: Segment, after: Segment) -> str:
    """Return the gain in words: `1.48 × faster: 298 → 440 images/s`."""
    words = factor(change.faster)
    return f"{words[:1].upper()}{words[1:]}: {figure(before.rate)} → {figure(after.rate)} images/s"


def _brought(change: Change, before: Segment, after: Segment) -> Answer:
    careful = tuple(f"Careful: {caveat}" for caveat in change.caveats)
    if change.reason is not None or not math.isfinite(change.faster):
        reason = change.reason or "the rate of one side is not known"
        return Answer(BROUGHT, f"Not known: {reason}", careful)
    details = []
    if math.isfinite(before.wait_share) and math.isfinite(after.wait_share):
        shares = f"{percent(before.wait_share)} → {percent(after.wait_share)} %"
        details.append(f"step {figure(before.step)} → {figure(after.step)} ms, {shares} of it waiting for data")
    sides = amount(before.samples, before.seconds), amount(after.samples, after.seconds, "")
    details.append(f"{sides[0]}, then {sides[1]}")
    return Answer(BROUGHT, _gain_text(change, before, after), (*details, *careful))


def _unchanged(subject: Subject) -> Iterator[Answer]:
    """Yield the summary of a session in which nothing was changed."""
    segment = subject.pair[0] if subject.pair else None
    if segment is None:
        yield Answer(MACHINE, _machine(subject))
        return
    yield _held_up(segment, subject.verdicts.get(segment.key))
    if segment.rate > 0:
        counts = amount(segment.samples, segment.seconds)
        details = (f"{counts}, {segment.name} on {segment.backend}", "Nothing was changed in this session.")
        yield Answer(SPEED, f"{figure(segment.rate)} images/s", details)
    advised = subject.analysis.verdict.advised
    if advised:
        yield Answer(NEXT, advised[0].text)


def _machine(subject: Subject) -> str:
    """Return one sentence on a session without a step."""
    snapshot = subject.snapshot
    why = "no batch was delivered" if snapshot.schema.loaders or snapshot.loaders else "no loader was watched"
    if not len(snapshot.time):
        return f"Not known: no sample was taken, and {why}."
    frames = Frames(snapshot)
    busy = [
        f"{name} {figure(float(known.mean()))} % busy on average"
        for name, values in (("The CPU cores were", frames.cpu), ("the GPUs", frames.mean("gpu", "utilisation")))
        if len(known := values[np.isfinite(values)])
    ]
    seconds = float(snapshot.time[-1] - snapshot.time[0]) + snapshot.schema.interval
    return f"{', '.join(busy) or 'The machine was watched'} over {duration(seconds)}; {why}."


def _others(subject: Subject) -> list[Line]:
    """Return a line for each other loader, by its name: a loader that its cell made again has the same one."""
    segments = subject.analysis.segments
    shown = subject.pair[0].name if subject.pair else None
    found = []
    for name in dict.fromkeys(segment.name for segment in segments if segment.name != shown):
        own = [segment for segment in segments if segment.name == name]
        quiet = all(segment.loader in subject.secondary_ids or segment.evaluates for segment in own)
        text, measured = _other(subject, own)
        found.append(Line(name, text, quiet or not measured))
    found.sort(key=lambda line: line.quiet)
    lines = found[:MOST_LOADERS]
    if len(found) > MOST_LOADERS:
        lines.append(Line(f"{len(found) - MOST_LOADERS} more", "see Segments", True))
    return lines


def _other(subject: Subject, own: list[Segment]) -> tuple[str, bool]:
    """Return the effect of a loader's own changes, or its speed; and whether enough was measured for that."""
    keys = {segment.key for segment in own}
    changes = [made for made in subject.analysis.changes if {made.before, made.after} <= keys]
    main = headline(own, changes)
    if main is not None:
        before, after = subject.segments[main.before], subject.segments[main.after]
        return f"{' → '.join(_engines(main, before, after))}. {_gain_text(main, before, after)}", True
    switched = [made for made in changes if made.switch is not None]
    if switched:
        before, after = subject.segments[switched[-1].before], subject.segments[switched[-1].after]
        return f"{' → '.join(_engines(switched[-1], before, after))}; {switched[-1].reason}", False
    most = max(own, key=lambda segment: segment.seconds)
    if not most.rate > 0:
        return f"{most.backend}; too little was measured", False
    waiting = f", {percent(most.wait_share)} % of each step waiting for data" if math.isfinite(most.wait_share) else ""
    return f"{most.backend}, not switched: {figure(most.rate)} images/s{waiting}", True
