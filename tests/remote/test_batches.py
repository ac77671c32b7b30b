"""Batches from other machines: those of the plain DataLoader, bit for bit, in its order, each once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.ray.packing import pack, unpack

from ..loaders.conftest import seed_all, settle
from ..loaders.photos import Located
from ..loaders.test_order import IN_WORKERS, SAMPLERS, files, observed
from .conftest import Make, RunningCluster

__all__ = ["files"]  # a fixture


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
@pytest.mark.parametrize("name", [*SAMPLERS, *(set(IN_WORKERS) - {"worker_init_fn"})])
def test_as_the_plain_data_loader(name: str, quick: RunningCluster, files: list[Path]) -> None:
    shown = []
    for wrapped in (False, True):
        data = Located(files)
        seed_all()
        settings = {"num_workers": 2, **{**SAMPLERS, **IN_WORKERS}[name](data)}
        if "batch_sampler" not in settings:
            settings["batch_size"] = 4
        loader: Any = DataLoader(data, **settings)
        if wrapped:
            loader = switchable(loader)
            loader.switch("ray")
        shown.append(observed(loader))
        if wrapped:
            assert set(loader.decoded(0)) | set(loader.decoded(1)) == {"ray"}
            assert [(counts["lost"], counts["doubled"]) for counts in loader.epochs()] == [(0, 0)] * 2
            loader.release()
    assert shown[0] == shown[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_augmentation_is_that_of_torchvision(workers: int, quick: RunningCluster, make: Make) -> None:
    """In the middle of an epoch there and back, with crops and flips: every batch bit-equal."""

    def epochs(switches: dict[int, str]) -> tuple[SwitchableLoader, list[Any]]:
        torch.manual_seed(3)
        loader = make(shuffle=True, num_workers=workers)
        delivered = []
        for _ in range(2):
            for number, batch in enumerate(loader):
                delivered.append(batch)
                if number in switches:
                    loader.switch(switches[number])
                    settle(loader)
        return loader, delivered

    _, expected = epochs({})
    loader, delivered = epochs({2: "ray", 12: "torchvision", 17: "ray"})
    assert {entry.target for entry in loader.history} == {"ray", "torchvision"}
    assert len(loader.history) >= 5
    assert loader.decoded(0)["ray"] > 40
    assert len(delivered) == len(expected) == 60
    for one, other in zip(delivered, expected, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        assert one[0].stride() == other[0].stride()
    state = loader.state()
    assert (state["lost"], state["doubled"], state["samples"], state["planned"]) == (0, 0, 120, 120)
    delivered[0][0].add_(1)  # what arrives may be written to


class Keyed(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: Any) -> Any:
        return repr(key), random.random()


def test_keys_that_are_no_indices_reach_the_nodes(quick: RunningCluster) -> None:
    class Scaled(NamedTuple):  # which the nodes do not have
        number: int
        size: int

    batches: Any = [[(number, 32), f"n{number}"] for number in range(12)] + [[Scaled(3, 64)], [-1, np.int64(5)]]
    delivered = []
    for engine in ("torchvision", "ray"):
        loader = switchable(DataLoader(Keyed(), batch_sampler=batches, collate_fn=list), seed=2)
        loader.switch(engine)
        settle(loader)
        delivered.append(list(loader))
        assert set(loader.decoded()) == {engine}, loader.state()["status"]
        assert loader.state()["lost"] == loader.state()["doubled"] == 0
        loader.release()
    assert delivered[0] == delivered[1]


class Odd(NamedTuple):
    image: torch.Tensor
    extra: dict[str, Any]


class OddSet(Dataset[Any]):
    """Draws, and gives what only a collate function of its own can make a batch of."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        noise = torch.rand(3, 5) + random.random() + float(np.random.rand())  # noqa: NPY002
        return Odd(noise.to(torch.bfloat16), {"index": index, "name": f"sample {index}", "info": info is not None})


class ByHand:
    """A collate function that draws as well; its batch holds a tensor twice, an array, text, and a strided tensor."""

    def __call__(self, samples: list[Odd]) -> Any:
        images = torch.stack([sample.image for sample in samples])
        lines = np.asfortranarray(np.array([[sample.extra["index"], 7] for sample in samples]))
        names = [sample.extra["name"] for sample in samples]
        return {"images": images, "again": images, "turned": images.transpose(0, 2), "lines": lines, "names": names,
                "drawn": torch.rand(()), "nothing": torch.empty(0, 3), "samples": samples}  # fmt: skip


def test_odd_batches(quick: RunningCluster, make: Make) -> None:
    torch.manual_seed(8)
    expected = list(make(dataset=OddSet(), collate_fn=ByHand()))
    torch.manual_seed(8)
    loader = make(dataset=OddSet(), collate_fn=ByHand())
    loader.switch("ray")
    delivered = list(loader)
    assert loader.decoded() == {"ray": 22}, loader.switch_state.status
    for one, other in zip(delivered, expected, strict=True):
        assert list(one) == list(other)
        assert one["again"] is one["images"]
        assert one["turned"].stride() == other["turned"].stride()
        for name in ("images", "turned", "drawn", "nothing"):
            assert one[name].dtype == other[name].dtype
            assert torch.equal(one[name], other[name])
        assert one["lines"].flags.f_contiguous
        assert (one["lines"] == other["lines"]).all()
        one["lines"] += 1
        assert one["names"] == other["names"]
        assert [type(sample) for sample in one["samples"]] == [Odd] * len(one["samples"])
        assert [sample.extra for sample in one["samples"]] == [sample.extra for sample in other["samples"]]


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(4).expand(3, 4),
        torch.rand(8)[::2],
        torch.tensor(True),
        torch.rand(2, dtype=torch.complex64),
        torch.rand(2, dtype=torch.complex64).conj(),
        torch.rand(3, requires_grad=True),
        torch.rand(3).to_sparse(),
        torch.nn.Parameter(torch.rand(2)),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.array([("a", 1)], dtype=[("name", "U3"), ("number", "i4")]),
        np.array([{"any": "object"}]),
        np.zeros((0, 3)),
        np.float32(3),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_what_is_packed_comes_out_the_same(value: Any) -> None:
    header, buffers = pack([value, value])
    one, two = unpack(header, [buffer.copy() for buffer in buffers])
    assert one is two or np.isscalar(value)
    assert type(one) is type(value)
    assert one.dtype == value.dtype
    if isinstance(value, torch.Tensor):
        assert (one.layout, one.requires_grad) == (value.layout, value.requires_grad)
        assert torch.equal(one.to_dense(), value.to_dense())
    else:
        assert (one == value).all()
