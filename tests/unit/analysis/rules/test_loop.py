"""Rules on steps, memory and ranks: at, just below and just above their thresholds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.rules import RULES, evaluate
from kernel_monitor.analysis.segments import segments
from kernel_monitor.analysis.step_times import strongest_period
from kernel_monitor.errors import MonitorError
from kernel_monitor.steps.measured_step import NO_GRADIENTS
from kernel_monitor.store import Snapshot, Store
from tests.unit.checks import not_none
from tests.unit.rules_asked import ask
from tests.unit.sessions import Floats, Run, Value, build


def stepped(*lengths: float, wait: float = 0.01, **fields: Any) -> Snapshot:
    """A session whose steps took exactly these s."""
    run = Run(1, 1 + sum(lengths) + 1, step=lambda number: lengths[number], wait=wait, steps=len(lengths), **fields)
    return build(sum(lengths) + 3, 1.0, runs=[run])


def patterned(*pattern: float, count: int = 120, **fields: Any) -> Snapshot:
    return stepped(*[pattern[number % len(pattern)] for number in range(count)], **fields)


# Outliers


@pytest.mark.parametrize(("many", "state"), [(9, "quiet"), (10, "quiet"), (11, "fired")])
def test_more_than_ten_steps_must_lie_beyond(many: int, state: str) -> None:
    found = ask("step-outliers", stepped(*([0.125] * 60 + [1.0]) * many, *[0.125] * 400))
    assert (found.state, found.evidence[0].value) == (state, many)
    if state == "fired":
        assert (found.times, len(found.evidence)) == (11, 4)
        assert "1,000 ms, 10 of them waiting for data" in found.evidence[1].text
        assert found.evidence[1].end - found.evidence[1].start == pytest.approx(1.0)
        assert "The loop itself" in found.advice


def test_beyond_is_three_standard_deviations_and_half_as_long_again() -> None:
    lengths = [0.125] * 500 + [0.25] * 20
    times = np.array(lengths)
    beyond = (0.25 - times.mean()) / times.std()
    snapshot = stepped(*lengths)
    assert ask("step-outliers", snapshot, k=beyond - 0.01).state == "fired"
    assert ask("step-outliers", snapshot, k=beyond + 0.01).state == "quiet"
    assert ask("step-outliers", snapshot, longer=1.99).state == "fired"
    assert ask("step-outliers", snapshot, longer=2).state == "quiet"


def test_of_many_steps_that_vary_evenly_none_is_an_outlier() -> None:
    lengths = np.random.default_rng(8).normal(0.1, 0.005, 12_000)
    assert ask("step-outliers", stepped(*lengths.tolist())).state == "quiet"


def test_outliers_that_wait_for_data_are_told_from_others() -> None:
    lengths = ([0.125] * 60 + [1.0]) * 12
    run = Run(1, 999, step=lambda n: lengths[n], wait=lambda n: lengths[n] - 0.1, steps=len(lengths))
    found = ask("step-outliers", build(sum(lengths) + 3, 1.0, runs=[run]))
    assert "spent waiting for data" in found.advice


# Patterns


@pytest.mark.parametrize(("effect", "state"), [(0.24, "fired"), (0.25, "quiet"), (0.26, "quiet")])
def test_a_pattern_has_an_effect_above_its_threshold(effect: float, state: str) -> None:
    found = ask("step-period", patterned(0.875, 1.125), effect=effect)  # a quarter of the mean apart, exactly
    assert found.state == state
    assert found.evidence[0].value == pytest.approx(25)


def test_the_published_alternation_is_found() -> None:
    found = ask("step-period", patterned(8.4, 28.5))
    assert found.state == "fired"
    assert found.evidence[0].text.startswith(
        "A pattern of 2 steps: 8.4 / 28.5 ms".replace("8.4 / 28.5", "8,400 / 28,500")
    )
    assert found.times == 60


@pytest.mark.parametrize("steps", range(2, 9))
def test_every_period_up_to_eight_is_found_under_noise(steps: int) -> None:
    rng = np.random.default_rng(steps)
    lengths = 0.1 * (1 + 1.0 * (np.arange(400) % steps == 0)) * rng.normal(1, 0.05, 400) + np.linspace(0, 0.05, 400)
    found = not_none(strongest_period(lengths, np.arange(400)))
    assert found.steps == steps
    assert found.explained > 0.9
    assert ask("step-period", stepped(*lengths.tolist())).state == "fired"


def test_a_pattern_of_the_batches_numbers_survives_the_end_of_an_epoch() -> None:
    lengths = [0.3 if (number % 25) % 4 == 0 else 0.1 for number in range(400)]
    found = ask("step-period", stepped(*lengths, epoch_batches=25))
    assert found.state == "fired"
    assert "A pattern of 4 steps" in found.evidence[0].text


def test_waits_that_follow_the_workers_round_are_told_so() -> None:
    run = Run(0, 60, step=lambda n: 0.1 if n % 4 else 0.3, wait=lambda n: 0.01 if n % 4 else 0.21)
    found = ask("step-period", build(60, runs=[run], states=[{"knobs": {"workers": 4, "prefetch": 2, "threads": 2}}]))
    assert "Every 4 steps the wait for data repeats" in found.advice


def test_noise_has_no_pattern() -> None:
    seed = 20_261_121
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    alarms = []
    for number in range(240):
        count = int(rng.integers(48, 400))
        kind = ("normal", "lognormal", "walk", "spikes", "correlated", "two modes")[number % 6]
        noise = rng.normal(0, 1, count)
        lengths: Floats = {
            "normal": 0.1 + 0.03 * noise.clip(-3, 3),
            "lognormal": 0.1 * np.exp(0.7 * noise),
            "walk": 0.2 + 0.01 * np.abs(noise.cumsum()),
            "spikes": np.where(rng.uniform(size=count) < 0.1, 1.0, 0.1) + 0.001 * np.abs(noise),
            "correlated": 0.2 + 0.02 * np.convolve(noise, [0.25] * 4, mode="same"),
            "two modes": np.where(rng.uniform(size=count) < 0.5, 0.1, 0.3),
        }[kind]
        found = ask("step-period", stepped(*lengths.tolist(), wait=0.0))
        if found.state != "quiet":
            alarms.append((number, kind, found.evidence))
    assert alarms == []


def test_patterns_and_outliers_need_steps() -> None:
    for rule, least in (("step-period", 48), ("step-outliers", 50)):
        assert ask(rule, stepped(*[0.1] * (least - 1))).missing == (f"steps: {least - 1} of the {least} that it takes",)
        assert ask(rule, stepped(*[0.1] * least)).state == "quiet"
        old = build(60, runs=[Run(0, 60)], steps=False)
        assert ask(rule, old).missing == ("steps: this session holds only their means",)


def test_a_pattern_cannot_be_seen_where_steps_were_not_kept() -> None:
    whole = patterned(0.1, 0.3, count=400)
    table = type(whole.steps)(whole.steps.loaders, whole.steps.rows[::3], dropped=266)
    assert ask("step-period", Snapshot(**{**vars(whole), "steps": table})).state == "abstained"


# The first step


@pytest.mark.parametrize(("minutes", "state"), [(19.9, "quiet"), (20, "quiet"), (20.1, "fired")])
def test_the_first_step_may_take_twenty_minutes(minutes: float, state: str) -> None:
    first = 60 * minutes
    found = ask("initialisation-time", build(first + 60, 1.0, runs=[Run(first - 0.5, first + 50, step=0.5)]))
    assert found.state == state
    assert found.evidence[0].value == pytest.approx(minutes)


def test_time_before_the_loader_was_made_does_not_count() -> None:
    snapshot = build(1400, 1.0, runs=[Run(1350, 1390)])
    images = snapshot.schema.columns["loader/loader-1/images"]
    snapshot.values[:1320, images] = np.nan
    found = ask("initialisation-time", snapshot)
    assert found.state == "quiet"
    assert found.evidence[0].value == pytest.approx((1350.1 - 1321) / 60)
    snapshot = build(60, runs=[Run(0, 60)])
    late = Snapshot(**{**vars(snapshot), "seq": snapshot.seq + 5000})
    assert ask("initialisation-time", late).missing == ("the session's beginning: its rows are no longer kept",)


# Memory


def creeping(gb_per_hour: float, *, role: str = "kernel", seconds: float = 300.0, **more: Any) -> Snapshot:
    series = {f"process/{role}/memory": lambda t: 2e9 + gb_per_hour * 1e9 * t / 3600}
    return build(seconds, 1.0, memory=50.0, series={**series, **more}, runs=[Run(0, seconds)])


@pytest.mark.parametrize("role", ["kernel", "workers"])
@pytest.mark.parametrize(("hours", "state"), [(12.1, "quiet"), (12, "quiet"), (11.9, "fired")])
def test_memory_that_would_be_full_within_twelve_hours_creeps(role: str, hours: float, state: str) -> None:
    found = ask("memory-creep", creeping(32 / (hours + 1e-6), role=role))  # half of 64 GB is left
    assert found.state == state
    assert found.evidence[0].value == pytest.approx(hours, rel=1e-3)
    if state == "fired":
        assert ("NumPy arrays" in found.advice) == (role == "workers")


def test_memory_that_is_full_within_the_hour_is_critical() -> None:
    assert ask("memory-creep", creeping(40)).severity == "critical"
    assert ask("memory-creep", creeping(20)).severity == "warning"


def test_a_container_may_have_less_room_than_its_host() -> None:
    limits = {"cpus": [0, 1], "cpu_quota": None, "memory": 4 * 10**9, "source": "cgroup v2"}
    series: dict[str, Value] = {
        "process/kernel/memory": lambda t: 2e9 + 1e9 * t / 3600,
        "container/memory_percent": 75.0,
    }
    found = ask("memory-creep", build(300, 1.0, series=series, limits=limits, runs=[Run(0, 300)]))
    assert found.state == "fired"
    assert found.evidence[0].value == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(("grown", "state"), [(49, "quiet"), (51, "fired")])
def test_little_growth_is_no_creep(grown: float, state: str) -> None:
    assert ask("memory-creep", creeping(grown / 1e3 * 3600 / 239), hours=1e6).state == state


def test_what_loads_at_the_start_or_goes_up_and_down_is_no_creep() -> None:
    start = {"process/kernel/memory": lambda t: np.where(t < 50, 2e9 + 1e8 * t, 7e9)}
    assert ask("memory-creep", build(300, 1.0, series=start, runs=[Run(0, 300)])).state == "quiet"
    waves = {"process/kernel/memory": lambda t: 2e9 + 5e9 * np.abs(np.sin(t / 20))}
    assert ask("memory-creep", build(300, 1.0, series=waves, runs=[Run(0, 300)])).state == "quiet"
    assert ask("memory-creep", creeping(40, seconds=119)).missing == (
        "seconds of a loop: 119 of the 120 that it takes",
    )
    assert ask("memory-creep", build(300, 1.0, runs=[Run(0, 300)])).state == "abstained"


# Ranks


def rank(number: int, wait: float, step: float = 0.1) -> Snapshot:
    return build(60, runs=[Run(0, 60, step=step, wait=wait)], facts={"rank": number, "world_size": 3})


@pytest.mark.parametrize(("wait", "state"), [(0.0195, "quiet"), (0.02, "quiet"), (0.0205, "fired")])
def test_ranks_are_unbalanced_when_one_waits_a_tenth_of_the_step_longer(wait: float, state: str) -> None:
    found = ask("rank-imbalance", rank(0, 0.01), others=[rank(1, 0.01), rank(2, wait)], difference=0.1 + 1e-6)
    assert found.state == state
    assert found.evidence[0].value == pytest.approx(100 * (wait - 0.01) / 0.1, abs=1e-3)
    if state == "fired":
        assert "look at rank 2 first" in found.advice


def test_ranks_whose_steps_differ_are_unbalanced() -> None:
    found = ask("rank-imbalance", rank(0, 0.01), others=[rank(1, 0.01, step=0.12)])
    assert found.state == "fired"
    assert "look at rank 1 first" in found.advice
    runs = [Run(0, 30), Run(30, 60, step=0.02, wait=0.019, loader="loader-2", flags=NO_GRADIENTS)]
    evaluating = build(60, runs=runs, facts={"rank": 1, "world_size": 2})
    found = ask("rank-imbalance", build(60, runs=[Run(0, 60)], facts={"rank": 0}), others=[evaluating])
    assert found.state == "quiet"


def test_one_rank_alone_has_no_balance() -> None:
    assert ask("rank-imbalance", rank(0, 0.01)).missing == ("the other ranks' sessions: this is one of the 3 ranks",)
    assert ask("rank-imbalance", build(60, runs=[Run(0, 60)])).state == "abstained"
    short = build(60, runs=[Run(0, 1)])
    assert ask("rank-imbalance", rank(0, 0.01), others=[short]).state == "abstained"


# All of them


def test_rules_that_only_tell_never_fire() -> None:
    snapshot = build(60, gpus=1, runs=[Run(0, 60, phases={"forward": 0.03, "backward": 0.04})])
    usage, parts = ask("system-usage", snapshot), ask("framework-metrics", snapshot)
    assert (usage.state, parts.state) == ("quiet", "quiet")
    assert "CPU busy, mean of the cores p50 50.0, p95 50.0 %" in usage.evidence[0].text
    assert "wait 20 %, forward 30 %, backward 40 %, other 10 %" in parts.evidence[0].text


@pytest.mark.parametrize(
    "snapshot",
    [
        Store().snapshot([], {}),
        build(10),
        build(5, runs=[Run(1, 1.1)]),
        build(60, runs=[Run(0, 60)], steps=False),
        build(60, gpus=8, gpu=math.nan, runs=[Run(0, 60)], busy=math.nan, memory=math.nan),
        build(60, gpus=2, runs=[Run(0, 60)], gap=(10.0, 50.0)),
        build(60, cpus=0, gpus=1, runs=[Run(0, 60)]),
    ],
    ids=["nothing", "no steps", "one step", "older file", "no values", "gap", "no cores"],
)
def test_every_rule_has_something_to_say_of_any_session(snapshot: Snapshot) -> None:
    found = evaluate(snapshot, segments(snapshot))
    assert list(dict.fromkeys(one.rule for one in found)) == list(RULES)
    for one in found:
        assert bool(one.missing) == (one.state == "abstained")
        assert one.parameters == RULES[one.rule].defaults


def test_a_threshold_that_does_not_exist_is_refused_by_name() -> None:
    snapshot = build(10)
    with pytest.raises(MonitorError, match="no rule 'cpu'"):
        evaluate(snapshot, (), {"cpu": {}})
    with pytest.raises(MonitorError, match="cpu-bottleneck has no threshold 'gpus'"):
        evaluate(snapshot, (), {"cpu-bottleneck": {"gpus": 3}})
