"""What a switch changed: exact figures of a session whose every number is known."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis import allowed_cores, switch_strip
from kernel_monitor.analysis.frames import Frames, limits_note, memory_note
from kernel_monitor.analysis.results import Segment
from kernel_monitor.analysis.segments import segments
from kernel_monitor.analysis.switch_comparison import compare
from kernel_monitor.store import Snapshot, Store
from tests.unit import sessions
from tests.unit.checks import contains, loaded_by, not_none
from tests.unit.sessions import Floats, Value, build, hello, stripped

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
    return stripped(snapshot)


def sides(snapshot: Snapshot) -> tuple[Segment, Segment]:
    compared = compare(snapshot)
    return compared.sides(not_none(compared.headline))


def figures(snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    return {row["label"]: (row["before"], row["after"]) for row in found(snapshot)["rows"]}


def test_the_strip_says_what_the_switch_changed() -> None:
    result = found(session(gpus=2))
    assert (result["loader"], result["source"], result["target"]) == (TRAIN, "torchvision", "dali-cpu")
    assert result["text"].replace("\N{NO-BREAK SPACE}", " ") == (
        "320 → 960 images/s, 3.00 × faster (6,368 in 20 s → 18,912 in 20 s) · step 100 → 33 ms · "
        "waiting for data 60 → 5.0 ms (60 → 15 % of the step) · GPU p50 31 → 88 % · CPU p95 100 → 61 %"
    )
    rows = {row["label"]: row for row in result["rows"]}
    assert rows["images/s"] == {"label": "images/s", "unit": "images/s", "before": 320.0, "after": 960.0}
    assert rows["data wait per step"]["unit"] == "ms"
    assert found(session(names=("train", "check")))["text"].startswith(
        "train: 320 → 960 images/s while it loops, 3.00 × "
    )


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
    result = not_none(switch_strip(snapshot, snapshot.events, [state]))
    words = " · switch back to torchvision"
    assert result["text"].endswith(words) is slower
    assert ("slow" in result["text"] or "switch back" in result["text"]) is slower
    assert result["back"] == ("torchvision" if slower else None)
    others: list[dict[str, Any]] = [{"wanted": "torchvision"}, {"backend": "torchvision"}, {"backends": []}]
    for changed in others:
        already = not_none(switch_strip(snapshot, snapshot.events, [{**state, **changed}]))
        assert already["back"] is None
    replayed = [{**event, "source": "synthetic"} for event in snapshot.events]
    assert "switch back" not in str(switch_strip(snapshot, replayed, [state]))


@pytest.mark.parametrize(("fields", "side"), [({"target": "synthetic"}, "after"), ({"source": "synthetic"}, "before")])
def test_figures_of_replayed_batches_are_called_so(fields: dict[str, str], side: str) -> None:
    words = f" · the figures {side} the switch are of replayed batches"
    for snapshot in (session(), session(after=0.5)):
        events = [{**event, **fields} if event["kind"] == "switch" else event for event in snapshot.events]
        result = not_none(switch_strip(snapshot, events, snapshot.loaders))
        assert result["text"].endswith(words)
        assert words not in found(snapshot)["text"]


def test_a_rate_comes_with_its_counts() -> None:
    snapshot = session()
    shown = figures(snapshot)
    for side in (0, 1):
        assert shown["samples"][side] == pytest.approx(shown["images/s"][side] * shown["counted over"][side], rel=0.03)
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
    before, after = sides(paused)
    assert before.seconds == pytest.approx(20.0, abs=0.5)
    assert after.seconds == pytest.approx(20.0, abs=0.5)
    cpu = next(one.values for one in after.statistics if one.metric == "cpu")
    assert (cpu.min, cpu.max) == (61.0, 61.0)


def test_the_change_over_counts_for_neither_side() -> None:
    snapshot = session()
    before, after = sides(snapshot)
    (switch,) = [event for event in snapshot.events if event["kind"] == "switch"]
    assert before.end <= switch["asked"]
    # Four batches of 33 ms that were made in advance.
    assert after.start == pytest.approx(switch["first"] + 4 * 0.033)
    assert (before.wait, after.wait) == pytest.approx((60.0, 5.0))


def test_a_side_is_all_that_was_measured_of_it() -> None:
    before, after = sides(session(before=90.0, after=90.0))
    assert before.seconds == pytest.approx(90.0, abs=0.3)
    assert after.seconds == pytest.approx(90.0, abs=0.3)
    snapshot = session(gap=(5.0, 6.5))
    # The store has no row for 1.5 s: the frames left out delivered nothing that was recorded.
    assert sides(snapshot)[0].seconds == pytest.approx(20.0, abs=0.3)


def test_too_little_is_said_and_not_compared() -> None:
    assert switch_strip(session(switch=False), [], []) is None
    early = found(session(after=1.0))
    assert (early["rows"], early["text"]) == ([], "torchvision → dali-cpu: measuring…")
    short = found(session(before=1.0))
    assert short["rows"] == []
    contains(short["text"], "too little was measured before the switch", "images in 0.")
    empty = Store().snapshot([], {})
    switch = {"id": 1, "kind": "switch", "time": 5.0, "loader": TRAIN, "source": "a", "target": "b"}
    result = not_none(switch_strip(empty, [switch], []))
    assert result["rows"] == []


def test_a_side_ends_at_the_switches_before_and_after_it() -> None:
    snapshot = session(before=30.0)
    earlier = {"id": 0, "kind": "switch", "time": 10.0, "loader": TRAIN, "source": "a", "target": "b", "first": 10.0}
    before, _ = sides(replace(snapshot, events=[earlier, *snapshot.events]))
    assert before.start == pytest.approx(10.0 + 4 * 0.1)
    snapshot = session(after=20.0)
    fields = {"loader": TRAIN, "source": "dali-cpu", "target": "torchvision", "epoch": 0, "batch": 600}
    later = {"id": 99, "kind": "switch", "time": 27.5, **fields, "asked": 27.0, "first": 27.5}
    _, after = sides(replace(snapshot, events=[*snapshot.events, later]))
    assert after.end <= 27.0 + INTERVAL or after.backend == "torchvision"
    soon = {**later, "asked": 22.9}
    cut = not_none(switch_strip(snapshot, [*snapshot.events, soon], snapshot.loaders))
    assert "too little was measured before the switch" in cut["text"]


def test_the_cpu_of_a_frame_is_the_mean_of_what_was_measured() -> None:
    rng = np.random.default_rng(2)
    store = Store(interval=INTERVAL)
    store.set_host(hello(*(f"cpu/{core}/busy" for core in range(3)), cpus=[0, 1, 2]))
    values = rng.uniform(0, 100, (300, 3)).astype(np.float32)
    values[7], values[9, 1] = np.nan, np.nan
    for k, row in enumerate(values):
        store.append(k * INTERVAL, row, {})
    measured = Frames(store.rows())
    expected = np.array([np.mean(row[np.isfinite(row)], dtype=float) for k, row in enumerate(values) if k != 7])
    np.testing.assert_allclose(measured.cpu[np.isfinite(measured.cpu)], expected)


@pytest.mark.alone
def test_it_costs_the_reader_thread_little() -> None:
    snapshot = session(cores=64, before=29.0, after=29.0)
    assert len(snapshot.time) == 600
    costs = []
    for _ in range(20):
        begin = time.process_time()
        switch_strip(snapshot, snapshot.events, snapshot.loaders)
        costs.append(time.process_time() - begin)
    assert np.median(costs) < 3 * 2e-3


def test_bokeh_is_not_imported() -> None:
    assert loaded_by("import kernel_monitor.analysis", "bokeh", "torch", "IPython") == []


def test_rows_ten_seconds_apart_are_no_pauses() -> None:
    series: dict[str, Value] = {f"loader/{TRAIN}/images": 300.0, f"loader/{TRAIN}/step": 100.0}
    snapshot = build(300.0, 10.0, 1, series={"sample/interval": 10.0, **series}, steps=False, first=0.0)
    (measured,) = segments(snapshot)
    assert measured.seconds == pytest.approx(280.0)  # the first delivery's row was made before
    assert measured.rate == pytest.approx(300.0)


def test_the_cpu_is_that_of_the_cores_that_may_be_used() -> None:
    snapshot = session(cores=4)
    limits = {"cpus": [1, 2], "cpu_quota": None, "memory": None, "source": None}
    schema = replace(snapshot.schema, host={**snapshot.schema.host, "limits": limits})
    values = snapshot.values.copy()
    for core in range(4):
        values[:, schema.columns[f"cpu/{core}/busy"]] = 80.0 if core in (1, 2) else 0.0
    found = Frames(replace(snapshot, schema=schema, values=values))
    assert set(found.cpu.tolist()) == {80.0}
    assert limits_note(schema) == "this process may use 2 of 4 cores"
    assert allowed_cores(snapshot.schema) == frozenset(range(4))
    assert memory_note(snapshot.schema) == "host 64.0 GB"
