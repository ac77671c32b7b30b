"""Times of single samples, taken where a DataLoader calls the data set: in its workers, or in the loop's process.

A worker writes a record of 32 bytes for each sample into a ring of shared memory, which the process of the loop reads
now and then (`slow_samples`). Which of the user's transforms takes the time is found by looking at the stack: a thread
looks up to 40 times a second at what the data set's code is doing, and notes the transform. No object of the user's is
changed or replaced; only torch's fetcher calls the data set through `TimedDataset`.

Samples that take less than `LEAST_S` are not timed beyond the first ones, as that would cost more than it tells.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..os_process import in_forked_children

if TYPE_CHECKING:
    from multiprocessing.heap import Arena

log = logging.getLogger(__name__)

LEAST_S = 400e-6  # mean time of a sample from which on samples are timed: the record of one takes about 2 us
LEAST_SLOW, LOST = 5, 0.03  # slow samples, and the share of the loop's time that they take, which are worth a sentence
_SUSPECT_S = 0.02  # of a sample that takes so long it is asked how long it waited for a core
_TRIED = 64  # samples after which that is decided
_STACK_S = (0.025, 0.4)  # between two looks at the stack, as the budget permits:
_BUDGET = 0.002  # of the process's CPU time
_FIRST_LOOK_S = 0.3  # after the first sample
_STILL_USED_S = 1.0  # between two calls of `look_at`
_UNUSED_S = 5.0  # the thread ends when no sample was computed for so long

# ---- The ring of one process that computes samples. Each of its parts has a single writer, and needs no lock.

SAMPLE = struct.Struct("<qqdfI")
"""A sample: its index (-1: not an int), the number of its batch in this process, the time at which it was ready
(`time.monotonic`, s), what it took without the wait for a core (s), and its number in this process."""
LOOK = struct.Struct("<Ii")
"""A look at the stack: the number of the sample under way, and the number of its transform's name; -1: none."""
_COUNT = struct.Struct("<q")  # of the samples written, then of the looks
SAMPLES, LOOKS, NAMES = 1024, 256, 32  # how many of each a ring holds
NAME = 48  # bytes of a name
SAMPLES_AT = 2 * _COUNT.size  # where they begin, in bytes
LOOKS_AT = SAMPLES_AT + SAMPLES * SAMPLE.size
NAMES_AT = LOOKS_AT + LOOKS * LOOK.size
RING = NAMES_AT + NAMES * NAME  # bytes of a ring


class Ring:
    """The ring in `RING` bytes of a buffer, for the process that writes; `slow_samples` reads it."""

    def __init__(self, buffer: Any, start: int = 0) -> None:
        self._buffer = memoryview(buffer)[start : start + RING]
        self._written = self._looked = self._named = 0

    def add_sample(self, *record: Any) -> None:
        """Write a record as in `SAMPLE`."""
        written = self._written
        SAMPLE.pack_into(self._buffer, SAMPLES_AT + written % SAMPLES * SAMPLE.size, *record)
        self._written = written + 1
        _COUNT.pack_into(self._buffer, 0, written + 1)

    def add_look(self, number: int, name: int) -> None:
        """Write a record as in `LOOK`."""
        LOOK.pack_into(self._buffer, LOOKS_AT + self._looked % LOOKS * LOOK.size, number, name)
        self._looked += 1
        _COUNT.pack_into(self._buffer, _COUNT.size, self._looked)

    def add_name(self, name: str) -> int:
        """Write a name and return its number; -1 if there are too many."""
        if self._named == NAMES:
            return -1
        at = NAMES_AT + self._named * NAME
        self._buffer[at : at + NAME] = name.encode(errors="replace")[:NAME].ljust(NAME, b"\0")
        self._named += 1
        return self._named - 1


# ---- In the process that computes the samples.


