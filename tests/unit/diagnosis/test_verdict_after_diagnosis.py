"""Once *Diagnose* has measured the engines, the verdict says what it found instead of reckoning or asking for it."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.store import Snapshot
from tests.unit.checks import not_none
from tests.unit.sessions import Run, build, diagnosed, live, switch


def session(*events: dict[str, Any], backend: str = "torchvision") -> Snapshot:
    switched = [switch(30.0, "torchvision", backend)] if backend != "torchvision" else []
    run = Run(0, 60, step=0.1, wait=0.06, phases={"forward": 0.02, "backward": 0.02})
    return build(60.0, runs=[run], events=[*events, *switched], states=[{"backend": backend}])


def verdicts(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Of the newest segment, live and afterwards, as JSON."""
    return [not_none(live(snapshot)), analyse(snapshot).to_json()["verdict"]]


SLOWER = {"torchvision": 80.0, "dali-cpu": 50.0}


def test_the_slower_engine_is_told_to_go_back() -> None:
    for found in verdicts(session(diagnosed(SLOWER, spread=0.05, at=40.0), backend="dali-cpu")):
        gain = next(one for one in found["gains"] if one["action"] == "torchvision")
        low, high = 1 - 50 * 1.05 / (80 * 0.95), 1 - 50 * 0.95 / (80 * 1.05)
        assert (gain["measured"], gain["low"], gain["high"]) == pytest.approx((1 - 50 / 80, low, high))
        assert gain["basis"] == "by Diagnose: 640.0 → 400.0 ms per step (12 → 20 steps)"
        assert found["advice"] == "Switch to torchvision: Diagnose measured it 1.60 × faster than dali-cpu."
        assert not any("torchvision" in one for one in found["missing"])


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        (diagnosed(SLOWER), "Keep torchvision: Diagnose measured dali-cpu 1.60 × slower than torchvision."),
        (
            diagnosed({"torchvision": 80.0, "dali-cpu": 81.0}, spread=0.2),
            "Diagnose found dali-cpu about as fast as torchvision.",
        ),
        (
            diagnosed({"torchvision": 80.0, "dali-cpu": 64.0}, spread=0.2),
            "Diagnose measured dali-cpu 1.25 × slower than torchvision, but the steps vary too much to be sure.",
        ),
    ],
)
def test_nothing_faster_was_found(event: dict[str, Any], advice: str) -> None:
    assert all(found["advice"].startswith(advice) for found in verdicts(session(event)))


@pytest.mark.parametrize(
    "events",
    [
        [],
        [diagnosed(SLOWER), {"kind": "mark", "time": 25.0, "label": "other data"}],
        [diagnosed(SLOWER), {"kind": "knobs", "time": 25.0, "loader": "loader-1", "knobs": {"workers": 4}}],
        [{"kind": "mark", "time": 15.0, "label": "between the engines"}, diagnosed(SLOWER)],
        [diagnosed(SLOWER, loader="loader-2")],
        [diagnosed({"torchvision": 80.0})],
        [diagnosed(SLOWER, problems={"torchvision": "it failed"})],
        [diagnosed({"torchvision": 80.0, "synthetic": 500.0})],
    ],
    ids=["none", "mark", "knobs", "a mark meanwhile", "another loader", "one engine", "failed", "replayed"],
)
def test_what_was_not_measured_of_this_loop_is_not_said(events: list[dict[str, Any]]) -> None:
    for found in verdicts(session(*events)):
        assert not any(one["measured"] is not None for one in found["gains"])
        assert "Press Diagnose to measure dali-cpu" in found["advice"]


def test_a_segment_knows_nothing_of_what_came_later() -> None:
    snapshot = session(diagnosed(SLOWER, at=40.0), backend="dali-cpu")
    before, after = analyse(snapshot).verdicts
    assert not any(one.action == "dali-cpu" for one in before.gains)
    assert any(one.action == "torchvision" for one in after.gains)


def test_the_newest_measure_counts() -> None:
    """Diagnose found dali-cpu slower; in use afterwards it was faster, and so the other way round."""
    runs = [Run(0, 30, step=0.1, wait=0.06), Run(30, 60, step=0.05, wait=0.01)]
    asked = switch(30.2, "torchvision", "dali-cpu", asked=30.0)
    for at, by, faster in ((20.0, "switch", False), (40.0, "Diagnose", True)):
        events = sorted([asked, diagnosed(SLOWER, at=at)], key=lambda one: one["time"])
        snapshot = build(60.0, runs=runs, events=events, states=[{"backend": "dali-cpu"}])
        for found in verdicts(snapshot):
            gain = next(one for one in found["gains"] if one["action"] == "torchvision")
            assert (gain["by"], gain["measured"] > 0) == (by, faster)
