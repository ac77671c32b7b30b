"""Who is which rank of which job: started again, of another size, two at once, and what is kept of those that ended."""

from __future__ import annotations

import math
import os

import pytest

from kernel_monitor.os_process import start_of
from kernel_monitor.rank import Row
from kernel_monitor.ranks import identity
from kernel_monitor.ranks.jobs import KEPT_ENDED, MOST_JOBS, MOST_RANKS, Jobs, means
from kernel_monitor.ranks.rank_client import ClockOffset
from kernel_monitor.ranks.rank_frames import Frame, Identity

from .peers import Clock

PORT = "127.0.0.1:29500 run"


def process(pid: int, rank: int | None, world: int | None = 2, job: str = PORT, host: str = "far") -> Identity:
    return Identity(host, "far-host", pid, 1.0, 1, rank, world, job)


def frame(of: Identity, step: float = 0.05, bye: str | None = None, bound: float | None = 0.0) -> Frame:
    row: Row = (1.0, 0, 0, 8, 0.02, step, math.nan, 0.01, 0.015, math.nan, 0)
    return Frame(of, 0.0, 12.0, 160.0, 0, 0, 0.0, bound, bye, [row])


def ids(jobs: Jobs) -> list[tuple[str, int | None, bool]]:
    return [(rank.id, rank.world, rank.alive) for rank in jobs.ranks()]


def test_values_are_means_of_the_steps_of_a_frame_and_hold_until_the_next_is_due() -> None:
    clock = Clock()
    jobs = Jobs(clock)
    jobs.heard(frame(process(1, 0)))
    found = jobs.values()
    assert found["rank/1-0/step"] == pytest.approx(50)
    assert found["rank/1-0/wait_percent"] == pytest.approx(40)
    assert found["rank/1-0/other"] == pytest.approx(5)
    assert "rank/1-0/copy" not in found
    clock.now += 1.4
    assert jobs.values() == found
    clock.now += 0.2
    assert jobs.values() == {}
    clock.now += 5
    jobs.refresh()
    assert jobs.ranks()[0].reason == "nothing was heard of it for 5 s"
    jobs.heard(frame(process(1, 0)))
    assert ids(jobs) == [("1-0", 2, True)]


def test_unmeasured_waits_leave_the_step() -> None:
    row: Row = (1.0, 0, 0, 8, math.nan, 0.05, math.nan, math.nan, math.nan, math.nan, 0)
    assert means([row]) == {"step": 50.0}


def test_a_job_of_another_size_is_another_group_and_one_of_the_same_size_goes_on() -> None:
    jobs = Jobs(Clock())
    for rank in (0, 1):
        jobs.heard(frame(process(rank + 1, rank)))
        jobs.heard(frame(process(rank + 1, rank), bye="it has finished"))
    assert ids(jobs) == [("1-0", 2, False), ("1-1", 2, False)]
    for rank in (0, 1):
        jobs.heard(frame(process(rank + 11, rank)))
    assert ids(jobs) == [("1-0", 2, True), ("1-1", 2, True)]
    for rank in (0, 1, 2):
        jobs.heard(frame(process(rank + 21, rank, world=3)))
    assert [entry[0] for entry in ids(jobs)] == ["1-0", "1-1", "2-0", "2-1", "2-2"]


def test_two_jobs_at_once_are_two_groups_even_at_one_address() -> None:
    jobs = Jobs(Clock())
    jobs.heard(frame(process(1, 0)))
    jobs.heard(frame(process(2, 0, job="127.0.0.1:29501 run")))
    jobs.heard(frame(process(3, 0)))
    jobs.heard(frame(process(4, 1)))
    assert [entry[0] for entry in ids(jobs)] == ["1-0", "2-0", "3-0", "3-1"]


def test_a_process_that_joins_its_group_later_is_one_rank() -> None:
    jobs = Jobs(Clock())
    jobs.heard(frame(process(1, None, None, job="far 1")))
    jobs.heard(frame(process(2, None, None, job="far 1")))
    assert [entry[0] for entry in ids(jobs)] == ["1-0", "1-1"]
    jobs.heard(frame(process(2, 0, 2, job="far 1")))
    jobs.heard(frame(process(1, 1, 2, job="far 1")))
    assert [entry[0] for entry in ids(jobs)] == ["2-0", "2-1"]


