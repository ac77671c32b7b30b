"""Several ranks of a real process group: what each is given, with torch's own DistributedSampler beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from .data.torchvision_layouts import image
from .ranks import CASES, EPOCHS, MASKED

RANKS, IMAGES = 2, 31
Result = dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """What each of two processes on this machine printed."""
    folder = tmp_path_factory.mktemp("ranks")
    files = folder / "images"
    for number in range(IMAGES):
        image(files / f"{number:02d}.jpg", seed=number)
    MASKED.make(folder / "masked")  # writes its files
    command = [sys.executable, "-W", "ignore", "-m", "tests.loaders.ranks"]
    started = [
        subprocess.Popen(
            [*command, str(files), str(folder / "store"), str(rank), str(RANKS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        ended = [process.communicate(timeout=180) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * RANKS, "\n".join(error for _, error in ended)
    return [json.loads(printed) for printed, _ in ended]


@pytest.mark.parametrize("when", ["there", "late"])
@pytest.mark.parametrize("case", CASES)
def test_each_rank_gets_what_a_distributed_sampler_gives_it(results: list[Result], case: str, when: str) -> None:
    """The group is there when the loader is made, or comes later: lengths, batches of each epoch, torch's generator."""
    for result in results:
        assert result[when][case] == result["expected"][case]


@pytest.mark.parametrize("case", CASES)
def test_together_the_ranks_get_every_sample(results: list[Result], case: str) -> None:
    dropped = "drop_last" in CASES[case][1]
    for epoch in range(EPOCHS):
        shares = [[index for batch in result["late"][case][1 + epoch] for index in batch] for result in results]
        together = [index for share in shares for index in share]
        assert len({len(share) for share in shares}) == 1
        assert len(set(together)) == len(together) if dropped else set(together) == set(range(IMAGES))


def test_it_is_said_once_where_it_is_seen(results: list[Result]) -> None:
    first = results[0]
    assert first["quiet"]
    assert first["lengths"] == [8, 8, 7, 7, 8, 10]  # as long as there is no group, it is one process's loader
    assert first["said"] == [len(CASES)] * 2
    assert first["first"][0] == (
        "The samples are shared out among 2 ranks as by a DistributedSampler: rank 0 gets 16 of 31 per epoch, shuffled "
        "by seed 0 and epoch; switchable(…, shard=False) gives each rank all of them."
    )
    assert results[1]["said"] == [0, 0]
    for rank, result in enumerate(results):
        for status in result["statuses"]:
            assert status.startswith("torchvision. The samples are shared out among 2 ranks")
            assert f"rank {rank} gets 1" in status


def test_an_argument_turns_it_off_and_the_users_own_loader_stays_as_it_is(results: list[Result]) -> None:
    for result in results:
        assert result["whole"] == list(range(IMAGES))
        assert result["mine"] == [8, 4, 8]


def test_a_number_of_the_epoch_that_somebody_sets_counts(results: list[Result]) -> None:
    for result in results:
        told = result["told"]
        for name in ("loader, 5", "then 6", "sampler, 7"):
            assert told[name] == told[f"plain {name}"]


def test_each_rank_resumes_its_own_share(results: list[Result]) -> None:
    for result in results:
        epochs = [[index for batch in epoch for index in batch] for epoch in result["expected"]["shuffled"][2:4]]
        assert result["resumed"] == result["resumed before"] == [*epochs, 2]


def test_images_with_masks_are_shared_out_switched_and_resumed(results: list[Result]) -> None:
    """What each rank found equal to plain torch's samples is all of them."""
    for number in range(2):
        shares = [result["masked"]["shares"][number] for result in results]
        assert sorted(shares[0] + shares[1]) == list(range(MASKED.samples))
    for result in results:
        found = result["masked"]
        assert found["decoded"] == [{"torchvision": 4, "dali-cpu": 2}, {"torchvision": 2, "dali-cpu": 4}]
        assert found["images"] == MASKED.samples
        assert found["worst"] > 0  # DALI's decoder


def test_samplers_that_share_out_are_left_alone_and_unknown_ones_with_a_sentence(results: list[Result]) -> None:
    for rank, result in enumerate(results):
        assert result["own"] == [*range(rank, IMAGES, RANKS), *([] if rank == 0 else [rank - 1])]
        assert result["declared"] == list(range(rank, 8, RANKS))
        assert result["unknown"] == [0, 3, 6]
        for status, sampler in zip(result["unknown status"], ("Third", "WeightedRandomSampler"), strict=True):
            assert f"Each of the 2 ranks gets whatever its own {sampler} draws, for how to share" in status
        assert len(result["unknown said"]) == (0 if rank else 2)
