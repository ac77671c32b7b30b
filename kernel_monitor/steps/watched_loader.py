"""Loops that are measured without being switchable: over any iterable of batches, or under `monitor.step()`."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..errors import MonitorError
from ..os_process import in_forked_children
from ..text import checked_text
from . import cuda_times
from .measured_step import PHASES
from .phases import thread_phases
from .step_meter import Meter, StepClock

if TYPE_CHECKING:
    from ..protocol.states import EngineState, EpochCounts, LoaderState


# ---- What steps in this process without being switchable: watched iterables and loops under `monitor.step()`.

EPOCHS_KEPT = 4  # epochs of a source whose counts are kept
_EMPTY_KEPT = (
    50  # of those that delivered nothing: of an iterator at its end they pass between two readings of the counts
)

_lock = threading.Lock()
_live: weakref.WeakValueDictionary[int, Source] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def next_number() -> int:
    """A number for a loader, from 1, never used again: switchable loaders and sources share them."""
    with _lock:
        return next(_numbers)


def live() -> list[Source]:
    """Every source that is still in use, oldest first. In a forked child there are none."""
    with _lock:
        return [source for _, source in sorted(_live.items())]


@dataclass(slots=True)
class Epoch:
    """The counts of one iteration."""

    number: int
    planned: int | None  # samples; None: not known
    batches: int = 0
    samples: int = 0
    finished: bool = False  # its end was reached


class EpochLog:
    """The newest epochs of a source; it may outlive the source, and holds nothing of what that iterates over."""

    def __init__(self) -> None:
        self._epochs: list[Epoch] = []

    def begin(self, planned: int | None) -> Epoch:
        """A new epoch, of so many samples if that is known."""
        delivered = [one for one in self._epochs if one.batches][1 - EPOCHS_KEPT :]
        empty = [one for one in self._epochs if not one.batches][-_EMPTY_KEPT:]
        epoch = Epoch(self._epochs[-1].number + 1 if self._epochs else 0, planned)
        self._epochs = [*sorted((*delivered, *empty), key=lambda one: one.number), epoch]
        return epoch

    def counts(self) -> list[EpochCounts]:
        """The counts of each iteration, oldest first, as a switchable loader's."""
        return [_counts(epoch) for epoch in self._epochs]


class Source:
    """A loop whose steps are measured and whose data comes from elsewhere."""

    def __init__(
        self,
        name: str | None,  # for people, kept as one line of at most 80 letters; None: the id
        batches: Callable[[], int | None] = lambda: None,  # how many an epoch has, asked at its beginning, if known
        planned: Callable[[], int | None] = lambda: None,  # the same for samples
        engines: Sequence[EngineState] = (),  # that might be thought of for it, none of which can be chosen
    ) -> None:
        name = None if name is None else checked_text(name, "The name of a loop") or None
        number = next_number()
        self.id = f"loader-{number}"
        self.name = self.id if name is None else name
        self.meter = Meter(self.id)
        self._batches = batches
        self._planned = planned
        self.engines = list(engines)
        self._length: int | None = None
        self.log = EpochLog()
        with _lock:
            _live[number] = self

    def begin(self) -> Epoch:
        self._length = self._batches()
        return self.log.begin(self._planned())

    def state(self) -> LoaderState:
        """As a switchable loader's; there is nothing to switch and no knob."""
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
            "knobs": {"workers": None, "prefetch": None, "threads": None},
            **newest,
            "batches": self._length,
        }

    def epochs(self) -> list[EpochCounts]:
        """The counts of the last epochs, oldest first, as a switchable loader's."""
        return self.log.counts()


def status(counts: EpochCounts) -> str:
    """The sentence of a page's status region, of the newest epoch."""
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
    global _lock  # noqa: PLW0603 - some other thread of the parent may have held it
    _lock = threading.Lock()
    _live.clear()


# ---- Any iterable of batches, watched: it yields what it yielded, and its steps are measured.


