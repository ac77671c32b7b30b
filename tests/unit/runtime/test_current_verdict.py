"""The verdict of a loop as it runs: predictions, warnings of what a change did or an epoch lacked, errors, its cost."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest

from kernel_monitor import watch_loader
from kernel_monitor.analysis import analyse, live_verdict
from kernel_monitor.analysis.verdict import past
from kernel_monitor.runtime import Monitor
from kernel_monitor.runtime import current_verdict as judging
from kernel_monitor.runtime.current_verdict import CurrentVerdict, LoopWarnings
from kernel_monitor.runtime.loader_tracker import LoaderTracker
from kernel_monitor.steps.measured_step import Step
from kernel_monitor.store import Snapshot, Store
from tests.unit.analysis.rules.test_host import swapped
from tests.unit.checks import not_none, wait_for
from tests.unit.sessions import Run, build, state
from tests.unit.training import Train, image_folder, in_threads, loops, monitor_that_samples

pytestmark = in_threads

folder = pytest.fixture(scope="module")(image_folder)
monitor = pytest.fixture(monitor_that_samples)
train = pytest.fixture(loops)


STATE = {"id": "loader-1", "name": "train", "backend": "torchvision", "wanted": None}
SWITCH = {"loader": "loader-1", "source": "torchvision", "target": "dali-cpu"}


def test_a_switch_is_predicted_from_what_was_there_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    for number in range(100):
        store.append(0.1 * number, [])
    store.add_event("switch-asked", 5.0, **SWITCH)
    store.add_event("switch", 5.5, **SWITCH, asked=5.0, first=5.5)
    asked = []

    def verdict(rows: Any, _steps: Any, events: Any, states: Any, **_last: Any) -> dict[str, Any]:
        asked.append((rows.time[-1], [event["kind"] for event in events], states))
        return {"kind": "input-bound", "gains": [{"action": "dali-cpu", "low": 0.3, "high": 0.5}]}

    monkeypatch.setattr(judging, "live_verdict", verdict)
    now = {**STATE, "backend": "dali-cpu"}
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
    states = [{**STATE, "backends": backends}]
    one = judging.CurrentVerdict(store, lambda _: None)
    said = not_none(one.judge(200.0, states))
    assert said["advice"].startswith("Keep torchvision: dali-cpu ran 1.60 × slower than torchvision in this loop.")
    monkeypatch.setattr(judging, "switch_pairs", lambda *_args: pytest.fail("it was looked at before"))
    assert one.judge(200.0, states) == said


def test_an_error_in_the_verdict_is_shown_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_args: Any, **_more: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(judging, "live_verdict", fails)
    store = Store()
    store.append(0.1, [])
    store.add_event("switch-asked", 0.1, **SWITCH)
    one = judging.CurrentVerdict(store, lambda _: None)
    for moment in (0.1, 5.0, 10.0):
        one.predict([STATE], lambda *_args, **_fields: pytest.fail("there is nothing to predict"))
        one.refresh(moment, [STATE])
    made = not_none(one.verdict)
    assert (made["kind"], made["loader"]) == ("undetermined", "loader-1")
    assert "RuntimeError: a bug" in made["sentence"]
    assert one.kind(10.0) == "undetermined"
    assert one.kind(10.0 + 3 * judging.PERIOD_S) is None, "nobody has looked since"
    assert len(caplog.records) == 1


def test_engines_are_run_on_some_files_of_a_loop_that_waits_and_not_beside_a_diagnosis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = iter(["compute-bound", "input-bound", "input-bound", "input-bound", "input-bound"])

    def verdict(*_args: Any, **_more: Any) -> dict[str, Any]:
        return {
            "kind": next(kinds),
            "loader": "loader-1",
            "segment": "train",
            "gains": [],
            "offer": None,
            "over": False,
        }

    monkeypatch.setattr(judging, "live_verdict", verdict)
    store = Store()
    store.append(0.1, [])
    calibrated: list[str] = []
    one = judging.CurrentVerdict(store, calibrated.append)
    one.refresh(0.0, [STATE])
    one.refresh(3.0, [STATE], {"diagnosing": {"state": "running"}})
    one.gains(5.0, STATE)  # as Diagnose and a switch ask
    assert calibrated == []
    one.refresh(6.0, [STATE])
    assert calibrated == ["loader-1"]
    one.judge(7.0, [STATE])
    assert calibrated == ["loader-1", "loader-1"]


def test_the_verdict_of_an_hour_takes_milliseconds(monitor: Monitor, train: Train) -> None:
    """The sampler's reader thread reaches it; the bar is 5 ms, and three times that here."""

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


# -- warnings ---------------------------------------------------------------------------------------------------------


