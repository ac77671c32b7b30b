"""The verdict of a loop as it runs: what a switch was predicted to bring, errors of ours, and what it costs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from kernel_monitor.runtime import Monitor
from kernel_monitor.runtime import current_verdict as judging
from kernel_monitor.store import Store
from tests.unit.checks import not_none, wait_for
from tests.unit.training import Train, image_folder, in_threads, loops, monitor_that_samples

pytestmark = in_threads

folder = pytest.fixture(scope="module")(image_folder)
monitor = pytest.fixture(monitor_that_samples)
train = pytest.fixture(loops)


def test_a_switch_is_predicted_from_what_was_there_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for number in range(100):
        store.append(0.1 * number, [])
    store.add_event("switch-asked", 5.0, loader="loader-1", source="torchvision", target="dali-cpu")
    store.add_event("switch", 5.5, loader="loader-1", source="torchvision", target="dali-cpu", asked=5.0, first=5.5)
    asked = []

    def verdict(rows: Any, _steps: Any, events: Any, states: Any, **_last: Any) -> dict[str, Any]:
        asked.append((rows.time[-1], [event["kind"] for event in events], states))
        return {"kind": "input-bound", "gains": [{"action": "dali-cpu", "low": 0.3, "high": 0.5}]}

    monkeypatch.setattr(judging, "live_verdict", verdict)
    now = {"id": "loader-1", "name": "train", "backend": "dali-cpu", "wanted": None}
    one = judging.CurrentVerdict(store, lambda _: None)

    def add(kind: str, at: float, **fields: Any) -> None:
        store.add_event(kind, at, **fields)

    one.predict([now], add)
    (latest, kinds, states) = asked[0]
    assert latest == pytest.approx(5.0)
    assert kinds == []
    assert states == [{**now, "backend": "torchvision"}]
    told = store.events()[-1]
    assert (told["kind"], told["time"], told["target"]) == ("prediction", 5.0, "dali-cpu")
    assert told["gains"] == [{"action": "dali-cpu", "low": 0.3, "high": 0.5}]
    one.predict([now], add)
    assert len(asked) == 1


def test_a_switch_of_minutes_ago_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a switch measured is remembered longer than the verdict looks back, and looked at once."""
    from kernel_monitor.steps.measured_step import Step

    store = Store()
    for number in range(2000):
        store.append(0.1 * (number + 1), [])
    ends, step = 0.0, 0.1
    while ends < 200:
        step = 0.16 if 20 <= ends < 40 else 0.1
        ends += step
        store.steps.add("loader-1", [Step(ends, 0, 0, 32, 0.8 * step, step)])
    for first, source, target in ((20.2, "torchvision", "dali-cpu"), (40.2, "dali-cpu", "torchvision")):
        asked = first - 0.2
        store.add_event("switch-asked", asked, loader="loader-1", source=source, target=target)
        store.add_event("switch", first, loader="loader-1", source=source, target=target, asked=asked, first=first)
    backends = [{"name": name, "available": True} for name in ("torchvision", "dali-cpu")]
    states = [{"id": "loader-1", "name": "train", "backend": "torchvision", "wanted": None, "backends": backends}]
    one = judging.CurrentVerdict(store, lambda _: None)
    said = not_none(one.judge(200.0, states))
    assert said["advice"].startswith("Keep torchvision: dali-cpu ran 1.60 × slower than torchvision in this loop.")
    monkeypatch.setattr(judging, "pairs", lambda *_args: pytest.fail("it was looked at before"))
    assert one.judge(200.0, states) == said


def test_an_error_in_the_verdict_is_shown_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_args: Any, **_more: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(judging, "live_verdict", fails)
    store = Store()
    store.append(0.1, [])
    store.add_event("switch-asked", 0.1, loader="loader-1", source="torchvision", target="dali-cpu")
    one = judging.CurrentVerdict(store, lambda _: None)
    states = [{"id": "loader-1", "name": "train", "backend": "torchvision", "wanted": None}]
    for moment in (0.1, 5.0, 10.0):
        one.predict(states, lambda *_args, **_fields: pytest.fail("there is nothing to predict"))
        one.refresh(moment, states)
    assert one.verdict is not None
    assert (one.verdict["kind"], one.verdict["loader"]) == ("undetermined", "loader-1")
    assert "RuntimeError: a bug" in one.verdict["sentence"]
    assert one.kind(10.0) == "undetermined"
    assert one.kind(10.0 + 3 * judging.PERIOD_S) is None, "nobody has looked since"
    assert len(caplog.records) == 1


