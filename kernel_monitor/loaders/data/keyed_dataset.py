"""The data set for the workers: it computes whole batches, with each sample's random numbers from the plan.

A file that cannot be read is returned as data, so that the main process raises the same `SampleError` on every engine.
An exception of the user's own code is returned as torch's `ExceptionWrapper` and raised as torch would raise it.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate, get_worker_info

from ...errors import MonitorError, SampleError
from ...text import log_outside, printable
from ..plan import Skipped, Slot, is_plain, shown_key
from ..random_streams import COLLATE, SAMPLE, TARGET, ApartFromTransforms, Streams
from ..transforms.inject import Injected
from ..transforms.params import UInt64s, sample_keys, stream_seeds
from .file_check import FileTable, check_bytes
from .file_source import FileSource, Located, same
from .layouts import layout_of
from .own_dataset import Reading
from .own_traces import Trace
from .sent_files import SentRow
from .structure import Place
from .trace import Node

# ---- The result of computing a batch, in a form that crosses processes.

UNREADABLE = (OSError, SyntaxError)  # exceptions of opening an image file; Pillow raises both
_PACKAGE = str(Path(__file__).parents[2])


def is_fault(error: BaseException) -> bool:
    """Return whether code of this package raised an exception, not the user's code and no library.

    A file that cannot be read is no fault. An exception of a library in C counts as a fault if our code calls the
    library; so a batch with a fault is computed once more without this package, and a second exception is raised.
    """
    if is_plain(error):
        return False
    if vars(error).get("_is_fault"):  # the exception comes from a worker, without its traceback
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
    text: str  # the cause
    cause: bytes  # the pickled exception; empty if it cannot be pickled

    def error(self) -> SampleError:
        """Return the exception to raise in the user's loop."""
        message = printable(f"sample {shown_key(self.index)}, {self.path}: {self.text}")
        error = SampleError(message, path=self.path, index=self.index)
        if self.cause:
            error.__cause__ = pickle.loads(self.cause)  # noqa: S301 - written by our own worker, never by a file
        return error

    def skipped(self) -> Skipped:
        return Skipped(self.index, self.path, self.text)

    @classmethod
    def of(cls, index: Any, path: str, error: Exception) -> BadSample:
        """Return the description of an exception that opening a file raised."""
        try:
            cause = pickle.dumps(error)
            pickle.loads(cause)  # noqa: S301 - some exceptions pickle but cannot be rebuilt
        except Exception:  # noqa: BLE001 - a foreign exception's own pickling: the text is enough
            cause = b""
        return cls(index, path, f"{type(error).__name__}: {error}", cause)


INDEX_BYTES = 8  # size of an index in `Fetched.indices`


class Fetched(NamedTuple):
    """The result of computing a batch: samples, or the first failure."""

    indices: bytes  # int64[n] as bytes, numbers of the samples computed (bytes cross processes and pinning unchanged)
    content: Any  # list of samples, later the collated batch; None if every sample was skipped
    failure: BadSample | ExceptionWrapper | None  # an error to raise instead of delivering the batch, or None
    bad: dict[int, BadSample]  # unreadable samples that are to be skipped, by row of the planned batch
    seed: int = 0  # seed of the generators for the collate function
    fault: bool = False  # whether this package caused the failure, see `is_fault`

    @classmethod
    def failed(cls, indices: bytes, where: str, error: Exception) -> Fetched:
        """Return the result of a batch for which a worker raised; to be called in the exception handler."""
        return cls(indices, None, ExceptionWrapper(where=where), {}, fault=is_fault(error))

    def raised(self) -> Exception:
        """Return the exception to raise instead of delivering the batch; there must be a failure."""
        if isinstance(self.failure, BadSample):
            return self.failure.error()
        try:
            if self.failure is not None:
                self.failure.reraise()
        except Exception as error:  # noqa: BLE001 - raised in the user's loop
            vars(error)["_is_fault"] = self.fault
            return error.with_traceback(None)
        raise ValueError("this batch has not failed")


