"""Measured loops without a switchable loader: over any iterable of batches, or with `monitor.step()` blocks."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import MonitorError
from ..os_process import in_forked_children
from ..text import checked_text
from . import phase_times
from .measured_step import PHASES
from .phase_times import thread_phases
from .step_meter import Meter, StepClock

if TYPE_CHECKING:
    from ..protocol.states import EngineState, EpochCounts, LoaderState


log = logging.getLogger(__name__)

# ---- Sources: the loops of this process whose data comes from no switchable loader.

EPOCHS_KEPT = 4  # epochs of a source whose counts are kept
_EMPTY_KEPT = 50  # epochs without a batch that are kept; an iterator at its end makes them faster than counts are read

_lock = threading.Lock()
_live: weakref.WeakValueDictionary[int, Source] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def next_number() -> int:
    """Return a new number, from 1; switchable loaders and sources share the numbers, and none is used twice."""
    with _lock:
        return next(_numbers)


def live() -> list[Source]:
    """Return every source that is still in use, oldest first. In a forked child there are none."""
    with _lock:
        return [source for _, source in sorted(_live.items())]


@dataclass(slots=True)
class Epoch:
    """The counts of an iteration."""

    number: int  # the epoch's number, from 0
    planned: int | None  # samples of the whole epoch; None: not known
    batches: int = 0  # batches delivered
    samples: int = 0  # samples delivered
    finished: bool = False  # the iteration came to its end


class EpochLog:
    """The newest epochs of a source; it may outlive the source, and keeps nothing of the source's data alive."""

    def __init__(self) -> None:
        self._epochs: list[Epoch] = []
        self.next_number = 0  # the lowest that the next epoch may have

    def begin(self, planned: int | None) -> Epoch:
        """Add and return a new epoch of `planned` samples; None: not known."""
        delivered = [old for old in self._epochs if old.batches][1 - EPOCHS_KEPT :]
        empty = [old for old in self._epochs if not old.batches][-_EMPTY_KEPT:]
        epoch = Epoch(max(self._epochs[-1].number + 1 if self._epochs else 0, self.next_number), planned)
        self._epochs = [*sorted((*delivered, *empty), key=lambda old: old.number), epoch]
        return epoch

    def epochs(self) -> list[Epoch]:
        """The last iterations, oldest first."""
        return list(self._epochs)

    def counts(self) -> list[EpochCounts]:
        """Return the counts of each epoch, oldest first, in the form of a switchable loader's."""
        return [_counts(epoch) for epoch in self._epochs]


class Source:
    """A measured loop whose data comes from no switchable loader."""

    def __init__(
        self,
        name: str | None,  # shown to users, shortened to one line of at most 80 letters; None: the id
        batches: Callable[[], int | None] = lambda: None,  # called as an epoch begins: its batches; None: not known
        planned: Callable[[], int | None] = lambda: None,  # called as an epoch begins: its samples; None: not known
        engines: Sequence[EngineState] = (),  # engines to list, none of which can be chosen
    ) -> None:
        name = None if name is None else checked_text(name, "The name of a loop") or None
        number = next_number()
        self.id = f"loader-{number}"
        self.name = self.id if name is None else name
        self.meter = Meter(self.id)
        self._batches = batches
        self._planned = planned
        self.faulty = False  # a fault of its measurement was logged
        self.engines = list(engines)
        self._length: int | None = None
        self.log = EpochLog()
        with _lock:
            _live[number] = self

    @property
    def length(self) -> int | None:
        """The batches of the newest epoch; None: not known."""
        return self._length

    def begin(self) -> Epoch:
        """Begin and return an epoch."""
        self._length = self._batches()
        return self.log.begin(self._planned())

    def samples_of(self, epoch: Epoch, batch: Any) -> int:  # noqa: ARG002 - for loaders that know an epoch's samples
        """Return the number of samples in the next batch of an epoch."""
        return count_samples(batch)

    def state(self) -> LoaderState:
        """Return the state in the form of a switchable loader's, without engines to switch to and without knobs."""
        counts = self.log.counts()
        newest = counts[-1] if counts else _counts(Epoch(0, None))
        return {
            "id": self.id,
            "name": self.name,
            "backend": "loader",
            "wanted": None,
            "status": status(newest) if counts else "watched",
            "backends": self.engines,
            "batch": newest["batches"],
            "skips": [],
            "calibration": {},
            "ended": False,
            "nodes": 0,
            "remote": None,
            "ranks": 0,
            "padded": 0,
            "once": False,
            "attached": False,
            "knobs": {"workers": None, "prefetch": None, "threads": None},
            **newest,
            "batches": self._length,
        }

    def epochs(self) -> list[EpochCounts]:
        """Return the counts of the last epochs, oldest first, in the form of a switchable loader's."""
        return self.log.counts()


