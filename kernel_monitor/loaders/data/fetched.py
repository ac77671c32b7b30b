"""What computing a batch gives, in a form that crosses processes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch._utils import ExceptionWrapper

from ...errors import MonitorError, SampleError
from ...text import shown
from ..dry_run.structure import Place
from ..plan import Skipped, is_plain, shown_key

UNREADABLE = (OSError, SyntaxError)  # what opening an image file raises; Pillow has both
_PACKAGE = str(Path(__file__).parents[2])


def is_fault(error: BaseException) -> bool:
    """Whether code of this package itself raised an exception: neither the user's code nor a library's.

    A file that cannot be read is no fault. What a library in C raises counts as one where our code calls it; so what
    is taken for a fault is tried once more without this package, and raised if it comes again.
    """
    if is_plain(error):
        return False
    if vars(error).get("_is_fault"):  # it comes from a worker, without its traceback
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    in_package = last is not None and last.tb_frame.f_code.co_filename.startswith(_PACKAGE)
    return in_package and not isinstance(error, (*UNREADABLE, MonitorError))


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
    fault: bool = False  # whether the failure is one of this package, see `is_fault`

    @classmethod
    def failed(cls, indices: bytes, where: str, error: Exception) -> Fetched:
        """What an exception in a worker leaves of a batch; to be called where it is handled."""
        return cls(indices, None, ExceptionWrapper(where=where), {}, fault=is_fault(error))

    def raised(self) -> Exception:
        """The exception to raise instead of delivering, where there is one."""
        if isinstance(self.failure, BadSample):
            return self.failure.error()
        try:
            if self.failure is not None:
                self.failure.reraise()
        except Exception as error:  # noqa: BLE001 - raised in the user's loop
            vars(error)["_is_fault"] = self.fault
            return error.with_traceback(None)
        raise ValueError("this batch has not failed")


class Pair(NamedTuple):
    """A sample of an image and a target, without its image; as `dry_run.own_dataset.Reading`."""

    target: Any

    @property
    def places(self) -> list[Place]:
        return [(0,)]

    def filled(self, image: Any) -> Any:
        """The sample with this image."""
        return image, self.target
