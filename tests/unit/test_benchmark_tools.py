"""What the benchmark of the verdict stands on: how fast the machine was meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from benchmarks.diagnose import Gauge, pooled, steady


@pytest.mark.alone
def test_the_gauge_tells_the_pace_of_each_window(tmp_path: Path) -> None:
    Image.effect_noise((400, 300), 60).convert("RGB").save(tmp_path / "one.jpg")
    gauge = Gauge(tmp_path)
    time.sleep(2)  # it imports Pillow first
    began = time.monotonic()
    time.sleep(1.5)
    middle = time.monotonic()
    time.sleep(1.5)
    for pace, stolen in gauge.end([(began, middle), (middle, time.monotonic())]):
        assert 0.1 < pace < 1000, "ms of decoding a small image"
        assert 0 <= stolen <= 1


def test_steps_of_all_segments_count_alike() -> None:
    first, second = SimpleNamespace(steps=30, step=100.0), SimpleNamespace(steps=10, step=200.0)
    found = pooled([(first, (2.0, 0.0)), (second, (4.0, 0.5))])
    assert (found["steps"], found["segments"], found["step_ms"]) == (40, 2, pytest.approx((30 * 100 + 10 * 200) / 40))
    # In decodings of a machine of one's own: 100 / 2 and, half of it stolen, 200 / 2 / 4.
    assert found["decodings"] == pytest.approx((30 * 50 + 10 * 25) / 40)


@pytest.mark.parametrize(("pace", "stolen", "verdict"), [(1.25, 0.05, True), (1.26, 0.0, False), (1.0, 0.06, False)])
def test_a_machine_that_changed_is_not_steady(pace: float, stolen: float, verdict: bool) -> None:
    assert steady({"pace": pace, "stolen": stolen}) is verdict
