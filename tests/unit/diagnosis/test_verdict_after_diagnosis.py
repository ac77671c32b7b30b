"""Once *Diagnose* has measured the engines, the verdict says what it found instead of reckoning or asking for it."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_monitor.analysis.live_verdict import live_verdict
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.diagnosis.trials import Trial, diagnosis
from kernel_monitor.store import Snapshot
from tests.unit.sessions import Run, build, rows_of, switch


def engine(backend: str, rate: float, spread: float = 0.05, **others: Any) -> Trial:
    """Eight seconds of an engine that delivers batches of 32."""
    steps = int(rate * 8 / 32)
    return Trial(
        backend, start=10.0, end=18.0, seconds=8.0, steps=steps, batches=steps, samples=32 * steps, rate=rate,
        rate_low=rate * (1 - spread), rate_high=rate * (1 + spread), step=32e3 / rate, wait=16e3 / rate, **others,
    )  # fmt: skip


def diagnosed(*trials: Trial, at: float = 20.0, loader: str = "loader-1") -> dict[str, Any]:
    found = diagnosis(loader, "train", trials, first="torchvision", back_to="torchvision")
    return {"kind": "diagnosis", "time": at, "loader": loader, "state": "done", "result": found}


def session(*events: dict[str, Any], backend: str = "torchvision") -> Snapshot:
    switched = [switch(30.0, "torchvision", backend)] if backend != "torchvision" else []
    run = Run(0, 60, step=0.1, wait=0.06, phases={"forward": 0.02, "backward": 0.02})
    return build(60.0, runs=[run], events=[*events, *switched], states=[{"backend": backend}])


def verdicts(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Of the newest segment, live and afterwards, as JSON."""
    live = live_verdict(rows_of(snapshot), snapshot.steps, snapshot.events, snapshot.loaders)
    assert live is not None
    return [live, analyse(snapshot).to_json()["verdict"]]


SLOWER = (engine("torchvision", 80), engine("dali-cpu", 50))


def test_the_slower_engine_is_told_to_go_back() -> None:
    for found in verdicts(session(diagnosed(*SLOWER, at=40.0), backend="dali-cpu")):
        gain = next(one for one in found["gains"] if one["action"] == "torchvision")
        assert gain["measured"] == pytest.approx(1 - 50 / 80)
        assert gain["low"] == pytest.approx(1 - 50 * 1.05 / (80 * 0.95))
        assert gain["high"] == pytest.approx(1 - 50 * 0.95 / (80 * 1.05))
        assert gain["basis"] == "by Diagnose: 640.0 → 400.0 ms per step (12 → 20 steps)"
        assert found["advice"] == "Switch to torchvision: Diagnose measured it 1.60 × faster than dali-cpu."
        assert not any("torchvision" in one for one in found["missing"])


def test_nothing_faster_was_found() -> None:
    for found in verdicts(session(diagnosed(*SLOWER))):
        assert found["advice"].startswith(
            "Keep torchvision: Diagnose measured dali-cpu 1.60 × slower than torchvision."
        )
    near = (engine("torchvision", 80, spread=0.2), engine("dali-cpu", 81, spread=0.2))
    for found in verdicts(session(diagnosed(*near))):
        assert found["advice"].startswith("Diagnose found dali-cpu about as fast as torchvision.")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [diagnosed(*SLOWER), {"kind": "mark", "time": 25.0, "label": "other data"}],
        [diagnosed(*SLOWER), {"kind": "knobs", "time": 25.0, "loader": "loader-1", "knobs": {"workers": 4}}],
        [{"kind": "mark", "time": 15.0, "label": "between the engines"}, diagnosed(*SLOWER)],
        [diagnosed(*SLOWER, loader="loader-2")],
        [diagnosed(engine("torchvision", 80))],
        [diagnosed(engine("torchvision", 80, problem="it failed"), engine("dali-cpu", 50))],
        [diagnosed(engine("torchvision", 80), engine("synthetic", 500))],
    ],
    ids=["none", "mark", "knobs", "a mark meanwhile", "another loader", "one engine", "failed", "replayed"],
)
def test_what_was_not_measured_of_this_loop_is_not_said(events: list[dict[str, Any]]) -> None:
    for found in verdicts(session(*events)):
        assert not any(one["measured"] is not None for one in found["gains"])
        assert "Press Diagnose to measure dali-cpu" in found["advice"]


def test_a_segment_knows_nothing_of_what_came_later() -> None:
    snapshot = session(diagnosed(*SLOWER, at=40.0), backend="dali-cpu")
    before, after = analyse(snapshot).verdicts
    assert not any(one.action == "dali-cpu" for one in before.gains)
    assert any(one.action == "torchvision" for one in after.gains)


def test_the_newest_measure_counts() -> None:
    """Diagnose found dali-cpu slower; in use afterwards it was faster, and so the other way round."""
    runs = [Run(0, 30, step=0.1, wait=0.06), Run(30, 60, step=0.05, wait=0.01)]
    asked = switch(30.2, "torchvision", "dali-cpu", asked=30.0)
    for at, by, faster in ((20.0, "switch", False), (40.0, "Diagnose", True)):
        events = sorted([asked, diagnosed(*SLOWER, at=at)], key=lambda one: one["time"])
        snapshot = build(60.0, runs=runs, events=events, states=[{"backend": "dali-cpu"}])
        for found in verdicts(snapshot):
            gain = next(one for one in found["gains"] if one["action"] == "torchvision")
            assert (gain["by"], gain["measured"] > 0) == (by, faster)
