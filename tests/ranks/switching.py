"""A training of some ranks with DDP over a folder of JPEGs; each writes what it did to OUT/<rank>.json.

Started by torchrun. EPOCHS, STEP (s of a step beside the loader), BATCHES_DROPPED=1, SHARED=0 and WITHOUT_DALI (a rank)
change it. It begins once OUT/go exists, and ends early, after an epoch, once OUT/enough exists.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

BATCH = 8


def main(folder: str, out: Path) -> None:
    rank = int(os.environ["RANK"])
    if os.environ.get("WITHOUT_DALI") == str(rank):
        sys.modules["nvidia.dali"] = None  # type: ignore[assignment]
    from kernel_monitor import monitor, switchable

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    steps = [v2.RandomResizedCrop(48, antialias=True), v2.RandomHorizontalFlip(), v2.ToImage()]
    transform = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])
    plain = DataLoader(
        ImageFolder(folder, transform), BATCH, shuffle=True, drop_last=os.environ.get("BATCHES_DROPPED") == "1"
    )
    loader = switchable(plain, name="train", seed=1, shard=os.environ.get("SHARED") != "0")
    model = DistributedDataParallel(
        nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor.watch(model, optimizer)
    losses, ends, counts = [], [], []
    while not (out / "go").exists():
        time.sleep(0.05)
    for _ in range(int(os.environ.get("EPOCHS", "4"))):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            time.sleep(float(os.environ.get("STEP", "0")))
            losses.append(loss.item())
            ends.append(time.monotonic())
        counts.append(loader.epochs()[-1])
        enough = torch.tensor(float((out / "enough").exists()))
        dist.broadcast(enough, 0)
        if enough:
            break
    history = [switch._asdict() for switch in loader.history]
    found = {"losses": losses, "ends": ends, "counts": counts, "history": history}
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
