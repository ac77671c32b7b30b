"""What a feed makes of rows at changing intervals, against the cases that vitest reads with the page's feed.

A case: the schema's `interval` (s), rows `[time, interval or null, value or null]`, the tiles' slots that are not
missing, and the points of a line (null: a gap or no value).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_monitor.report.fill import INTERVAL, MISSING, lines, tiles
from kernel_monitor.store import Schema, Series, Snapshot

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "feeds.json").read_text("utf-8"))
SLOTS = 10
ORIGIN = 1_790_000_000.0


def snapshot(case: dict[str, Any]) -> Snapshot:
    said = any(interval is not None for _, interval, _ in case["rows"])
    series = (Series("cpu/0/busy", "%"), *([Series(INTERVAL, "s")] if said else []))
    values = np.array([[value, interval][: len(series)] for _, interval, value in case["rows"]], dtype=np.float32)
    return Snapshot(
        schema=Schema(version=1, interval=case["interval"], origin=ORIGIN, capacity=600, series=series, cpus=(0,)),
        seq=np.arange(1, len(values) + 1),
        time=np.array([time for time, _, _ in case["rows"]], dtype=np.float64),
        values=values,
        events=[],
        loaders=[],
        facts={},
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_tiles(case: dict[str, Any]) -> None:
    data = tiles({"rows": ["cpu/0/busy", "gone"], "slots": SLOTS}, snapshot(case))
    found: dict[str, int] = {}
    for x, image in zip(data["x"], data["image"], strict=True):
        first = round((x / 1000 - ORIGIN) / case["interval"])
        assert (image[1] == MISSING).all()
        found |= {str(first + k): int(value) for k, value in enumerate(image[0]) if value != MISSING}
    assert found == case["tiles"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_lines(case: dict[str, Any]) -> None:
    data = lines({"columns": {"y": "cpu/0/busy"}}, snapshot(case))
    expected = np.array([[time, np.nan if value is None else value] for time, value in case["lines"]])
    assert np.allclose(data["time"] / 1000 - ORIGIN, expected[:, 0], atol=1e-5)
    assert np.allclose(data["y"], expected[:, 1], equal_nan=True)
