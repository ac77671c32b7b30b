"""What a switch changed: exact figures of a session whose every number is known."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis import allowed_cores, measure, strip
from kernel_monitor.analysis.machine_limits import limits_note, memory_note
from kernel_monitor.analysis.switches import compare
from kernel_monitor.store import Snapshot, Store
from tests.unit import sessions
from tests.unit.sessions import Floats, Value, build

INTERVAL = 0.1
TRAIN = "loader-1"
SWITCHED = {
    "backend": "dali-cpu",
    "status": "dali-cpu since batch 412",
    "backends": [{"name": "dali-gpu", "available": False, "reason": "no usable GPU"}],
    "epoch": 1,
    "batch": 212,
    "samples": 6784,
    "decoded": {"torchvision": 64, "dali-cpu": 6720},
}


def state(**fields: Any) -> dict[str, Any]:
    """A `LoaderState` as a loader gives it after the switch."""
    return sessions.state(**{**SWITCHED, **fields})


def session(
    *,
    cores: int = 2,
    gpus: int = 0,
    before: float = 20.0,
    after: float = 20.0,
    pause: float = 0.0,
    idle: float = 0.0,
    names: tuple[str, ...] = ("train",),
    switch: bool = True,
    gap: tuple[float, float] | None = None,
) -> Snapshot:
    """A session: `before` seconds of torchvision, a change-over of 2 s, `after` seconds of dali-cpu, then `idle`.

    Torchvision: 32 images a frame (320/s), CPU 100 %, wait 60 of 100 ms. In the change-over: CPU 7 %, 5 images a
    frame, wait 999 ms. Dali: 96 images a frame (960/s), CPU 61 %, wait 5 of 33 ms. `pause` seconds without a delivery
    lie in the middle of the first part. Rows within `gap` are missing.
    """
    asked = before + pause
    first = asked + 2.0
    end = first + after

    def by_part(torchvision: float, meanwhile: float, dali: float, *, at_rest: float | None = None) -> Value:
        def values(time: Floats) -> Any:
            working = np.where(time <= asked, torchvision, np.where(time <= first, meanwhile, dali))
            pausing = ((time > before / 2) & (time <= before / 2 + pause)) | (time > end)
            return working if at_rest is None else np.where(pausing, at_rest, working)

        return values

    fields = {"loader": TRAIN, "source": "torchvision", "target": "dali-cpu"}
    switched = [
        {"kind": "switch-asked", "time": asked, **fields},
        {"kind": "engine-ready", "time": first - 0.5, **fields},
        {"kind": "switch", "time": first, **fields, "epoch": 0, "batch": 412, "asked": asked, "first": first},
    ]
    ids = [f"loader-{k}" for k in range(1, len(names) + 1)]
    return build(
        end + idle,
        INTERVAL,
        cores,
        gpus,
        busy=by_part(100.0, 7.0, 61.0, at_rest=3.0),
        iowait=1.0,
        memory=40.0,
        kernel=None,
        workers=None,
        gpu=by_part(31.0, 1.0, 88.0),
        gpu_memory=50.0,
        series={
            **{f"gpu/{number}/power": 60.0 for number in range(gpus)},
            **{f"loader/{one}/images": math.nan for one in ids},
            f"loader/{TRAIN}/images": by_part(32 / INTERVAL, 5 / INTERVAL, 96 / INTERVAL, at_rest=0.0),
            f"loader/{TRAIN}/wait": by_part(60.0, 999.0, 5.0, at_rest=math.nan),
            f"loader/{TRAIN}/step": by_part(100.0, 1000.0, 33.0, at_rest=math.nan),
        },
        loaders=dict(zip(ids, names, strict=True)),
        states=[SWITCHED] * len(names),
        events=switched if switch else (),
        facts={"python": "3.11.4", "versions": {"kernel-monitor": "0.1.0", "torch": "2.15.0"}, "restarts": 0},
        steps=False,
        gap=gap,
        first=0.03,
    )


def found(snapshot: Snapshot) -> dict[str, Any]:
    result = strip(snapshot, snapshot.events, snapshot.loaders)
    assert result is not None
    return dict(result)


def figures(snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    return {row["label"]: (row["before"], row["after"]) for row in found(snapshot)["rows"]}


def test_the_strip_says_what_the_switch_changed() -> None:
    result = found(session(gpus=2))
    assert (result["loader"], result["source"], result["target"]) == (TRAIN, "torchvision", "dali-cpu")
    assert result["text"].startswith("320 → 960 images/s (")
    assert result["text"].endswith(" · data wait 60 → 5.0 ms per step · GPU p50 31 % → 88 % · CPU p95 100 % → 61 %")
    rows = {row["label"]: row for row in result["rows"]}
    assert rows["images/s"] == {"label": "images/s", "unit": "images/s", "before": 320.0, "after": 960.0}
    assert rows["data wait per step"]["unit"] == "ms"


def slowed(snapshot: Snapshot, speed: float) -> Snapshot:
    """The same session with a Dali at `speed` times torchvision's 320 images/s."""
    column = snapshot.schema.columns[f"loader/{TRAIN}/images"]
    values = snapshot.values.copy()
    fast = values[:, column] == 96 / INTERVAL
    values[fast, column] = speed * 32 / INTERVAL
    return replace(snapshot, values=values)


