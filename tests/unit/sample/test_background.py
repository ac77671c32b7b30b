"""What is read beside the clock: periods are kept, and one probe that fails stops no other."""

from __future__ import annotations

import itertools
import math
import statistics
import time

import pytest

from kernel_monitor.sample.frame_builder import Background
from kernel_monitor.sample.probe import Probe
from tests.unit.checks import wait_for


class Steps(Probe):
    """A probe that counts its reads, and fails while it is told to."""

    def __init__(self, group: str, period: float) -> None:
        self.group = group
        self.period = period
        self.series = ((f"{group}/reads", "1"),)
        self.reads: list[float] = []
        self.broken = False

    def read(self, now: float, /) -> list[float]:
        self.reads.append(now)
        if self.broken:
            raise OSError("the file has gone")
        return [float(len(self.reads))]


def test_slow_probes_keep_their_periods_and_one_that_fails_stops_no_other() -> None:
    often, seldom = Steps("often", 0.1), Steps("seldom", 0.3)
    complaints: list[tuple[str, str]] = []
    background = Background(
        [often, seldom], [], lambda name, error: complaints.append((name, str(error))), 0.05, time.monotonic()
    )
    background.start()
    first = background.readings()[0]
    assert (list(first.values), math.isnan(first.window)) == ([1.0], True)  # read once before any frame
    wait_for(lambda: len(often.reads) >= 12)
    seldom.broken = True
    count = len(often.reads)
    wait_for(lambda: complaints and len(often.reads) >= count + 6)
    assert math.isnan(background.readings()[1].values[0])
    seldom.broken = False
    wait_for(lambda: not math.isnan(background.readings()[1].values[0]))
    background.stop()
    assert set(complaints) == {("seldom", "the file has gone")}
    for probe in (often, seldom):
        gaps = [b - a for a, b in itertools.pairwise(probe.reads[1:])]
        assert statistics.median(gaps) == pytest.approx(probe.period, rel=0.3)
    assert background.readings()[0].window == pytest.approx(0.1, rel=0.9)


def test_slow_probes_follow_another_interval() -> None:
    probe = Steps("often", 0.1)
    zero = time.monotonic()
    background = Background([probe], [], lambda name, error: None, 0.05, zero)
    background.start()
    wait_for(lambda: len(probe.reads) >= 5)
    background.replan(0.4, zero)
    time.sleep(0.1)
    before = len(probe.reads)
    wait_for(lambda: len(probe.reads) >= before + 4)
    background.stop()
    late = probe.reads[before:]
    assert statistics.median(b - a for a, b in itertools.pairwise(late)) == pytest.approx(0.4, rel=0.25)
    # Shortly before the frame, which is taken in the middle of the interval.
    assert statistics.median(((stamp - zero) / 0.4) % 1 for stamp in late) == pytest.approx(0.25, abs=0.2)


# -- the kernel's side of the commands --------------------------------------------------------------------------------