def test_engines_are_run_on_some_files_of_a_loop_that_waits_and_not_beside_a_diagnosis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = iter(["compute-bound", "input-bound", "input-bound", "input-bound", "input-bound"])

    def verdict(*_args: Any, **_more: Any) -> dict[str, Any]:
        return {"kind": next(kinds), "loader": "loader-1", "segment": "train", "gains": [], "offer": None}

    monkeypatch.setattr(judging, "live_verdict", verdict)
    store = Store()
    store.append(0.1, [])
    calibrated: list[str] = []
    one = judging.CurrentVerdict(store, calibrated.append)
    state = {"id": "loader-1", "name": "train", "backend": "torchvision", "wanted": None}
    one.refresh(0.0, [state])
    one.refresh(3.0, [state], {"diagnosing": {"state": "running"}})
    one.gains(5.0, state)  # as Diagnose and a switch ask
    assert calibrated == []
    one.refresh(6.0, [state])
    assert calibrated == ["loader-1"]
    one.judge(7.0, [state])
    assert calibrated == ["loader-1", "loader-1"]


def test_the_verdict_of_an_hour_takes_milliseconds(monitor: Monitor, train: Train) -> None:
    """The sampler's reader thread reaches it; the bar is 5 ms, and three times that here."""
    from kernel_monitor.steps.measured_step import Step

    loop = train(work=0.005)
    wait_for(lambda: monitor.store.last_seq > 5 and len(loop.came) > 50)
    loop.leave()
    monitor.stop()
    store = monitor.store
    store.set_capacity(36_000)
    newest = store.rows(store.last_seq - 1)
    columns = newest.schema.columns
    host = len(newest.schema.series) - sum(name.startswith("loader/") for name in columns)
    row = np.nan_to_num(newest.values[-1])
    loaders = {name: float(row[at]) for name, at in columns.items() if name.startswith("loader/")}
    begin = float(newest.time[-1])
    for number in range(36_000):
        store.append(begin + 0.1 * number, row[:host], loaders)
    end = begin + 3600.0
    store.steps.add(
        loop.loader.id,
        [Step(begin + 0.018 * k, k // 100, k % 100, 32, 0.008, 0.018, 0, 0.004, 0.004, 0.001) for k in range(200_000)],
    )
    states = monitor.loader_states()
    one = judging.CurrentVerdict(store, lambda _: None)
    taken = []
    for number in range(15):
        begun = time.thread_time()  # of a loaded machine it is asked what the thread itself takes
        one.refresh(end - 50.0 + 3.0 * number, states)
        taken.append(time.thread_time() - begun)
    assert one.verdict is not None
    assert np.median(taken) < 3 * 5e-3


def test_a_loop_that_ended_is_judged_by_all_its_steps_and_once() -> None:
    """What came after the last look counts, and a page that opens later finds it."""
    from kernel_monitor.analysis import analyse
    from kernel_monitor.analysis.verdict import past
    from tests.unit.analysis.test_live_verdict import stored
    from tests.unit.sessions import Run, build

    runs = [Run(0, 100, step=lambda k: 0.1, wait=lambda k: 0.05 if k < 400 else 0.09)]
    snapshot = build(130, runs=runs, cpus=2)
    store, states = stored(snapshot), [dict(state) for state in snapshot.loaders]
    for watched in (True, False):
        one = judging.CurrentVerdict(store, lambda _: None)
        if watched:
            one.verdict = one.judge(90.0, states, loader="loader-1")
            assert one.verdict is not None
            assert not one.verdict["over"]
            assert "of each step is waiting for data" in one.verdict["sentence"]
        one.refresh(130.0, states)
        made = not_none(one.verdict)
        assert made["over"]
        assert made["sentence"] == past(analyse(snapshot).verdict.sentence)
        assert made["sentence"].startswith("74 % of each step was waiting for data (74 of 100 ms, 1,000 steps")
        assert one.kind(130.0) is None, "no loop runs"
        one.refresh(140.0, states)
        assert one.verdict is made
