"""The re-enactment of an empty epoch: a loader that is never reset, and a mean over epochs that counts no samples.

The published Trial B very probably was one: its script trained two epochs on a DALI iterator that it never reset, and
took the mean of their times. An exhausted iterator ends at once; the second epoch then takes no time and delivers
nothing, and the mean is half of what an epoch takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from ..analysis import analyse
from ..analysis.results import plain
from ..runtime import monitor
from ..steps import watch_loader
from .presets import Grid
from .table_cells import rules_of
from .training import MEAN, STD, device, folder, model, supervised

EPOCHS = 2
MODEL = "resnet18"
_MOST_BATCHES = 40  # of the first epoch: enough to show it
NAME = "never reset"


def reenact(grid: Grid, data: Path) -> dict[str, Any]:
    """Train two epochs on an iterator that is never reset, and return what was counted.

    `mean_seconds` is what the published way gives, `epochs` what our counters have of each, `problem` why a time may
    not be compared, `rules` what the analysis found, `iterator` which one it was.
    """
    row = grid.rows[0]
    images = folder(data)
    size = row.batch
    count = min(len(images) // size, _MOST_BATCHES) * size
    iterator, kind = _iterator(images, count, size, row.resize, row.crop)
    where = device()
    network = model(MODEL, len(images.classes)).to(where)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    step = supervised(network, optimizer, where)
    watch = monitor.watch(network, optimizer)
    watched = watch_loader(iterator, name=NAME)
    monitor.mark(NAME)
    seconds, samples = [], []
    for _ in range(EPOCHS):
        began, delivered = time.monotonic(), 0
        for batch in watched:
            step(batch)
            delivered += size
        if where.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
        samples.append(delivered)
    analysis = analyse(monitor.snapshot())
    watch.stop()
    epochs = [epoch for epoch in analysis.epochs if epoch.name == NAME][-EPOCHS:]
    segments = [one for one in analysis.segments if one.name == NAME]
    verdict = next((one for one in analysis.verdicts if segments and one.segment == segments[-1].key), None)
    whole = max(samples)
    problem = next((f"epoch {one.epoch + 1} {one.problem}" for one in epochs if one.problem), None)
    rules = [
        *rules_of(analysis, None, about=f"{NAME}:"),
        *(rule for one in segments for rule in rules_of(analysis, one.key)),
    ]
    found = {
        "iterator": kind,
        "images": count,
        "seconds": seconds,
        "mean_seconds": sum(seconds) / EPOCHS,
        "epochs": [
            {"epoch": one.epoch + 1, "batches": one.batches, "samples": one.samples, "problem": one.problem,
             "seconds": took}
            for one, took in zip(epochs, seconds, strict=False)
        ],
        "looped": samples,
        "flagged": any(one.problem for one in epochs),
        "problem": problem,
        "verdict": None if verdict is None else {"kind": verdict.kind, "sentence": _told(verdict.sentence, problem)},
        "rules": rules,
        "true_seconds": seconds[samples.index(whole)],
    }  # fmt: skip
    return dict(plain(found))


def _told(sentence: str, problem: str | None) -> str:
    """Return the verdict's sentence with what forbids to compare the epochs' times."""
    return sentence if problem is None else f"{sentence} Its times per epoch must not be averaged: {problem}."


def _iterator(images: Any, count: int, size: int, resize: int, crop: int) -> tuple[Iterator[Any], str]:
    """Return an iterator that ends after `count` images and is not reset: DALI's own, or torch's where DALI cannot
    run.
    """
    try:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.pytorch import DALIGenericIterator
    except ImportError:
        images.transform = transforms.Compose(
            [
                transforms.Resize(resize),
                transforms.CenterCrop(crop),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )
        return iter(DataLoader(images, batch_size=size, drop_last=True)), "one iterator of a DataLoader"
    files, labels = zip(*images.samples[:count], strict=True)

    def graph() -> Any:
        encoded, label = fn.readers.file(files=list(files), labels=list(labels), name="files")
        decoded = fn.decoders.image(encoded, device="cpu")
        resized = fn.resize(decoded, resize_shorter=resize)
        pixels = fn.crop_mirror_normalize(
            resized, crop=(crop, crop), mean=[255 * one for one in MEAN], std=[255 * one for one in STD],
            dtype=types.FLOAT, output_layout="CHW",
        )  # fmt: skip
        return pixels, label

    pipeline = pipeline_def(graph, batch_size=size, num_threads=1, device_id=None)()
    made = DALIGenericIterator(pipeline, ["images", "labels"], reader_name="files")
    return _Pairs(made), "an iterator of DALI that, as then, no loop resets"


class _Pairs:
    """A DALI iterator whose batches are pairs of images and labels, as a training takes them.

    Beginning a loop over it does not reset it, as it did not in the DALI of the publication; today's iterators reset
    themselves then.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> _Pairs:
        return self

    def __next__(self) -> Any:
        (batch,) = next(self._iterator)
        return batch["images"], batch["labels"].squeeze(-1).long()
