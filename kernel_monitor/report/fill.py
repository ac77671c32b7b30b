"""Fill a document's named sources from a snapshot, by their tags and by the rules that the live feed follows.

The rules are those of *Documents* in `docs/architecture.md`; nothing here knows a chart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from bokeh.core.properties import field
from bokeh.models import ColumnDataSource, Range1d
from bokeh.models.renderers import GlyphRenderer

from ..diagnose.switches import first, switches

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bokeh.model import Model

    from ..store import Snapshot

MISSING = 255
GAP = 1.5
"""Rows that are more than this many intervals apart, by the longer of theirs, have a gap between them."""
INTERVAL = "sample/interval"
"""The series of the seconds that each row covers."""
MOST_LETTERS = 40
"""Of a mark's words beside its line."""
BETWEEN, COVERED, OWN = 1, 2, 3
"""By which right a row has a slot, the strongest last: it lies between rows without a gap, is covered, is its own."""

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def fill(models: Collection[Model], snapshot: Snapshot) -> None:
    """Put the snapshot's data into the sources among a layout's models and let its time axis span them."""
    kinds = {"tiles": tiles, "lines": lines, "means": means, "markers": markers, "bands": bands}
    for source in (one for one in models if isinstance(one, ColumnDataSource)):
        tag = source.tags[0]
        source.data = kinds[tag["kind"]](tag, snapshot)
    if len(snapshot.time):
        first, last = (float(one) for one in _milliseconds(snapshot, snapshot.time[[0, -1]]))
        last = max(last, first + 1000)
        next(one for one in models if isinstance(one, Range1d) and one.name == "time").update(start=first, end=last)
        _turn_early_labels(models, first + (last - first) / 3)


