"""A training that knows nothing of kernel_monitor: run as a script, or by torchrun as ranks.

It trains until `enough` is in the folder OUT, and prints only what does not depend on how long that was.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms

OUT, PHOTOS = map(Path, sys.argv[1:3])


class Photos(Dataset[Any]):
    """A data set of the user's own."""

    def __init__(self) -> None:
        self.files = sorted(PHOTOS.rglob("*.jpg"))
        self.transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB")), index


class Patched(Dataset[Any]):
    """Says whether DataLoaders are measured in the process that reads it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bool:
        return hasattr(DataLoader.__iter__, "__wrapped__")


def main() -> None:
    ranks = "RANK" in os.environ
    if ranks:
        dist.init_process_group("gloo")
    torch.manual_seed(3)
    data = Photos()
    sampler: DistributedSampler[Any] | None = DistributedSampler(data) if ranks else None
    workers = 0 if ranks else 2
    train_loader = DataLoader(data, batch_size=4, shuffle=not ranks, sampler=sampler, num_workers=workers)
    once = True
    began = time.monotonic()
    for epoch in itertools.count():
        seen, total = [], 0.0
        for images, numbers in train_loader:
            time.sleep(0.03)
            seen += numbers.tolist()
            total += float(images.double().sum())
        if ranks:
            shares: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(shares, seen)
            seen = [number for share in shares for number in share]
        once = once and sorted({*seen}) == list(range(len(data))) and len(seen) - len(data) in (0, int(ranks))
        if epoch == 0 and not ranks:
            print("first epoch", seen, total, flush=True)
        (OUT / f"epoch {epoch}").touch()
        enough = torch.tensor(int((OUT / "enough").exists() or time.monotonic() - began > 400))
        if ranks:
            dist.broadcast(enough, 0)
        if enough:
            break
    if ranks:
        print("once", once, flush=True)
        dist.destroy_process_group()
        return
    if "SPAWN" in os.environ:
        spawned = DataLoader(Patched(), None, num_workers=1, multiprocessing_context="spawn")
        (OUT / "patched").write_text(
            f"{[bool(found) for found in spawned]} {hasattr(DataLoader.__iter__, '__wrapped__')}"
        )
    print("once", once, type(train_loader) is DataLoader, flush=True)
    print(sys.argv, sys.path, __file__, __name__, __spec__, flush=True)
    sys.exit(3)


if __name__ == "__main__":
    main()
