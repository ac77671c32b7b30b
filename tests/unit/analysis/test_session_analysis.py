"""The analysis of constructed sessions: what it says, and that no input, however odd, makes it raise."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.live_verdict import live_verdict
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.errors import MonitorError
from kernel_monitor.store import Snapshot
from kernel_monitor.store.snapshot import StepTable
from tests.unit.checks import not_none
from tests.unit.sessions import Run, build, calibrated, live, rows_of, switch

PHASES = {"copy": 0.002, "forward": 0.01, "backward": 0.02, "optimizer": 0.003}


def starved(**changes: Any) -> Snapshot:
    """Two minutes of a loop on two cores that waits 60 ms of each 100."""
    given: dict[str, Any] = {"cpus": 2, "busy": 99.0, "kernel": 30.0, "workers": 165.0}
    return build(120, runs=[Run(0, 120, step=0.1, wait=0.06, phases=PHASES, warm_up=3)], **{**given, **changes})


def test_a_starved_loop_is_input_bound_with_its_figures_and_counts() -> None:
    found = analyse(starved())
    assert found.verdict.kind == "input-bound"
    assert "60 % of each step is waiting for data (60 of 100 ms, 1,1" in found.verdict.sentence
    assert found.verdict.shares == pytest.approx({"wait": 0.6, "copy": 0.02, "compute": 0.33, "other": 0.05}, abs=0.002)
    loader = next(one for one in found.verdict.gains if one.action == "loader")
    assert loader.low == pytest.approx(0.6, abs=0.01)
    assert loader.high == pytest.approx(0.7, abs=0.01)  # 30 ms of processor time a step are the training's own
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["verdict"]["kind"] == "input-bound"


def test_an_engine_that_was_run_on_some_files_has_an_expected_gain_and_another_does_not() -> None:
    backends = [{"name": name, "available": name != "dali-gpu"} for name in ("torchvision", "dali-cpu", "dali-gpu")]
    state = {"backends": backends, **calibrated(0.6 * 0.165)}
    found = analyse(starved(states=[state])).verdict
    gain = next(one for one in found.gains if one.action == "dali-cpu")
    # (30 + 0.6 x 165) ms of processor time on two cores, where (30 + 165) took 100 ms
    assert gain.low < 1 - 129 / 195 < gain.high
    assert gain.high - gain.low <= 0.3
    assert "dali-cpu" in found.advice
    unknown = analyse(starved(states=[{"backends": backends}])).verdict
    assert [one.action for one in unknown.gains] == ["loader"]
    assert any("dali-cpu" in one and "Diagnose" in one for one in unknown.missing)


def test_a_gain_said_before_a_switch_stands_beside_what_it_brought() -> None:
    backends = [{"name": name, "available": True} for name in ("torchvision", "dali-cpu")]
    runs = [
        Run(0, 60, step=0.1, wait=0.06, phases=PHASES),
        Run(60, 120, step=0.066, wait=0.026, phases=PHASES, epoch=1),
    ]
    snapshot = build(
        120, cpus=2, busy=99.0, kernel=30.0, workers=165.0, runs=runs,
        states=[{"backend": "dali-cpu", "backends": backends, **calibrated(0.6 * 0.165)}],
        events=[switch(60.0, "torchvision", "dali-cpu")],
    )  # fmt: skip
    found = analyse(snapshot)
    assert [one.backend for one in found.segments] == ["torchvision", "dali-cpu"]
    (made,) = found.changes
    assert made.saved == pytest.approx(0.34, abs=0.01)
    assert made.predicted is not None
    assert (made.predicted.action, made.predicted.measured) == ("dali-cpu", made.saved)
    assert made.predicted.low < made.saved < made.predicted.high


def _clock_back(snapshot: Snapshot) -> Snapshot:
    time = snapshot.time.copy()
    time[len(time) // 2 :] -= 30.0
    return replace(snapshot, time=time)


def _steps_back(snapshot: Snapshot) -> Snapshot:
    rows = snapshot.steps.rows.copy()
    rows["end"][len(rows) // 2 :] -= 30.0
    return replace(snapshot, steps=StepTable(snapshot.steps.loaders, rows))


def _wild(snapshot: Snapshot) -> Snapshot:
    values = snapshot.values.copy()
    values[::3] = np.nan
    values[1::7] = np.inf
    values[2::7] = -1e30
    rows = snapshot.steps.rows.copy()
    for name in ("wait", "step", "forward"):
        rows[name][::5] = np.nan
        rows[name][1::5] = -1.0
        rows[name][2::5] = np.inf
    return replace(snapshot, values=values, steps=StepTable(snapshot.steps.loaders, rows))


def _no_series(snapshot: Snapshot) -> Snapshot:
    schema = replace(snapshot.schema, series=(), cpus=(), loaders=())
    return replace(snapshot, schema=schema, values=np.empty((len(snapshot.time), 0), dtype=np.float32))


def _odd_events(snapshot: Snapshot) -> Snapshot:
    odd = [{"id": 1, "kind": "switch", "time": 5.0}, {"id": 2, "kind": "mark", "time": None}, {"id": 3, "kind": "?"}]
    return replace(snapshot, events=[*snapshot.events, *odd])


STRANGE: dict[str, tuple[Callable[[], Snapshot], str]] = {
    "nothing": (lambda: build(0.0), "Nothing was sampled"),
    "no loader": (lambda: build(20.0), "No loader delivered"),
    "no steps": (lambda: build(20.0, loaders={"loader-1": "train"}), "No loader delivered"),
    "one step": (lambda: build(20.0, runs=[Run(1, 9, steps=1)]), "No GPU was measured"),
    "no GPU": (starved, "No GPU was measured"),
    "an unfinished epoch": (starved, "is not finished"),
    "an older file": (lambda: starved(steps=False), "kept no single steps"),
    "a clock that went back": (lambda: _clock_back(starved()), "The clock"),
    "steps whose clock went back": (lambda: _steps_back(starved()), ""),
    "numbers that are none": (lambda: _wild(starved()), ""),
    "no series": (lambda: _no_series(starved()), ""),
    "odd events": (lambda: _odd_events(starved()), "could not be computed"),
    "no model watched": (lambda: build(60, runs=[Run(0, 60)]), "No model was watched"),
    "a price that is none": (lambda: starved(facts={"price": "free"}), ""),
    "a negative price": (lambda: starved(facts={"price": -1.0}), "The cost could not be computed"),
    "another rank": (lambda: starved(facts={"rank": 1, "world_size": 4}), ""),
    "a gap": (lambda: starved(gap=(40.0, 70.0)), ""),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_sessions_are_analysed_and_say_what_they_cannot_say(name: str) -> None:
    make, words = STRANGE[name]
    found = analyse(make())
    assert found.verdict.sentence
    assert found.verdict.advice
    assert words in " ".join(found.cannot)
    json.dumps(found.to_json(), allow_nan=False)


def test_an_older_file_is_judged_by_its_frames() -> None:
    found = analyse(starved(steps=False)).verdict
    assert found.kind == "input-bound"
    assert found.shares == pytest.approx({"wait": 0.6}, abs=0.02)
    assert any("monitor.watch" in one for one in found.missing)


def test_replayed_batches_have_no_verdict() -> None:
    found = analyse(build(60, runs=[Run(0, 60)], states=[{"backend": "synthetic"}])).verdict
    assert found.kind == "undetermined"
    assert "Replayed" in found.sentence
    assert not found.gains


def test_thresholds_of_the_verdict_can_be_set_and_unknown_ones_are_refused() -> None:
    high = {"verdict": {"wait": 0.7}}
    assert analyse(starved(), thresholds=high).verdict.kind != "input-bound"
    with pytest.raises(MonitorError, match="no threshold 'weight'"):
        analyse(starved(), thresholds={"verdict": {"weight": 1.0}})


# -- while it runs ----------------------------------------------------------------------------------------------------


def test_the_verdict_while_it_runs_is_that_of_the_newest_segment() -> None:
    runs = [Run(0, 60, step=0.1, wait=0.06), Run(60, 120, step=0.05, wait=0.0, phases={"forward": 0.048})]
    found = not_none(live(build(120, runs=runs, events=[switch(60.0, "torchvision", "dali-cpu")])))
    assert (found["kind"], found["loader"]) == ("compute-bound", "loader-1")
    assert found["steps"] == pytest.approx(1200, abs=5)  # none of before the switch
    json.dumps(found, allow_nan=False)
    assert live(build(60, runs=[Run(0, 40)])) is None
    assert live(build(20)) is None


def test_the_words_do_not_flicker_at_a_threshold() -> None:
    def waiting(wait: float, last: dict[str, Any] | None = None, **phases: float) -> dict[str, Any]:
        return not_none(live(build(60, runs=[Run(0, 60, step=0.1, wait=wait, phases=phases)]), last))

    before = waiting(0.05)
    assert [waiting(0.0092)["kind"], before["kind"]] == ["undetermined", "input-bound"]
    kept, changed = (waiting(0.0092, last, forward=0.08) for last in (before, None))
    assert [kept["kind"], changed["kind"]] == ["input-bound", "compute-bound"]


def test_the_verdict_while_it_runs_is_cheap() -> None:
    runs = [Run(0, 600, step=0.02, wait=0.012, phases={"forward": 0.004, "backward": 0.003})]
    snapshot = build(600, cpus=64, gpus=8, runs=runs)
    assert len(snapshot.steps) > 20_000
    rows = rows_of(snapshot)
    times = []
    for _ in range(20):
        began = time.process_time()
        live_verdict(rows, snapshot.steps, snapshot.events, snapshot.loaders)
        times.append(time.process_time() - began)
    assert sorted(times)[5] < 3 * 0.005, times