def tiles(tag: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """Images of whole per cent on the absolute grid of `floor(time / interval)`; 255 where there is no row."""
    schema, slots = snapshot.schema, int(tag["slots"])
    rows = tag["rows"]
    values = np.full((len(snapshot.time), len(rows)), np.nan)
    for row, name in enumerate(rows):
        column = schema.columns.get(name)
        if column is not None:
            values[:, row] = snapshot.values[:, column]
    cells = np.full(values.shape, MISSING, dtype=np.uint8)
    present = np.isfinite(values)
    cells[present] = np.floor(np.clip(values[present], 0.0, 100.0) + 0.5).astype(np.uint8)
    slot, taken = _slots(snapshot)
    cells = cells[taken]
    tile = slot // slots
    numbers = np.unique(tile)
    images = []
    for number in numbers:
        image = np.full((len(rows), slots), MISSING, dtype=np.uint8)
        chosen = tile == number
        image[:, slot[chosen] - number * slots] = cells[chosen].T
        images.append(image)
    width = slots * schema.interval
    starts = numbers.astype(np.float64) * width
    return {
        "image": images,
        "x": _milliseconds(snapshot, starts),
        "y": np.zeros(len(numbers)),
        "dw": np.full(len(numbers), width * 1000),
        "dh": np.full(len(numbers), float(len(rows))),
    }


def _slots(snapshot: Snapshot) -> tuple[Whole, Whole]:
    """The grid's slots that are filled, ascending, and the row that has each.

    A row has its own slot, then those whose centres it covers, `(time - interval / 2, time + interval / 2]`, then those
    that jitter leaves empty between it and the row before it, where no gap is. Of equal rights the later row's counts.
    """
    grid, time = snapshot.schema.interval, snapshot.time
    rows = np.arange(len(time))
    own = np.floor(time / grid).astype(np.int64)
    half = _intervals(snapshot) / 2
    covered = _runs(np.floor((time - half) / grid - 0.5) + 1, np.floor((time + half) / grid - 0.5))
    joined = np.flatnonzero(~_after_gap(snapshot)[1:]) + 1
    between = _runs(own[joined - 1] + 1, own[joined] - 1)
    slot = np.concatenate([between[0], covered[0], own])
    row = np.concatenate([joined[between[1]], covered[1], rows])
    claim = np.repeat([BETWEEN, COVERED, OWN], [len(between[0]), len(covered[0]), len(own)])
    order = np.lexsort((row, claim, slot))
    slot, row = slot[order], row[order]
    strongest = np.append(slot[1:] != slot[:-1], np.ones(min(len(slot), 1), dtype=bool))
    kept = strongest & (slot >= 0)
    return slot[kept], row[kept]


def _runs(first: npt.NDArray[Any], last: npt.NDArray[Any]) -> tuple[Whole, Whole]:
    """The whole numbers from each first to each last one, and which run each of them belongs to."""
    counts = np.maximum(last - first + 1, 0).astype(np.int64)
    run = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first.astype(np.int64)[run] + within, run


def lines(tag: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """The series as they are, with a row of NaN in each gap."""
    return _with_gaps(snapshot, {column: _series(snapshot, name) for column, name in tag["columns"].items()})


def means(tag: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """As `lines`, each value the mean of the present ones in the last `seconds`, but not from beyond a gap."""
    time = snapshot.time
    stretch = np.cumsum(_after_gap(snapshot))
    since = np.searchsorted(time, time - float(tag["seconds"]), side="right")
    since = np.maximum(since, np.searchsorted(stretch, stretch, side="left"))
    until = np.arange(1, len(time) + 1)
    data = {}
    for column, name in tag["columns"].items():
        values = _series(snapshot, name)
        present = np.isfinite(values)
        sums = np.concatenate([[0.0], np.cumsum(np.where(present, values, 0.0))])
        counts = np.concatenate([[0], np.cumsum(present)])
        total, count = sums[until] - sums[since], counts[until] - counts[since]
        data[column] = np.divide(total, count, out=np.full(len(time), np.nan), where=count > 0)
    return _with_gaps(snapshot, data)


def markers(tag: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """The events of the tag's kinds: when, and what they changed to, or the words of a mark."""
    chosen = [event for event in snapshot.events if event["kind"] in tag["events"]]
    time = _milliseconds(snapshot, np.array([first(event) for event in chosen], dtype=float))
    return {
        "time": time,
        "label": [_label(snapshot, event) for event in chosen],
        "place": time,
    }


def bands(tag: Mapping[str, Any], snapshot: Snapshot) -> dict[str, Any]:
    """From each first batch of the tag's backend to the next engine's, or to the loader's last delivery."""
    found: list[tuple[str, float, float]] = []
    begun: dict[str, float] = {}
    for event in switches(snapshot.events):
        loader = str(event["loader"])
        if event["target"] == tag["backend"]:
            begun.setdefault(loader, first(event))
        elif loader in begun:
            found.append((loader, begun.pop(loader), first(event)))
    for loader, start in begun.items():
        delivered = snapshot.time[_series(snapshot, f"loader/{loader}/images") > 0]
        found.append((loader, start, max([start, *delivered[-1:].tolist()])))
    left = _milliseconds(snapshot, np.array([start for _, start, _ in found], dtype=float))
    return {
        "left": left,
        "right": _milliseconds(snapshot, np.array([end for _, _, end in found], dtype=float)),
        "label": [f"{_prefix(snapshot, loader)}{tag['backend']}" for loader, _, _ in found],
        "place": left,
    }


def _label(snapshot: Snapshot, event: Mapping[str, Any]) -> str:
    if event["kind"] != "mark":
        return f"{_prefix(snapshot, str(event['loader']))}→ {event['target']}"
    words = str(event["label"])
    return words if len(words) <= MOST_LETTERS else f"{words[: MOST_LETTERS - 1]}…"


def _prefix(snapshot: Snapshot, loader: str) -> str:
    """The loader's name where there are several."""
    names = {one.id: one.name for one in snapshot.schema.loaders}
    return f"{names.get(loader, loader)} " if len(names) > 1 else ""


def _with_gaps(snapshot: Snapshot, data: dict[str, Floats]) -> dict[str, Any]:
    gaps = np.flatnonzero(_after_gap(snapshot))
    time = snapshot.time
    middles = (time[gaps - 1] + time[gaps]) / 2
    return {
        "time": _milliseconds(snapshot, np.insert(time, gaps, middles)),
        # Half the size of a file, and all the digits that were measured.
        **{column: np.insert(values, gaps, np.nan).astype(np.float32) for column, values in data.items()},
    }


def _after_gap(snapshot: Snapshot) -> npt.NDArray[np.bool_]:
    """Which rows come after a gap; never the first."""
    intervals = _intervals(snapshot)
    longer = np.maximum(intervals, np.concatenate([intervals[:1], intervals[:-1]]))
    apart: Floats = np.diff(snapshot.time, prepend=snapshot.time[:1])
    late: npt.NDArray[np.bool_] = apart > GAP * longer
    return late


def _intervals(snapshot: Snapshot) -> Floats:
    """Seconds that each row covers: as it says, without the digits that it got as a float32, else the schema's."""
    said = _series(snapshot, INTERVAL)
    return np.where(said > 0, np.floor(said * 1e6 + 0.5) / 1e6, snapshot.schema.interval)


def _series(snapshot: Snapshot, name: str) -> Floats:
    column = snapshot.schema.columns.get(name)
    if column is None:
        return np.full(len(snapshot.time), np.nan)
    return snapshot.values[:, column].astype(np.float64)


def _milliseconds(snapshot: Snapshot, time: Floats) -> Floats:
    return (snapshot.schema.origin + time) * 1000


def _turn_early_labels(models: Collection[Model], until: float) -> None:
    """Labels stand left of their line, where the newest is visible; in a still picture the early ones turn round."""
    for renderer in models:
        if not isinstance(renderer, GlyphRenderer) or renderer.name != "marker-labels":
            continue
        data, glyph = cast("Any", renderer.data_source).data, cast("Any", renderer.glyph)
        early = [time < until for time in data["time"]]
        data["align"] = ["left" if one else "right" for one in early]
        data["offset"] = [5 if one else -5 for one in early]
        glyph.update(text_align=field("align"), x_offset=field("offset"))
