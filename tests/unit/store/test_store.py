"""The store keeps what it is given, in bounds, whatever reads it meanwhile."""

from __future__ import annotations

import json
import math
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_monitor.store import LoaderInfo, Schema, Series, Store
from kernel_monitor.store.store import Ring
from tests.unit.checks import threads
from tests.unit.sessions import hello

GPU = {"index": 0, "name": "NVIDIA H200", "memory_total": 150_000_000_000, "reasons": {"power": "Not Supported"}}
HELLO: dict[str, Any] = {
    **hello(gpus=[GPU], host={"cpu_model": "a", "logical_cpus": 1, "memory_total": 2, "platform": "Linux"}),
    "series": [{"name": "cpu/0/busy", "unit": "%"}, {"name": "memory/used", "unit": "B"}],
}


def filled(rows: int, capacity: int = 8) -> Store:
    store = Store(capacity, origin=1.79e9)
    store.set_host(HELLO)
    for number in range(1, rows + 1):
        assert store.append(number / 10, [number, -number]) == number
    return store


def test_loaders_in_quick_succession_are_shown_to_pages_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages build all charts anew for another schema: new loaders in every epoch must not have them do it each time."""
    now = 100.0
    monkeypatch.setattr("kernel_monitor.store.store.clock.monotonic", lambda: now)
    store = filled(1, capacity=1000)
    versions = []
    for number in range(300):  # two new ones a second
        now += 0.5
        store.set_loaders([{"id": f"l{number}", "name": "train"}])
        store.append(now, [number, 0], {f"loader/l{number}/wait": number})
        version, row = store.newest_page_row()
        rows = store.page_rows()
        shown = store.page_schema
        assert version == rows.schema.version == shown.version
        versions.append(version)
        wait = shown.columns[f"loader/{shown.loaders[0].id}/wait"]
        latest = shown.loaders[0].id == f"l{number}"
        assert row[wait] == rows.values[-1, wait] == number if latest else np.isnan(rows.values[:, wait]).all()
        assert row[shown.columns["memory/used"]] == 0
    assert len(set(versions[:3])) == 3, "the first ones are shown at once"
    assert len(set(versions)) < 15
    # What a person chooses is shown at once; so is a loader after a while without another one.
    store.set_charts(("memory",))
    assert store.page_schema.charts == ("memory",)
    now += 100.0
    store.set_loaders([{"id": "last", "name": "train"}])
    assert store.page_schema.loaders[0].id == "last"


def test_rows_come_back_as_they_went_in() -> None:
    rows = filled(3).rows()
    assert rows.seq.tolist() == [1, 2, 3]
    assert rows.time.tolist() == [0.1, 0.2, 0.3]
    assert rows.values.tolist() == [[1, -1], [2, -2], [3, -3]]
    assert [str(one.dtype) for one in (rows.seq, rows.time, rows.values)] == ["int64", "float64", "float32"]
    assert rows.schema.names == ("cpu/0/busy", "memory/used")
    assert len(rows) == 3
    store = filled(2)
    store.rows().values[:] = 99
    assert store.rows().values[:, 0].tolist() == [1, 2]


def test_only_the_newest_rows_are_kept_and_numbers_are_never_used_again() -> None:
    store = filled(21)
    rows = store.rows()
    assert rows.seq.tolist() == list(range(14, 22))
    assert rows.values[:, 0].tolist() == list(range(14, 22))
    assert store.last_seq == 21


@pytest.mark.parametrize(("cursor", "expected"), [(0, [3, 4, 5]), (2, [3, 4, 5]), (4, [5]), (5, []), (9, [])])
def test_each_reader_has_a_cursor(cursor: int, expected: list[int]) -> None:
    rows = filled(5, capacity=3).rows(cursor)
    assert rows.seq.tolist() == expected
    assert rows.values.shape == (len(expected), 2)
    assert rows.values[:, 0].tolist() == expected


def test_a_new_loader_has_columns_that_are_missing_in_the_past() -> None:
    store = filled(2)
    store.set_loaders([{"id": "loader-1", "name": "train"}])
    store.append(0.3, [3, -3], {"loader/loader-1/images": 32.0})
    rows = store.rows()
    assert rows.schema.names[2:] == ("loader/loader-1/images", "loader/loader-1/wait", "loader/loader-1/step")
    assert [series.unit for series in rows.schema.series[2:]] == ["images/s", "ms", "ms"]
    assert rows.values[:, 0].tolist() == [1, 2, 3]
    assert np.isnan(rows.values[:2, 2:]).all()
    assert rows.values[2, 2] == 32.0
    assert np.isnan(rows.values[2, 3:]).all()


def test_columns_that_stay_keep_their_past_when_others_come_and_go() -> None:
    store = filled(2)
    store.set_loaders([{"id": "a", "name": "train"}, {"id": "b", "name": "validation"}])
    store.append(0.3, [3, -3], {"loader/a/images": 1.0, "loader/b/images": 2.0})
    store.set_loaders([{"id": "b", "name": "validation"}])
    store.append(0.4, [4, -4], {"loader/b/images": 3.0})
    rows = store.rows()
    column = rows.schema.columns["loader/b/images"]
    assert np.isnan(rows.values[:2, column]).all()
    assert rows.values[2:, column].tolist() == [2.0, 3.0]
    assert rows.values[:, 1].tolist() == [-1, -2, -3, -4]
    assert "loader/a/images" not in rows.schema.columns


def test_gpus_that_come_late_keep_the_past_of_the_cores() -> None:
    store = filled(2)
    store.set_host({**HELLO, "series": [*HELLO["series"], {"name": "gpu/0/utilisation", "unit": "%"}]})
    store.append(0.3, [3, -3, 50])
    values = store.rows().values
    assert values[:, 0].tolist() == [1, 2, 3]
    assert np.isnan(values[:2, 2]).all()
    assert values[2, 2] == 50


def test_the_version_grows_with_every_change_and_with_nothing_else() -> None:
    store = Store()
    assert store.schema.version == 0
    assert store.set_host(HELLO).version == 1
    assert store.set_host(json.loads(json.dumps(HELLO))).version == 1
    assert store.set_loaders([]).version == 1
    assert store.set_loaders([{"id": "a", "name": "train"}]).version == 2
    assert store.set_loaders([{"id": "a", "name": "renamed"}]).version == 3
    assert store.set_host({**HELLO, "gpu_reason": "GPU is lost"}).version == 4
    store.append(0.1, [1, 2])
    store.add_event("switch", 0.1)
    assert store.schema.version == 4
    store = Store(origin=5.0)
    store.set_host(HELLO)
    assert store.schema.origin == 5.0
    store.set_host({**HELLO, "origin": 7.0})
    assert store.schema.origin == 7.0


def test_values_that_do_not_fit_are_refused_and_nothing_is_added() -> None:
    store = filled(1)
    with pytest.raises(ValueError, match="2 host values"):
        store.append(0.2, [1.0])
    with pytest.raises(KeyError, match="loader/never/images"):
        store.append(0.2, [1, 2], {"loader/never/images": 1.0})
    with pytest.raises(ValueError, match="names of their own"):
        store.set_host({**HELLO, "series": [HELLO["series"][0], HELLO["series"][0]]})
    with pytest.raises(ValueError, match="at least one row"):
        Store(0)
    assert store.last_seq == 1
    assert store.append(0.2, [1, 2]) == 2


def test_values_of_a_loader_that_has_just_gone_are_dropped() -> None:
    store = filled(0)
    store.set_loaders([{"id": "a", "name": "train"}])
    store.set_loaders([])
    assert store.append(0.1, [1, 2], {"loader/a/images": 5.0}) == 1
    assert store.rows().values.tolist() == [[1, 2]]


def test_events_have_ids_and_cursors_and_bounds() -> None:
    store = Store(events=3)
    first = store.add_event("switch-asked", 1.0, loader="a", target="dali-cpu")
    assert first == {"id": 1, "kind": "switch-asked", "time": 1.0, "loader": "a", "target": "dali-cpu"}
    for number in range(4):
        store.add_event("switch", float(number))
    assert [event["id"] for event in store.events()] == [3, 4, 5]
    assert [event["id"] for event in store.events(4)] == [5]
    assert store.last_event == 5
    store.events()[0]["kind"] = "changed by a reader"
    assert store.events()[0]["kind"] == "switch"
    with pytest.raises(ValueError, match="id"):
        store.add_event("switch", 1.0, id=7)


def test_the_schema_survives_json() -> None:
    store = filled(0)
    schema = store.set_loaders([{"id": "loader-1", "name": "</script> \ud800 ☃"}])
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert again.gpus[0].reasons == {"power": "Not Supported"}
    assert again.loaders == (LoaderInfo("loader-1", "</script> \ud800 ☃"),)
    assert set(schema.to_json()) == {
        *("version", "interval", "origin", "capacity", "series", "cpus", "gpus", "gpu_reason", "loaders"),
        *("nodes", "ranks", "host", "charts"),
    }
    schema = Schema(1, 0.1, 0.0, 10, series=(Series("a", "%"), Series("b", "B")))
    assert schema.names == ("a", "b")
    assert schema.columns == {"a": 0, "b": 1}
    store = page_store()
    store.set_charts(["cpu", "pressure"])
    content = json.loads(json.dumps(store.schema.to_json()))
    assert content["charts"] == ["cpu", "pressure"]
    assert Schema.from_json(content) == store.schema


def test_readers_never_see_half_a_row_or_half_a_change() -> None:
    store = Store(50)
    store.set_host(HELLO)
    stop = threading.Event()
    faults: list[str] = []
    read = [0]

    def reads() -> None:
        cursor = 0
        while not stop.is_set():
            rows = store.rows(cursor)
            if rows.values.shape != (len(rows), len(rows.schema.series)):
                faults.append(f"{rows.values.shape} under {len(rows.schema.series)} series")
            expected = np.arange(rows.seq[0], rows.seq[0] + len(rows)) if len(rows) else rows.seq
            whole = rows.values[:, 0] == rows.seq
            if not (rows.seq.tolist() == expected.tolist() and whole.all() and (rows.values[:, 1] == -rows.seq).all()):
                faults.append(f"rows {rows.seq.tolist()} hold {rows.values.tolist()}")
            if len(rows) and rows.seq[0] <= cursor:
                faults.append("a row came twice")
            cursor = int(rows.seq[-1]) if len(rows) else cursor
            read[0] += len(rows)

    with threads(*[reads] * 3):
        until = time.monotonic() + 0.8
        number = 0
        while time.monotonic() < until:
            number += 1
            store.append(number / 10, [number, -number])
            if number % 7 == 0:
                store.set_loaders([{"id": str(number % 3), "name": "train"}])
        stop.set()
    assert faults == []
    assert read[0] > 100


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 7),
    steps=st.lists(
        st.one_of(st.floats(-9, 9, width=32), st.lists(st.sampled_from("abcd"), unique=True, max_size=4)), max_size=40
    ),
    cursor=st.integers(0, 40),
)
def test_the_ring_is_a_list_of_its_newest_rows(capacity: int, steps: list[float | list[str]], cursor: int) -> None:
    ring, names = Ring(capacity), list[str]()
    model: list[tuple[int, dict[str, float]]] = []
    for step in steps:
        if isinstance(step, list):
            names = step
            ring.rename(names)
            model = [(seq, {name: row.get(name, math.nan) for name in names}) for seq, row in model]
        else:
            seq = ring.append(step, np.full(len(names), step, dtype=np.float32))
            model.append((seq, dict.fromkeys(names, step)))
    seq_now, time_now, values = ring.since(cursor)
    expected = [(seq, row) for seq, row in model[-capacity:] if seq > cursor]
    assert seq_now.tolist() == [seq for seq, _ in expected]
    assert len(time_now) == len(expected)
    wanted = np.array([[row[name] for name in names] for _, row in expected], dtype=np.float32)
    assert np.array_equal(values, wanted.reshape(values.shape), equal_nan=True)


def test_a_resized_ring_keeps_its_newest_rows() -> None:
    store = filled(21)  # the last 8 are kept
    version = store.schema.version
    assert store.set_capacity(5).capacity == 5
    assert store.rows().seq.tolist() == [17, 18, 19, 20, 21]
    store.set_capacity(12)
    assert store.rows().seq.tolist() == [17, 18, 19, 20, 21]
    for number in range(22, 31):
        store.append(number / 10, [number, -number])
    rows = store.rows()
    assert rows.seq.tolist() == list(range(19, 31))
    assert rows.values[:, 0].tolist() == list(range(19, 31))
    assert rows.time.tolist() == [number / 10 for number in range(19, 31)]
    assert store.schema.version == version + 2
    assert store.set_capacity(12).version == version + 2
    with pytest.raises(ValueError, match="at least one row"):
        store.set_capacity(0)


@given(st.lists(st.one_of(st.integers(1, 9).map(lambda n: ("size", n)), st.integers(1, 12).map(lambda n: ("rows", n)))))
def test_whatever_the_sizes_the_rows_that_are_kept_are_the_newest(steps: list[tuple[str, int]]) -> None:
    ring = Ring(4, ["a"])
    kept: list[int] = []
    for what, count in steps:
        if what == "size":
            ring.resize(count)
        else:
            for number in range(ring.last_seq + 1, ring.last_seq + count + 1):
                assert ring.append(0.5 * number, np.array([number], dtype=np.float32)) == number
                kept += [number]
        kept = kept[-ring.capacity :]
        numbers, moments, values = ring.since(0)
        assert numbers.tolist() == kept
        assert moments.tolist() == [0.5 * number for number in kept]
        assert values[:, 0].tolist() == kept


def page_store() -> Store:
    store = Store(8, origin=1.79e9)
    names = ["sample/interval", "cpu/0/busy", "cpu/0/user", "memory/used", "pressure/io", "gpu/0/utilisation"]
    store.set_host({**HELLO, "series": [{"name": name, "unit": "%"} for name in names]})
    store.set_loaders([{"id": "a", "name": "train"}])
    store.append(0.1, range(6), {"loader/a/images": 6.0})
    return store


def test_a_page_is_sent_the_series_of_its_charts_and_those_that_every_page_needs() -> None:
    store = page_store()
    always = ("sample/interval", "memory/used", "gpu/0/utilisation")
    loader = ("loader/a/images", "loader/a/wait", "loader/a/step")
    shown = store.page_schema
    assert set(shown.names) == {"cpu/0/busy", *always, *loader}
    version = shown.version
    store.set_charts(["pressure"])
    shown = store.page_schema
    assert shown.names == ("sample/interval", "memory/used", "pressure/io", "gpu/0/utilisation", *loader)
    assert (shown.version, shown.charts) == (version + 1, ("pressure",))
    rows = store.page_rows()
    assert rows.schema == shown
    assert rows.values[0, :5].tolist() == [0, 3, 4, 5, 6]
    assert np.isnan(rows.values[0, 5:]).all()
    store.append(0.2, range(10, 16))
    assert store.page_rows(1).values[:, 2].tolist() == [14]
    assert store.rows().values.shape == (2, 9), "the rows keep every series"
    assert store.rows(0, ["cpu"]).schema.names == ("sample/interval", "cpu/0/busy", *always[1:], *loader)


def test_a_throttled_gpu_makes_no_page_load_again() -> None:
    store = Store()
    gpu = {**HELLO["gpus"][0], "mig": [{"index": 0, "name": "1g.10gb", "memory_total": 5}]}
    version = store.set_host({**HELLO, "gpus": [{**gpu, "throttle": []}]}).version
    slowed = store.set_host({**HELLO, "gpus": [{**gpu, "throttle": ["power cap"]}]})
    assert (slowed.version, slowed.gpus[0].throttle) == (version, ("power cap",))
    assert slowed.to_json()["gpus"][0]["throttle"] == ["power cap"]
    assert store.page_schema.gpus[0].throttle == ("power cap",)
    assert slowed.to_json()["gpus"][0]["mig"] == gpu["mig"]
    assert store.set_host({**HELLO, "gpus": [{**gpu, "mig": []}]}).version == version + 1


def test_the_row_before_a_moment() -> None:
    store = filled(21)
    assert [store.seq_before(time) for time in (0.0, 1.39, 1.4, 1.75, 99.0)] == [0, 0, 14, 17, 21]


def test_wide_rows_are_kept_only_as_long_as_memory_allows() -> None:
    store = Store(capacity=5000, most_bytes=4 * 2 * 1000)
    names = [f"cpu/{core}/busy" for core in range(2)]
    assert store.set_host(hello(*names)).capacity == 1000
    for number in range(1500):
        store.append(0.1 * number, [number, number])
    assert len(store.rows()) == 1000
    assert store.set_host(hello(*names, *(f"cpu/{core}/iowait" for core in range(6)))).capacity == 250
    rows = store.rows()
    assert (len(rows), rows.seq[-1], rows.values[-1, 0]) == (250, 1500, 1499)
    assert store.set_host(hello(*names)).capacity == 1000
    assert store.set_capacity(300).capacity == 300
    assert len(store.rows()) == 250
