"""The table of the metrics against what a real sampler sends, and against the document that is written from it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fakehost import simulation
from benchmarks.metrics import FRAME, GROUPS, METRICS, matching
from tests.unit.metrics_table import DOCUMENT, text
from tests.unit.sampler_taken import running

HOST = {*("load", "memory", "disk", "network", "cpu", "cpu-split"), "process"}
"""The groups that every Linux has."""


def sampled(seconds: float, interval: float = 0.1) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """The last hello and the values of the frames that have its series, of a sampler that ran for a while."""
    with running(interval, frames=1) as taken:
        time.sleep(seconds)
    # A simulated GPU may be at its power cap; nothing else is to be told.
    assert [one for one in (*taken.notices, *taken.exits) if "clocks" not in str(one)] == []
    names = [series["name"] for series in taken.hellos[-1]["series"]]
    return taken.hellos[-1], [values for _, _, values in taken.frames if list(values) == names]


def check(hello: dict[str, Any], frames: list[dict[str, float]], interval: float) -> set[str]:
    """Every series is in the table with its unit, and every group keeps its period; returns the groups."""
    names = [series["name"] for series in hello["series"]]
    assert len(set(names)) == len(names)
    groups: set[str] = set()
    for series in hello["series"]:
        entries = matching(series["name"])
        assert [entry.unit for entry in entries] == [series["unit"]], series
        groups.add(entries[0].group)
    groups.discard(FRAME)
    aged = {name.split("/")[1] for name in names if name.startswith("sample/") and name.endswith("/age")}
    assert aged == groups
    last = frames[-1]
    assert last["sample/interval"] == pytest.approx(interval)
    for group in groups:
        period = max(GROUPS[group], interval)
        ages = [values[f"sample/{group}/age"] for values in frames[len(frames) // 2 :]]
        # Three times the period: this machine is busy with other tests.
        assert 0 <= max(ages) <= 3 * period + 0.2, (group, ages)
        assert math.isfinite(last[f"sample/{group}/window"]), group
        if GROUPS[group] > interval:  # held in between, and no younger than that
            assert max(ages) >= 0.3 * period, (group, ages)
    return groups


def test_no_series_fits_two_entries_and_no_other_name_fits_one() -> None:
    places = {"<n>": "12", "<i>": "3", "<j>": "0", "<role>": "workers", "<group>": "gpu-slow"}
    for metric in METRICS:
        name = metric.name
        for place, value in places.items():
            name = name.replace(place, value)
        assert matching(name) == [metric]
        assert matching(f"{name}/more") == matching(f"x{name}") == []
    assert {metric.group for metric in METRICS} == {*GROUPS, FRAME}
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert all(metric.source and metric.meaning and metric.unit for metric in METRICS)
    assert not matching("process/stranger/cpu")


def test_the_document_is_the_one_that_the_table_gives() -> None:
    assert DOCUMENT.read_text("utf-8") == text(), "write it again: python -m tests.unit.metrics_table"


def test_every_series_of_this_machine_is_in_the_table() -> None:
    hello, frames = sampled(5.5)
    assert check(hello, frames, 0.1) >= HOST
    reasons = hello["host"]["reasons"]
    names = {series["name"] for series in hello["series"]}
    assert not names & set(reasons)
    # What the table has of the host and the frame has not, the reasons tell.
    for group in ("pressure", "container", "frequency"):
        there = any(matching(name)[0].group == group for name in names)
        told = group in reasons or any(matching(name) and matching(name)[0].group == group for name in reasons)
        assert there or told, group


def test_frames_that_are_rarer_than_a_period_hold_readings_of_their_own_interval() -> None:
    _, frames = sampled(5.5, interval=1.6)
    for values in frames[2:]:
        assert values["sample/memory/window"] == pytest.approx(1.6, abs=0.5)
        assert values["sample/memory/age"] <= 0.4
    assert len(frames) >= 3


def test_every_series_of_a_host_of_256_cores_and_8_gpus_is_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulation(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        hello, frames = sampled(5.5)
    groups = check(hello, frames, 0.1)
    assert groups >= {*HOST, "frequency", "pressure", "gpu", "gpu-slow", "gpu-bus", "gpm"}
    assert hello["cpus"] == list(range(256))
    assert [len(socket) for socket in hello["host"]["topology"]["sockets"]] == [64] * 4
    assert hello["host"]["logical_cpus"] == 256
    assert len(hello["gpus"]) == 8
    for metric in METRICS:
        if metric.group in ("gpu", "gpu-slow", "gpu-bus", "gpm"):
            name = metric.name.replace("<i>", "7")
            assert name in frames[-1] or name.split("/")[-1] in hello["gpus"][7]["reasons"], name