@pytest.mark.parametrize(("speed", "slower"), [(0.7, True), (0.89, True), (0.95, False), (1.2, False)])
def test_a_switch_that_lost_speed_is_called_slower_and_offers_the_way_back(speed: float, slower: bool) -> None:
    snapshot = slowed(session(), speed)
    backends = [{"name": name, "available": True} for name in ("torchvision", "dali-cpu")]
    state = {**snapshot.loaders[0], "backend": "dali-cpu", "wanted": None, "backends": backends}
    result = strip(snapshot, snapshot.events, [state])
    assert result is not None
    words = f" · dali-cpu runs at {speed:.2f} of torchvision's speed here: switch back"
    assert result["text"].endswith(words) is slower
    assert ("slow" in result["text"] or "switch back" in result["text"]) is slower
    assert result["back"] == ("torchvision" if slower else None)
    others: list[dict[str, Any]] = [{"wanted": "torchvision"}, {"backend": "torchvision"}, {"backends": []}]
    for changed in others:
        already = strip(snapshot, snapshot.events, [{**state, **changed}])
        assert already is not None
        assert already["back"] is None
    replayed = [{**event, "source": "synthetic"} for event in snapshot.events]
    assert "switch back" not in str(strip(snapshot, replayed, [state]))


@pytest.mark.parametrize(("fields", "side"), [({"target": "synthetic"}, "after"), ({"source": "synthetic"}, "before")])
def test_figures_of_replayed_batches_are_called_so(fields: dict[str, str], side: str) -> None:
    words = f" · the figures {side} the switch are of replayed batches"
    for snapshot in (session(), session(after=0.5)):
        events = [{**event, **fields} if event["kind"] == "switch" else event for event in snapshot.events]
        result = strip(snapshot, events, snapshot.loaders)
        assert result is not None
        assert result["text"].endswith(words)
        assert words not in found(snapshot)["text"]


def test_a_rate_comes_with_its_counts() -> None:
    snapshot = session()
    shown = figures(snapshot)
    for side in (0, 1):
        assert shown["samples"][side] == pytest.approx(shown["images/s"][side] * shown["counted over"][side], rel=1e-3)
    before = f"({shown['samples'][0]:,.0f} in {shown['counted over'][0]:.0f}\N{NO-BREAK SPACE}s → "
    counts = before + f"{shown['samples'][1]:,.0f} in "
    assert counts in found(snapshot)["text"]


def test_without_a_gpu_nothing_is_said_of_one() -> None:
    result = found(session())
    assert "GPU" not in result["text"]
    assert not [row for row in result["rows"] if "GPU" in row["label"]]


def test_pauses_and_the_time_after_training_do_not_count() -> None:
    busy, paused = session(), session(pause=10.0, idle=30.0)
    assert figures(paused)["images/s"] == figures(busy)["images/s"] == (320.0, 960.0)
    assert figures(paused)["CPU p95"] == (100.0, 61.0)
    comparison = compare(paused, paused.events)
    assert comparison is not None
    assert comparison.before.seconds == pytest.approx(20.0, abs=0.5)
    assert comparison.after.seconds == pytest.approx(20.0, abs=0.5)
    assert comparison.after.cpu.tolist() == [61.0] * len(comparison.after.cpu)


def test_the_change_over_counts_for_neither_side() -> None:
    snapshot = session()
    comparison = compare(snapshot, snapshot.events)
    assert comparison is not None
    switch = comparison.switch
    assert comparison.before.end == switch["asked"]
    # Four batches of 33 ms that were made in advance.
    assert comparison.after.start == pytest.approx(switch["first"] + 4 * 0.033)
    assert set(comparison.before.wait) == {60.0}
    assert set(comparison.after.wait) == {5.0}


def test_at_most_a_minute_on_each_side() -> None:
    snapshot = session(before=90.0, after=90.0)
    comparison = compare(snapshot, snapshot.events)
    assert comparison is not None
    assert comparison.before.seconds == pytest.approx(60.0, abs=0.3)
    assert comparison.after.seconds == pytest.approx(60.0, abs=0.3)
    assert comparison.before.start == pytest.approx(30.0)


def test_too_little_is_said_and_not_compared() -> None:
    assert strip(session(switch=False), [], []) is None
    early = found(session(after=1.0))
    assert (early["rows"], early["text"]) == ([], "torchvision → dali-cpu: measuring…")
    short = found(session(before=1.0))
    assert short["rows"] == []
    assert "too little was measured before the switch" in short["text"]
    assert "samples in 0." in short["text"]


