"""What computing a batch gives, in a form that crosses processes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch._utils import ExceptionWrapper

from ...errors import SampleError
from ...text import shown
from ..dry_run.structure import Place
from ..plan import Skipped, shown_key


@dataclass(frozen=True, slots=True)
class BadSample:
    """A file that could not be read, in a form that crosses processes."""

    index: Any  # index, path: of the sample; the index as the sampler gave it
    path: str
    text: str  # what went wrong
    cause: bytes  # the exception, pickled; empty where it cannot be

    def error(self) -> SampleError:
        """The exception to raise in the user's loop."""
        message = shown(f"sample {shown_key(self.index)}, {self.path}: {self.text}")
        error = SampleError(message, path=self.path, index=self.index)
        if self.cause:
            error.__cause__ = pickle.loads(self.cause)  # noqa: S301 - written by our own worker, never by a file
        return error

    def skipped(self) -> Skipped:
        return Skipped(self.index, self.path, self.text)

    @classmethod
    def of(cls, index: Any, path: str, error: Exception) -> BadSample:
        """Describe an exception that opening a file raised."""
        try:
            cause = pickle.dumps(error)
            pickle.loads(cause)  # noqa: S301 - some exceptions pickle but cannot be rebuilt
        except Exception:  # noqa: BLE001 - a foreign exception's own pickling: the text is enough
            cause = b""
        return cls(index, path, f"{type(error).__name__}: {error}", cause)


INDEX_BYTES = 8  # of an index in `Fetched.indices`


class Fetched(NamedTuple):
    """What computing a batch gave: samples, or the first failure."""

    indices: bytes  # int64[n] as bytes, numbers of the samples computed (bytes cross processes and pinning untouched)
    content: Any  # list of samples, later the collated batch; None where every one was skipped
    failure: BadSample | ExceptionWrapper | None  # what to raise instead of delivering, or None
    bad: dict[int, BadSample]  # what could not be read and is to be skipped, by row of the planned batch
    seed: int = 0  # of what the collate function draws from


class Pair(NamedTuple):
    """A sample of an image and a target, without its image; as `dry_run.own_dataset.Reading`."""

    target: Any

    @property
    def places(self) -> list[Place]:
        return [(0,)]

    def filled(self, image: Any) -> Any:
        """The sample with this image."""
        return image, self.target
