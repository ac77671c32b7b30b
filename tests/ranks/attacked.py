"""A training loop with DataLoader workers and a thousand descriptors, whose session listens on TCP for ranks.

Prints the session's folder; then for each line of stdin a report of what has happened since the last one, as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from kernel_monitor import monitor
from kernel_monitor.ranks.rank_server import RankServer
from kernel_monitor.ranks.rank_tracker import RankTracker

DESCRIPTORS = 1024
SAMPLES, BATCH = 64, 8


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 8, 8), float(index * index))


class Loop:
    """Trains until it is ended; each epoch has workers of its own, which need descriptors."""

    def __init__(self) -> None:
        self.epochs = self.wrong = self.most_open = 0
        self.error: str | None = None
        self.ending = False

    def run(self) -> None:
        expected = [torch.arange(start, start + BATCH, dtype=torch.float32) ** 2 for start in range(0, SAMPLES, BATCH)]
        try:
            while not self.ending:
                batches = [batch[:, 0, 0, 0] for batch in DataLoader(Squares(), batch_size=BATCH, num_workers=2)]
                self.wrong += len(batches) != len(expected)
                self.wrong += sum(not torch.equal(*pair) for pair in zip(batches, expected, strict=False))
                self.epochs += 1
                self.most_open = max(self.most_open, len(list(Path("/proc/self/fd").iterdir())))
                time.sleep(0.05)
        except Exception as error:  # noqa: BLE001 - the test fails with it
            self.error = f"{type(error).__name__}: {error}"


def ranks_server() -> RankServer:
    ranks = monitor.live_session.ranks
    assert isinstance(ranks, RankTracker)
    assert ranks.server is not None
    return ranks.server


def reports(loop: Loop) -> None:
    before = (time.monotonic(), monitor.store.last_seq, loop.epochs)
    while os.read(0, 1):  # sys.stdin would be locked meanwhile, and each worker closes it
        server = ranks_server()
        now = (time.monotonic(), monitor.store.last_seq, loop.epochs)
        seconds, rows, epochs = (after - since for after, since in zip(now, before, strict=True))
        before = now
        found: dict[str, Any] = {
            "rate": rows / seconds,
            "epochs": epochs,
            "wrong": loop.wrong,
            "error": loop.error,
            "most_open": loop.most_open,
            "memory": memory(),
            "refused": server.refused,
            "restarts": server.restarts,
            "hears": server._thread.is_alive(),
            "ranks": [(rank.host, rank.alive) for rank in server.ranks()],
            "nodes": len(monitor.live_session.nodes.nodes),
            "series": len(monitor.store.schema.series),
            "status": monitor.status(),
        }
        print(json.dumps(found), flush=True)
    loop.ending = True


def memory() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    monitor.configure(ranks="tcp://127.0.0.1:0", record=False)
    monitor.start()
    server = ranks_server()
    loop = Loop()
    print(server.folder, flush=True)
    threading.Thread(target=reports, args=(loop,), daemon=True).start()
    loop.run()
    monitor.stop()


if __name__ == "__main__":
    main()
