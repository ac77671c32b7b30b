"""Finds out what cannot be pickled, without the time and memory that a million samples take."""

from __future__ import annotations

import io
import mmap
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

TRIED = 100  # elements of a list that are pickled to see whether all can be


class Shortened:
    """For picklers: of long lists the beginning is pickled, of tensors and arrays nothing."""

    def persistent_id(self, value: Any) -> Any:
        if type(value) is list and len(value) > TRIED:
            return pickled(type(self), value[:TRIED])
        # ForkingPickler would move a tensor's memory to where other processes have it, too.
        numbers = isinstance(value, torch.Tensor) or (type(value) is np.ndarray and not value.dtype.hasobject)
        return "numbers" if numbers else None


class Trial(Shortened, ForkingPickler):
    """Raises for what multiprocessing cannot send, or should not."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            raise pickle.PicklingError("torch sends its state in shared memory that is gone before it arrives")
        if is_mapped(value):
            raise pickle.PicklingError("NumPy would send the whole file")
        return super().persistent_id(value)


def pickled(pickler: Any, value: Any) -> bytes:
    """What a kind of pickler makes of a value."""
    sink = io.BytesIO()
    pickler(sink).dump(value)
    return sink.getvalue()


def is_mapped(value: Any) -> bool:
    """Whether a value is a whole file that NumPy maps into memory, which another process can map as well."""
    # Of a part of it NumPy does not say where in the file it begins. What is written in mode "c" is in no file.
    if type(value) is not np.memmap or value.filename is None or value.mode not in ("r", "r+", "w+"):
        return False
    return isinstance(value.base, mmap.mmap)
