"""*Diagnose* on real loaders, with the loop on a thread of its own: what it measures, and everything that ends it."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.diagnosis import loop_guard
from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import switchable
from kernel_monitor.runtime import Monitor
from tests.loaders.conftest import augmented
from tests.unit.checks import not_none, wait_for
from tests.unit.training import (
    BATCH,
    IMAGES,
    Train,
    Training,
    image_folder,
    in_threads,
    loader_of,
    loops,
    monitor_that_samples,
)

pytestmark = in_threads

folder = pytest.fixture(scope="module")(image_folder)
monitor = pytest.fixture(monitor_that_samples)
train = pytest.fixture(loops)


def state(monitor: Monitor) -> dict[str, Any]:
    current = not_none(monitor.diagnosing)
    return cast("dict[str, Any]", current)


def ended(monitor: Monitor, seconds: float = 60.0) -> dict[str, Any]:
    wait_for(lambda: state(monitor)["state"] != "running", seconds)
    return state(monitor)


def measuring(monitor: Monitor, engine: str) -> None:
    """Return when this engine is being measured."""
    wait_for(lambda: state(monitor)["message"] == f"measuring {engine}")


def test_each_engine_is_measured_and_the_first_one_comes_back(monitor: Monitor, train: Train) -> None:
    loop = train()
    wait_for(lambda: len(loop.came) > 5)
    said: list[dict[str, Any]] = []
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.02):
            if monitor.diagnosing is not None and (not said or said[-1] is not monitor.diagnosing):
                said.append(state(monitor))

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = monitor.diagnose(seconds=2.0, confirmed=True)
    watching.set()
    watcher.join()
    assert found is not None
    json.dumps(found, allow_nan=False)
    assert [run["backend"] for run in found["runs"]] == ["torchvision", "dali-cpu", "threads", "synthetic"]
    assert [run["problem"] for run in found["runs"]] == [None] * 4
    assert found["back_to"] == loop.loader.backend == "torchvision"
    assert found["synthetic"] is True
    times = np.array([came for came, _ in loop.came])
    counts = np.array([count for _, count in loop.came])
    for run in found["runs"]:
        assert run["seconds"] >= 2.0
        assert run["steps"] >= 20
        # The loop's own notes; a batch comes once in a step, at most one more or fewer at the ends.
        zero = not_none(monitor.live_session.session_time(0.0))
        inside = (times + zero > run["start"]) & (times + zero <= run["end"])
        assert counts[inside].sum() == pytest.approx(BATCH * run["batches"], abs=BATCH)
        # The first step of each epoch is warm-up, which does not count.
        assert run["batches"] * 0.8 < run["steps"] < run["batches"]
        assert (run["samples"], run["rate"]) == (BATCH * run["steps"], pytest.approx(run["samples"] / run["seconds"]))
        assert run["rate_low"] <= run["rate_high"]
        assert run["wait"] < run["step"]
        assert 0 <= run["cpu_p50"] <= run["cpu_p95"] <= 100
        assert 0 < run["of_ceiling"] <= 1
    assert found["runs"][3]["wait"] < found["runs"][0]["wait"]
    assert {gain["action"] for gain in found["measured"]} == {"dali-cpu", "threads", "loader"}
    assert found["best"] in ("torchvision", "dali-cpu", "threads")
    assert any("dali-gpu cannot run here" in sentence for sentence in found["cannot"])

    last = state(monitor)
    assert (last["state"], last["done"], last["total"], last["seconds_left"]) == ("done", 4, 4, 0)
    assert (last["message"], last["result"]) == (found["sentence"], found)
    assert "torchvision" in str(found)
    running = [one for one in said if one["state"] == "running"]
    assert {one["backend"] for one in running} == {"torchvision", "dali-cpu", "threads", "synthetic"}
    assert [one["done"] for one in running] == sorted(one["done"] for one in running)
    assert running[0]["seconds_left"] > running[-1]["seconds_left"]
    event = next(one for one in monitor.store.events() if one["kind"] == "diagnosis")
    assert (event["result"], event["state"]) == (found, "done")


def test_without_consent_nothing_is_replayed(monitor: Monitor, train: Train) -> None:
    loop = train()
    found = not_none(monitor.diagnose(seconds=1.0))
    assert [run["backend"] for run in found["runs"]] == ["torchvision", "dali-cpu", "threads"]
    assert found["synthetic"] is False
    assert any("allow synthetic" in sentence for sentence in found["cannot"])
    assert {switch.target for switch in loop.loader.history} == {"torchvision", "dali-cpu", "threads"}


def test_it_returns_at_once_when_it_is_not_to_wait_and_can_be_cancelled(monitor: Monitor, train: Train) -> None:
    loop = train()
    begun = time.perf_counter()
    assert monitor.diagnose(seconds=20.0, wait=False) is None
    assert time.perf_counter() - begun < 0.1
    measuring(monitor, "torchvision")
    with pytest.raises(MonitorError, match="is being diagnosed"):
        monitor.diagnose(wait=False)
    assert monitor.cancel_diagnosis() is True
    last = ended(monitor)
    assert (last["state"], last["message"], last["result"]) == ("cancelled", "It was cancelled.", None)
    assert (loop.loader.backend, loop.loader.history) == ("torchvision", [])
    assert monitor.cancel_diagnosis() is False


def test_cancelled_on_another_engine_it_goes_back(monitor: Monitor, train: Train) -> None:
    loop = train()
    monitor.diagnose(seconds=1.0, wait=False)
    measuring(monitor, "dali-cpu")
    monitor.cancel_diagnosis()
    last = ended(monitor)
    assert last["state"] == "cancelled"
    assert [run["backend"] for run in last["result"]["runs"]] == ["torchvision"]
    assert "dali-cpu was not measured: It was cancelled." in last["result"]["cannot"]
    assert loop.loader.backend == "torchvision"
    event = next(one for one in monitor.store.events() if one["kind"] == "diagnosis")
    assert event["state"] == "cancelled"


@pytest.mark.parametrize("engine", ["torchvision", "dali-cpu"])
def test_what_a_person_clicks_meanwhile_stands(engine: str, monitor: Monitor, train: Train) -> None:
    loop = train()
    monitor.diagnose(seconds=1.5, wait=False)
    measuring(monitor, engine)
    clicked = "torchvision" if engine == "dali-cpu" else "dali-cpu"
    monitor.switch(clicked)
    last = ended(monitor)
    assert (last["state"], last["message"]) == (
        "cancelled",
        f"Stopped, as {clicked} was chosen meanwhile and stays in use.",
    )
    wait_for(lambda: loop.loader.backend == clicked)
    steps = loop.loader.meter.totals().steps
    wait_for(lambda: loop.loader.meter.totals().steps > steps + 20)
    assert loop.loader.backend == clicked


def test_a_click_in_the_same_moment_is_not_lost(train: Train) -> None:
    """The diagnosis asks for an engine a moment after a person did: theirs comes back."""
    loop = train()
    wait_for(lambda: len(loop.came) > 2)

    class Stage:
        running = True

    seen = loop_guard.LoopGuard(loop.loader, Stage())  # type: ignore[arg-type]
    seen.own_thread()
    seen.clicked = "dali-cpu"
    seen.ask("torchvision")
    wait_for(lambda: loop.loader.backend == "dali-cpu")


def test_a_knob_that_is_turned_ends_it(monitor: Monitor, train: Train) -> None:
    train()
    monitor.diagnose(seconds=3.0, wait=False)
    measuring(monitor, "torchvision")
    monitor.set(prefetch=3)
    last = ended(monitor)
    assert last["state"] == "cancelled"
    assert "knob" in last["message"]


def test_a_loop_that_ends_ends_it_with_what_was_measured(
    monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_guard, "PAUSE_S", 1.0)
    loop = train()
    monitor.diagnose(seconds=1.0, wait=False)
    measuring(monitor, "dali-cpu")
    loop.leave()
    last = ended(monitor)
    assert last["state"] == "failed"
    assert "the loop has ended, or it pauses" in last["message"]
    assert [run["backend"] for run in last["result"]["runs"]] == ["torchvision"]
    # The next loop begins with the engine that was in use.
    next(iter(loop.loader))
    assert loop.loader.backend == "torchvision"


def test_a_pause_between_epochs_is_waited_for(monitor: Monitor, train: Train) -> None:
    loop = train()
    wait_for(lambda: len(loop.came) > 5)
    monitor.diagnose(seconds=2.0, wait=False)
    measuring(monitor, "torchvision")
    loop.pause.set()
    time.sleep(2.5)
    loop.pause.clear()
    last = ended(monitor)
    assert last["state"] == "done", last["message"]
    run = last["result"]["runs"][0]
    assert run["end"] - run["start"] > run["seconds"] + 1.0
    # Were the pause counted, the rate would be that over the whole time.
    assert run["rate"] > 1.2 * run["samples"] / (run["end"] - run["start"])


def test_while_another_loader_steps_a_pause_is_an_evaluation(
    monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_guard, "PAUSE_S", 1.0)
    loop = train()
    monitor.diagnose("train", seconds=1.0, wait=False)
    measuring(monitor, "torchvision")
    loop.pause.set()
    other = train("val")
    time.sleep(2.5)
    assert state(monitor)["state"] == "running"
    loop.pause.clear()
    assert ended(monitor)["state"] == "done"
    assert other.loader.history == []


def test_no_loop_fails_with_what_to_do(monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_guard, "START_S", 1.0)
    loop = train(epochs=1)
    loop.leave()
    with pytest.raises(MonitorError, match="No training loop is running: start it, then press Diagnose"):
        monitor.diagnose()
    last = state(monitor)
    assert (last["state"], last["result"]) == ("failed", None)
    assert loop.loader.history == []


def test_a_loader_that_was_never_wrapped_is_measured_alike(monitor: Monitor, folder: Path) -> None:
    loader = loader_of(folder)
    loop = Training(loader)
    try:
        wait_for(lambda: len(loop.came) > 5)
        found = monitor.diagnose(seconds=2.0, confirmed=True)
        assert found is not None
        assert [(run["backend"], run["problem"]) for run in found["runs"]] == [
            ("torchvision", None), ("dali-cpu", None), ("threads", None), ("synthetic", None)
        ]  # fmt: skip
        assert found["back_to"] == "torchvision"
        (one,) = monitor.loaders
        assert (one.kind, one.backend, one.state()["wanted"]) == ("attached", "torchvision", None)
        assert (one.state()["lost"], one.state()["doubled"]) == (0, 0)
    finally:
        loop.leave()
        del loop.loader, loader  # or the next tests find it


def test_no_loader_and_bad_values_are_refused(monitor: Monitor, train: Train) -> None:
    with pytest.raises(MonitorError, match="no loader to switch"):
        monitor.diagnose()
    loop = train()
    for seconds in (0.5, 61, True, "8", float("nan")):
        with pytest.raises(MonitorError, match="1 to 60 seconds"):
            monitor.diagnose(seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(MonitorError, match="called 'vla'"):
        monitor.diagnose("vla")
    assert monitor.diagnosing is None
    assert loop.loader.history == []


def test_of_several_loaders_it_is_the_one_in_use(
    monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = train("val", epochs=1)
    idle.leave()
    loop = train("train")
    wait_for(lambda: len(loop.came) > 5)
    monkeypatch.setattr("kernel_monitor.diagnosis.loop_command.TOGETHER_S", 0.5)
    time.sleep(0.6)
    monitor.diagnose(seconds=1.0, wait=False)
    assert state(monitor)["name"] == "train"
    assert ended(monitor)["state"] == "done"
    assert idle.loader.history == []
    other = train("more")
    wait_for(lambda: len(other.came) > 5)
    with pytest.raises(MonitorError, match="Several are live"):
        monitor.diagnose(seconds=1.0)


def test_while_it_evaluates_the_training_is_the_one_in_use(
    monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = train("train")
    wait_for(lambda: len(loop.came) > 5)
    evaluation = train("val", gradients=False)
    wait_for(lambda: len(evaluation.came) > 5)
    assert monitor.diagnosis._in_use() == loop.loader.id
    loop.pause.set()
    wait_for(lambda: time.monotonic() - loop.came[-1][0] > 0.5)
    monkeypatch.setattr("kernel_monitor.diagnosis.loop_command.TOGETHER_S", 0.2)
    assert monitor.diagnosis._in_use() == loop.loader.id
    monkeypatch.setattr("kernel_monitor.diagnosis.loop_command.EVALUATION_S", 0.2)
    assert monitor.diagnosis._in_use() == evaluation.loader.id


def test_an_engine_that_does_not_start_is_named_and_the_others_are_measured(monitor: Monitor, train: Train) -> None:
    def broken(_sample: Any) -> Any:
        raise ValueError("no such operator")

    loop = train(dali=broken)
    found = not_none(monitor.diagnose(seconds=1.0, confirmed=True))
    problems = {run["backend"]: run["problem"] for run in found["runs"]}
    assert problems["torchvision"] is None
    assert problems["synthetic"] is None
    assert "no such operator" in problems["dali-cpu"]
    assert loop.loader.backend == "torchvision"


def test_a_loader_that_is_gone_ends_it(monitor: Monitor, folder: Path) -> None:
    loader = switchable(loader_of(folder), name="short")
    batches = iter(loader)
    next(batches)
    monitor.diagnose(seconds=2.0, wait=False)
    next(batches)
    wait_for(lambda: "settles" in state(monitor)["message"] or "measuring" in state(monitor)["message"])
    del batches, loader
    gc.collect()
    last = ended(monitor)
    assert last["state"] == "failed"
    assert "short is gone" in last["message"]


def test_a_monitor_that_is_stopped_ends_it(monitor: Monitor, train: Train) -> None:
    loop = train()
    monitor.diagnose(seconds=5.0, wait=False)
    measuring(monitor, "torchvision")
    monitor.stop()
    assert ended(monitor)["message"] == "The monitor was stopped."
    assert loop.loader.backend == "torchvision"


def test_an_error_of_ours_is_shown_and_harms_nothing(
    monitor: Monitor, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: Any, **_more: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("kernel_monitor.diagnosis.loop_run.trial", fails)
    loop = train()
    with pytest.raises(MonitorError, match="RuntimeError: a bug"):
        monitor.diagnose(seconds=1.0)
    assert state(monitor)["state"] == "failed"
    count = len(loop.came)
    wait_for(lambda: len(loop.came) > count + 5)
    monkeypatch.undo()
    assert monitor.diagnose(seconds=1.0) is not None


def test_a_loop_of_which_no_step_counts_does_not_hold_it_up(
    monitor: Monitor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of epochs of one batch every step is the first of its epoch, which is warm-up."""
    monkeypatch.setattr("kernel_monitor.diagnosis.diagnosis_run.LONGEST_S", 1.0)
    whole = DataLoader(ImageFolder(str(folder), augmented()), batch_size=IMAGES)
    loop = Training(switchable(whole, name="short epochs"))
    try:
        wait_for(lambda: len(loop.came) > 2)
        found = monitor.diagnose(seconds=1.0)
    finally:
        loop.leave()
        loop.loader.release()
    assert found is not None
    assert all(run["problem"].startswith("only 0 steps ended") for run in found["runs"])
    assert found["sentence"] == "No engine could be measured."