def watch_loader(iterable: Any, *, name: str | None = None) -> Any:
    """Return an iterable that yields the same batches and measures the steps of the loop over it.

    Everything else is the iterable's own: its length, its attributes (they read and write through), how often it can
    be iterated, what it raises. An iterator stays one. What is measured already (a `switchable` loader, or what this
    returned) comes back as it is.

    A batch's samples are the first dimension of the first tensor or array found in it, else the length of its list;
    anything else is one sample.

    Args:
        name: for people; the source's id (`loader-2`) if left out.

    Raises:
        MonitorError: it cannot be iterated.
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
    """An iterable and the source that its steps belong to; made by `watch_loader`."""

    _kernel_monitor_iterable: Any
    _kernel_monitor_source: Source

    def __init__(self, iterable: Any, name: str | None, engines: Sequence[EngineState] = ()) -> None:
        source = Source(name, lambda: _length(iterable), lambda: _planned(iterable), engines)
        object.__setattr__(self, "_kernel_monitor_iterable", iterable)
        object.__setattr__(self, "_kernel_monitor_source", source)

    def __iter__(self) -> Any:
        return _Iteration(iter(self._kernel_monitor_iterable), self._kernel_monitor_source)

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
    """One with a length."""

    def __len__(self) -> int:
        return len(self._kernel_monitor_iterable)


class _WatchedIterator(WatchedLoader):
    """The iterator of something that can be iterated once, or starts anew when `iter` is called after its end."""

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


class _Iteration:
    """One pass over a watched iterable: an epoch."""

    def __init__(self, iterator: Any, source: Source) -> None:
        self.iterator = iterator
        self.ended = False
        self._source = source  # stays alive while somebody iterates
        self._clock = StepClock(source.meter)
        self._epoch: Epoch | None = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        epoch = self._epoch
        if epoch is None or self.ended:  # asked again at its end: by a loop that did not reset it, or did
            epoch = self._epoch = self._source.begin()
            self.ended = False
        self._clock.ask()
        try:
            batch = next(self.iterator)
        except BaseException as error:  # raised again: whatever ends the step, an interrupt too
            self._clock.stop()
            if isinstance(error, StopIteration):
                self.ended = epoch.finished = True
            raise
        samples = count(batch)
        self._clock.got(samples, epoch=epoch.number, batch=epoch.batches)
        epoch.batches += 1
        epoch.samples += samples
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "iterator":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.iterator, name)


def count(batch: Any) -> int:
    """The samples of a batch; see `watch_loader`."""
    found = _rows(batch, 3)
    if found is None:
        found = _length(batch)
    return 1 if found is None else found


def _rows(value: Any, depth: int) -> int | None:
    """The first dimension of the first tensor or array, looked for in so many levels; None: there is none."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if len(shape) > 0 else None
    if depth > 0:
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
        for element in inner:
            found = _rows(element, depth - 1)
            if found is not None:
                return found
    return None


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except Exception:  # noqa: BLE001 - whatever its class raises; the loop that iterates it does not ask
        return None


def _planned(iterable: Any) -> int | None:
    """The samples of an epoch, of a torch DataLoader; None of anything else."""
    size, sampler = getattr(iterable, "batch_size", None), getattr(iterable, "sampler", None)
    batches, samples = _length(iterable), _length(sampler)
    if not isinstance(size, int) or batches is None or samples is None:
        return None
    return min(samples, batches * size)


# ---- Steps and phases that the loop marks itself: `with step():` and `with phase("copy"):`.


class phase:  # noqa: N801 - used as a function
    """Count what is done in this block as a phase of the step: `copy`, `forward`, `backward` or `optimizer`.

    A block inside another one counts for itself only.

    Raises:
        MonitorError: there is no such phase.
    """

    def __init__(self, name: str) -> None:
        if name not in PHASES:
            raise MonitorError(f"There is no phase {name!r}. The phases are: {', '.join(PHASES)}.")
        self._kind = PHASES.index(name)

    def __enter__(self) -> None:
        phases = thread_phases()
        if not phases.on_device and _cuda_in_use():
            cuda_times.use_cuda()
            phases.on_device = True
        phases.enter(self._kind)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        thread_phases().leave(self._kind)


def _cuda_in_use() -> bool:
    # Not there without PyTorch, nor while another thread imports it.
    initialized = getattr(getattr(sys.modules.get("torch"), "cuda", None), "is_initialized", None)
    return initialized is not None and bool(initialized())


class _Loop:
    """A loop of this thread under `step`."""

    def __init__(self, name: str) -> None:
        self.source = Source(name)
        self.clock = StepClock(self.source.meter)
        self.epoch: Epoch = self.source.begin()
        self.open = False


class _Loops(threading.local):
    """This thread's loops by name; they end with the thread."""

    def __init__(self) -> None:
        self.by_name: dict[str, _Loop] = {}


_loops = _Loops()


class step:  # noqa: N801 - used as a function
    """One step of a loop that has no loader to watch; gives itself to `as`.

    The step is what is done in the block. Call `got` when the batch has come, else the wait is not measured. A block
    that raises is no step.

    Args:
        name: of the loop; loops of one thread with different names are different sources.
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
        loop.clock.went_on()
        loop.open = True
        self._loop, self._samples = loop, 0
        return self

    def got(self, samples: int = 0) -> None:
        """The batch has come, of so many samples: what the step took so far was the wait for it.

        A MonitorError outside of the step's block.
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