_FIRST: list[Place] = [(0,)]


class Pair(NamedTuple):
    """A sample of an image and a target, without its image; it has the methods of `own_dataset.Reading`."""

    target: Any

    @property
    def places(self) -> list[Place]:
        return _FIRST

    def filled(self, image: Any) -> Any:
        """Return the sample with this image."""
        return image, self.target


Pixels = dict[Node, Any]
"""Images that were computed, by their node in a trace."""

log = logging.getLogger(__name__)

GREETING = -1  # number of a slot without samples, which a worker answers as soon as it is ready


class KeyedDataset:
    """A map-style data set whose `__getitems__` takes a `Slot` and computes its samples from their keys."""

    def __init__(self, source: FileSource, on_error: str) -> None:
        self.source = source
        self.on_error = on_error  # "raise" or "skip", for files that cannot be read
        self._copies: dict[int, tuple[Any, Injected]] = {}  # by the id of the transform, which is kept alive
        self._streams: dict[tuple[int, ...], tuple[Any, Streams]] = {}  # by the ids of the objects, kept alive
        self._epoch: int | None = None  # the epoch for which the copies and the streams were made
        self._asks_user = self._draws = True  # user code locates samples; user code draws numbers: at the last check
        self._seen: list[Any] = []  # the source's `glance` at the last check
        self._seeds: tuple[Slot, dict[int, list[int]]] | None = None  # the seeds of a batch, by stream

    def __len__(self) -> int:
        return len(self.source)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copies": {}, "_streams": {}, "_epoch": None, "_seen": [], "_seeds": None}

    def keys(self, slot: Slot) -> UInt64s:
        """Return the keys of a batch's random numbers, uint64[n]."""
        return sample_keys(slot.seed, slot.epoch, slot.indices, slot.occurrences)

    def __getitems__(self, slot: Slot) -> Fetched:
        if slot.number == GREETING:
            return Fetched(b"", None, None, {})
        try:
            return self.fetch(slot, range(len(slot.indices)))
        except Exception as error:  # noqa: BLE001 - raised in the user's loop
            return Fetched.failed(_pack(slot.indices), _where(), error)

    def fetch(self, slot: Slot, rows: Iterable[int]) -> Fetched:
        """Compute the samples at `rows` of a batch; by `on_error`, an unreadable file ends it or is left out.

        This draws from the process's generators; in the training's process, `apart` restores them.
        """
        if self.source.gives_batches:
            return self._whole(slot, list(rows))
        begun: dict[int, Injected] = {}
        samples: list[Any] = []
        indices: list[int] = []
        bad: dict[int, BadSample] = {}
        for row in rows:
            index = slot.indices[row]
            whole = None if slot.sent is None else self._sent(slot, row, begun)
            if whole is not None:
                if whole.failure is not None:
                    return whole
                bad |= whole.bad
                samples += whole.content
                indices += [index] * len(whole.content)
                continue
            located = self._found(slot, row)
            own = layout_of(located.part) is None
            try:
                image = self._own(slot, row, located, begun) if own else self._opened(slot, row, located)
            except Exception as error:  # raised in the user's loop, with the file's name
                if (own and not isinstance(error, UNREADABLE)) or is_fault(error):
                    raise
                path = self.source.own(located.part).path if own else None
                found = BadSample.of(slot.key(row), path or located.path, error)
                if self.on_error == "raise":
                    return Fetched(_pack(slot.indices), None, found, {})
                bad[row] = found
                continue
            if not own:
                injected = self._begin(self.source.transforms_of(located)[0], slot, begun)
                if injected is not None:
                    image = injected.run(image, row, 0 if slot.decoded is None else slot.decoded.start(row))
                image = image, self.target(slot, row, located)
            samples.append(image)
            indices.append(index)
        return Fetched(_pack(indices), samples, None, bad, collate_seed(slot))

    def _opened(self, slot: Slot, row: int, located: Located) -> Any:
        """Return the image of a sample, decoded already or by the data set's own function."""
        image = None if slot.decoded is None else slot.decoded.image(row)
        return self.source.open(located) if image is None else image

    def _own(self, slot: Slot, row: int, located: Located, begun: dict[int, Injected]) -> Any:
        """Compute a sample by the user's own `__getitem__`, with the plan's numbers for the image's transform."""
        own = self.source.own(located.part)
        injected = None if own.learnt is None else self._begin(own.transform, slot, begun)
        image = None if slot.decoded is None else slot.decoded.image(row)
        if image is not None:
            reading = own.read(located.given)
            if not isinstance(reading, str):
                start = slot.decoded.start(row)
                return reading.filled(image if injected is None else self._transformed(injected, row, image, start))
            self._seed(self.source.dataset, slot, row, SAMPLE)
        if injected is None:
            return own.compute(located.given, None)
        return own.compute(located.given, partial(self._transformed, injected, row))

    def _sent(self, slot: Slot, row: int, begun: dict[int, Injected]) -> Fetched:
        """Compute a sample whose file was sent with the batch; return it as a batch of one."""
        sent: SentRow = slot.sent.rows[row]
        if sent.whole is not None:
            return sent.whole  # type: ignore[no-any-return]
        key = slot.key(row)
        part = self.source.part(key)
        own = isinstance(sent.piece, Reading)
        injected = self._begin(self.source.transform_of(part), slot, begun)
        try:
            image = self.source.open_sent(part, sent, slot.sent.content(row))
            if own and injected is not None:
                image = self._transformed(injected, row, image)
        except Exception as error:  # raised in the user's loop, with the file's name
            if (own and not isinstance(error, UNREADABLE)) or is_fault(error):
                raise
            found = BadSample.of(key, sent.name, error)
            if self.on_error == "raise":
                return Fetched(_pack(slot.indices), None, found, {})
            return Fetched(b"", [], None, {row: found})
        if not own and injected is not None:
            image = injected.run(image, row)
        return Fetched(b"", [sent.piece.filled(image)], None, {})

    def traced(self, slot: Slot, row: int, begun: dict[int, Injected]) -> Trace:
        """Return the trace of a sample's computation; `begun` is one dictionary for a batch."""
        results = [form.result for form in self.source.forms or ()]
        return Trace.of(partial(self._computed, slot, row, begun), results, goes_on=self.source.goes_on)

    def replayed(self, slot: Slot, row: int, begun: dict[int, Injected], trace: Trace, pixels: Pixels) -> Any:
        """Compute a sample again, as its trace says, with the images that were computed; see `Trace.replayed`.

        Raises:
            Exception: any exception of the user's code.
            Mismatch: the code did something else than in the first call.
        """
        return trace.replayed(partial(self._computed, slot, row, begun), pixels)

    def proven(self, trace: Trace) -> bool:
        """Return whether samples of this structure were found to be the same without a second call."""
        return self.source.proven(trace.sample)

    def _computed(self, slot: Slot, row: int, begun: dict[int, Injected]) -> Any:
        """Compute a sample with the plan's numbers, by the data set's own code and its own transforms."""
        located = self._found(slot, row)
        if layout_of(located.part) is None:
            return self._own(slot, row, located, begun)
        image = self.source.open(located)
        injected = self._begin(self.source.transforms_of(located)[0], slot, begun)
        image = image if injected is None else injected.run(image, row)
        return image, self.target(slot, row, located)

    def to_send(self, slot: Slot, files: FileTable) -> list[SentRow]:
        """Return the rows of a batch for a worker that cannot read the files.

        The slot and the files' contents are sent besides. This runs the data set's own code, if that locates the
        samples, and restores the process's generators. `files` is the table of the files' facts.
        """
        with self.apart():
            return [self._row_to_send(slot, row, files) for row in range(len(slot.indices))]

    def _row_to_send(self, slot: Slot, row: int, files: FileTable) -> SentRow:
        located = self.locate(slot, row)
        path = None if located.data is not None else self.source.absolute(located.path)
        if located.reading is not None:  # the data set may handle unreadable files itself
            known = check_bytes(located.data or b"") if path is None else files.check(located.number, path)
            located = located._replace(reason=known.reason)
        if located.reason is not None:
            return SentRow(None, located.path, None, None, self.fetch(slot, [row]))
        return SentRow.of(path, located.path, located.data, self.piece(slot, row, located))

    def _transformed(self, injected: Injected, row: int, image: Any, start: int = 0) -> Any:
        """Transform an image; later draws of the user's code do not depend on the transform's draws."""
        with self._streams_of(self.source.dataset).apart() if injected.unknown else ApartFromTransforms():
            return injected.run(image, row, start)

    def _whole(self, slot: Slot, rows: list[int]) -> Fetched:
        """Compute a batch of a data set that has its own `__getitems__`."""
        self._renew(slot.epoch)
        seed = stream_seeds(sample_keys(slot.seed, slot.epoch, [slot.number], [0]), SAMPLE)[0]
        if self.source.seeded:
            self._streams_of(self.source.dataset).seed(seed)
        whole = slot.keys is not None and len(rows) == len(slot.indices)
        samples = self.source.dataset.__getitems__(slot.keys if whole else [slot.key(row) for row in rows])
        return Fetched(_pack([slot.indices[row] for row in rows]), samples, None, {}, collate_seed(slot))

    def _found(self, slot: Slot, row: int) -> Located:
        """Locate a sample, with the generators seeded if the user's own code locates or opens it."""
        self._renew(slot.epoch)
        if self._asks_user and self.source.seeded:
            self._seed(self.source.dataset, slot, row, SAMPLE)
        return self.source.locate(slot.key(row))

    def locate(self, slot: Slot, row: int) -> Located:
        """Return the file of a sample."""
        return self.source.read(self._found(slot, row))

    def piece(self, slot: Slot, row: int, located: Located) -> Pair | Reading:
        """Return a sample without its image."""
        return located.reading or Pair(self.target(slot, row, located))

    def pieces(self, slot: Slot, located: dict[int, Located]) -> dict[int, Pair | Reading]:
        """Return samples without their images, by row; nothing is asked for each sample that holds for all."""
        parts = {id(one.part): one for one in located.values()}
        if any(self.source.transforms_of(one)[1] is not None for one in parts.values()):
            return {row: self.piece(slot, row, one) for row, one in located.items()}
        return {row: one.reading or Pair(one.target) for row, one in located.items()}

    def target(self, slot: Slot, row: int, located: Located) -> Any:
        """Return a sample's target, with the generators seeded for the target transform."""
        _, change = self.source.transforms_of(located)
        if change is None:
            return located.target
        self._seed(change, slot, row, TARGET)
        return change(located.target)

    def apart(self, collate: Callable[[list[Any]], Any] | None = None) -> AbstractContextManager[None]:
        """Return a context for computing samples in the training's process, which restores the process's generators.

        `collate` is the user's collate function, if it is called inside, too. If the loader is not seeded, user code
        draws as in a plain DataLoader: from the generators that the training draws from.
        """
        if not self.source.seeded:
            return nullcontext()
        self._examine_replaced()
        if not self._draws and (collate is None or collate is default_collate):
            return ApartFromTransforms()
        return self._streams_of(self.source.dataset, collate).apart()

    @property
    def asks_user(self) -> bool:
        """Whether the user's own code locates or opens the samples' files."""
        self._examine_replaced()
        return self._asks_user

    def forget(self) -> None:
        """Drop the copies and streams of the user's objects, which may have been edited."""
        self._epoch = None

    def injected(self, slot: Slot, chain: int = 0) -> Injected | None:
        """Return a transform of the data set with a batch's numbers, for an engine that itself runs a part of it.

        `chain` is its number in `FileSource.chains`.
        """
        return self._begin(self.source.chains[chain].transform, slot, {})

    def _begin(self, transform: Any, slot: Slot, begun: dict[int, Injected]) -> Injected | None:
        """Return a copy of a transform with this batch's numbers; `begun` keeps them for the batch, by id."""
        if transform is None:
            return None
        if id(transform) not in begun:
            self._renew(slot.epoch)
            if id(transform) not in self._copies:
                self._copies[id(transform)] = transform, Injected(transform)
            injected = begun[id(transform)] = self._copies[id(transform)][1]
            injected.begin(self.keys(slot))
        return begun[id(transform)]

    def _seed(self, drawing: Any, slot: Slot, row: int, stream: int) -> None:
        if self._seeds is None or self._seeds[0] is not slot:
            self._seeds = slot, {}
        seeds = self._seeds[1]
        if stream not in seeds:
            seeds[stream] = stream_seeds(self.keys(slot), stream)
        self._streams_of(drawing).seed(seeds[stream][row])

    def _streams_of(self, *drawing: Any) -> Streams:
        ids = tuple(map(id, drawing))
        if ids not in self._streams:
            self._streams[ids] = drawing, Streams(*drawing)
        return self._streams[ids][1]

    def _renew(self, epoch: int) -> None:
        """Examine the user's objects again if a new epoch has begun."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._examine()

    def _examine_replaced(self) -> None:
        """Examine the user's objects again if some were replaced; once per batch, if there are no workers."""
        if self._epoch is None or not same(self._seen, self.source.glance()):
            self._examine()

    def _examine(self) -> None:
        """Drop the copies and streams of the user's objects, and find out whether their own code draws for samples."""
        self.source.renew()
        self._copies, self._streams = {}, {}
        self._seen = self.source.glance()
        self._asks_user = self._draws = True
        try:
            self._asks_user = self.source.asks_user
            self._draws = self._asks_user or any(
                target is not None or Injected(transform).unknown for transform, target in self.source.all_transforms
            )
        except Exception:  # noqa: BLE001 - the user's own classes may raise: they count as drawing, and the loop raises it again
            log_outside(log, "%s cannot be examined", type(self.source.dataset).__name__, level=logging.INFO)


