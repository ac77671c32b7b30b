"""A loader's batches as a worker computes them that does not see the files, which travel with the batch."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from kernel_monitor import switchable
from kernel_monitor.loaders.data.file_check import FileTable
from kernel_monitor.loaders.data.keyed_dataset import KeyedDataset
from kernel_monitor.loaders.data.sent_files import SentFiles
from kernel_monitor.loaders.engines.torch_engine import answer
from kernel_monitor.loaders.engines.worker_pickle import for_other_machines
from kernel_monitor.loaders.plan import Slot
from kernel_monitor.ray.engine import packed
from kernel_monitor.ray.node_worker import read_files

SEED = 11


class Elsewhere:
    """A loader's data set in a worker that does not see a folder: meanwhile it has another name."""

    def __init__(self, wrapped: DataLoader[Any], root: Path, **options: Any) -> None:
        self.root = root
        self.loader: Any = switchable(wrapped, seed=SEED, **options)
        self.keyed: KeyedDataset = self.loader.pool.setting.keyed
        self.wrapped = wrapped
        self.files = FileTable(1)
        self.blob = b""

    def delivery(self, slot: Slot) -> Any:
        """A batch as the engine `ray` delivers it where the files are sent."""
        # Once, as the engine does when it joins: later the data set may have opened what cannot be sent.
        self.blob = self.blob or packed(self.keyed, self.wrapped)
        before = torch.get_rng_state(), random.getstate()
        rows = self.keyed.to_send(slot, self.files)
        assert torch.equal(torch.get_rng_state(), before[0])  # the training's own generators are where they were
        assert random.getstate() == before[1]
        sent = for_other_machines(rows), [row.path for row in rows if row.path is not None]
        contents = read_files(sent[1])
        away = self.root.rename(self.root.with_name("away"))
        try:
            _, keyed, collate, _ = pickle.loads(self.blob)  # noqa: S301 - made above
            arrived = SentFiles(pickle.loads(sent[0]), contents)  # noqa: S301 - made above
            return answer(slot, collate(keyed.__getitems__(slot._replace(sent=arrived))))
        finally:
            away.rename(self.root)


def slots(total: int, size: int = 4) -> list[Slot]:
    places = [list(range(first, min(first + size, total))) for first in range(0, total, size)]
    return [Slot(number, 0, SEED, indices, [0] * len(indices)) for number, indices in enumerate(places)]
