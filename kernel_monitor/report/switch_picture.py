"""A small picture of the heatmaps around a change: CPU cores and GPUs, some seconds before to some seconds after it.

It is made of the recorded rows and is in the file as an indexed PNG, so that it is seen before any script has run.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..analysis import allowed_cores
from ..analysis.switches import first, switches
from ..store import Snapshot
from .formats import is_known, plural

AROUND_S = 15.0  # shown before the change, and after it
FEWEST_COLUMNS = 4  # on each side, however long the bins of a recording are
MOST_COLUMNS, MOST_ROWS = 200, {"CPU core": 16, "GPU": 8}
MISSING = 255  # the colour of a value that is not there: transparent
VIRIDIS = (
    "440154", "471669", "472a79", "433c84", "3c4d8a", "355d8c", "2e6c8e", "287a8e", "23898d", "1e978a", "20a585",
    "2eb27c", "45bf6f", "64cb5d", "88d547", "afdc2e", "d7e219", "fde724",
)  # fmt: skip
"""Every 15th of the heatmaps' 256 colours, whose import with Bokeh takes longer than the whole picture."""
LABEL, GAP = 17, 6  # px, of a line of words and between two parts
Cells = npt.NDArray[np.uint8]


def picture(snapshot: Snapshot, at: float, loader: str | None = None) -> dict[str, Any] | None:
    """The parts of the picture with their places in px, `line` (%) where the change is; None without rows to show.

    It ends at other switches of this `loader`.
    """
    cells = {label: values for label, values in _rows(snapshot).items() if len(values)}
    interval = max([snapshot.schema.interval, *(_intervals(snapshot)[-1:])])
    around = max(AROUND_S, FEWEST_COLUMNS * interval)
    time = snapshot.time
    others = [first(event) for event in switches(snapshot.events) if event["loader"] == loader]
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
    """By what a row is of: float64[rows, samples], in %."""
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
    """The longest time that a row covers, where rows say it."""
    column = snapshot.schema.columns.get("sample/interval")
    said = [] if column is None else [float(value) for value in snapshot.values[:, column] if is_known(float(value))]
    return [float(np.median(said))] if said else []


def _columns(time: npt.NDArray[np.float64], middles: npt.NDArray[np.float64], interval: float) -> npt.NDArray[np.intp]:
    """For each moment the row that covers it: a row is of the time since the one before; -1 where there is none."""
    found = np.searchsorted(time, middles)
    inside = found < len(time)
    found = np.where(inside, found, len(time) - 1)
    covered = inside & (time[found] - middles <= 1.5 * interval)
    return np.where(covered, found, -1)


def _few(values: npt.NDArray[np.float64], most: int) -> tuple[npt.NDArray[np.float64], int]:
    """At most so many rows, and of how many neighbours each is the mean."""
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
    """uint8[255, 3]: the colours of 0 to 100 %."""
    stops = np.array([list(bytes.fromhex(color)) for color in VIRIDIS], dtype=np.float64)
    at = np.linspace(0, len(stops) - 1, MISSING)
    columns = [np.interp(at, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.round(np.column_stack(columns)).astype(np.uint8)


def png(cells: Cells) -> str:
    """An indexed PNG as a data address; the highest row of the picture is the first of the table."""
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