def status(counts: EpochCounts) -> str:
    """Return the text for a page's status region, from the counts of the newest epoch."""
    return f"watched, batch {counts['batches']:,}"


def _counts(epoch: Epoch) -> EpochCounts:
    missing = 0 if epoch.planned is None or not epoch.finished else max(0, epoch.planned - epoch.samples)
    return {
        "epoch": epoch.number,
        "batches": epoch.batches,
        "samples": epoch.samples,
        "planned": epoch.planned,
        "lost": missing,
        "doubled": 0,
        "skipped": 0,
        "replaced": 0,
        "decoded": {},
        "finished": epoch.finished,
    }


@in_forked_children
def _in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    _live.clear()


ATTACHED = "_kernel_monitor_steps"
"""The attribute of torch's iterators that has the steps of an attached loader's iteration."""


def forget_attached(iterator: Any) -> None:
    """Do not measure an iterator as an attached loader's: `watch_loader` measures it."""
    getattr(iterator, "__dict__", {}).pop(ATTACHED, None)


# ---- Watched iterables: they yield the same batches, and their steps are measured.


def watch_loader(iterable: Any, *, name: str | None = None) -> Any:
    """Return an iterable that yields the same batches and measures the steps of the loop over it.

    Everything else is the iterable's own: its length, its attributes (for reading and writing), how often it can be
    iterated, the exceptions that it raises. The result of an iterator is an iterator. An iterable that is measured
    already (a `switchable` loader, or a result of this function) is returned as it is.

    The number of samples of a batch is the first dimension of the first tensor or array in it, else its length, else 1.
    In a dictionary, one of four dimensions or more comes first: an array of images has one row a sample, while boxes
    and their classes may have several. A list of images, each an array of its own, is as many samples as it has images.

    Args:
        iterable: yields batches.
        name: shown to users; by default the source's id (`loader-2`).

    Raises:
        MonitorError: `iterable` cannot be iterated.
    """
    if isinstance(iterable, WatchedLoader) or isinstance(getattr(iterable, "meter", None), Meter):
        return iterable
    if isinstance(iterable, Iterator):
        return _WatchedIterator(iterable, name)
    if not isinstance(iterable, Iterable) and not hasattr(type(iterable), "__getitem__"):
        raise MonitorError(
            f"watch_loader() takes something to iterate over, which {type(iterable).__name__} is not. "
            "Give it what stands after `in` in your loop; a loop without such a thing: with monitor.step(): …"
        )
    sized = hasattr(type(iterable), "__len__")
    return (SizedLoader if sized else WatchedLoader)(iterable, name)


