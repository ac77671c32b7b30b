"""One rank of a real process group (gloo, over a file): what each loader delivers to it, printed as JSON.

python -m tests.loaders.ranks FOLDER STORE RANK RANKS
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torchvision import transforms as v1

from kernel_monitor.loaders import SwitchableLoader, switchable

from .conftest import switch_to
from .data import own_joint
from .data.joint_comparison import Comparison, Reference
from .photos import Located

EPOCHS = 3
MASKED = next(case for case in own_joint.CASES if case.name == "image and mask of types")
SEED = 5  # of the random numbers for MASKED's samples


class Numbered(Located):
    """A plain loader draws nothing for its samples, a switchable one crops."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 8, 8), index


class Third(Sampler[int]):
    """A sampler of somebody's own: whether it takes a part of the samples cannot be known from outside."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, 9, 3))

    def __len__(self) -> int:
        return 3


class Eighths(Sampler[int]):
    """A sampler that says by its attributes that it shares out."""

    def __init__(self) -> None:
        self.num_replicas, self.rank = dist.get_world_size(), dist.get_rank()

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 8, self.num_replicas))

    def __len__(self) -> int:
        return len(range(self.rank, 8, self.num_replicas))


Make = Callable[..., DataLoader[Any]]


def _loader(data: Dataset[Any], **options: Any) -> DataLoader[Any]:
    return DataLoader(data, 4, **options)


def _batches(data: Dataset[Any], shuffle: bool, sampler: Any = None, **_: Any) -> DataLoader[Any]:
    """Its batch sampler is given as such."""
    own = RandomSampler(data) if shuffle else SequentialSampler(data)  # type: ignore[arg-type]
    return DataLoader(data, batch_sampler=BatchSampler(sampler or own, 3, drop_last=True))


CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "shuffled": (_loader, {"shuffle": True}),
    "in order": (_loader, {"shuffle": False}),
    "shuffled, drop_last": (_loader, {"shuffle": True, "drop_last": True}),
    "in order, drop_last": (_loader, {"shuffle": False, "drop_last": True}),
    "shuffled, workers": (_loader, {"shuffle": True, "num_workers": 2}),
    "batch sampler": (_batches, {"shuffle": True, "drop_last": True}),
}


def plain(case: str, data: Dataset[Any]) -> list[Any]:
    """What torch's own DistributedSampler gives this rank."""
    make, options = CASES[case]
    options = dict(options)
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, shuffle=options.pop("shuffle"), drop_last=options.get("drop_last", False)
    )
    torch.manual_seed(dist.get_rank())
    loader = make(data, sampler=sampler, **({"shuffle": False} if make is _batches else {}), **options)
    seen: list[Any] = [len(loader)]
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        seen.append([targets.tolist() for _, targets in loader])
    return [*seen, torch.get_rng_state().tolist()]


def ours(loader: SwitchableLoader) -> list[Any]:
    """What a loader gives this rank, with no word about epochs."""
    torch.manual_seed(dist.get_rank())
    seen: list[Any] = [len(loader), *([t.tolist() for _, t in loader] for _ in range(EPOCHS))]
    state = loader.state()
    assert (state["lost"], state["doubled"]) == (0, 0)
    assert state["samples"] == state["planned"] == len([index for batch in seen[-1] for index in batch])
    assert (state["batch"], state["batches"]) == (len(seen[-1]), len(loader))
    return [*seen, torch.get_rng_state().tolist()]


def once(loader: Any) -> list[int]:
    return [index for _, targets in loader for index in targets.tolist()]


def resumed(data: Dataset[Any], before: bool) -> list[Any]:
    """A loader that is left in its second epoch, or after its first, and one that goes on from its state."""
    first = switchable(_loader(data, shuffle=True))
    once(first)
    delivered = [] if before else [index for _, (_, t) in zip(range(2), first, strict=False) for index in t.tolist()]
    second = switchable(_loader(data, shuffle=True))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    delivered += once(second)
    return [delivered, once(second), second.state()["epoch"]]