def stored(snapshot: Snapshot) -> Store:
    """The session as a running one has it."""
    store = Store(len(snapshot.time))
    schema: dict[str, Any] = {**snapshot.schema.to_json()}
    host = [one for one in schema["series"] if not one["name"].startswith("loader/")]
    keys = ("interval", "cpus", "gpus", "gpu_reason", "host")
    store.set_host({**{key: schema[key] for key in keys}, "series": host})
    store.set_loaders([{"id": "loader-1", "name": "train"}])
    names = snapshot.schema.names
    for at, row in zip(snapshot.time.tolist(), snapshot.values.tolist(), strict=True):
        store.append(at, row[: len(host)], dict(zip(names[len(host) :], row[len(host) :], strict=True)))
    for event in snapshot.events:
        fields = {key: value for key, value in event.items() if key not in ("id", "kind", "time")}
        store.add_event(event["kind"], event["time"], **fields)
    rows = snapshot.steps.of("loader-1")
    store.steps.add("loader-1", [Step(**{name: row[name].item() for name in Step._fields}) for row in rows])
    return store


def test_a_swap_is_warned_of_while_the_loop_runs_in_the_reports_words() -> None:
    snapshot = swapped()
    store, told = stored(snapshot), [dict(one) for one in snapshot.loaders]
    found = not_none(CurrentVerdict(store, lambda _: None).judge(81.0, told))
    (said,) = analyse(snapshot).verdict.warnings
    assert found["warnings"] == [said]
    assert said.startswith("The swap from torchvision to dali-cpu made the training's own steps 1.12 ×")


def test_a_swap_is_judged_by_a_minute_on_each_side_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = swapped(seconds=100.0)
    store, told = stored(snapshot), [dict(one) for one in snapshot.loaders]
    one = LoopWarnings(store, dict)
    (said,) = one.of("loader-1", 130.0, told)
    assert "250 and 4" in said, "at most a minute"
    monkeypatch.setattr(live_verdict, "segments", lambda *_: pytest.fail("it was looked at before"))
    assert one.of("loader-1", 140.0, told) == [said]
    store.add_event("mark", 139.0, label="another model")
    assert one.of("loader-1", 140.0, told) == [], "it is another loop"


def test_what_is_said_of_a_swap_rests_on_the_loops_last_steps_once_it_has_ended() -> None:
    snapshot = swapped()
    store, told = stored(snapshot), [dict(one) for one in snapshot.loaders]
    one = LoopWarnings(store, dict)
    (first,) = one.of("loader-1", 81.0, told)
    last = store.steps.table().of("loader-1")[-1]
    values = {name: last[name].item() for name in Step._fields}
    store.steps.add("loader-1", [Step(**{**values, "end": values["end"] + 0.01 * n}) for n in range(1, 11)])
    assert one.of("loader-1", 82.0, told) == [first], "a running loop is compared every five seconds"
    (said,) = one.of("loader-1", 82.0, told, over=True)
    (count,) = {int(n) for n in re.findall(r"and (\d+) steps", first)}
    assert f"and {count + 10} steps" in said


def test_what_it_costs_the_samplers_reader_thread() -> None:
    """64 cores, and a minute on each side of the swap: every five seconds, for a minute."""
    snapshot = swapped(seconds=60.0, cpus=64, busy=80.0)
    store, told = stored(snapshot), [dict(one) for one in snapshot.loaders]
    taken = []
    for number in range(5):
        begun = time.thread_time()
        LoopWarnings(store, dict).of("loader-1", 100.0 + number, told)
        taken.append(time.thread_time() - begun)
    assert np.median(taken) < 0.05


def test_an_epoch_that_delivered_nothing_is_warned_of_while_the_next_runs() -> None:
    store = Store()
    tracker = LoaderTracker(store, lambda _: 1.0, lambda *_args, **_fields: None)
    one = LoopWarnings(store, lambda: tracker.past)

    def said() -> list[str]:
        mine = [found for found in tracker.refresh() if found["name"] == "twice"]
        return [words for words in one.of("loader-1", 1.0, mine) if words.startswith("twice: ")]

    watched = watch_loader(iter(range(5)), name="twice")
    for _ in watched:
        assert said() == []
    assert said() == []
    for _ in range(3):
        assert list(watched) == []
    (words,) = said()
    assert words.startswith("twice: epochs 2, 3 and 4 delivered nothing; epoch 1 delivered 5 samples in 5 batches.")


def test_a_state_without_counts_is_no_epoch() -> None:
    bare: list[dict[str, Any]] = [{"id": "loader-1", "name": "train", "backend": "torchvision"}, state()]
    assert LoopWarnings(Store(), dict).of("loader-1", 1.0, bare) == []