class WatchedLoader:
    """A watched iterable with its source, made by `watch_loader`."""

    _kernel_monitor_iterable: Any
    _kernel_monitor_source: Source

    def __init__(self, iterable: Any, name: str | None, engines: Sequence[EngineState] = ()) -> None:
        source = Source(name, lambda: length(iterable), lambda: planned(iterable), engines)
        object.__setattr__(self, "_kernel_monitor_iterable", iterable)
        object.__setattr__(self, "_kernel_monitor_source", source)

    def __iter__(self) -> Any:
        iterator = iter(self._kernel_monitor_iterable)
        forget_attached(iterator)
        return _Iteration(iterator, self._kernel_monitor_source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_kernel_monitor_")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._kernel_monitor_iterable, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._kernel_monitor_iterable, name, value)

    def __repr__(self) -> str:
        state = self._kernel_monitor_source.state()
        return f"<{state['name']}: {state['status']}, of {self._kernel_monitor_iterable!r}>"

    def __reduce__(self) -> Any:
        raise MonitorError("A watched loader cannot be copied or sent to another process; watch a loader there.")


class SizedLoader(WatchedLoader):
    """A watched iterable with a length."""

    def __len__(self) -> int:
        return len(self._kernel_monitor_iterable)


class _WatchedIterator(WatchedLoader):
    """A watched iterator, which can be iterated once, or starts anew when `iter` is called after its end."""

    _kernel_monitor_steps: _Iteration

    def __init__(self, iterable: Any, name: str | None) -> None:
        super().__init__(iterable, name)
        steps = _Iteration(iterable, self._kernel_monitor_source)
        object.__setattr__(self, "_kernel_monitor_steps", steps)

    def __iter__(self) -> Any:
        again = iter(self._kernel_monitor_iterable)
        steps = self._kernel_monitor_steps
        if again is not steps.iterator or steps.ended:
            object.__setattr__(self, "_kernel_monitor_steps", _Iteration(again, self._kernel_monitor_source))
        return self

    def __next__(self) -> Any:
        return next(self._kernel_monitor_steps)


class IterationSteps:
    """The steps of one iterator over a source, on the thread that iterates; it may begin a new epoch after its end."""

    def __init__(self, source: Source) -> None:
        self.ended = False
        self._source = source  # stays alive while somebody iterates
        self._clock = StepClock(source.meter)
        self._epoch: Epoch | None = None

    def next(self, take: Callable[[], Any]) -> Any:
        """Return the batch that `take` returns, or raise what it raises; the step before ends, and one begins.

        A fault of the measurement is logged; the loop goes on without it.
        """
        try:  # as `_safely`, without its call: this runs in each step
            self._ask()
        except Exception as error:  # noqa: BLE001 - logged
            self._log(error)
        try:
            batch = take()
        except BaseException as error:  # raised again: whatever ends the step, an interrupt too
            self._safely(self._stop, isinstance(error, StopIteration))
            raise
        try:
            self._got(batch)
        except Exception as error:  # noqa: BLE001 - logged
            self._log(error)
        return batch

    def _safely(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - logged
            self._log(error)

    def _log(self, error: Exception) -> None:
        if not self._source.faulty:  # once, not for each step
            self._source.faulty = True
            text = "a fault in kernel_monitor: the steps of %s are not measured as they should be"
            log.error(text, self, exc_info=error)

    def _ask(self) -> None:
        if self._epoch is None or self.ended:  # requested again after its end, whether it was reset or not
            self._epoch, self.ended = self._begin(), False
        self._clock.ask()

    def _begin(self) -> Epoch:
        return self._source.begin()

    def _stop(self, ended: bool) -> None:
        self._clock.stop()
        if ended and self._epoch is not None:
            self.ended = self._epoch.finished = True

    def _got(self, batch: Any) -> None:
        epoch = self._epoch
        if epoch is None:
            return
        samples = self._source.samples_of(epoch, batch)
        self._clock.got(samples, epoch=epoch.number, batch=epoch.batches)
        epoch.batches += 1
        epoch.samples += samples


class _Iteration:
    """One pass over a watched iterable: an iterator that gives what the iterable's own one gives."""

    def __init__(self, iterator: Any, source: Source) -> None:
        self.iterator = iterator
        self._steps = IterationSteps(source)

    @property
    def ended(self) -> bool:
        return self._steps.ended

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        return self._steps.next(partial(next, self.iterator))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "iterator":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.iterator, name)


_OF_IMAGES = 4  # dimensions
_CHANNELS = (1, 3)  # of an image that is an array of its own, as batches of images of several sizes have them
_DEPTH = 3  # levels of a batch that are searched
_SIDE = 16  # pixels, at least: shorter ones may be sequences of vectors


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch, as described in `watch_loader`."""
    found = _rows(batch, _DEPTH)
    if found is None:
        found = length(batch)
    return 1 if found is None else found


def _rows(value: Any, depth: int) -> int | None:
    """Return the first dimension of the first tensor or array in `depth` levels of a batch; None if there is none."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if len(shape) > 0 else None
    if depth < _DEPTH and isinstance(value, list | tuple) and value and all(map(_is_image, value)):
        return len(value)
    if depth > 0:
        inner = _images_first(value) if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for element in inner:
            found = _rows(element, depth - 1)
            if found is not None:
                return found
    return None


def _is_image(value: Any) -> bool:
    """Return whether a value is an array with the channels of an image before its rows and columns."""
    shape = getattr(value, "shape", None)
    return (
        isinstance(shape, tuple) and len(shape) == _OF_IMAGES - 1 and shape[0] in _CHANNELS and min(shape[1:]) >= _SIDE
    )


def _images_first(batch: Mapping[Any, Any]) -> list[Any]:
    return sorted(batch.values(), key=lambda value: len(getattr(value, "shape", ())) < _OF_IMAGES)  # else as they are


def length(iterable: Any) -> int | None:
    """Return the length of an iterable; None where it has none."""
    try:
        return len(iterable)
    except Exception:  # noqa: BLE001 - its class may raise anything; the user's loop would not call `len`
        return None


def planned(iterable: Any) -> int | None:
    """Return the samples of an epoch of a torch DataLoader; None for any other iterable."""
    batches, batched = length(iterable), iterable
    if getattr(iterable, "batch_size", None) is None:
        batched = getattr(iterable, "batch_sampler", None)
    size, samples = getattr(batched, "batch_size", None), length(getattr(batched, "sampler", None))
    if not isinstance(size, int) or batches is None or samples is None:
        return None
    return min(samples, batches * size)


# ---- Steps and phases as blocks in the user's loop: `with step():` and `with phase("copy"):`.


class phase:  # noqa: N801 - used as a function
    """Count the time of this block as a phase of the step: `copy`, `forward`, `backward` or `optimizer`.

    The time of an inner block counts only for its own phase.

    Raises:
        MonitorError: there is no phase of that name.
    """

    def __init__(self, name: str) -> None:
        if name not in PHASES:
            raise MonitorError(f"There is no phase {name!r}. The phases are: {', '.join(PHASES)}.")
        self._kind = PHASES.index(name)

    def __enter__(self) -> None:
        phases = thread_phases()
        if not phases.on_device and _cuda_in_use():
            phase_times.use_cuda()
            phases.on_device = True
        phases.enter(self._kind)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        thread_phases().leave(self._kind)


def _cuda_in_use() -> bool:
    # The attribute is missing without PyTorch, and while another thread imports it.
    initialized = getattr(getattr(sys.modules.get("torch"), "cuda", None), "is_initialized", None)
    return initialized is not None and bool(initialized())


class _Loop:
    """A loop of this thread that uses `step` blocks."""

    def __init__(self, name: str) -> None:
        self.source = Source(name)
        self.clock = StepClock(self.source.meter)
        self.epoch: Epoch = self.source.begin()
        self.open = False


class _Loops(threading.local):
    """The loops of a thread by name; they end with the thread."""

    def __init__(self) -> None:
        self.by_name: dict[str, _Loop] = {}


_loops = _Loops()


class step:  # noqa: N801 - used as a function
    """A step of a loop that has no loader to watch, as a context manager: the block is the step.

    Call `got` when the batch has come, else the wait is not measured. A block that raises is no step.

    Args:
        name: the loop's name; loops of one thread with different names are different sources.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = "steps" if name is None else name
        self._loop: _Loop | None = None
        self._samples = 0

    def __enter__(self) -> Self:
        loop = _loops.by_name.get(self._name)
        if loop is None:
            loop = _loops.by_name[self._name] = _Loop(self._name)
        if loop.open:
            raise MonitorError(f"A step of {self._name!r} is inside another one. Name one of the loops: step('inner').")
        loop.clock.ask()
        loop.clock.skip_wait()
        loop.open = True
        self._loop, self._samples = loop, 0
        return self

    def got(self, samples: int = 0) -> None:
        """End the wait of the step: a batch of so many samples has come.

        Raises:
            MonitorError: called outside of the step's block.
        """
        loop = self._loop
        if loop is None:
            raise MonitorError("got() belongs inside the block: with monitor.step() as step: step.got(len(batch))")
        loop.clock.got(samples, epoch=loop.epoch.number, batch=loop.epoch.batches)
        self._samples += samples

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.open = False
        if error is not None:
            loop.clock.stop()
            return
        loop.clock.finish(loop.epoch.number, loop.epoch.batches)
        loop.epoch.batches += 1
        loop.epoch.samples += self._samples