class KeyedCollate:
    """The user's collate function, applied in the process that computed the samples.

    It draws from generators that are seeded for the batch, or if not `seeded`, from the process's generators.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], *, seeded: bool = True) -> None:
        self.collate = collate
        self._seeded = seeded
        self._streams: Streams | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_streams": None}

    def __call__(self, fetched: Fetched) -> Fetched:
        if fetched.failure is not None or fetched.content is None:
            return fetched
        if fetched.bad and not fetched.content:
            return fetched._replace(content=None)
        try:
            return fetched._replace(content=self.batch(fetched.content, fetched.seed))
        except Exception as error:  # noqa: BLE001 - raised in the user's loop
            return Fetched.failed(fetched.indices, _where(), error)

    def batch(self, samples: Any, seed: int) -> Any:
        """Call the function on samples as the data set gives them; `seed` is from `collate_seed`."""
        if self._seeded and self.collate is not default_collate:
            if self._streams is None:
                self._streams = Streams(self.collate)
            self._streams.seed(seed)
        return self.collate(samples)


def collate_seed(slot: Slot) -> int:
    """Return the seed, 63 bits, of the generators for the collate function of a batch."""
    return stream_seeds(sample_keys(slot.seed, slot.epoch, [slot.number], [0]), COLLATE)[0]


class KeyedInit:
    """The user's worker_init_fn, called in a worker whose `get_worker_info()` has the user's own data set.

    User code changes that data set there (a share for each worker, a file handle) and reads it in transforms.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self.init = init

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        # The info refuses plain assignment. The worker's fetcher has its own reference to the keyed data set.
        source = info.dataset.source
        object.__setattr__(info, "dataset", source.dataset)
        if self.init is not None:
            self.init(worker)
        source.rejoin()


def _pack(indices: list[int]) -> bytes:
    return np.asarray(indices, dtype=np.int64).tobytes()


def _where() -> str:
    worker = get_worker_info()
    return "in the loader" if worker is None else f"in DataLoader worker process {worker.id}"
