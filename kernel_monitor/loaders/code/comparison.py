"""Runs a written file, and compares its batches with the samples that the data set itself gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...errors import MonitorError
from ...text import cause
from ..engines import worker_start
from ..engines.engine import Setting
from ..parity import Differences
from ..random_streams import Defaults
from .standalone import standalone, with_parity

_SAMPLES = 8
_SEED = 0
_MOST = 2.0  # of 255, on average: decoders and resizes differ by less (docs/transforms.md), other crops by far more
_UNCOMPARED = "Its batches were not compared with those of torch's DataLoader where this was written."


def uncompared(setting: Setting, device: str) -> str:
    """Return the file, which says that it was not compared. May be called from any thread; see `standalone`."""
    return with_parity(standalone(setting, device).text, _UNCOMPARED)


def compared(setting: Setting, device: str) -> str:
    """Return the file with the differences that were measured: this calls the data set, and runs DALI.

    To be called while no other thread draws from the process's generators, which are put back afterwards.

    Raises:
        MonitorError: the file cannot be written, or delivers something else than the data set.
    """
    text, unit = standalone(setting, device)
    dataset = setting.keyed.source.dataset
    count = min(_SAMPLES, len(dataset))
    indices = np.unique(np.linspace(0, len(dataset) - 1, num=count).round().astype(int)).tolist()
    worker_start.before_dali()
    worker_start.note_dali()
    found = Differences(np.array(unit))
    collate: Any = setting.wrapped.collate_fn
    before = Defaults.now()
    try:
        namespace: dict[str, Any] = {"__name__": "written"}
        exec(compile(text, "<written loader>", "exec"), namespace)  # noqa: S102 - our own text
        made = namespace["make_loader"](
            dataset, batch_size=count, sampler=indices, shuffle=False, drop_last=False, collate_fn=collate
        )
        torch.manual_seed(_SEED)
        torch.empty((), dtype=torch.int64).random_()  # as a DataLoader draws
        expected = collate([dataset[index] for index in indices])
        torch.manual_seed(_SEED)
        (batch,) = made
        found.add(expected, batch)
    except Exception as error:
        raise MonitorError(f"The loader was written as code, which does not run here: {cause(error)}") from error
    finally:
        before.restore()
    same = found.alike and found.others_equal and found.count > 0
    if not same or found.sum / found.count > _MOST:
        raise MonitorError(
            "The loader cannot be written as code: what was written delivers other samples than "
            f"{type(dataset).__name__} does, which may draw random numbers or change its samples in its own code."
        )
    return with_parity(
        text,
        f"Compared with the data set's own samples, with the same seed, on {len(indices)} of them where this was "
        f"written: images differ by {found.sum / found.count:.2f} of 255 on average and by {found.greatest:.0f} at "
        "most; all else is equal, bit for bit.",
    )
