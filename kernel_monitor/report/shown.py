"""Which charts a report shows, and the rows that it draws: no more of them than a file of a few megabytes can hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.models import ColumnDataSource

from ..store.charts import CHART_IDS, DEFAULT_CHARTS, chart_series

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt
    from bokeh.model import Model

    from ..store import Snapshot

DRAWN_BYTES = 1_800_000
"""What the charts' values may take before base64 makes a third more of them; BokehJS takes 1.3 MB of the file."""


def charts_with_data(snapshot: Snapshot) -> tuple[str, ...]:
    """The default charts, and every other that has a value, in their order."""
    present = np.atleast_1d(np.isfinite(snapshot.values).any(axis=0))
    columns = snapshot.schema.columns
    return tuple(
        one
        for one in CHART_IDS
        if one in DEFAULT_CHARTS or any(present[columns[name]] for name in chart_series(snapshot.schema, one))
    )


def row_bytes(models: Iterable[Model]) -> int:
    """What a row takes in a layout's sources: a byte for a cell, four for a point, eight for its time."""
    tags: list[Any] = [one.tags[0] for one in models if isinstance(one, ColumnDataSource)]
    cells = sum(len(tag.get("rows", ())) for tag in tags)
    points = sum(8 + 4 * len(tag["columns"]) for tag in tags if "columns" in tag)
    return cells + points


def only(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    """The snapshot with the columns of these names only."""
    schema = snapshot.schema
    part = schema.restricted(set(names))
    places = np.array([schema.columns[name] for name in part.names], dtype=np.intp)
    return replace(snapshot, schema=part, values=snapshot.values[:, places])


def drawn(snapshot: Snapshot, row: int) -> tuple[Snapshot, float | None]:
    """The snapshot as means over bins of time where its rows, of `row` bytes each, would be too much to draw.

    Returns:
        The snapshot, and the length of the bins in seconds; None where the rows are as they were.
    """
    times = -(-len(snapshot.time) * row // DRAWN_BYTES)
    return (snapshot, None) if times <= 1 else binned(snapshot, times)


def binned(snapshot: Snapshot, times: int) -> tuple[Snapshot, float]:
    """Means over bins that are `times` of the longest interval between rows; a bin without a row is a gap.

    Returns:
        The snapshot, whose interval is that of the bins, and that interval in seconds.
    """
    schema = snapshot.schema
    column = schema.columns.get("sample/interval")
    told = snapshot.values[:, column] if column is not None else np.empty(0)
    told = told[np.isfinite(told)]
    # Intervals come back from float32: 0.6 as 0.6000000238.
    width = round(times * max(schema.interval, float(told.max(initial=0.0))), 6)
    bins = np.floor(snapshot.time / width).astype(np.int64)
    starts = np.flatnonzero(np.diff(bins, prepend=bins[:1] - 1))
    values = _means(snapshot.values, starts)
    if column is not None:
        values[:, column] = width
    last = np.append(starts[1:], len(bins)) - 1
    return (
        replace(
            snapshot,
            schema=replace(schema, interval=width),
            seq=snapshot.seq[last],
            # The middle of the bin: equal distances, whichever rows it holds.
            time=np.asarray((bins[starts] + 0.5) * width, dtype=np.float64),
            values=values,
        ),
        width,
    )


def _means(values: npt.NDArray[np.float32], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
    """The mean of the present values from each start to the next, NaN where there is none."""
    present = np.isfinite(values)
    sums = np.add.reduceat(np.where(present, values, 0).astype(np.float64), starts, axis=0)
    counts = np.add.reduceat(present.astype(np.int64), starts, axis=0)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return np.asarray(means, dtype=np.float32)
