"""The newest steps of all loaders: bounded, in the order of their ends, whatever came when."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.steps.measured_step import ON_DEVICE, Step
from kernel_monitor.store import STEP, Snapshot, StepLog, StepTable, Store
from kernel_monitor.store.snapshot import MOST
from tests.unit.checks import threads


def steps(first: int, count: int, every: float = 0.1) -> list[Step]:
    """Steps whose batch is their number and whose end is their number times `every`."""
    return [Step(every * number, 1, number, 32, 0.02, every) for number in range(first, first + count)]


def test_what_was_added_is_there_with_its_loader() -> None:
    log = StepLog()
    whole = Step(1.5, 2, 3, 64, 0.25, 0.5, 0.01, 0.02, 0.03, 0.04, ON_DEVICE)
    log.add("loader-7", [whole])
    log.add("loader-2", [Step(1.0, 0, 0, 8, math.nan, 0.5)], dropped=3)
    table = log.table()
    assert table.loaders == ("loader-7", "loader-2")
    assert table.rows["loader"].tolist() == [1, 0]
    (row,) = table.of("loader-7")
    assert row.tolist()[1:] == pytest.approx(whole, rel=1e-6)
    assert np.isnan([table.of("loader-2")[name][0] for name in ("wait", "copy", "optimizer")]).all()
    assert table.dropped == 3
    assert len(table) == len(log) == 2
    assert table.rows.dtype == STEP


def test_loaders_steps_are_one_order_however_they_come() -> None:
    log = StepLog(1000)
    for at in range(0, 100, 10):
        log.add("a", steps(at, 10))
        log.add("b", steps(at - 5, 10) if at else [])
    table = log.table()
    assert (np.diff(table.rows["end"]) >= 0).all()
    assert table.of("a")["batch"].tolist() == list(range(100))
    assert table.of("b", 2.0, 3.0)["batch"].tolist() == list(range(21, 31))
    assert len(table.of("c")) == 0


@pytest.mark.parametrize("most", [1, 7, 1000, 1024, 1025, 5000])
@pytest.mark.parametrize("batch", [1, 13, 999, 6000])
def test_the_newest_are_kept_and_the_others_counted(most: int, batch: int) -> None:
    log, made = StepLog(most), 0
    for _ in range(max(2, 6001 // batch) if batch > 1 else 40):
        log.add("a", steps(made, batch))
        made += batch
        table = log.table()
        kept = min(made, most)
        assert len(table) == len(log) == kept
        assert table.dropped == made - kept
        if batch > 1 or made % 10 == 0:
            assert table.rows["batch"].tolist() == list(range(made - kept, made))


def test_memory_is_bounded() -> None:
    log = StepLog()
    for made in range(0, MOST + 10_000, 5000):
        log.add("a", steps(made, 5000))
    assert len(log.table()) == MOST
    assert log.table().rows.nbytes <= 11e6


def test_a_clock_that_went_back_does_not_break_the_order_and_what_has_no_place_is_counted() -> None:
    log = StepLog()
    odd = [Step(end, 0, 9, 1, 0.1, 0.1) for end in (math.nan, math.inf, -math.inf, -0.5)]
    log.add("a", [*steps(0, 2), *odd, *steps(2, 2)])
    table = log.table()
    assert table.rows["batch"].tolist() == [0, 1, 2, 3]
    assert table.dropped == 4
    log = StepLog(100)
    log.add("a", steps(50, 30))
    log.add("a", steps(20, 30))
    table = log.table()
    assert table.rows["batch"].tolist() == list(range(20, 80))
    assert log.table(start=2.95).rows["batch"].tolist() == list(range(30, 80))


def test_only_the_later_ones_are_copied_when_asked_so() -> None:
    log = StepLog(100)
    log.add("a", steps(0, 150))
    assert log.table(start=12.05).rows["batch"].tolist() == list(range(121, 150))
    assert len(log.table(start=1e9)) == 0
    copy = log.table()
    copy.rows["batch"][:] = 0
    assert log.table().rows["batch"][0] == 50


def test_an_hour_of_steps_is_asked_for_in_no_time() -> None:
    """The live verdict asks every two seconds; its bar is 5 ms in all, three times that here."""
    log = StepLog()
    for first in range(0, MOST + 5000, 5000):
        log.add("a", steps(first, 5000, every=0.005))
    end = float(log.table().rows["end"][-1])
    last, whole = [], []
    for _ in range(20):
        began = time.thread_time()
        assert len(log.table(start=end - 60)) == pytest.approx(12_000, abs=2)
        last.append(time.thread_time() - began)
        began = time.thread_time()
        assert len(log.table()) == MOST
        whole.append(time.thread_time() - began)
    print(f"the last minute of {MOST:,} steps: {1e3 * min(last):.2f} ms; all: {1e3 * min(whole):.2f} ms")
    assert min(last) < 15e-3
    assert min(last) < min(whole) / 2, "the later ones alone are copied"


def test_one_writes_while_others_read() -> None:
    log, stop, seen = StepLog(3000), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            rows = log.table().rows
            seen.append(bool((np.diff(rows["batch"].astype(int)) == 1).all()))

    with threads(read, read):
        try:
            for first in range(0, 30_000, 100):
                log.add("a", steps(first, 100))
        finally:
            stop.set()
    assert all(seen)
    assert len(seen) > 5


# -- in a snapshot ----------------------------------------------------------------------------------------------------


def test_a_snapshot_has_the_steps_through_its_bytes() -> None:
    store = Store()
    store.steps.add("loader-1", steps(1, 5), dropped=2)
    before = store.snapshot([], {})
    store.steps.add("loader-1", steps(6, 5))
    assert before.steps.rows["batch"].tolist() == [1, 2, 3, 4, 5]
    after = Snapshot.from_bytes(before.to_bytes()).steps
    assert (after.loaders, after.dropped) == (("loader-1",), 2)
    assert after.rows.tobytes() == before.steps.rows.tobytes()
    assert after.rows.dtype == STEP
    assert len(Snapshot.from_bytes(Store().snapshot([], {}).to_bytes()).steps) == 0


@pytest.mark.parametrize(
    "bad",
    [
        StepTable((), np.zeros(2, dtype=STEP)),
        StepTable(("a",), np.full(1, 3, dtype=STEP)),
        StepTable(("a",), np.zeros(2, dtype=[("end", "<f8")])),
        StepTable(("a",), np.zeros((2, 1), dtype=STEP)),
    ],
    ids=["of no loader", "of another loader", "other fields", "a matrix"],
)
def test_steps_that_are_none_are_refused(bad: StepTable) -> None:
    good = Store().snapshot([], {})
    data = Snapshot(good.schema, good.seq, good.time, good.values, [], [], {}, bad).to_bytes()
    with pytest.raises(SessionError, match="steps are not such"):
        Snapshot.from_bytes(data)
