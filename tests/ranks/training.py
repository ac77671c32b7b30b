"""A training of some ranks with gloo: each step waits for its data, computes and averages a gradient.

Started by torchrun, or with `main` as the function of processes. SLOW_RANK waits longer for its data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from kernel_monitor import watch_loader

STEP_S = 0.02


class Batches:
    """Batches of four samples each; those of the slow rank take longer."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.count):
            time.sleep(self.seconds)
            yield torch.full((4, 2), float(number))


def main(steps: int = 200) -> None:
    dist.init_process_group("gloo")
    try:
        slow = os.environ.get("SLOW_RANK") == str(dist.get_rank())
        for batch in watch_loader(Batches(steps, 0.05 if slow else 0.001)):
            time.sleep(STEP_S)
            dist.all_reduce(batch)
    finally:
        dist.destroy_process_group()


def spawned(rank: int, world: int, port: int, steps: int = 200) -> None:
    """The function of a process of `torch.multiprocessing.spawn`: nothing in its environment says which rank it is."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    try:
        for batch in watch_loader(Batches(steps, 0.001)):
            time.sleep(STEP_S)
            dist.all_reduce(batch)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(os.environ.get("STEPS", "200")))
