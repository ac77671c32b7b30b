"""Image and target together, and several views, on a cluster: workers on nodes give what plain torch gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..loaders.data import own_joint, torchvision_joint, views
from ..loaders.data.datasets import as_written, equal
from ..loaders.data.joint_comparison import Comparison, Reference
from ..loaders.data.torchvision_joint import JointCase
from .conftest import Make, RunningCluster, until

SEED, BATCH = 5, 4
NAMES = ("VOCSegmentation", "image and mask by hand", "detection of variable sizes", "SimCLR", "views in a list")
CASES = [case for case in (*torchvision_joint.CASES, *own_joint.CASES, *views.CASES) if case.name in NAMES]

pytestmark = as_written


def expected(case: JointCase, root: Path, epoch: int = 0, size: int = BATCH) -> list[Any]:
    dataset = case.make(root)
    samples = Reference(dataset, [(case, dataset)], SEED).samples(epoch)
    return [case.collate(samples[first : first + size]) for first in range(0, len(samples), size)]


def counted(loader: Any, samples: int) -> None:
    state = loader.state()
    assert (state["lost"], state["doubled"], state["samples"]) == (0, 0, samples), state["status"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nodes_give_what_plain_torch_gives(case: JointCase, quick: RunningCluster, make: Make, tmp_path: Path) -> None:
    loader = make(dataset=case.make(tmp_path), collate_fn=case.collate, batch_size=BATCH)
    loader.switch("ray")
    for epoch in range(2):
        found = list(loader)
        counted(loader, case.samples)
        assert loader.decoded() == {"ray": case.samples}, loader.state()["status"]
        for one, other in zip(found, expected(case, tmp_path, epoch), strict=True):
            assert equal(one, other)


def test_three_engines_share_an_epoch(quick: RunningCluster, make: Make, tmp_path: Path) -> None:
    """The masks are those of plain torch, and the images but for DALI's decoder, whoever computed them."""
    case = next(case for case in CASES if case.name == "image and mask by hand")
    loader = make(dataset=case.make(tmp_path), collate_fn=case.collate, batch_size=1)
    found = list[Any]()
    iterator = iter(loader)
    for engine in ("ray", "dali-cpu", "ray"):
        found.append(next(iterator))
        loader.switch(engine)
        until(lambda: loader.switch_state.preparing is None, loader)
        found += [next(iterator) for _ in range(2)]
    found += iterator
    counted(loader, case.samples)
    assert set(loader.decoded()) >= {"ray", "dali-cpu"}, loader.decoded()
    comparison = Comparison(case)
    for one, other in zip(found, expected(case, tmp_path, size=1), strict=True):
        comparison.check(one, other)