class _CoreWait:
    """The time for which a thread was ready to run and had no core, from Linux' schedstat; elsewhere it is 0.

    Other processes take that time, not the sample.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._last = 0
        with contextlib.suppress(OSError):  # not Linux, or a kernel without it
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def passed(self) -> float:
        """Return the wait since the last call (s)."""
        if self._file is None:
            return 0.0
        # Where code of the user's has closed it, its number may be that of another file: it is not ours to close.
        file, self._file = self._file, None
        last, self._last = self._last, int(os.pread(file, 64, 0).split()[1])
        self._file = file
        return 1e-9 * (self._last - last)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the interpreter's end `os` is empty
        if self._file is not None:
            close(self._file)


class Recorder:
    """Writes the times of a data set's samples into a ring; for one thread."""

    def __init__(self, ring: Ring) -> None:
        self.number = 0  # of the sample under way, from 1
        self.under_way = False
        self.batch = 0
        self.thread = 0  # its ident
        self.ended = False  # no more samples are timed: they take so little time that it is not worth it, or we failed
        self._ring = ring
        self._names: dict[str, int] = {}
        self._tried, self._seconds = 0, 0.0  # the first samples, and what they took
        self._core: _CoreWait | None = None
        self._due = time.monotonic() + _FIRST_LOOK_S

    def begin_batch(self) -> None:
        """Note that a batch is asked for, on the thread that computes it."""
        self.batch += 1
        thread = threading.get_ident()
        if self._core is None or thread != self.thread:
            self.thread, self._core = thread, _CoreWait()
        self._core.passed()

    def begin(self) -> float:
        """Note that a sample is asked for; returns the time (s)."""
        self.number += 1
        self.under_way = True
        return time.monotonic()

    def end(self, index: Any, began: float) -> None:
        """Note that the sample is ready."""
        now = time.monotonic()
        self.under_way = False
        number, seconds = self.number, now - began
        if self.batch == 1:
            return  # it imports and opens what later ones find open
        if seconds > _SUSPECT_S and self._core is not None:
            seconds = max(0.0, seconds - self._core.passed())
        self._ring.add_sample(index if type(index) is int else -1, self.batch, now, seconds, number & 0xFFFFFFFF)
        if self._tried < _TRIED:
            self._tried += 1
            self._seconds += seconds
            self.ended = self._tried == _TRIED and self._seconds < _TRIED * LEAST_S
        if now > self._due and not self.ended:
            self._due = now + _STILL_USED_S
            look_at(self)

    def fail(self) -> None:
        """Time no more samples, after a fault of ours: code of the user's may have closed our file, or the ring's."""
        self.ended, self.under_way = True, False
        log.error("a fault in kernel_monitor: the samples of a process are no longer timed", exc_info=True)  # noqa: LOG014 - there is one

    def look(self, frame: FrameType | None) -> None:
        """Note which transform the sample under way is in, by the stack of the thread that computes it."""
        number = self.number
        if frame is None or not self.under_way:
            return
        name = transform_of(frame)
        if number == self.number and self.under_way:
            self._ring.add_look(number & 0xFFFFFFFF, -1 if name is None else self._number_of(name))

    def _number_of(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self._ring.add_name(name)
        return self._names[name]


class TimedDataset:
    """The data set in the place where torch's fetcher refers to it: it has `__getitem__` and nothing else."""

    def __init__(self, dataset: Any, recorder: Recorder) -> None:
        self.dataset = dataset
        self._recorder = recorder

    def __getitem__(self, index: Any) -> Any:
        recorder, began = self._recorder, 0.0
        try:
            began = recorder.begin()
        except Exception:  # noqa: BLE001 - it is logged there
            recorder.fail()
        sample = self.dataset[index]
        if not recorder.ended:
            try:
                recorder.end(index, began)
            except Exception:  # noqa: BLE001
                recorder.fail()
        return sample


_SAMPLE_CODE = TimedDataset.__getitem__.__code__


def gives_single_samples(dataset: Any) -> bool:
    """Return whether torch's fetcher asks a map-style data set for its samples one by one.

    `Subset` of torch has a function for whole batches, which does nothing else than that.
    """
    subset: Any = getattr(sys.modules.get("torch.utils.data.dataset"), "Subset", None)
    while type(dataset) is subset:
        dataset = dataset.dataset
    return not getattr(dataset, "__getitems__", None)


def time_fetcher(fetcher: Any, ring: Ring, recorder: Recorder | None = None) -> Recorder | None:
    """Have a fetcher of torch's take its samples through a `TimedDataset`; returns the recorder, None if it cannot."""
    kind: Any = type(fetcher)
    torchs_own = kind.__name__ == "_MapDatasetFetcher" and kind.__module__.startswith("torch.utils.data.")
    if not torchs_own or not fetcher.auto_collation or not gives_single_samples(fetcher.dataset):
        return None
    recorder = Recorder(ring) if recorder is None else recorder
    if not recorder.ended:
        fetcher.dataset = TimedDataset(fetcher.dataset, recorder)
        fetcher.recorder = recorder
        fetcher.__class__ = _timed_class(kind)
    return recorder


@cache
def _timed_class(kind: Any) -> Any:
    """Return a class of fetchers that count their batches; a function in the fetcher would keep that alive."""

    class TimedFetcher(kind):  # type: ignore[misc]
        dataset: Any
        recorder: Recorder

        def fetch(self, indices: Any) -> Any:
            recorder = self.recorder
            try:
                recorder.begin_batch()
            except Exception:  # noqa: BLE001 - it is logged there
                recorder.fail()
            try:
                return super().fetch(indices)
            finally:
                recorder.under_way = False  # where the data set raised
                if recorder.ended:
                    self.dataset = self.dataset.dataset
                    self.__class__ = kind

    return TimedFetcher


class WorkerInit:
    """The user's `worker_init_fn`, called in a worker, which from then on times its samples.

    Args:
        init: the user's function, or None.
        arena: shared memory with a ring for each worker.
    """

    def __init__(self, init: Callable[[int], object] | None, arena: Arena) -> None:
        self.init = init
        self._arena = arena

    def __call__(self, worker: int) -> None:
        try:
            self._begin(worker)
        except Exception:
            log.exception("a fault in kernel_monitor: the samples of a worker are not timed")
        if self.init is not None:
            self.init(worker)

    def _begin(self, worker: int) -> None:
        """Time the samples of the fetchers that the worker makes, one for each epoch."""
        data: Any = sys.modules["torch.utils.data"]
        kinds, dataset = data._DatasetKind, data.get_worker_info().dataset
        ring, make = Ring(self._arena.buffer, worker * RING), kinds.create_fetcher
        known: list[Recorder | None] = [None]

        def create_fetcher(kind: Any, of: Any, *args: Any) -> Any:
            fetcher = make(kind, of, *args)
            try:
                if kind == kinds.Map and of is dataset:
                    known[0] = time_fetcher(fetcher, ring, known[0])
            except Exception:
                log.exception("a fault in kernel_monitor: the samples of a worker are not timed")
            return fetcher

        kinds.create_fetcher = staticmethod(create_fetcher)


# ---- The looks at the stack, by one thread of the process.

_looks: _Looks | None = None
_allowed = True  # False: the monitor of this process measures no loop
_END_S = 0.5  # the longest that `forbid_looks` waits for the thread
_lock = threading.Lock()


def look_at(recorder: Recorder) -> None:
    """Have the thread look at the stack of a recorder's thread for as long as samples come; starts it if need be.

    In a worker it waits until there is another thread, the one that sends the batches: code of the user's that forks
    in the first batch should find one thread, as without this package.
    """
    global _looks  # noqa: PLW0603 - one thread for a process
    if threading.active_count() < 2 and multiprocessing.parent_process() is not None:
        return
    with _lock:
        if not _allowed:
            return
        if _looks is None:
            _looks = _Looks()
            _looks.start()
        _looks.used[recorder] = time.monotonic()


def allow_looks() -> None:
    """Have samples that are computed from now on looked at."""
    global _allowed  # noqa: PLW0603 - as above
    _allowed = True


def forbid_looks() -> None:
    """End the thread that looks at the stack, and start none in this process until `allow_looks`."""
    global _allowed
    with _lock:
        _allowed, looks = False, _looks
        if looks is not None:
            looks.used = {}
    if looks is not None:
        looks.join(_END_S)


class _Looks(threading.Thread):
    """Looks up to 40 times a second at what the code of each recorder's data set is doing."""

    def __init__(self) -> None:
        super().__init__(name="kernel-monitor-samples", daemon=True)
        self.used: dict[Recorder, float] = {}  # when it was last said to be in use
        self._pause = _STACK_S[0]
        self._chance = random.Random(0)  # noqa: S311 - of its own: the user's generators stay as they are

    def run(self) -> None:
        try:
            began = time.process_time()
            while self._in_use():
                # Uneven, so that it keeps no step with the samples.
                time.sleep(self._pause * (0.5 + self._chance.random()))
                within = time.thread_time() < _BUDGET * (time.process_time() - began)
                self._pause = max(self._pause / 1.5, _STACK_S[0]) if within else min(self._pause * 1.5, _STACK_S[1])
                frames = sys._current_frames()
                for recorder in list(self.used):
                    recorder.look(frames.get(recorder.thread))
                del frames
        except Exception:  # `_looks` stays: another thread would fail, too
            log.exception("a fault in kernel_monitor: the transforms of samples are not timed")

    def _in_use(self) -> bool:
        """Forget recorders that have computed nothing for a while; returns whether any is left.

        A sample that takes longer than that is in use.
        """
        global _looks  # noqa: PLW0603 - as above
        now = time.monotonic()
        with _lock:
            self.used = {one: at for one, at in self.used.items() if now - at < _UNUSED_S or one.under_way}
            if not self.used:
                _looks = None
            return bool(self.used)


@in_forked_children
def _in_child() -> None:
    global _looks, _lock
    _looks, _lock = None, threading.Lock()


# ---- The transform that a stack is in.

_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl", "forward")
_CONTAINERS = {"Compose", "Sequential", "ReplayCompose", "AugmentationSequential", "ImageSequential"}
_CONTAINERS |= {"StandardTransform", "RandomApply", "RandomChoice", "RandomOrder", "OneOf", "SomeOf", "OneOrOther"}
_TRANSFORMS = ("torchvision.transforms", "albumentations", "kornia.", "monai.transforms", "timm.data")
_BETWEEN = ("torch.", "functools", "contextlib")  # modules whose functions stand between a container and a transform
_DEEPEST = 80  # frames that are looked at


def transform_of(frame: FrameType | None) -> str | None:
    """Return the name of the user's transform that a stack is in: its class's, or its function's; None: in none.

    It is the outermost one that is no container of transforms. `frame` is the innermost of a thread that computes a
    sample in `TimedDataset`.
    """
    stack: list[FrameType] = []
    while frame is not None and frame.f_code is not _SAMPLE_CODE:
        stack.append(frame)
        frame = frame.f_back
    if frame is None:
        return None
    inside = False
    for inner in list(reversed(stack))[:_DEEPEST]:
        code, module = inner.f_code, str(inner.f_globals.get("__name__", ""))
        is_call = code.co_name in _CALLS
        if not inside and not is_call and not module.startswith(_TRANSFORMS):
            continue
        kind = type(inner.f_locals["self"]) if code.co_varnames[:1] == ("self",) else None
        if kind is not None and kind.__name__ in _CONTAINERS:
            inside = True
        elif kind is not None:
            if inside or (is_call and _is_transform(kind)):
                return kind.__name__
        elif code.co_name == "<lambda>":
            return "lambda"
        elif not code.co_name.startswith("<") and not module.startswith(_BETWEEN):
            return code.co_name
    return None


def _is_transform(kind: type) -> bool:
    names = [base.__name__ for base in kind.__mro__]
    is_named = any(word in kind.__name__.lower() for word in ("transform", "augment", "random"))
    return is_named or "Module" in names or kind.__module__.startswith(_TRANSFORMS)
