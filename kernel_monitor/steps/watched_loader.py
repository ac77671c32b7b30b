"""Any iterable of batches, watched: it yields what it yielded, and its steps are measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from .sources import Epoch, Source
from .step_meter import Meter, StepClock

if TYPE_CHECKING:
    from ..protocol.states import EngineState


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
        return WatchedIterator(iterable, name)
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


class WatchedIterator(WatchedLoader):
    """What can be iterated once, or starts anew by itself when `iter` is called after its end."""

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
