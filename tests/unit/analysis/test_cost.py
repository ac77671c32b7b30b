"""Published arithmetic, cost of constructed segments, and what it takes to feed a loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis.advice import MOST_CORES, decide
from kernel_monitor.analysis.cost import cost_per_step, costs, feeding
from kernel_monitor.analysis.frames import usable_cores
from kernel_monitor.analysis.loops import epoch_counts
from kernel_monitor.analysis.results import Feeding, Gain, Kind, Verdict
from kernel_monitor.analysis.segments import segments
from kernel_monitor.errors import MonitorError
from kernel_monitor.store import Snapshot
from kernel_monitor.store.schema import Series
from tests.unit.checks import not_none
from tests.unit.sessions import Run, build, switch


def test_the_published_price_performance() -> None:
    """46 % better at 2.2 times the speed, 77 % better at 6.5 times."""
    tensorflow = [cost_per_step(37.688, 0.192), cost_per_step(45.032, 0.086)]
    pytorch = [cost_per_step(3.825, 1.193), cost_per_step(5.661, 0.184)]
    assert [round(100 * (1 - after / before)) for before, after in (tensorflow, pytorch)] == [46, 77]
    assert [round(0.192 / 0.086, 1), round(1.193 / 0.184, 1)] == [2.2, 6.5]


@pytest.mark.parametrize(
    ("per_hour", "step", "cents"),
    [(37.688, 0.192, 0.201), (45.032, 0.086, 0.108), (3.825, 1.193, 0.127), (5.661, 0.184, 0.029)],
)
def test_the_published_costs_per_step_and_those_of_a_recorded_run(per_hour: float, step: float, cents: float) -> None:
    assert round(100 * cost_per_step(per_hour, step), 3) == cents
    made = segments(build(60, runs=[Run(0, 60, step=step)]))
    (found,) = costs(made, (), per_hour, "$")
    assert round(100 * found.per_step, 3) == cents
    assert found.per_thousand == pytest.approx(found.per_step / 32 * 1000, rel=1e-6)
    assert math.isnan(found.per_epoch)
    assert (found.segment, found.per_hour, found.currency) == ("train/1", per_hour, "$")


def test_machines_beside_it_cost_where_they_delivered() -> None:
    made = segments(build(40, runs=[Run(0, 40)]))
    (beside,) = (replace(one, backend="ray", nodes=2) for one in made)
    (alone,) = costs(made, (), 37.688, "$", 3.672)
    (fed_by_two,) = costs([beside], (), 37.688, "$", 3.672)
    assert (alone.per_hour, alone.nodes, alone.priced) == (37.688, 0, True)
    assert fed_by_two.per_hour == pytest.approx(45.032)  # of the published example
    (unpriced,) = costs([beside], (), 37.688, "$")
    assert (unpriced.per_hour, unpriced.priced) == (37.688, False)


@pytest.mark.parametrize("backend", ["torchvision", "ray"])
def test_nodes_are_counted_by_what_they_delivered(backend: str) -> None:
    snapshot = build(40, runs=[Run(0, 40)], states=[{"backend": backend}])
    names = [f"node/node-{k}/batches" for k in (1, 2, 3)]
    series = (*snapshot.schema.series, *(Series(name, "batches/s") for name in names))
    values = np.zeros((len(snapshot.time), 3), dtype=np.float32)
    values[50, :2] = 4.0  # the third delivered nothing
    wider = np.concatenate([snapshot.values, values], axis=1)
    with_nodes = replace(snapshot, schema=replace(snapshot.schema, series=series), values=wider)
    (made,) = segments(with_nodes)
    assert made.nodes == (2 if backend == "ray" else 0)


@pytest.mark.parametrize(("batches", "per_epoch"), [(200, (0.02, 0.01)), (199, (math.nan, math.nan))])
def test_an_epoch_costs_what_a_whole_one_has_at_the_segments_pace(batches: int, per_epoch: tuple[float, float]) -> None:
    runs = [Run(0, 20), Run(20, 40, step=0.05)]
    state: dict[str, Any] = {"epoch": 1, "batch": 10, "samples": 320, "planned": 6400}
    state["epochs"] = [{"epoch": 0, "batches": batches, "samples": 32 * batches, "planned": 6400}]
    snapshot = build(40, runs=runs, events=[switch(20, "torchvision", "dali-cpu")], states=[state])
    found = costs(segments(snapshot), epoch_counts(snapshot), 3.6, "€")
    assert [one.per_epoch for one in found] == pytest.approx(per_epoch, nan_ok=True)
    assert all(one.per_step > 0 for one in found)


def test_a_price_of_zero_costs_nothing_and_a_negative_one_is_refused() -> None:
    made = segments(build(20, runs=[Run(0, 20)]))
    (free,) = costs(made, (), 0, "€")
    assert (free.per_step, free.per_thousand) == (0, 0)
    for price in (-1.0, math.nan, math.inf):
        with pytest.raises(MonitorError, match="A price per hour is 0 or more"):
            costs(made, (), price, "€")


def test_a_segment_without_steps_costs_what_cannot_be_said() -> None:
    made = segments(build(20, runs=[Run(0, 10)], events=[{"kind": "mark", "time": 15, "label": "done"}]))
    assert math.isnan(costs(made, (), 3.6, "€")[1].per_step)


# Feeding


def advised_as(snapshot: Snapshot, kind: Kind, gains: tuple[Gain, ...] = ()) -> Feeding | None:
    """Of a session each of whose segments is judged so."""
    made, cores = segments(snapshot), usable_cores(snapshot.schema)
    state = snapshot.loaders[0]
    decisions = {one.key: decide(one, Verdict(kind, one.key, "", gains=gains), state, cores) for one in made}
    return feeding(snapshot, made, decisions, made[-1])


def fed(
    kind: Kind = "input-bound", wait: float = 0.06, gains: tuple[Gain, ...] = (), **more: Any
) -> tuple[Any, Snapshot]:
    run = more.pop("run", Run(0, 60, step=0.1, wait=wait))
    snapshot = build(60, runs=[run], **more)
    return advised_as(snapshot, kind, gains), snapshot


def knobs(workers: int | None, backend: str = "torchvision", **fields: Any) -> list[dict[str, Any]]:
    return [{"backend": backend, "knobs": {"workers": workers, "prefetch": 2, "threads": 2}, **fields}]


def test_cores_needed_are_cpu_seconds_per_image_at_the_pace_of_a_loop_that_never_waits() -> None:
    found, _ = fed(workers=320.0)  # 3.2 cores for 320 images/s
    assert found.cpu_per_image == pytest.approx(0.01)
    assert found.cores_needed == pytest.approx(8)  # 800 images/s, if each step took 40 ms
    assert (found.segment, found.cores) == ("train/1", 4)
    found, _ = fed(states=knobs(0), workers=math.nan)
    assert (found.cpu_per_image, found.cores_needed) == pytest.approx((0.06 / 32, 1.5))
    limits = {"cpus": [0, 1, 2], "cpu_quota": 1.5, "memory": None, "source": None}
    assert fed(limits=limits)[0].cores == 1.5


def test_what_dali_takes_is_not_told_apart_and_an_earlier_segment_says_more() -> None:
    found, _ = fed(states=knobs(2, "dali-cpu"))
    assert math.isnan(found.cpu_per_image)
    runs = [Run(0, 30, wait=0.06), Run(30, 60, step=0.05, wait=0.01)]
    snapshot = build(60, workers=320.0, runs=runs, events=[switch(30, "torchvision", "dali-cpu")])
    other = not_none(advised_as(snapshot, "undetermined"))
    assert other.segment == "train/1"
    states = knobs(2, "dali-cpu")
    snapshot = build(60, busy=99.0, runs=runs, states=states, events=[switch(30, "torchvision", "dali-cpu")])
    slower = (Gain("torchvision", -0.9, -0.5),)
    advised = not_none(advised_as(snapshot, "input-bound", slower))
    assert advised.segment == "train/1"
    assert "Switch to dali-cpu" not in advised.advice  # which it did
    assert "is not known from train/2" in advised.advice


FASTER, SLOWER = (Gain("dali-cpu", 0.35, 0.55),), (Gain("dali-cpu", -0.89, -0.55),)
NO_DALI = [{"name": "torchvision", "available": True}, {"name": "dali-cpu", "available": False}]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kind": "compute-bound", "wait": 0.001}, "not speed this loop up: 1 % of the step is waiting"),
        ({"kind": "undetermined"}, "not clear yet"),
        ({"states": knobs(2), "busy": 50.0}, "Raise the workers from 2 to 4"),
        ({"states": knobs(4), "busy": 50.0}, "most likely the storage"),
        ({"states": knobs(4), "busy": 99.0, "gains": FASTER}, "expected to run 1.5 to 2.2 × faster"),
        ({"states": knobs(4), "busy": 99.0}, "Press Diagnose to measure dali-cpu in this loop."),
        ({"states": knobs(4), "busy": 99.0, "gains": SLOWER}, "Keep torchvision: dali-cpu is expected"),
        ({"states": knobs(4), "busy": 99.0, "gains": SLOWER, "workers": 320.0}, "takes about 8 cores to feed"),
        ({"states": knobs(1, "dali-cpu"), "busy": 30.0, "cpus": 8}, "Raise the threads from 2 to 8"),
        (
            {"states": knobs(2, "dali-cpu", backends=NO_DALI[1:]), "busy": 99.0},
            "more CPU cores for each GPU; how many it takes is not known",
        ),
        ({"states": knobs(None, "loader"), "busy": 99.0}, "Wrap the DataLoader with switchable(loader)"),
        ({"states": knobs(4, backends=NO_DALI), "busy": 99.0, "workers": 320.0}, "takes about 8 cores to feed"),
        ({"states": knobs(4, backends=NO_DALI), "busy": 99.0, "workers": 120.0}, "These should be enough"),
        ({"states": knobs(4, backends=NO_DALI), "busy": 99.0, "workers": 399.0, "wait": 0.0985}, "CPU machines beside"),
    ],
)
def test_the_advice_follows_the_decision_order(more: dict[str, Any], words: str) -> None:
    found, _ = fed(**more)
    assert words in found.advice


def test_more_cores_than_one_machine_has_are_put_beside_it() -> None:
    found, _ = fed(states=knobs(4, backends=NO_DALI), busy=99.0, workers=399.0, wait=0.0985)
    assert found.cores_needed > MOST_CORES
    assert "no one machine has so many" in found.advice
    lacking = math.ceil(found.cores_needed - found.cores)
    assert f"{lacking:,} more cores would end the wait" in found.advice


def test_there_is_nothing_to_feed_without_deliveries_or_with_replayed_ones() -> None:
    assert feeding(build(10), (), {}, None) is None
    replayed = build(20, runs=[Run(0, 20)], states=knobs(2, "synthetic"))
    assert feeding(replayed, segments(replayed), {}, None) is None
    (one,) = [fed(run=Run(0, 60, step=0.1, wait=0.1))[0]]
    assert math.isnan(one.cores_needed)
