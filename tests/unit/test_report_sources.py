"""The exported charts' sources equal the snapshot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernel_monitor.report.fill import bands, lines, markers, means, tiles
from kernel_monitor.store import Snapshot, Store
from tests.unit.test_diagnose import session


def test_tiles_are_the_rows_on_the_absolute_grid() -> None:
    snapshot = session(gap=(5.0, 6.5))
    rows = ["cpu/0/busy", "cpu/1/iowait", "no/such/series"]
    data = tiles({"rows": rows, "slots": 60}, snapshot)
    width = 60 * 0.1
    expected: dict[tuple[int, int, int], int] = {}
    for moment, values in zip(snapshot.time, snapshot.values, strict=True):
        slot = int(np.floor(moment / 0.1))
        for row, name in enumerate(rows[:2]):
            expected[slot // 60, row, slot % 60] = int(np.floor(values[snapshot.schema.columns[name]] + 0.5))
    assert len(data["image"]) == len({tile for tile, _, _ in expected})
    for k, image in enumerate(data["image"]):
        assert (image.dtype, image.shape) == (np.uint8, (3, 60))
        number = round((data["x"][k] / 1000 - snapshot.schema.origin) / width)
        for row in range(3):
            for slot in range(60):
                assert image[row, slot] == expected.get((number, row, slot), 255)
    assert set(data["dw"]) == {width * 1000}
    assert set(data["dh"]) == {3.0}
    assert set(data["y"]) == {0.0}


def test_a_tile_without_a_row_is_no_tile_and_values_are_cut_to_the_scale() -> None:
    store = Store(interval=0.1)
    store.set_host(
        {
            "interval": 0.1,
            "series": [{"name": "gpu/0/power", "unit": "%"}],
            "cpus": [],
            "gpus": [],
            "gpu_reason": None,
            "host": {},
        }
    )
    for moment, value in ((0.05, 103.0), (0.15, 49.5), (0.25, np.nan), (60.05, -1.0)):
        store.append(moment, [value])
    data = tiles({"rows": ["gpu/0/power"], "slots": 60}, store.snapshot([], {}))
    assert [image[0, :3].tolist() for image in data["image"]] == [[100, 50, 255], [0, 255, 255]]
    assert np.diff(data["x"]).tolist() == pytest.approx([60_000.0])


def test_lines_are_the_series_with_a_break_in_each_gap() -> None:
    snapshot = session(gap=(5.0, 6.5))
    data = lines({"columns": {"y0": "loader/loader-1/images", "y1": "loader/loader-1/wait"}}, snapshot)
    (place,) = np.flatnonzero(np.diff(snapshot.time) > 0.15) + 1
    assert np.isnan(data["y0"][place])
    assert np.isnan(data["y1"][place])
    assert snapshot.time[place - 1] < data["time"][place] / 1000 - snapshot.schema.origin < snapshot.time[place]
    for column, name in (("y0", "loader/loader-1/images"), ("y1", "loader/loader-1/wait")):
        stored = snapshot.values[:, snapshot.schema.columns[name]]
        assert np.array_equal(np.delete(data[column], place), stored, equal_nan=True)
    np.testing.assert_allclose(np.delete(data["time"], place) / 1000 - snapshot.schema.origin, snapshot.time, atol=1e-6)


def test_means_are_of_the_last_seconds_since_the_last_gap() -> None:
    snapshot = session(gap=(5.0, 6.5), pause=4.0)
    data = means({"columns": {"y0": "loader/loader-1/wait"}, "seconds": 2.0}, snapshot)
    stored = snapshot.values[:, snapshot.schema.columns["loader/loader-1/wait"]].astype(float)
    (place,) = np.flatnonzero(np.diff(snapshot.time) > 0.15) + 1
    shown = np.delete(data["y0"], place)
    for k, moment in enumerate(snapshot.time):
        begin = place if k >= place else 0
        window = [
            value
            for value, at in zip(stored[begin : k + 1], snapshot.time[begin : k + 1], strict=True)
            if at > moment - 2.0 and np.isfinite(value)
        ]
        if window:
            assert shown[k] == pytest.approx(np.mean(window))
        else:
            assert np.isnan(shown[k])
    assert np.isnan(shown).any()
    assert np.isfinite(shown).any()


def test_markers_stand_where_the_first_batch_came() -> None:
    snapshot = session()
    data = markers({"events": ["switch"]}, snapshot)
    assert data["label"] == ["→ dali-cpu"]
    assert data["time"].tolist() == [(snapshot.schema.origin + 22.0) * 1000]
    several = session(names=("train", "check"))
    assert markers({"events": ["switch"]}, several)["label"] == ["train → dali-cpu"]


def replayed(*, end: bool, names: tuple[str, ...] = ("train",)) -> Snapshot:
    """A session that goes on with replayed batches at 22 s, until 30 s or the last delivery."""
    snapshot = session(names=names, idle=5.0)
    events = [
        {**event, "target": "synthetic"} if event["kind"].startswith("switch") else event for event in snapshot.events
    ]
    if end:
        back = {"loader": "loader-1", "source": "synthetic", "target": "dali-cpu", "epoch": 0, "batch": 500}
        events.append({"id": 99, "kind": "switch", "time": 30.0, "asked": 29.9, "first": 30.0, **back})
    return replace(snapshot, events=events)


@pytest.mark.parametrize(("end", "until"), [(True, 30.0), (False, 41.93)])
def test_replayed_batches_are_banded_from_their_first_to_the_next_switch_or_the_last_delivery(
    end: bool, until: float
) -> None:
    snapshot = replayed(end=end)
    data = bands({"backend": "synthetic"}, snapshot)
    seconds = {side: (data[side] / 1000 - snapshot.schema.origin).tolist() for side in ("left", "right", "place")}
    assert seconds == {
        "left": [pytest.approx(22.0)],
        "right": [pytest.approx(until, abs=1e-3)],
        "place": [pytest.approx(22.0)],
    }
    assert data["label"] == ["synthetic"]
    assert bands({"backend": "synthetic"}, replayed(end=end, names=("train", "val")))["label"] == ["train synthetic"]
