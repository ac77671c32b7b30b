"""`python -m tests.remote.joins JOINS`: a script that has called `ray.init` itself switches a running loader to `ray`.

With a loader of its own each time, and the first time right after `ray.init`. Prints a line of JSON for each: what
became of the click, s until then, whether the epochs were exact, the status.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from kernel_monitor import switchable

from .cluster import LOOPBACK, TRIES

SAMPLES = 200


class Mine(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return torch.tensor([index])


def join() -> dict[str, Any]:
    loader = switchable(DataLoader(Mine(), batch_size=4, num_workers=2))
    exact, state = True, loader.switch_state
    iterator = iter(loader)
    batches = [next(iterator)]
    loader.switch("ray")
    while state.clicks[-1].outcome == "pending" or batches:
        batches += iterator
        exact &= torch.cat(batches).flatten().tolist() == list(range(SAMPLES))
        batches, iterator = [], iter(loader)
        if state.clicks[-1].outcome == "pending":
            batches = [next(iterator)]
    click = state.clicks[-1]
    status = loader.state()["status"]
    loader.release()
    return {
        "outcome": click.outcome, "s": round((click.ended or 0.0) - click.asked, 1), "exact": exact, "status": status,
    }  # fmt: skip


def main() -> None:
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray listens on the machine's address
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    for attempt in range(1, TRIES + 1):
        try:
            ray.init(num_cpus=3, include_dashboard=False, _node_ip_address=LOOPBACK)
            break
        except Exception:
            ray.shutdown()
            if attempt == TRIES:
                raise
    for _ in range(int(sys.argv[1])):
        print(json.dumps(join()), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
