"""Which steps count is decided once: whatever shows a number of steps counts the same ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.analysis import switch_strip
from kernel_monitor.analysis.frames import Frames, counted
from kernel_monitor.analysis.gains import switch_pairs
from kernel_monitor.analysis.segments import segments
from kernel_monitor.analysis.session_analysis import analyse
from kernel_monitor.analysis.session_comparison import compare
from kernel_monitor.analysis.step_times import shares, timings_of_steps
from kernel_monitor.diagnosis.trials import trial
from kernel_monitor.steps.measured_step import PROFILED, WARM_UP, Step
from kernel_monitor.store import STEP, Snapshot
from tests.unit.checks import not_none
from tests.unit.rules_asked import ask
from tests.unit.sessions import Run, build, live, rows_of, switch

EVALUATION = 10
"""The step in which the loop evaluates."""


def session(flags: int = 0, **changes: Any) -> Snapshot:
    """20 steps of 1 s with 0.9 s of waiting, and one more with 4 s of evaluation inside; two with `flags` before them.

    The evaluation is shorter than five whole steps and longer than five times the work of a step.
    """
    first = [Run(0, 6, step=3.0, wait=0.5, flags=flags)] if flags else []
    begin = 6.0 if flags else 0.0
    run = Run(
        begin, begin + 24.1,
        step=lambda k: 4.1 if k == EVALUATION else 1.0, wait=lambda k: 0.1 if k == EVALUATION else 0.9,
    )  # fmt: skip
    return build(begin + 24.1, runs=[*first, run], **changes)


def steps_of(snapshot: Snapshot) -> list[Step]:
    return [Step(*row.tolist()[1:]) for row in snapshot.steps.rows]


@pytest.mark.parametrize("flags", [0, WARM_UP, PROFILED])
def test_every_consumer_counts_the_same_steps(flags: int) -> None:
    snapshot = session(flags)
    others = len(snapshot.steps) - 20
    assert others == (3 if flags else 1)
    found = analyse(snapshot)
    (segment,) = found.segments
    (comparison,) = compare(snapshot, snapshot)
    tried = trial("torchvision", steps_of(snapshot), rows_of(snapshot), "loader-1", 0.0, 30.1)
    counts = {
        "segment": segment.steps,
        "verdict": found.verdict.steps,
        "timings": timings_of_steps(snapshot.steps.rows).steps,
        "live verdict": not_none(live(snapshot))["steps"],
        "Diagnose": tried.steps,
        "comparison": not_none(comparison.before).steps,
        "comparison's other side": not_none(comparison.after).steps,
        "rules": ask("step-outliers", snapshot, least=10).samples,
    }
    assert counts == dict.fromkeys(counts, 20)
    assert segment.left_out == others
    assert (segment.seconds, segment.step) == pytest.approx((20, 1000))
    assert tried.batches == 20 + others
    assert (tried.seconds, tried.rate) == pytest.approx((20, 32))
    assert shares(timings_of_steps(snapshot.steps.rows)).wait.value == pytest.approx(0.9)
    assert comparison.slower == 0


def test_the_rows_of_a_step_that_does_not_count_do_not_count_either() -> None:
    snapshot = session(busy=lambda time: np.where((time > 10.15) & (time <= 14.05), 0.0, 80.0))
    (segment,) = segments(snapshot)
    cpu = next(statistic.values for statistic in segment.statistics if statistic.metric == "cpu")
    assert (cpu.min, cpu.max) == (80, 80)
    # The first delivery's row is of before the segment.
    whole, live = Frames(snapshot), Frames(rows_of(snapshot), snapshot.steps)
    assert whole.window[whole.delivery_rows("loader-1")].sum() == pytest.approx(20 - 0.9, abs=0.2)
    assert live.delivery_rows("loader-1").tolist() == whole.delivery_rows("loader-1").tolist()
    assert set(Frames(snapshot).cpu[Frames(snapshot).delivery_rows("loader-1")]) == {80}


def test_both_sides_of_a_switch_count_the_same_on_the_page_and_in_the_verdict() -> None:
    """The strip of the page (by rows) and the gain that the switch measured (by steps) leave out the evaluation."""
    before = Run(0, 44.1, step=lambda k: 4.1 if k == 30 else 1.0, wait=lambda k: 0.1 if k == 30 else 0.9)
    events = [switch(44.1, "torchvision", "dali-cpu", asked=44.099)]
    runs = [before, replace(before, start=44.1, end=88.2)]
    snapshot = build(88.2, runs=runs, events=events, states=[{"backend": "dali-cpu"}])
    (pair,) = switch_pairs(snapshot.steps, snapshot.events)
    assert (pair.before.step, pair.after.step) == pytest.approx((1.0, 1.0))
    for table, steps in ((snapshot, None), (rows_of(snapshot), snapshot.steps)):
        shown = not_none(switch_strip(table, snapshot.events, snapshot.loaders, steps))
        rate = next(row for row in shown["rows"] if row["unit"] == "images/s")
        assert (rate["before"], rate["after"]) == pytest.approx((32, 32), rel=0.03)


def rows(*steps: tuple[float, float, int]) -> Any:
    made = np.zeros(len(steps), dtype=STEP)
    for place, step in enumerate(steps):
        made["wait"][place], made["step"][place], made["flags"][place] = step
    return made


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        ((0.9, 1.0, 0), True),
        ((0.0, 3.0, 0), True),
        ((0.0, 3.1, 0), False),
        ((60.0, 60.1, 0), True),
        ((np.nan, 1.0, 0), True),
        ((np.nan, 3.1, 0), False),
        ((0.0, np.nan, 0), False),
        ((0.0, 0.0, 0), False),
        ((0.0, -1.0, 0), False),
        ((0.9, 1.0, WARM_UP), False),
        ((0.9, 1.0, PROFILED), False),
    ],
)
def test_a_step_counts_by_its_flags_and_its_own_work(step: tuple[float, float, int], counts: bool) -> None:
    assert counted(rows(*[(0.9, 1.0, 0)] * 10, step)).tolist() == [True] * 10 + [counts]


def test_long_work_is_no_pause_where_all_steps_are_long() -> None:
    assert counted(rows(*[(0.0, 10.0, 0)] * 3, (0.0, 49.0, 0), (0.0, 51.0, 0))).tolist() == [True] * 4 + [False]
    assert counted(rows()).tolist() == []
