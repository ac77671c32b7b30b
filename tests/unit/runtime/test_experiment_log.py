"""What is written into an experiment's run, and that a client that fails or hangs harms nobody.

The real clients are in tests/frameworks/test_experiment_log.py.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.runtime import Monitor, experiment_log
from kernel_monitor.runtime.experiment_log import _Means, comparison_figures, engine_texts, switch_counts, targets
from kernel_monitor.store import Snapshot
from tests.unit.checks import wait_for
from tests.unit.sessions import Run, build, state, switch

pytestmark = pytest.mark.usefixtures("no_other_sources")


# -- the value of the setting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("comet", "log_to is wandb, mlflow or tensorboard, or tensorboard:FOLDER, not 'comet'"),
        ("wandb:mine", "or tensorboard:FOLDER, not 'wandb:mine'"),
        ("tensorboard:", "or tensorboard:FOLDER, not 'tensorboard:'"),
        (5, "a list of these, or an empty text for none, not 5"),
        (["tensorboard:a", "tensorboard:b"], "names tensorboard twice"),
    ],
)
def test_a_wrong_one_is_refused_and_nothing_is_changed(wrong: Any, sentence: str) -> None:
    monitor = Monitor()
    with pytest.raises(SessionError, match=sentence):
        monitor.configure(interval=0.2, log_to=wrong)
    assert monitor.settings["interval"] == 0.1


@pytest.mark.parametrize("folders", [False, True])
def test_a_client_that_is_not_installed_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: bool
) -> None:
    """Nor is a folder of that name in the working directory, such as wandb makes, taken for it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in ("wandb", "mlflow", "tensorboard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        if folders:
            (tmp_path / name).mkdir()
        with pytest.raises(SessionError, match=f"needs the package {name}, which this environment lacks: pip install"):
            targets(name)


def test_tensorboard_s_folder_stays_where_it_was_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert targets("tensorboard:mine") == (f"tensorboard:{tmp_path / 'mine'}",)
    (named,) = targets(["tensorboard", ""])
    assert named.startswith(f"tensorboard:{tmp_path / 'runs' / 'kernel_monitor-'}")
    assert targets("") == targets([]) == ()


# -- what is written --------------------------------------------------------------------------------------------------


def means_of(session: Snapshot) -> dict[str, float]:
    means = _Means()
    means.add(session, {loader: session.steps.of(loader) for loader in session.steps.loaders})
    return means.values()


def test_the_means_are_those_of_the_rows() -> None:
    series: dict[str, Any] = {
        "gpu/0/power_draw": 300.0, "gpu/0/temperature": 60.0, "gpu/1/power_draw": 100.0, "gpu/1/temperature": np.nan,
        "cpu/3/busy": 100.0, "gpu/0/utilisation": lambda time: np.where(time > 5, 80.0, 20.0),
    }  # fmt: skip
    assert means_of(build(10, gpus=2, busy=50.0, series=series, limits={"cpus": [2, 3]})) == pytest.approx({
        "kernel_monitor/cpu/busy": 75.0,  # of the two cores that this process may use
        "kernel_monitor/memory/percent": 30.0,
        "kernel_monitor/gpu/0/utilisation": 50.0, "kernel_monitor/gpu/0/memory": 40.0,
        "kernel_monitor/gpu/0/power_draw": 300.0, "kernel_monitor/gpu/0/temperature": 60.0,
        "kernel_monitor/gpu/1/utilisation": 50.0, "kernel_monitor/gpu/1/memory": 40.0,
        "kernel_monitor/gpu/1/power_draw": 100.0,
        "kernel_monitor/loader/train/images": 0.0,
    })  # fmt: skip


def test_wait_and_step_are_the_means_of_the_steps_and_not_of_the_rows() -> None:
    """100 steps of 0.1 s of which 20 ms are waited, then 10 of 1 s of which 900 ms are."""
    session = build(20, runs=[Run(0, 10, 0.1, 0.02), Run(10, 20, 1.0, 0.9)], loaders={"loader-1": "my data/1 é"})
    steps = len(session.steps)
    assert steps == pytest.approx(110, abs=1)
    found = means_of(session)
    assert found["kernel_monitor/loader/my_data_1_/wait"] == pytest.approx((100 * 20 + 10 * 900) / 110, rel=0.02)
    assert found["kernel_monitor/loader/my_data_1_/step"] == pytest.approx((100 * 100 + 10 * 1000) / 110, rel=0.02)
    assert found["kernel_monitor/loader/my_data_1_/images"] == pytest.approx(110 * 32 / 20, rel=0.02)


def test_engines_switches_and_the_comparison_have_keys_of_their_own() -> None:
    from kernel_monitor.analysis.switch_comparison import comparison

    events = (switch(20.0, "torchvision", "dali-cpu"),)
    states = [state("loader-1", "train", backend="dali-cpu"), state("loader-2", "val 2")]
    session = build(
        40,
        gpus=1,
        runs=[Run(0, 20, 0.1, 0.08), Run(20, 40, 0.05, 0.01)],
        events=events,
        states=[{"backend": "dali-cpu"}],
    )
    assert engine_texts(states) == {
        "kernel_monitor/loader/train/engine": "dali-cpu", "kernel_monitor/loader/val_2/engine": "torchvision",
    }  # fmt: skip
    assert switch_counts(states, session.events) == {
        "kernel_monitor/loader/train/switches": 1.0, "kernel_monitor/loader/val_2/switches": 0.0,
    }  # fmt: skip
    compared = comparison(session)
    found = comparison_figures(compared)
    assert compared.before is not None
    assert found["kernel_monitor/comparison/faster"] == compared.faster == pytest.approx(2.0, rel=0.05)
    assert found["kernel_monitor/comparison/before/images"] == compared.before.rate == pytest.approx(320, rel=0.02)
    assert found["kernel_monitor/comparison/after/wait"] == pytest.approx(10, rel=0.05)
    assert found["kernel_monitor/comparison/after/gpu_p50"] == 50.0


# -- clients that fail ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients can be imported; `make setup` keeps them beside the tests' environment."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / ".venv" / "experiment_logs"))


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    monkeypatch.setattr(experiment_log, "PERIOD_S", 0.1)
    monkeypatch.setattr(experiment_log, "_END_S", 0.5)
    one = Monitor()
    one.start(record=False)
    yield one
    one.stop()


def test_a_failure_is_shown_with_its_cause_and_the_log_goes_on_when_it_is_gone(
    monitor: Monitor, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    obstacle = tmp_path / "runs"
    obstacle.write_text("a file where TensorBoard wants a folder")
    monitor.configure(log_to=f"tensorboard:{obstacle / 'mine'}")
    wait_for(lambda: [log["state"] for log in monitor.experiment_logs] == ["failed"])
    (shown,) = monitor.experiment_logs
    assert str(obstacle) in shown["message"]
    assert f"not logging to tensorboard: {shown['message']}; it is tried every 0.1 s" in monitor.status()
    assert monitor.publisher.findings()["notices"] == [
        f"Not logging to tensorboard: {shown['message']}; it is tried every 0.1 s."
    ]
    assert f"Logging to tensorboard failed, and is tried every 0.1 s: {shown['message']}" in monitor.status()
    wait_for(lambda: monitor.store.last_seq > 3)
    obstacle.unlink()
    wait_for(lambda: [log["state"] for log in monitor.experiment_logs] == ["logging"])
    assert f"logging to tensorboard: {obstacle / 'mine'}" in monitor.status()
    assert monitor.publisher.findings()["notices"] == []
    monitor.configure(log_to="")
    assert monitor.experiment_logs == []
    assert not [one for one in threading.enumerate() if one.name == "kernel-monitor-tensorboard"]
    read = EventAccumulator(str(obstacle / "mine"))
    read.Reload()
    assert len(read.Scalars("kernel_monitor/cpu/busy")) >= 1


def test_a_client_that_hangs_keeps_nobody_waiting(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        asked.set()
        answer.wait()

    module: Any = ModuleType("wandb")
    module.run = SimpleNamespace(name="mine", id="1", step=0, log=hang, summary={})
    monkeypatch.setitem(sys.modules, "wandb", module)
    began = time.monotonic()
    monitor.configure(log_to="wandb")
    assert time.monotonic() - began < 0.4
    assert asked.wait(30)
    seen = monitor.store.last_seq
    wait_for(lambda: monitor.store.last_seq > seen + 3)
    began = time.monotonic()
    monitor.stop()
    assert time.monotonic() - began < 3
    assert "wandb did not take the last figures within 0.5 s" in monitor.status()
    answer.set()
