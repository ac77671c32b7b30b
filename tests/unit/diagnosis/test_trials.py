"""What a diagnosis makes of the steps and rows of each engine's segment."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from kernel_monitor.diagnosis.trials import Trial, covered, diagnosis, per_second, step_rows, trial, with_ceiling
from kernel_monitor.steps.measured_step import ON_DEVICE, Step
from kernel_monitor.store import Rows
from tests.unit.checks import contains, not_none
from tests.unit.sessions import Value, build, rows_of


def steps(*parts: tuple[float, float], images: int = 10, begin: float = 100.0, **more: Any) -> list[Step]:
    """Steps one after the other, each of (wait, whole) in s."""
    made = []
    for number, (wait, whole) in enumerate(parts):
        begin += whole
        made.append(Step(begin, 0, number, images, wait, whole, **more))
    return made


def rows(seconds: float = 10.0, cpu: float = 80.0, gpu: float | None = None) -> Rows:
    """What a sampler would have told of a loop that delivers in every frame."""
    series: dict[str, Value] = {"cpu/0/busy": cpu, "cpu/1/busy": cpu - 20}
    series |= {f"loader/loader-1/{part}": value for part, value in (("images", 100.0), ("wait", 1.0), ("step", 2.0))}
    if gpu is not None:
        series["gpu/0/utilisation"] = gpu
    return rows_of(build(seconds, cpus=2, gpus=int(gpu is not None), series=series, first=0.0))


def tried(*parts: tuple[float, float], end: float = 10.0, **more: Any) -> Trial:
    return trial("x", steps(*parts), rows(**more), "loader-1", 0.0, end)


def measured(backend: str, wait: float = 0.0, whole: float = 0.1, count: int = 40, **more: Any) -> Trial:
    return trial(backend, steps(*[(wait, whole)] * count, **more), rows(), "loader-1", 0.0, 10.0)


def test_figures_are_those_of_the_steps_and_of_the_frames() -> None:
    parts = [(0.01, 0.1), (0.05, 0.2)] * 20
    one = tried(*parts, gpu=42.0)
    assert (one.steps, one.batches, one.samples, one.seconds) == pytest.approx((40, 40, 400, 6.0))
    assert (one.rate, one.step) == pytest.approx((400 / 6.0, 150.0))
    assert one.wait == pytest.approx(30.0)
    assert (one.cpu_p50, one.cpu_p95, one.gpu_p50) == pytest.approx((70.0, 70.0, 42.0))
    assert one.problem is None
    assert tried(*parts).gpu_p50 is None


def test_quartiles_are_of_single_seconds() -> None:
    # Four seconds at 10, 20, 40 and 80 images a second.
    parts = [(0.0, 1.0), (0.0, 0.5), (0.0, 0.5), *[(0.0, 0.25)] * 4, *[(0.0, 0.125)] * 8]
    made = steps(*parts)
    rates = per_second(covered(step_rows(made)), np.array([step.images for step in made], dtype=float))
    assert rates == pytest.approx([10, 20, 40, 80])
    one = tried(*parts, end=4.0)
    assert (one.rate_low, one.rate_high) == pytest.approx(tuple(np.percentile([10, 20, 40, 80], (25, 75))))


@pytest.mark.parametrize(("wait", "steps_counted", "seconds"), [(0.01, 40, 4.0), (11.9, 41, 16.0)])
def test_a_pause_of_the_loop_is_left_out_and_a_stall_of_the_loader_is_not(
    wait: float, steps_counted: int, seconds: float
) -> None:
    one = tried(*[(0.01, 0.1)] * 20, (wait, 12.0), *[(0.01, 0.1)] * 20)
    assert (one.steps, one.seconds) == pytest.approx((steps_counted, seconds))


def test_two_iterations_at_a_time_count_their_time_once() -> None:
    one, two = steps(*[(0.0, 0.2)] * 20), steps(*[(0.0, 0.2)] * 20, begin=100.1)
    both = sorted([*one, *two])
    assert covered(step_rows(both)).sum() == pytest.approx(4.1)
    assert trial("x", both, rows(), "loader-1", 0.0, 5.0).rate == pytest.approx(400 / 4.1)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_steps_give_a_problem_and_no_figures(count: int) -> None:
    one = measured("x", wait=0.0, whole=0.1, count=count)
    assert one.problem == f"only {count} steps ended in 0 s"
    assert math.isnan(one.rate)


def test_the_ceiling_is_what_replayed_batches_reached_or_comes_from_the_phases_of_the_least_disturbed_trial() -> None:
    made = [measured("torchvision", wait=0.3, whole=0.4), measured("synthetic", wait=0.0, whole=0.1)]
    trials, caveat = with_ceiling(made)
    assert [one.of_ceiling for one in trials] == pytest.approx([0.25, 1.0])
    assert caveat is None
    phases: dict[str, Any] = {"forward": 0.02, "backward": 0.03, "optimizer": 0.01}
    made = [
        measured("torchvision", wait=0.3, whole=0.4, **phases),
        measured("dali-cpu", wait=0.0, whole=0.08, **phases),
    ]
    trials, caveat = with_ceiling(made)
    assert [one.of_ceiling for one in trials] == pytest.approx([0.2, 1.0])
    assert caveat is not None
    assert "allow synthetic" in caveat


def test_a_host_that_waits_while_the_gpu_works_does_not_starve_it() -> None:
    on_device: dict[str, Any] = {"forward": 0.03, "backward": 0.06, "flags": ON_DEVICE}
    one = with_ceiling([measured("torchvision", wait=0.06, whole=0.1, **on_device)])[0][0]
    assert one.of_ceiling == pytest.approx(0.9)


def test_without_either_nothing_is_said_of_the_ceiling() -> None:
    trials, caveat = with_ceiling([measured("torchvision", wait=0.3, whole=0.4)])
    assert trials[0].of_ceiling is None
    assert "monitor.watch(model, optimizer)" in not_none(caveat)


PREDICTED = [{"action": "dali-cpu", "low": 0.4, "high": 0.6, "measured": None, "basis": "from the phases"}]


def found(*trials: Trial, **more: Any) -> dict[str, Any]:
    told = dict(diagnosis("loader-1", "train", trials, first="torchvision", back_to="torchvision", **more))
    json.dumps(told, allow_nan=False)
    return told


def test_a_diagnosis_sets_the_measured_gain_beside_the_predicted_one() -> None:
    told = found(
        measured("torchvision", wait=0.3, whole=0.4),
        measured("dali-cpu", wait=0.1, whole=0.2),
        measured("synthetic", wait=0.0, whole=0.1),
        predicted=PREDICTED,
    )
    assert told["predicted"] == PREDICTED
    dali, replay = told["measured"]
    assert (dali["action"], dali["low"], dali["high"], dali["measured"]) == ("dali-cpu", 0.4, 0.6, pytest.approx(0.5))
    assert dali["basis"] == "400.0 → 200.0 ms per step (40 → 40 steps)"
    assert (replay["action"], replay["low"], replay["measured"]) == ("loader", None, pytest.approx(0.75))
    assert told["best"] == "dali-cpu"
    assert told["synthetic"] is True
    assert told["sentence"].startswith(
        "dali-cpu is the fastest here, 2.0 × faster than torchvision: torchvision 25 images/s (quartiles 25"
    )
    contains(told["sentence"], "50 % of what the loop can take", "CPU p95 70 % → 70 %")
    assert [run["backend"] for run in told["runs"]] == ["torchvision", "dali-cpu", "synthetic"]
    assert told["cannot"] == []


def test_what_lies_within_the_spread_is_not_called_faster() -> None:
    wild = [(0.0, 0.05), (0.0, 0.4)]
    shaky = [
        trial(name, steps(*wild * 20, *more), rows(), "loader-1", 0.0, 10.0)
        for name, more in (("torchvision", []), ("dali-cpu", [(0.0, 0.05)] * 8))
    ]
    assert found(*shaky)["best"] == "dali-cpu"
    assert found(*shaky)["sentence"].startswith("No engine is clearly faster than torchvision: dali-cpu")


def test_the_engine_in_use_may_be_the_fastest() -> None:
    told = found(measured("torchvision", wait=0.0, whole=0.1), measured("dali-cpu", wait=0.1, whole=0.2))
    assert told["best"] == "torchvision"
    assert told["sentence"].startswith("torchvision is the fastest here already")
    assert told["measured"][0]["measured"] == pytest.approx(-1.0)


def test_an_engine_with_a_problem_is_named_and_not_compared() -> None:
    told = found(measured("torchvision", wait=0.3, whole=0.4), Trial("dali-cpu", problem="it did not start"))
    assert (told["best"], told["measured"], told["runs"][1]["rate"]) == ("torchvision", [], None)
    assert "dali-cpu: it did not start." in told["cannot"]
    assert told["sentence"].endswith("No other engine was measured.")
    nothing = found(Trial("torchvision", problem="only 0 steps ended in 0 s"))
    assert (nothing["best"], nothing["began"]) == (None, None)
    assert nothing["sentence"] == "No engine could be measured."
    assert found()["sentence"], "of no trial at all"
