"""The data set as the workers see it: a whole batch by its keys, each sample's numbers from the plan.

What goes wrong with a file comes back as data, so that the main process can raise the same `SampleError` on every
engine; what goes wrong in the user's own code comes back as torch's `ExceptionWrapper` and is raised as torch would.
"""

from __future__ import annotations

import os
import pickle
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from ...errors import SampleError
from ..plan import Take
from ..transforms.draws import UInt64s, sample_keys
from ..transforms.inject import Injected
from .sources import FileSource


@dataclass(frozen=True, slots=True)
class BadSample:
    """A file that could not be read, in a form that crosses processes.

    Attributes:
        index, path: of the sample.
        text: what went wrong.
        cause: the exception, pickled; empty where it cannot be.
    """

    index: int
    path: str
    text: str
    cause: bytes

    def error(self) -> SampleError:
        """The exception to raise in the user's loop."""
        error = SampleError(f"sample {self.index}, {self.path}: {self.text}", path=self.path, index=self.index)
        if self.cause:
            error.__cause__ = pickle.loads(self.cause)  # noqa: S301 - written by our own worker, never by a file
        return error

    @classmethod
    def of(cls, index: int, path: str, error: Exception) -> BadSample:
        """Describe an exception that opening a file raised."""
        try:
            cause = pickle.dumps(error)
            pickle.loads(cause)  # noqa: S301 - some exceptions pickle but cannot be rebuilt
        except Exception:  # noqa: BLE001 - a foreign exception's own pickling: the text still says it all
            cause = b""
        return cls(index, path, f"{type(error).__name__}: {error}", cause)


class Fetched(NamedTuple):
    """What computing a batch gave: samples, or the first failure.

    Attributes:
        indices: int64[n] as bytes, of the samples computed (bytes cross processes and pinning untouched).
        content: list of samples, later the collated batch.
        failure: what to raise instead of delivering, or None.
    """

    indices: bytes
    content: Any
    failure: BadSample | ExceptionWrapper | None


class KeyedDataset:
    """Map-style data set whose `__getitems__` takes a `Take` and computes its samples from their keys.

    Every other attribute is the wrapped data set's, so that `worker_init_fn` finds what it expects in
    `get_worker_info().dataset`.
    """

    def __init__(self, source: FileSource, seed: int) -> None:
        self.source = source
        self.seed = seed
        self._injected: Injected | None = None
        self._state: tuple[int, int] | None = None  # (id of the transform, epoch) that `_injected` was made for

    def __len__(self) -> int:
        return len(self.source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source.dataset, name)

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "seed": self.seed, "_injected": None, "_state": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def keys(self, take: Take) -> UInt64s:
        """uint64[n], the keys of a batch."""
        return sample_keys(self.seed, take.epoch, take.indices, take.occurrences)

    def __getitems__(self, take: Take) -> Fetched:
        try:
            return self.fetch(take, range(len(take.indices)))
        except Exception:  # noqa: BLE001 - raised in the user's loop
            return Fetched(_pack(take.indices), None, ExceptionWrapper(where=_where()))

    def fetch(self, take: Take, rows: Any) -> Fetched:
        """Compute the samples at `rows` of a batch; stops at the first file that cannot be read."""
        injected = self._prepare(take)
        samples = []
        for row in rows:
            index = take.indices[row]
            located = self.source.locate(index)
            try:
                image = self._open(located.path)
            except Exception as error:  # noqa: BLE001 - raised in the user's loop, with the file's name
                return Fetched(_pack(take.indices), None, BadSample.of(index, located.path, error))
            if injected is not None:
                image = injected.run(image, row)
            target_transform = self.source.base.target_transform
            target = located.target if target_transform is None else target_transform(located.target)
            samples.append((image, target))
        return Fetched(_pack([take.indices[row] for row in rows]), samples, None)

    def drawn(self) -> dict[int, Any]:
        """What the last sample computed drew, by position in the chain."""
        return {} if self._injected is None else self._injected.drawn()

    def _prepare(self, take: Take) -> Injected | None:
        """The transform with this batch's numbers; copied anew each epoch, as it may have been edited in place."""
        transform = self.source.transform
        state = (id(transform), take.epoch)
        if state != self._state:
            self._injected = None if transform is None else Injected(transform)
            self._state = state
        if self._injected is not None:
            self._injected.begin(self.keys(take))
        return self._injected

    def _open(self, path: str) -> Any:
        if not self.source.opens_plainly:
            return self.source.loader(path)
        absolute = self.source.absolute(path)
        mode = os.stat(absolute).st_mode  # noqa: PTH116 - once per sample
        if not stat.S_ISREG(mode):
            # Opening a named pipe would wait for ever for somebody to write to it.
            raise OSError(f"not a regular file: {path}")
        return self.source.loader(absolute)


class KeyedCollate:
    """The user's collate function, applied where the samples were computed."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: Fetched) -> Fetched:
        if fetched.failure is not None:
            return fetched
        try:
            return fetched._replace(content=self.collate(fetched.content))
        except Exception:  # noqa: BLE001 - raised in the user's loop
            return fetched._replace(content=None, failure=ExceptionWrapper(where=_where()))


@contextmanager
def own_generators() -> Iterator[None]:
    """Leave the process's default generators as they were: samples computed here must not disturb the training."""
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)


def _pack(indices: list[int]) -> bytes:
    return np.asarray(indices, dtype=np.int64).tobytes()


def _where() -> str:
    worker = get_worker_info()
    return "in the loader" if worker is None else f"in DataLoader worker process {worker.id}"
