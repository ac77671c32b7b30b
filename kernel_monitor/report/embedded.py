"""The data that a report's file has for its charts: a chart document, the events, and the rows of the drawn series.

The chart document comes from the cache wherever one of its shape was made before: importing Bokeh and drawing with it
take half of a report's time. The page's half is `widgets/src/stream/report_source.ts`.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..record.reader import Bins
from ..store.charts import CHART_IDS, DEFAULT_CHARTS, MANY_ROWS, SLOTS, chart_series
from ..stream import chart_documents
from ..stream.chart_documents import Documents

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy.typing as npt

    from ..protocol.message_types import EmbeddedSession
    from ..protocol.states import Event
    from ..store import Schema, Snapshot
    from ..store.charts import Kind

TABLE_BYTES = 1_700_000
"""The most bytes of the deflated table, to which base64 adds a third; BokehJS takes 1.3 MB of the file."""
LEVEL = 4  # of zlib: higher ones take twice as long for 2 % less
INTERVAL = "sample/interval"  # the series of the seconds that each row covers
MISSING = 255  # the byte of a value that is not there, in columns of whole per cent

Table = tuple[bytes, list[bool]]

DRAWN = ("switch", "mark", "job-switch")  # kinds of events that have a line in the charts


def embed(snapshot: Snapshot, zone_ms: float = 0) -> tuple[EmbeddedSession, float | None]:
    """Return the session for the page, without the facts of the machine, which the report has elsewhere.

        Args:
            snapshot: the session.
            zone_ms: offset of the shown times from UTC.

        Returns:
    The session, JSON-able, and the width in seconds of the bins whose means its rows are; None where the rows are as
            were measured.
    """
    part = only(snapshot, report_schema(snapshot.schema, charts_with_data(snapshot)))
    item = json.loads(Documents().get_or_make(part.schema, "report", draw))
    drawn_as_lines = set(item.pop("lines"))
    rows, width = part, None
    data, percent = table(rows, drawn_as_lines)
    # Bins of four seconds compress a little better than bins of two: seldom more than one more turn.
    times = 1
    while len(data) > TABLE_BYTES and len(rows.time) > 1:
        times = max(times + 1, -(-times * len(data) // TABLE_BYTES))
        rows, width = binned(part, times)
        data, percent = table(rows, drawn_as_lines)
    schema = rows.schema
    bare = replace(
        schema, capacity=capacity(rows), cpus=(), gpus=(), gpu_reason=None, nodes=(), ranks=(), host={}, charts=()
    )
    session: EmbeddedSession = {
        "bokeh": chart_documents.version(),
        "item": item,
        "schema": bare.to_json(),
        "events": [
            cast("Event", event) for event in snapshot.events if event["kind"] in ("switch", "mark", "job-switch")
        ],
        "rows": len(rows.time),
        "percent": percent,
        "zone_ms": zone_ms,
        "table": base64.b64encode(data).decode("ascii"),
    }
    return session, width


def draw(schema: Schema, kind: Kind) -> dict[str, Any]:
    """Return a chart document, made in this process: imports Bokeh."""
    from ..views import document

    return document(schema, kind)


def charts_with_data(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the default charts, and every other that has a value, in their order."""
    present = np.atleast_1d(np.isfinite(snapshot.values).any(axis=0))
    columns = snapshot.schema.columns
    return tuple(
        chart
        for chart in CHART_IDS
        if chart in DEFAULT_CHARTS or any(present[columns[name]] for name in chart_series(snapshot.schema, chart))
    )


def report_schema(schema: Schema, charts: Sequence[str]) -> Schema:
    """Return the schema with these charts, the series that they draw, and `INTERVAL`.

    Machines are unfolded while they have room, whatever live pages show.
    """
    left, nodes = MANY_ROWS, []
    for node in schema.nodes:
        left -= len(node.cores) + len(node.gpus)
        nodes.append(replace(node, folded=left < 0))
    schema = replace(schema, nodes=tuple(nodes))
    part = schema.restricted({INTERVAL, *(name for chart in charts for name in chart_series(schema, chart))})
    return replace(part, charts=tuple(charts))


def only(snapshot: Snapshot, schema: Schema) -> Snapshot:
    """Return the snapshot with the columns of a schema that is a part of its own."""
    columns = snapshot.schema.columns
    places = np.array([columns[name] for name in schema.names], dtype=np.intp)
    return replace(snapshot, schema=schema, values=snapshot.values[:, places])


def table(snapshot: Snapshot, lines: Collection[str]) -> Table:
    """Return the rows as one deflated block, column after column, and for each series whether it is in whole per cent.

    Args:
        snapshot: its rows.
        lines: the series whose values are kept as they were measured; the others are only shown as heatmaps.
    """
    percent = [name not in lines and name != INTERVAL for name in snapshot.schema.names]
    packer = zlib.compressobj(LEVEL)
    parts = [packer.compress(_planes(np.asarray(snapshot.time, dtype="<f8")))]
    for column, whole in enumerate(percent):
        values = snapshot.values[:, column]
        parts.append(packer.compress(_whole(values) if whole else _planes(values.astype("<f4"))))
    parts.append(packer.flush())
    return b"".join(parts), percent


def _planes(numbers: npt.NDArray[np.generic]) -> bytes:
    """Return the lowest bytes of all numbers, then the next ones: neighbours differ least in the highest."""
    return numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize).T.tobytes()


def _whole(values: npt.NDArray[np.float32]) -> bytes:
    """Return values in % as the heatmaps show them, each rounded to a byte."""
    cells = np.full(len(values), MISSING, dtype=np.uint8)
    present = np.isfinite(values)
    cells[present] = np.floor(np.clip(values[present].astype(np.float64), 0.0, 100.0) + 0.5).astype(np.uint8)
    return cells.tobytes()


def capacity(snapshot: Snapshot) -> int:
    """Return how many rows the page must have room for: all, and the tiles of its heatmaps with their gaps."""
    schema, time = snapshot.schema, snapshot.time
    column = schema.columns.get(INTERVAL)
    intervals = snapshot.values[:, column] if column is not None else np.zeros(len(time))
    half = np.where(intervals > 0, intervals, schema.interval) / 2
    span = schema.interval * SLOTS
    spans = np.unique(np.floor([(time - half) / span, (time + half) / span]))
    return max(len(time), SLOTS * (len(spans) + int((2 * half // span).sum())), 1)


def binned(snapshot: Snapshot, times: int) -> tuple[Snapshot, float]:
    """Return means over bins of `times` the longest interval between rows; a bin without a row is a gap.

    Returns:
        The snapshot, whose interval is that of the bins, and that interval in seconds.
    """
    schema = snapshot.schema
    column = schema.columns.get(INTERVAL)
    intervals = snapshot.values[:, column] if column is not None else np.empty(0)
    intervals = intervals[np.isfinite(intervals)]
    # Intervals come back from float32: 0.6 as 0.6000000238.
    width = round(times * max(schema.interval, float(intervals.max(initial=0.0))), 6)
    means = Bins(width)
    means.add(snapshot.time, snapshot.values.T)
    time, columns = means.result()
    values = np.ascontiguousarray(columns.T)
    if column is not None:
        values[:, column] = width
    schema = replace(schema, interval=width)
    return replace(snapshot, schema=schema, seq=snapshot.seq[: len(time)], time=time, values=values), width
