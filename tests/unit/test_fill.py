"""Sources from snapshots whose rows cover different times, against the rule written out row by row and slot by slot."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_monitor.report.fill import INTERVAL, MISSING, lines, means, tiles
from kernel_monitor.store import Schema, Series, Snapshot

ORIGIN = 1_790_000_000.0
SLOTS = 7


def snapshot(rows: list[tuple[float, float, float]], grid: float) -> Snapshot:
    """Rows of time, interval and value."""
    series = (Series("cpu/0/busy", "%"), Series(INTERVAL, "s"))
    return Snapshot(
        schema=Schema(version=1, interval=grid, origin=ORIGIN, capacity=600, series=series, cpus=(0,)),
        seq=np.arange(1, len(rows) + 1),
        time=np.array([time for time, _, _ in rows], dtype=np.float64),
        values=np.array([[value, interval] for _, interval, value in rows], dtype=np.float32).reshape(-1, 2),
        events=[],
        loaders=[],
        facts={},
    )


def by_rule(rows: list[tuple[float, float, float]], grid: float) -> dict[int, int]:
    """Which value each slot shows: its own row's, else one that covers it, else one that jitter keeps from it."""
    claims: dict[int, tuple[int, int]] = {}

    def claim(slot: int, right: int, row: int) -> None:
        if slot >= 0:
            claims[slot] = max(claims.get(slot, (0, 0)), (right, row))

    for k, (time, interval, _) in enumerate(rows):
        own = math.floor(time / grid)
        claim(own, 3, k)
        for slot in range(own - 50, own + 50):
            if time - interval / 2 < (slot + 0.5) * grid <= time + interval / 2:
                claim(slot, 2, k)
        if k and time - rows[k - 1][0] <= 1.5 * max(interval, rows[k - 1][1]):
            for slot in range(math.floor(rows[k - 1][0] / grid) + 1, own):
                claim(slot, 1, k)
    return {slot: int(rows[row][2]) for slot, (_, row) in claims.items()}


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[tuple[float, float, float]], float]:
    """Rows at intervals that change, with jitter and gaps; no time lies on an edge, where rounding would decide."""
    rows, time = [], 0.0131
    for k in range(draw(st.integers(1, 25))):
        interval = draw(st.sampled_from([0.1, 0.2, 0.5, 2.0]))
        late = draw(st.sampled_from([0.0, 0.0, 0.0, 0.37, 1.9, 6.1])) + draw(st.integers(-3, 3)) * 0.0107
        time += max(0.013, interval + interval * late)
        rows.append((round(time, 4) + 0.00003, interval, float(k % 101)))
    return rows, draw(st.sampled_from([0.1, 0.2, 2.0]))


@settings(max_examples=300, deadline=None)
@given(machines())
def test_tiles_follow_the_rule(machine: tuple[list[tuple[float, float, float]], float]) -> None:
    rows, grid = machine
    data = tiles({"rows": ["cpu/0/busy"], "slots": SLOTS}, snapshot(rows, grid))
    found = {}
    for x, image in zip(data["x"], data["image"], strict=True):
        first = round((x / 1000 - ORIGIN) / grid)
        found.update({first + k: int(value) for k, value in enumerate(image[0]) if value != MISSING})
    assert found == by_rule(rows, grid)


def test_nothing_measured() -> None:
    empty = snapshot([], 0.1)
    assert len(tiles({"rows": ["cpu/0/busy"], "slots": SLOTS}, empty)["image"]) == 0
    assert len(lines({"columns": {"y": "cpu/0/busy"}}, empty)["time"]) == 0


def test_a_mean_does_not_reach_beyond_a_gap_of_its_rows_intervals() -> None:
    rows = [(1.0, 1.0, 10.0), (2.0, 1.0, 20.0), (2.1, 0.1, 60.0), (2.4, 0.1, 90.0)]
    data = means({"columns": {"y": "cpu/0/busy"}, "seconds": 3.0}, snapshot(rows, 0.1))
    assert np.allclose(data["y"], [10, 15, 30, math.nan, 90], equal_nan=True)


def test_values_are_as_long_as_they_were_measured_and_times_longer() -> None:
    data = lines({"columns": {"y": "cpu/0/busy"}}, snapshot([(1.0, 0.1, 3.0)], 0.1))
    assert (data["y"].dtype, data["time"].dtype) == (np.float32, np.float64)