def test_a_new_request_ends_the_segment() -> None:
    snapshot = session(after=20.0)
    later = {"id": 99, "kind": "switch-asked", "time": 27.0, "loader": "loader-2"}
    comparison = compare(snapshot, [*snapshot.events, later])
    assert comparison is not None
    assert comparison.after.end == 27.0
    soon = {**later, "time": 22.9}
    cut = strip(snapshot, [*snapshot.events, soon], snapshot.loaders)
    assert cut is not None
    assert "too little was measured after the switch" in cut["text"]


def test_with_several_loaders_the_strip_names_the_one() -> None:
    assert found(session(names=("train", "check")))["text"].startswith("train: 320 → 960 images/s (")


def test_before_ends_where_the_previous_switch_settled() -> None:
    snapshot = session(before=30.0)
    earlier = {"id": 0, "kind": "switch", "time": 10.0, "loader": TRAIN, "source": "a", "target": "b", "first": 10.0}
    comparison = compare(snapshot, [earlier, *snapshot.events])
    assert comparison is not None
    assert comparison.before.start == pytest.approx(10.0 + 4 * 0.1)


def test_the_cpu_of_a_frame_is_the_mean_of_what_was_measured() -> None:
    rng = np.random.default_rng(2)
    store = Store(interval=INTERVAL)
    store.set_host(
        {
            "interval": INTERVAL,
            "series": [{"name": f"cpu/{core}/busy", "unit": "%"} for core in range(3)],
            "cpus": [0, 1, 2],
            "gpus": [],
            "gpu_reason": "none",
            "host": {},
        }
    )
    values = rng.uniform(0, 100, (300, 3)).astype(np.float32)
    values[7] = np.nan
    values[9, 1] = np.nan
    for k, row in enumerate(values):
        store.append(k * INTERVAL, row, {})
    measured = measure(store.rows(), None, -1.0, 1e9)
    expected = np.array([np.mean(row[np.isfinite(row)], dtype=float) for k, row in enumerate(values) if k != 7])
    np.testing.assert_allclose(measured.cpu, expected)


def test_a_gap_is_time_that_passed() -> None:
    snapshot = session(gap=(5.0, 6.5))
    comparison = compare(snapshot, snapshot.events)
    assert comparison is not None
    # The store has no row for 1.5 s: the frames left out delivered nothing that was recorded.
    assert comparison.before.seconds == pytest.approx(20.0, abs=0.3)


def test_nothing_measured_is_not_a_number() -> None:
    empty = Store().snapshot([], {})
    measured = measure(empty, TRAIN, 0.0, 10.0)
    assert measured.seconds == 0
    assert np.isnan(measured.rate)
    assert np.isnan(measured.mean_wait)
    switch = {"id": 1, "kind": "switch", "time": 5.0, "loader": TRAIN, "source": "a", "target": "b"}
    result = strip(empty, [switch], [])
    assert result is not None
    assert result["rows"] == []


@pytest.mark.alone
def test_it_costs_the_reader_thread_little() -> None:
    snapshot = session(cores=64, before=29.0, after=29.0)
    assert len(snapshot.time) == 600
    costs = []
    for _ in range(20):
        begin = time.process_time()
        strip(snapshot, snapshot.events, snapshot.loaders)
        costs.append(time.process_time() - begin)
    assert np.median(costs) < 3 * 2e-3


def test_bokeh_is_not_imported() -> None:
    code = "import sys, kernel_monitor.analysis; print([m for m in ('bokeh', 'torch', 'IPython') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rows_ten_seconds_apart_are_no_pauses() -> None:
    series: dict[str, Value] = {f"loader/{TRAIN}/images": 300.0, f"loader/{TRAIN}/step": 100.0}
    snapshot = build(300.0, 10.0, 1, series={"sample/interval": 10.0, **series}, steps=False, first=0.0)
    measured = measure(snapshot, TRAIN, -1.0, 300.0)
    assert measured.seconds == pytest.approx(290.0)
    assert measured.rate == pytest.approx(300.0)


def test_the_cpu_is_that_of_the_cores_that_may_be_used() -> None:
    snapshot = session(cores=4)
    limits = {"cpus": [1, 2], "cpu_quota": None, "memory": None, "source": None}
    schema = replace(snapshot.schema, host={**snapshot.schema.host, "limits": limits})
    values = snapshot.values.copy()
    for core in range(4):
        values[:, schema.columns[f"cpu/{core}/busy"]] = 80.0 if core in (1, 2) else 0.0
    found = measure(replace(snapshot, schema=schema, values=values), None, -1.0, 100.0)
    assert set(found.cpu.tolist()) == {80.0}
    assert limits_note(schema) == "this process may use 2 of 4 cores"
    assert allowed_cores(snapshot.schema) == frozenset(range(4))
    assert memory_note(snapshot.schema) == "host 64.0 GB"