def test_a_process_of_this_machine_has_ended_when_it_is_gone() -> None:
    jobs = Jobs(Clock())
    here = identity.host_key()
    jobs.heard(frame(Identity(here, "", os.getpid(), start_of(os.getpid()) or 0.0, 1, 0, 2, PORT)))
    jobs.heard(frame(Identity(here, "", os.getpid(), 1.0, 1, 1, 2, PORT)))  # its number has gone to another process
    jobs.refresh()
    assert [(rank.alive, rank.reason, rank.host) for rank in jobs.ranks()] == [
        (True, None, ""),
        (False, "its process has ended", ""),
    ]


def test_a_found_process_that_joins_has_one_row() -> None:
    jobs = Jobs(Clock())
    jobs.found(process(1, 0), 40.0)
    assert jobs.values() == {"rank/1-0/cpu": 40.0}
    jobs.heard(frame(process(1, 0)))
    jobs.found(process(1, 0), 41.0)
    assert jobs.ranks()[0].steps
    assert jobs.values()["rank/1-0/cpu"] == 12.0


def test_only_the_newest_that_ended_are_kept() -> None:
    jobs = Jobs(Clock())
    for pid in range(1, KEPT_ENDED + 9):
        jobs.heard(frame(process(pid, 0, job=f"far {pid}"), bye="it has finished"))
    jobs.refresh()
    assert [rank.job for rank in jobs.ranks()] == list(range(9, KEPT_ENDED + 9))


def test_ranks_at_once_are_bounded_and_those_that_ended_make_room() -> None:
    jobs = Jobs(Clock())
    for pid in range(MOST_RANKS):
        jobs.heard(frame(process(pid, 0, job=f"far {pid}")))
    for pid in (MOST_RANKS, MOST_RANKS + 1):
        with pytest.raises(ValueError, match=f"more than {MOST_RANKS} ranks at once"):
            jobs.heard(frame(process(pid, 0, job=f"far {pid}")))
        jobs.found(process(pid, 0, job=f"far {pid}"), 1.0)
    jobs.heard(frame(process(7, 0, job="far 7")))
    jobs.heard(frame(process(3, 0, job="far 3"), bye="it has finished"))
    assert jobs.heard(frame(process(MOST_RANKS, 0, job="near"))).id == f"{MOST_RANKS + 1}-0"
    assert len(jobs.ranks()) == MOST_RANKS
    assert 4 not in {rank.job for rank in jobs.ranks()}


def test_the_numbers_of_jobs_are_bounded_and_idle_ones_go_first() -> None:
    jobs = Jobs(Clock())
    jobs.heard(frame(process(1, 0, job="lasting")))
    for pid in range(2, 2 * MOST_JOBS):
        jobs.heard(frame(process(pid, 0, job=f"far {pid}"), bye="it has finished"))
        jobs.refresh()
    assert len(jobs._numbers) == MOST_JOBS
    assert jobs.heard(frame(process(5000, 1, job="lasting"))).id == "1-1"


def test_the_clock_of_the_quickest_exchange_counts_and_its_bound_holds() -> None:
    offset = 37.25
    assert ClockOffset().best is None
    clock = ClockOffset()
    for asked, there, back in ((1.0, 0.2, 0.01), (2.0, 0.003, 0.001), (3.0, 0.01, 0.3)):
        received = asked + there + offset
        clock.add(asked, received, received + 0.5, asked + there + 0.5 + back)
    assert clock.best is not None
    found, bound = clock.best
    assert bound == pytest.approx(0.002)
    assert abs(found - offset) <= bound
    clock.add(5.0, 1.0, 9.0, 5.1)  # answered for longer than it was away: no such clock
    assert clock.best == (found, bound)


def test_how_exactly_clocks_agree_is_known_once_all_are_compared() -> None:
    jobs = Jobs(Clock())
    jobs.heard(frame(process(1, 0), bound=0.001))
    jobs.heard(frame(process(2, 1), bound=None))
    assert jobs.bound() is None
    jobs.heard(frame(process(2, 1), bound=0.004))
    assert jobs.bound() == 0.004
