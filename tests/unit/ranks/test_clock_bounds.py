"""How exactly the clocks of ranks' hosts are known, as the page says it: rounded up, and seldom anew."""

from __future__ import annotations

import pytest

from kernel_monitor.ranks.rank_client import ClockOffset
from kernel_monitor.ranks.rank_tracker import coarse


def test_a_bound_is_rounded_up_and_kept_until_much_more_is_known() -> None:
    assert coarse(None, None) is None
    assert coarse(0.0011, None) == 2.0
    assert coarse(0.0009, 2.0) == 2.0
    assert coarse(0.00035, 2.0) == 2.0  # 0.5 ms would do: not yet five times as narrow is shown
    assert coarse(0.00019, 2.0) == 0.2
    assert coarse(0.004, 2.0) == 5.0  # a wider one is said at once
    assert coarse(None, 5.0) == 5.0
    assert coarse(7.0, None) == 1000.0


def test_of_all_exchanges_of_a_minute_the_quickest_counts_and_its_bound_holds() -> None:
    clock, true = ClockOffset(), 5.0
    # Both ways take differently long: the offset is wrong by at most half of the whole delay.
    for at, there, back in ((0.0, 0.010, 0.002), (1.0, 0.001, 0.0012), (2.0, 0.03, 0.01)):
        clock.add(at, at + there + true, at + there + true, at + there + back)
    offset, bound = clock.best or (0.0, 0.0)
    assert abs(offset - true) <= bound
    assert bound == pytest.approx((0.001 + 0.0012) / 2)
    # After a minute what was is too old to hold its promise: clocks drift.
    clock.add(70.0, 70.0 + 0.02 + true, 70.0 + 0.02 + true, 70.0 + 0.04)
    assert clock.best is not None
    assert clock.best[1] == pytest.approx(0.02)
