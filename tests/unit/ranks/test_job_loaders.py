"""The loaders of jobs: one state from those of the ranks, commands to them, and samples counted over all of them."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernel_monitor.errors import BackendUnavailable, MonitorError
from kernel_monitor.rank import Rank
from kernel_monitor.ranks.job_loaders import KEPT, KEPT_TOLD, MOST_COUNTED, JobLoaders
from kernel_monitor.ranks.rank_frames import Chunk, Frame, Identity, packed, unpacked
from tests.unit.checks import not_none

LOADER = "job-1/train"


def engine(name: str, reason: str | None = None) -> dict[str, Any]:
    return {"name": name, "available": reason is None, "reason": reason, "confirm": None, "note": None}


def state(**changes: Any) -> dict[str, Any]:
    return {
        "id": "loader-7", "name": "train", "backend": "torchvision", "wanted": None, "status": "torchvision",
        "backends": [engine("torchvision"), engine("dali-cpu")], "knobs": {"workers": 2, "prefetch": 2, "threads": 1},
        "epoch": 0, "batch": 3, "batches": 5, "samples": 12, "planned": 20, "lost": 0, "doubled": 0, "skipped": 0,
        "replaced": 0, "decoded": {"torchvision": 12}, **changes,
    }  # fmt: skip


class Job:
    """A job of some ranks, whose frames go through their bytes."""

    def __init__(self, world: int = 2, job: str = "job") -> None:
        self.now = 0.0
        self.name = job
        self.loaders = JobLoaders(lambda: self.now)
        self.ranks = [Rank(f"1-{number}", 1, number, world) for number in range(world)]

    def hear(
        self,
        rank: int,
        *states: dict[str, Any],
        chunks: list[tuple[Chunk, list[int]]] | None = None,
        handled: dict[int, str | None] | None = None,
        pid: int = 100,
    ) -> dict[str, Any]:
        identity = Identity("here", "", pid + rank, 1.0, 1, rank, len(self.ranks), self.name)
        indices = b"".join(array("I", numbers).tobytes() for _, numbers in chunks or ())
        frame = Frame(
            identity, 0.0, 0.0, 0.0, 0, 0, None, None, None, [],
            loaders=states or (state(),), chunks=[chunk for chunk, _ in chunks or ()], indices=indices,
            handled=handled or {},
        )  # fmt: skip
        return self.loaders.heard(self.ranks[rank], unpacked(packed(frame)))

    def state(self) -> Any:
        (found,) = self.loaders.states(self.ranks)
        return found


def piece(start: int, indices: list[int], *, planned: int, end: int | None = None, **changes: Any) -> Any:
    """A piece of the plan of a rank with `planned` samples, of a data set of ten."""
    end = start + len(indices) if end is None else end
    values: dict[str, Any] = {"length": 10, "shared": True, "finished": False, "epoch": 0, "first": 0}
    values |= {"skipped": 0, "lost": 0, "doubled": 0, **changes}
    return Chunk("loader-7", start=start, samples=len(indices), planned=planned, end=end, **values), indices


def test_states_of_ranks_are_one() -> None:
    job = Job()
    job.hear(0, state(backends=[engine("torchvision"), engine("dali-cpu"), engine("dali-gpu", "No GPU.")]))
    job.hear(
        1,
        state(
            backends=[engine("torchvision"), engine("dali-cpu", "No DALI."), engine("dali-gpu", "No GPU.")],
            knobs={"workers": 4, "prefetch": 2, "threads": None},
            batch=2,
        ),
    )
    found = job.state()
    assert (found["id"], found["name"], found["status"]) == (LOADER, "train · job 1", "torchvision on 2 ranks")
    assert (found["samples"], found["planned"], found["batch"], found["batches"]) == (24, 40, 2, 5)
    assert found["decoded"] == {"torchvision": 24}
    assert found["knobs"] == {"workers": None, "prefetch": 2, "threads": None}
    notes = {one["name"]: (one["available"], one["reason"], one["note"]) for one in found["backends"]}
    assert notes == {
        "torchvision": (True, None, None),
        "dali-cpu": (True, None, "not on rank 1: No DALI."),
        "dali-gpu": (False, "No GPU.", None),
    }
    # Frames come one after the other: the epoch before is shown until all have begun the next one, but not for ever.
    job.hear(0, state(epoch=1, samples=4, planned=20))
    found = job.state()
    assert (found["epoch"], found["samples"], found["batch"]) == (0, 24, 2)
    job.now += 2.1
    found = job.state()
    assert (found["epoch"], found["samples"], found["batch"]) == (1, 4, 0)


def test_a_command_goes_to_each_rank_until_it_answers() -> None:
    job = Job()
    for rank in (0, 1):
        assert job.hear(rank)["commands"] == []
    with pytest.raises(BackendUnavailable, match=r"no backend 'dino'\. There are: torchvision, dali-cpu"):
        job.loaders.switch(LOADER, "dino", job.ranks)
    with pytest.raises(MonitorError, match="No rank that has this loader"):
        job.loaders.switch("job-2/train", "dali-cpu", job.ranks)
    job.loaders.switch(LOADER, "dali", job.ranks)
    sent = {"id": 1, "loader": "loader-7", "do": "switch", "backend": "dali"}
    assert job.hear(0)["commands"] == [sent]
    assert (job.state()["status"], job.state()["wanted"]) == ("dali-cpu on 0 of 2 ranks", "dali-cpu")
    assert job.hear(0, state(wanted="dali-cpu"), handled={1: None})["commands"] == []
    assert job.loaders.settled(job.ranks) == []
    job.hear(0, state(backend="dali-cpu"), handled={1: None})
    assert job.state()["status"] == "dali-cpu on 1 of 2 ranks"
    assert job.hear(1)["commands"] == [sent]
    job.hear(1, handled={1: "DALI cannot decode them."})
    words = "dali-cpu on 1 of 2 ranks; rank 1 stays on torchvision: DALI cannot decode them."
    assert (job.state()["status"], job.state()["wanted"]) == (words, None)
    assert job.loaders.settled(job.ranks) == [((1, "train"), words)]
    assert job.loaders.settled(job.ranks) == []
    # The newest click counts, also for a rank that has not answered the one before.
    job.loaders.switch(LOADER, "dali-cpu", job.ranks)
    job.loaders.switch(LOADER, "torchvision", job.ranks)
    assert [command["backend"] for command in job.hear(0, state(backend="dali-cpu"))["commands"]] == ["torchvision"]


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        (("dali-cpu", "dali-cpu"), "dali-cpu on 2 ranks"),
        (("dali-gpu", "dali-cpu"), "dali-gpu on 1, dali-cpu on 1 of 2 ranks"),
    ],
)
def test_the_engines_that_run_are_named_where_dali_was_asked_for(engines: tuple[str, str], words: str) -> None:
    job = Job()
    for rank in (0, 1):
        job.hear(rank)
    job.loaders.switch(LOADER, "dali", job.ranks)
    for rank, backend in enumerate(engines):
        job.hear(rank, state(backend=backend), handled={1: None})
    assert job.state()["status"] == words
    assert job.loaders.settled(job.ranks) == [((1, "train"), words)]  # the text of the marker


def test_a_rank_that_ends_or_starts_again_is_not_waited_for() -> None:
    job = Job()
    for rank in (0, 1):
        job.hear(rank)
    job.loaders.switch(LOADER, "dali-cpu", job.ranks)
    job.hear(0, state(backend="dali-cpu"), handled={1: None})
    assert job.state()["wanted"] == "dali-cpu"
    gone = [job.ranks[0], Rank("1-1", 1, 1, 2, alive=False, reason="its process has ended")]
    (found,) = job.loaders.states(gone)
    assert (found["status"], found["wanted"], found["ranks"]) == ("dali-cpu on 1 rank", None, 1)
    # Started again it is another process, for which the switch holds as well.
    sent = {"id": 1, "loader": "loader-7", "do": "switch", "backend": "dali-cpu"}
    assert job.hear(1, pid=900)["commands"] == [sent]
    assert job.state()["status"] == "dali-cpu on 1 of 2 ranks"
    # What is kept of a job is freed when none of its ranks is left.
    job.hear(0, chunks=[piece(0, [0], planned=1)])
    job.loaders.finished([replace(rank, alive=False) for rank in job.ranks])
    assert job.loaders._coverage == {}


def test_a_switch_holds_for_ranks_and_loaders_that_come_later() -> None:
    job = Job()
    job.hear(0)
    job.loaders.switch(LOADER, "dali-cpu", job.ranks[:1])
    sent = {"id": 1, "loader": "loader-7", "do": "switch", "backend": "dali-cpu"}
    assert job.hear(1)["commands"] == [sent]  # its first frame: before its first batch
    assert job.hear(1, state(backend="dali-cpu"), handled={1: None})["commands"] == []
    # The same place makes its loader anew, as frameworks do; another loader is not meant.
    assert job.hear(1, state(id="loader-8"))["commands"] == [{**sent, "loader": "loader-8"}]
    assert job.hear(0, state(), state(id="loader-9", name="val"), handled={1: None})["commands"] == []
    # Once all ranks have ended, another run of the same job begins without it.
    job.loaders.finished([replace(rank, alive=False) for rank in job.ranks])
    assert [job.hear(rank, pid=900)["commands"] for rank in (0, 1)] == [[], []]


def test_a_switch_of_this_ranks_own_loader_holds_for_the_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "of the test")):
        monkeypatch.setenv(name, value)
    for asked in ("before the first frame", "after it", "twice"):
        job = Job(job="run of the test")
        if asked == "after it":
            assert job.hear(1)["commands"] == []
        job.loaders.lead("train", "dali-cpu", job.ranks)
        if asked == "twice":
            job.hear(1)
            job.loaders.lead("train", "threads", job.ranks)
        found = [(command["loader"], command["backend"]) for command in job.hear(1)["commands"]]
        assert found == [("loader-7", "threads" if asked == "twice" else "dali-cpu")], asked
        assert job.loaders.beside(LOADER) == "train"
    other = Job(job="another")
    other.loaders.lead("train", "dali-cpu", other.ranks)
    assert other.hear(1)["commands"] == []
    assert other.loaders.beside(LOADER) is None


def test_knobs_go_to_all_ranks_and_a_refusal_is_said() -> None:
    job = Job()
    for rank in (0, 1):
        job.hear(rank)
    job.loaders.set(LOADER, {"workers": 3}, job.ranks)
    sent = {"id": 1, "loader": "loader-7", "do": "set", "knobs": {"workers": 3}}
    assert [job.hear(rank)["commands"] for rank in (0, 1)] == [[sent], [sent]]
    job.hear(0, handled={1: None})
    job.hear(1, handled={1: "workers is at most 2 here."})
    assert job.state()["status"] == "torchvision on 2 ranks; rank 1: workers is at most 2 here."
    job.loaders.set(LOADER, {"workers": 2}, job.ranks)
    assert job.state()["status"] == "torchvision on 2 ranks"


def covered(job: Job) -> tuple[int, ...] | None:
    coverage = job.loaders._coverage[1, "train"][0].covered()
    return None if coverage is None else (coverage.once, coverage.padded, coverage.doubled, coverage.lost)


def test_samples_are_counted_over_all_ranks() -> None:
    job = Job()
    assert job.hear(0, chunks=[piece(0, [0, 2, 4], planned=5)])["had"] == {"loader-7": {0: 3}}
    assert covered(job) is None  # the other rank has not begun
    answer = job.hear(1, chunks=[piece(0, [1, 3], planned=5)])
    assert answer["had"] == {"loader-7": {0: 2}}
    assert covered(job) == (5, 0, 0, 0)
    # A piece that comes again, or overlaps, counts once; one after a gap waits for what is missing.
    job.hear(0, chunks=[piece(0, [0, 2, 4], planned=5)])
    job.hear(0, chunks=[piece(2, [4, 6], planned=5)])
    assert covered(job) == (6, 0, 0, 0)
    assert job.hear(1, chunks=[piece(3, [7], planned=5)])["had"] == {"loader-7": {0: 2}}
    assert covered(job) == (6, 0, 0, 0)
    job.hear(0, chunks=[piece(4, [8], planned=5, finished=True)])
    assert job.loaders.finished(job.ranks) == []
    job.hear(1, chunks=[piece(2, [5, 7, 9], planned=5, finished=True)])
    (epoch,) = job.loaders.finished(job.ranks)
    assert epoch.sentence == "epoch 1 over 2 ranks: 10 of 10 samples once, 0 lost, 0 delivered twice"
    assert job.loaders.finished(job.ranks) == []


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        # Padding: three ranks with four samples each of ten, as a DistributedSampler gives them.
        ([[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]], (10, 2, 0, 0)),
        # The samplers leave one out (drop_last).
        ([[0, 3, 6], [1, 4, 7], [2, 5, 8]], (9, 0, 0, 0)),
        # Two ranks with the same sample: one is delivered twice, one by nobody.
        ([[0, 3, 6, 9], [1, 4, 7], [2, 5, 1]], (9, 0, 1, 1)),
    ],
)
def test_padding_and_what_samplers_leave_out_are_no_fault(shares: list[list[int]], expected: tuple[int, ...]) -> None:
    job = Job(3)
    for rank, share in enumerate(shares):
        job.hear(rank, chunks=[piece(0, share, planned=len(share), finished=True)])
    assert covered(job) == expected


@pytest.mark.parametrize("changes", [{"shared": False}, {"length": 11}])
def test_nothing_is_claimed_where_the_samplers_do_not_share_one_data_set(changes: dict[str, Any]) -> None:
    job = Job()
    job.hear(0, chunks=[piece(0, [0, 2], planned=2, finished=True)])
    job.hear(1, chunks=[piece(0, [0, 2], planned=2, finished=True, **changes)])
    assert covered(job) is None
    assert not job.state()["once"]
    assert job.loaders.finished(job.ranks) == []


def test_a_rank_that_is_started_again_begins_the_count_anew() -> None:
    job = Job()
    for rank in (0, 1):
        job.hear(rank, chunks=[piece(0, [rank], planned=5)])
    assert covered(job) == (2, 0, 0, 0)
    for rank in (0, 1):
        job.hear(rank, pid=900, chunks=[piece(0, [rank, rank + 2], planned=5)])
    assert covered(job) == (4, 0, 0, 0)


def test_what_a_rank_did_not_deliver_of_its_plan_is_not_counted_as_delivered() -> None:
    job = Job()
    job.hear(0, chunks=[piece(0, [0, 2, 4, 6, 8], planned=5, finished=True, skipped=1, doubled=1)])
    job.hear(1, chunks=[piece(0, [1, 3, 5, 7, 9], planned=5, finished=True, lost=2)])
    (epoch,) = job.loaders.finished(job.ranks)
    assert covered(job) == (7, 0, 1, 2)
    assert epoch.sentence == (
        "epoch 1 over 2 ranks: 7 of 10 samples once, 1 skipped or replaced, 2 lost, 1 delivered twice"
    )
    assert (job.state()["lost"], job.state()["doubled"]) == (2, 1)


def test_what_is_kept_of_loaders_is_bounded_and_freed() -> None:
    job = Job()
    for number in range(200):  # names without end
        name = f"train {number}"
        job.hear(0, state(name=name), chunks=[piece(0, [0], planned=1, finished=True, epoch=number)])
        job.state()
        job.loaders.prune(job.ranks)
    assert [len(kept) for kept in (job.loaders._coverage, job.loaders._whole, job.loaders._processes)] == [1, 1, 1]
    for number in range(2000):  # epochs without end
        for rank in (0, 1):
            job.hear(rank, chunks=[piece(0, [rank], planned=1, finished=True, epoch=number, length=2)])
        job.loaders.finished(job.ranks)
    assert (len(job.loaders._told), len(job.loaders._coverage[1, "train"])) == (KEPT_TOLD, KEPT)
    job.loaders.prune([])
    assert (job.loaders._coverage, job.loaders._whole, job.loaders._processes) == ({}, {}, {})


def test_counts_take_bounded_memory_and_beyond_it_nothing_is_claimed() -> None:
    job = Job()
    length = MOST_COUNTED // 3
    for epoch in range(KEPT):
        for rank in (0, 1):
            job.hear(rank, chunks=[piece(0, [rank], planned=length // 2, epoch=epoch, length=length)])
    epochs = job.loaders._coverage[1, "train"]
    assert sum(coverage.size for coverage in epochs.values()) <= MOST_COUNTED
    assert list(epochs) == [1, 2, 3]
    newest = not_none(epochs[3].covered())
    assert newest.once == 2
    for rank in (0, 1):
        job.hear(rank, chunks=[piece(0, [rank], planned=1, epoch=9, length=MOST_COUNTED + 1)])
    assert job.loaders._coverage[1, "train"][9].covered() is None


def test_loaders_that_do_not_say_what_they_plan_are_merged() -> None:
    job = Job()
    for rank in (0, 1):
        job.hear(rank, state(planned=None), chunks=[piece(0, [rank], planned=1)])
    assert job.state()["planned"] is None


def test_a_large_data_set_is_counted_in_bounded_time() -> None:
    job = Job()
    order = np.random.default_rng(0).permutation(2_000_000)
    for rank in (0, 1):
        own = order[rank::2][:16_000].tolist()
        job.hear(rank, chunks=[piece(0, own, planned=1_000_000, length=2_000_000)])
    assert covered(job) == (32_000, 0, 0, 0)
