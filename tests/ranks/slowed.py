"""A DistributedDataParallel training with gloo that is even at first; one of its ranks may become slow."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from kernel_monitor import monitor, watch_loader

SLOW = 2  # the rank that becomes slow
DATA_S, FORWARD_S = 0.004, 0.025
MORE_S = 0.02  # by which the slow rank takes longer


class Slowdown:
    """From a step on more time; the moment is written to a file, by `time.monotonic()`."""

    def __init__(self, after: int, file: str, *, here: bool) -> None:
        self._after, self._file, self._here = after, Path(file), here
        self._steps = 0

    def wait(self) -> None:
        self._steps += 1
        if self._here and self._steps > self._after:
            if not self._file.exists():
                self._file.write_text(repr(time.monotonic()), "utf-8")
            time.sleep(MORE_S)


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Each takes its time, as if it were read and decoded."""

    def __init__(self, count: int, slow: Slowdown) -> None:
        self._count, self._slow = count, slow

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(DATA_S)
        self._slow.wait()
        return torch.full((8,), float(index % 7))


class Model(nn.Module):
    """Its forward takes its time, as on a device."""

    def __init__(self, slow: Slowdown) -> None:
        super().__init__()
        self._layer, self._slow = nn.Linear(8, 4), slow

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        self._slow.wait()
        found: torch.Tensor = self._layer(batch)
        return found


def loader(samples: Samples) -> Iterator[torch.Tensor]:
    return iter(watch_loader(torch.utils.data.DataLoader(samples, batch_size=1)))


def rank(
    number: int, world: int, port: int, steps: int, after: int, cause: Literal["data", "compute", "none"], file: str
) -> None:
    """One rank: the function of a forked process."""
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(number), str(world)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=world)
    try:
        of_data, of_compute = (
            Slowdown(after, file, here=number == SLOW and cause == part) for part in ("data", "compute")
        )
        model = nn.parallel.DistributedDataParallel(Model(of_compute))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        monitor.watch(model, optimizer)
        for batch in loader(Samples(steps, of_data)):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()