def told(data: Dataset[Any]) -> dict[str, list[int]]:
    """One epoch each of loaders whose number of the epoch somebody sets."""
    by_loader, by_sampler = (switchable(_loader(data, shuffle=True)) for _ in range(2))
    by_loader.set_epoch(5)
    by_sampler.sampler.set_epoch(7)
    seen = {"loader, 5": once(by_loader), "then 6": once(by_loader), "sampler, 7": once(by_sampler)}
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    for name, epoch in (("loader, 5", 5), ("then 6", 6), ("sampler, 7", 7)):
        sampler.set_epoch(epoch)
        seen[f"plain {name}"] = list(sampler)
    return seen


def masked(root: Path) -> dict[str, Any]:
    """Images with masks: two epochs, switched in their middle; the second one is left there and resumed.

    Each sample is compared with plain torch's, and each rank's order with its DistributedSampler's.
    """

    def made() -> SwitchableLoader:
        return switchable(DataLoader(MASKED.make(root), 1, shuffle=True, collate_fn=list), seed=SEED)

    first, second = made(), made()
    iterator, epochs = iter(first), list[list[Any]]()
    epochs.append([next(iterator)])
    switch_to(first, "dali-cpu")
    epochs[0] += [next(iterator) for _ in range(2)]
    switch_to(first, "torchvision")
    epochs[0] += iterator
    decoded = [first.decoded()]
    switch_to(first, "dali-cpu")
    iterator = iter(first)
    epochs.append([next(iterator) for _ in range(2)])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    iterator = iter(second)
    epochs[1] += [next(iterator) for _ in range(2)]
    switch_to(second, "dali-cpu")
    epochs[1] += iterator
    decoded.append(second.decoded())
    dataset = MASKED.make(root)
    reference = Reference(dataset, [(MASKED, dataset)], SEED)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    comparison, shares = Comparison(MASKED), []
    for epoch, batches in enumerate(epochs):
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        for batch, index in zip(batches, shares[-1], strict=True):
            comparison.check(batch, [reference.sample(index, epoch)])
    for loader in (first, second):
        loader.release()
    return {"shares": shares, "decoded": decoded, "images": comparison.images, "worst": comparison.worst}


class Heard(logging.Handler):
    """What was logged as a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def main(folder: str, store: str, rank: int, ranks: int) -> dict[str, Any]:
    heard = Heard()
    logging.getLogger("kernel_monitor").addHandler(heard)
    data = Numbered(sorted(Path(folder).iterdir()), v1.Compose([v1.RandomCrop(8), v1.ToTensor()]))
    early = {case: switchable(make(data, **options), seed=1) for case, (make, options) in CASES.items()}
    lengths = [len(loader) for loader in early.values()]
    quiet = not heard.said
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    expected = {case: plain(case, data) for case in CASES}
    late = {case: ours(loader) for case, loader in early.items()}
    statuses = [loader.state()["status"] for loader in early.values()]
    said_late = len(heard.said)
    there = {case: ours(switchable(make(data, **options), seed=1)) for case, (make, options) in CASES.items()}
    said_there = len(heard.said) - said_late
    mine = DataLoader(data, 4, shuffle=True)
    whole, wrapped = switchable(mine, shard=False), switchable(mine)
    heard_before = len(heard.said)
    for_masks = masked(Path(folder).with_name("masked"))
    result = {
        "masked": for_masks,
        "quiet": quiet,
        "lengths": lengths,
        "expected": expected,
        "late": late,
        "there": there,
        "statuses": statuses,
        "said": [said_late, said_there],
        "first": heard.said[:1],
        "whole": sorted(once(whole)),
        "mine": [len(mine), len(wrapped), len(whole)],
        "told": told(data),
        "resumed": resumed(data, before=False),
        "resumed before": resumed(data, before=True),
        "own": once(switchable(_loader(data, sampler=DistributedSampler(data, shuffle=False)))),
        "declared": once(switchable(_loader(data, sampler=Eighths()))),
    }
    heard.said[heard_before:] = [said for said in heard.said[heard_before:] if "shared out among" not in said]
    unknown = [switchable(_loader(data, sampler=Third())), switchable(_loader(data, sampler=_weighted(len(data))))]
    result["unknown"] = once(unknown[0])
    result["unknown status"] = [loader.state()["status"] for loader in unknown]
    switchable(_loader(data, sampler=Third()), shard=False)
    result["unknown said"] = heard.said[heard_before:]
    for loader in early.values():
        loader.release()
    dist.destroy_process_group()
    return result


def _weighted(count: int) -> Sampler[int]:
    return WeightedRandomSampler([1.0] * count, count)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
