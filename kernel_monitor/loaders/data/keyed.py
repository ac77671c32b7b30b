"""The data set as the workers see it: a whole batch by its keys, each sample's numbers from the plan.

What goes wrong with a file comes back as data, so that the main process can raise the same `SampleError` on every
engine; what goes wrong in the user's own code comes back as torch's `ExceptionWrapper` and is raised as torch would.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from ...errors import SampleError
from ..plan import Skipped, Take
from ..transforms.draws import UInt64s, sample_keys
from ..transforms.inject import Injected
from .sources import FileSource

GREETING = -1  # number of a take without samples, which a worker answers as soon as it can work


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

    def skipped(self) -> Skipped:
        """The entry of the list of what was left out."""
        return Skipped(self.index, self.path, self.text)

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
        content: list of samples, later the collated batch; None where every one was skipped.
        failure: what to raise instead of delivering, or None.
        bad: what could not be read and is to be skipped, by row of the planned batch.
    """

    indices: bytes
    content: Any
    failure: BadSample | ExceptionWrapper | None
    bad: dict[int, BadSample]


class KeyedDataset:
    """Map-style data set whose `__getitems__` takes a `Take` and computes its samples from their keys.

    Args:
        source: of the data set.
        seed: of the augmentation, for whoever makes takes; `keys` uses the take's own.
        on_error: "raise" or "skip", for files that cannot be read.
    """

    def __init__(self, source: FileSource, seed: int, on_error: str) -> None:
        self.source = source
        self.seed = seed
        self.on_error = on_error
        self._copies: dict[int, tuple[Any, Injected]] = {}  # by the id of the transform, which is held so long
        self._epoch: int | None = None  # that the copies were made for
        self._last: Injected | None = None  # used last

    def __len__(self) -> int:
        return len(self.source)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copies": {}, "_epoch": None, "_last": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def keys(self, take: Take) -> UInt64s:
        """uint64[n], the keys of a batch."""
        return sample_keys(take.seed, take.epoch, take.indices, take.occurrences)

    def __getitems__(self, take: Take) -> Fetched:
        if take.number == GREETING:
            return Fetched(b"", None, None, {})
        try:
            return self.fetch(take, range(len(take.indices)))
        except Exception:  # noqa: BLE001 - raised in the user's loop
            return Fetched(_pack(take.indices), None, ExceptionWrapper(where=_where()), {})

    def fetch(self, take: Take, rows: Iterable[int]) -> Fetched:
        """Compute the samples at `rows` of a batch; a file that cannot be read ends it or is left out."""
        begun: dict[int, Injected | None] = {}
        samples: list[Any] = []
        indices: list[int] = []
        bad: dict[int, BadSample] = {}
        for row in rows:
            index = take.indices[row]
            located = self.source.locate(index)
            try:
                image = self.source.open(located)
            except Exception as error:  # noqa: BLE001 - raised in the user's loop, with the file's name
                found = BadSample.of(index, located.path, error)
                if self.on_error == "raise":
                    return Fetched(_pack(take.indices), None, found, {})
                bad[row] = found
                continue
            injected = self._begin(self.source.transform_of(located), take, begun)
            if injected is not None:
                image = injected.run(image, row)
            samples.append((image, self.source.target(located)))
            indices.append(index)
        return Fetched(_pack(indices), samples, None, bad)

    def injected(self, take: Take) -> Injected | None:
        """The data set's transform with a batch's numbers, for an engine that runs a part of it itself."""
        return self._begin(self.source.transform, take, {})

    def drawn(self) -> dict[int, Any]:
        """What the last sample computed drew, by position in the chain."""
        return {} if self._last is None else self._last.drawn()

    def _begin(self, transform: Any, take: Take, begun: dict[int, Injected | None]) -> Injected | None:
        """A transform with this batch's numbers; `begun` are those that have them already, by id."""
        if id(transform) not in begun:
            injected = begun[id(transform)] = self._copied(transform, take.epoch)
            if injected is not None:
                injected.begin(self.keys(take))
        self._last = begun[id(transform)]
        return self._last

    def _copied(self, transform: Any, epoch: int) -> Injected | None:
        """A copy that takes numbers from the plan; made anew each epoch, as the transform may have been edited."""
        if transform is None:
            return None
        if epoch != self._epoch:
            self._copies, self._epoch = {}, epoch
        if id(transform) not in self._copies:
            self._copies[id(transform)] = transform, Injected(transform)
        return self._copies[id(transform)][1]


class KeyedCollate:
    """The user's collate function, applied where the samples were computed."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, fetched: Fetched) -> Fetched:
        if fetched.failure is not None or fetched.content is None:
            return fetched
        if fetched.bad and not fetched.content:
            return fetched._replace(content=None)
        try:
            return fetched._replace(content=self.collate(fetched.content))
        except Exception:  # noqa: BLE001 - raised in the user's loop
            return fetched._replace(content=None, failure=ExceptionWrapper(where=_where()))


class KeyedInit:
    """The user's worker_init_fn, run in a worker that shows the user's own data set in `get_worker_info()`.

    People change it there (each worker its share, a file handle of its own) and read it in their transforms.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self.init = init

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        # The info refuses plain assignment. What fetches has the keyed data set already, by another reference.
        object.__setattr__(info, "dataset", info.dataset.source.dataset)
        if self.init is not None:
            self.init(worker)


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
