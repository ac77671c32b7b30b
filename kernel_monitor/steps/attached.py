"""Plain DataLoaders are measured without a line in the user's code, from `attach` to `detach`.

`DataLoader.__iter__` and the `__next__` of torch's iterators are replaced in their classes by functions that call the
original ones. Loaders and iterators keep their classes, and batches, random numbers and workers are torch's own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, NamedTuple

from ..os_process import in_forked_children
from . import loader_kinds, phase_times, watched_loader
from .attached_loader import OWN, AttachedLoader, Rest, Takeover
from .loop_site import loader_name, loop_site
from .watched_loader import ATTACHED, Epoch, IterationSteps

log = logging.getLogger(__name__)

MODULE = loader_kinds.TORCH
_OURS = "_kernel_monitor_function"  # of our functions: the function itself, which `functools.wraps` may copy to others
_WORKING = "_kernel_monitor_attached"  # of torch's module: the mark of those of our functions that work


class AttachedSteps(IterationSteps):
    """The steps of one iteration of torch's own iterator, and of the engine that takes over from it in its middle."""

    _source: AttachedLoader

    def __init__(self, source: AttachedLoader, loader: Any, iterator: Any) -> None:
        super().__init__(source)
        self._skipped = iterator._num_yielded  # batches of the first epoch, which goes on from a state
        self._endless = not loader_kinds.makes_iterators(loader)  # it may take epoch after epoch from one iterator
        # `for batch in DataLoader(…)` holds the iterator alone.
        self._loader = None if loader_kinds.keeps(loader, iterator) else loader
        self._rest: Rest | None = None  # what the sampler has still to give, once an engine is to go on
        self._tail: Iterator[Any] | None = None  # goes on, once torch's iterator has delivered what its workers have
        self._stays = False  # torch's iterator delivers the whole epoch, as going on has failed

    @property
    def handed_over(self) -> bool:
        """Whether torch's iterator alone would not deliver the whole epoch."""
        return self._rest is not None

    def before(self, iterator: Any) -> Iterator[Any] | None:
        """The next batch is asked for: return what has it; None for torch's own iterator."""
        if self._tail is not None:
            return self._tail
        if self._rest is None and not self._stays and self._epoch is not None and self._source.takeover is not None:
            self._safely(self._hand_over, iterator, self._source.takeover)
        if self._rest is not None and not getattr(iterator, "_task_info", None):
            return self._go_on(iterator, self._rest)
        self._safely(self._ask)
        return None

    def stopped(self, iterator: Any, ended: bool) -> Iterator[Any] | None:
        """Torch's iterator has raised an exception; return what goes on in its place, if anything does."""
        if ended and self._rest is not None:
            return self._go_on(iterator, self._rest)
        self._safely(self._stop, ended)
        return None

    def got(self, batch: Any) -> None:
        """Torch's iterator has returned a batch."""
        self._safely(self._got, batch)

    def got_of_engine(self, batch: Any) -> None:
        """An engine, which measures the steps itself, has returned a batch."""
        if self._epoch is not None:
            self._epoch.batches += 1
            self._epoch.samples += watched_loader.count_samples(batch)

    def end(self) -> None:
        """The engine that went on is at its end."""
        if self._epoch is not None:
            self.ended = self._epoch.finished = True
        self._loader = None
        _handed_over.discard(self)
        if _loaders is None:
            detach()  # `__next__` has stayed for this

    def _hand_over(self, iterator: Any, takeover: Takeover) -> None:
        """Take from torch's iterator what it has not given to its workers yet, if an engine is ready for it."""
        rest = takeover.hand_over(iterator)
        if rest is not None:
            self._rest = rest
            _handed_over.add(self)
            iterator._sampler_iter = rest

    def _go_on(self, iterator: Any, rest: Rest) -> Iterator[Any] | None:
        """Return the iterator over the rest; after a fault give that back to torch's own iterator, and return None."""
        asked = time.monotonic()
        self._safely(self._ask)
        try:
            if self._epoch is None:
                raise RuntimeError("an epoch that did not begin")
            self._tail = rest.go_on(self._epoch, iterator._base_seed, asked)
        except Exception:
            log.exception("a fault in kernel_monitor: torch's own iterator goes on")
            self._rest, self._stays = None, True
            iterator._sampler_iter = rest.batches()
            for _ in range(getattr(iterator, "_prefetch_factor", 0) * iterator._num_workers):
                iterator._try_put_index()
            return None
        self._clock.stop()
        if iterator._num_workers > 0 and not iterator._persistent_workers:
            iterator._shutdown_workers()  # as torch does at the end of its iterator
        return self._tail

    def _stop(self, ended: bool) -> None:
        super()._stop(ended)
        if ended:
            self._loader = None

    def _ask(self) -> None:
        if self._endless and self._epoch is not None and self._epoch.finished:
            self._clock.stop()  # nobody knows when the last step of that epoch ended
        super()._ask()

    def _begin(self) -> Epoch:
        skipped, self._skipped = self._skipped, 0
        return self._source.begin(skipped)

    def _got(self, batch: Any) -> None:
        if self._endless and self._epoch is not None and self._epoch.finished and not self.ended:
            self._epoch = self._begin()
        super()._got(batch)
        # Frameworks count the batches, and do not ask for one more, which would end the iteration.
        if self._epoch is not None and self._epoch.batches == self._source.length:
            self._epoch.finished = True


_handed_over: weakref.WeakSet[AttachedSteps] = weakref.WeakSet()
"""Iterations whose rest torch's own `__next__` would not deliver."""


class _Place(NamedTuple):
    """Where a loop over a DataLoader stands: DataLoaders made anew for the same loop and data set are one loader."""

    file: str
    line: int
    role: str | None  # in the framework that has the loop
    dataset: int  # `id`


class _Begun(NamedTuple):
    """An iteration of which no batch was asked for yet; many are made only to be looked at."""

    loader: Any  # a weak reference where it keeps its workers, and its iterator with them
    place: _Place | None
    name: str
    of_torch: bool = True


class _Loaders:
    """The entries of the DataLoaders that were iterated since `attach`; each goes with its DataLoader or data set."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[Any], AttachedLoader]] = {}
        self._by_place: dict[_Place, list[tuple[weakref.ref[Any], AttachedLoader]]] = {}

    def get(self, loader: Any) -> AttachedLoader | None:
        """Return the entry of a DataLoader; None before its first batch."""
        found = self._by_id.get(id(loader))
        return found[1] if found is not None and found[0]() is loader else None

    def of(self, loader: Any, place: _Place | None, name: str) -> AttachedLoader:
        """Return the entry of a DataLoader, made where there is none."""
        with _lock:
            return self._of(loader, place, name)

    def _of(self, loader: Any, place: _Place | None, name: str) -> AttachedLoader:
        found = self.get(loader)
        if found is None:
            found = self.known(loader, place)
            if found is not None:
                found.follow(loader)
            else:
                found = AttachedLoader(_free(name), loader)
                if place is not None:
                    self._keep_place(place, loader.dataset, found)
            self._keep_loader(loader, found)
        elif found.loader is not loader:  # another one was iterated in its place, as for the rest of an epoch
            found.follow(loader)
        return found

    def known(self, loader: Any, place: _Place | None) -> AttachedLoader | None:
        """Return the entry of the DataLoaders that were made before for the same loop and data set.

        Two that live are two: a loop may iterate both at once, or now one and then the other. But the rest of an epoch
        of the other, which accelerate makes a loader of, is the other's; and a framework that makes one for each
        evaluation may keep them all, as accelerate does.
        """
        if place is None:
            return None
        of = getattr(loader, "batch_sampler", None)  # fastai gives torch's iterators something that has none
        whole = getattr(of, "__dict__", {}).get("batch_sampler")
        for data, one in self._by_place.get(place, []):
            other = one.loader
            same = other is None or (whole is not None and getattr(other, "batch_sampler", None) is whole)
            if data() is loader.dataset and (same or (place.role is not None and not one.under_way)):
                return one
        return None

    def _keep_loader(self, loader: Any, entry: AttachedLoader) -> None:
        key = id(loader)
        self._by_id[key] = weakref.ref(loader, lambda _: self._by_id.pop(key, None)), entry

    def _keep_place(self, place: _Place, dataset: Any, entry: AttachedLoader) -> None:
        try:
            data = weakref.ref(dataset, lambda _: self._by_place.pop(place, None))
        except TypeError:  # a tuple as data set
            return
        self._by_place.setdefault(place, []).append((data, entry))


def _free(name: str) -> str:
    """Return the name, with a number if a living loader has it: people choose among loaders by name."""
    taken = {source.name for source in watched_loader.live()}
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(free for free in names if free not in taken)


_lock = threading.RLock()  # what is collected meanwhile may iterate a DataLoader
_loaders: _Loaders | None = None  # None: not attached
_replaced: set[tuple[type, str]] = set()  # the classes and the names of the functions that ours stand for
_mark: object = None  # of the functions of the newest `attach`
_first: Callable[[], object] | None = None  # see `attach`


def attach(first: Callable[[], object] | None = None) -> bool:
    """Measure the iterations of DataLoaders that begin from now on. Returns whether it does.

    Torch is not imported for it: False until the user's code has, to be asked again. `first` is called once, as the
    first of those iterations begins, on its thread, before it starts workers.
    """
    global _loaders, _first, _mark  # noqa: PLW0603 - one attachment a process
    with _lock:
        module = sys.modules.get(MODULE)
        if _loaders is not None:
            _replace(module)  # torchdata may be imported later
            return True
        # The class that the module defines last: without it another thread is still importing.
        if module is None or not hasattr(module, "_MultiProcessingDataLoaderIter"):
            return False
        _mark = vars(module)[_WORKING] = object()
        _replace(module)
        _loaders, _first = _Loaders(), first
        phase_times.on_loop = _time_phases
        return True


def _replace(module: Any) -> None:
    for owner, name, make in _places(module):
        if (owner, name) not in _replaced:
            _take_out(owner, name)
            setattr(owner, name, make(getattr(owner, name), vars(module), _mark))
            _replaced.add((owner, name))


def detach() -> None:
    """Put torch's own functions back. Iterations under way go on unmeasured, also in a forked child.

    While an engine has the rest of an iteration, `__next__` stays, which gives it to the loop.
    """
    _put_back()
    watches = sys.modules.get(f"{__package__}.automatic_watch")
    if watches is not None:
        watches.end()


def _put_back() -> None:
    global _loaders, _first  # noqa: PLW0603 - as above
    with _lock:
        _loaders = _first = phase_times.on_loop = None
        _replaced.clear()
        module = sys.modules.get(MODULE)
        if module is None or vars(module).get(_WORKING) is not _mark:
            return  # a copy of this module, imported after it, has its functions there
        for owner, name, _ in _places(module):
            if name != "__next__" or not len(_handed_over):
                _take_out(owner, name)
        if not len(_handed_over):
            vars(module).pop(_WORKING, None)


def _time_phases() -> None:
    """Time the phases of the loop that begins on this thread, from the first step of an optimizer on."""
    if not hasattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook"):
        return  # the loop's code has not imported torch
    try:
        from . import automatic_watch

        automatic_watch.begin()
    except Exception:
        log.exception("a fault in kernel_monitor: the phases of steps are not measured")
        phase_times.on_loop = None


def attached(loader: Any) -> AttachedLoader | None:
    """Return the entry of a DataLoader that is measured; None of another one."""
    loaders = _loaders
    return None if loaders is None else loaders.get(loader)


_Make = Callable[[Callable[..., Any], dict[str, Any], object], Callable[..., Any]]


def _places(module: Any) -> list[tuple[type, str, _Make]]:
    places: list[tuple[type, str, _Make]] = [
        (module.DataLoader, "__iter__", _made_iter),
        (module._BaseDataLoaderIter, "__next__", _made_next),
        # Of the classes, not of their base, which warns at the place of its caller.
        (module._SingleProcessDataLoaderIter, "__init__", _made_init),
        (module._MultiProcessingDataLoaderIter, "__init__", _made_init),
    ]
    stateful = loader_kinds.stateful_class()
    return places if stateful is None else [*places, (stateful, "__iter__", _made_iter)]


def _take_out(owner: type, name: str) -> None:
    """Put the original back where our function stands, of this module or of a copy of it that was imported before.

    Where another tool has replaced ours, it stays inside of that tool's and does nothing.
    """
    function: Any = getattr(owner, name)
    while getattr(function, _OURS, None) is function:
        setattr(owner, name, function := vars(function)["__wrapped__"])


def _made_iter(original: Callable[[Any], Any], module: dict[str, Any], mark: object) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        loaders = _loaders
        if loaders is None or module.get(_WORKING) is not mark or OWN in self.__dict__:
            return original(self)
        iterate = begun = None
        try:
            begun = _begin(self, sys._getframe(1))
            if begun is not None:
                iterate = _replacement(loaders, self, begun)
        except Exception:
            log.exception("a fault in kernel_monitor: a DataLoader is not measured")
        if iterate is not None:
            return iterate()
        outer, _making.loader = getattr(_making, "loader", None), self
        try:
            iterator = original(self)
        finally:
            _making.loader = outer
        kept = getattr(iterator, "__dict__", None)  # a class of the user's may iterate with a generator
        if begun is not None and kept is not None:
            kept[ATTACHED] = begun._replace(loader=weakref.ref(self)) if loader_kinds.keeps(self, iterator) else begun
        return iterator

    setattr(__iter__, _OURS, __iter__)
    return __iter__


_making = threading.local()  # `loader`: the one whose `__iter__`, torch's own, this thread is in
starting_workers: Callable[[Any], AbstractContextManager[None]] | None = None
"""Set by the engines, which start threads: what is entered while torch starts workers for a DataLoader."""


def _made_init(original: Callable[..., Any], module: dict[str, Any], mark: object) -> Callable[..., Any]:
    """Attach to the iterators that are made without torch's `__iter__`, as by Ultralytics and fastai."""

    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        with contextlib.ExitStack() as around:
            try:
                if starting_workers is not None and loader.num_workers and OWN not in vars(loader):
                    around.enter_context(starting_workers(loader))
            except Exception:
                log.exception("a fault in kernel_monitor: workers are started as torch starts them")
            original(self, loader, *args, **kwargs)
        if _loaders is None or module.get(_WORKING) is not mark or getattr(_making, "loader", None) is loader:
            return
        try:
            begun = None if OWN in vars(loader) else _begin(loader, sys._getframe(1))
            if begun is not None:
                # Whoever made the iterator holds the loader.
                self.__dict__[ATTACHED] = begun._replace(loader=weakref.ref(loader), of_torch=False)
        except Exception:
            log.exception("a fault in kernel_monitor: a DataLoader is not measured")

    setattr(__init__, _OURS, __init__)
    return __init__


def _made_next(original: Callable[[Any], Any], module: dict[str, Any], mark: object) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        steps = self.__dict__.get(ATTACHED)
        if steps is None or module.get(_WORKING) is not mark:
            return original(self)
        if _loaders is None and not getattr(steps, "handed_over", False):
            return original(self)
        engine = None
        try:
            if type(steps) is _Begun:
                steps = _started(self, steps)
            if not hasattr(steps, "before"):  # nothing to measure, or begun by a copy of this module
                steps = None
            if steps is not None:
                engine = steps.before(self)
        except Exception:
            log.exception("a fault in kernel_monitor: a step is not measured")
        if engine is None:
            try:
                batch = original(self)
            except BaseException as error:
                try:
                    if hasattr(steps, "stopped"):
                        engine = steps.stopped(self, isinstance(error, StopIteration))
                except Exception:
                    log.exception("a fault in kernel_monitor: a step is not measured")
                if engine is None:
                    raise
            else:
                try:
                    if hasattr(steps, "got"):
                        steps.got(batch)
                except Exception:
                    log.exception("a fault in kernel_monitor: a step is not measured")
                return batch
        return _next_of_engine(steps, engine)

    setattr(__next__, _OURS, __next__)
    return __next__


def _next_of_engine(steps: Any, engine: Iterator[Any]) -> Any:
    try:
        batch = next(engine)
    except StopIteration:
        try:
            steps.end()
        except Exception:
            log.exception("a fault in kernel_monitor: an epoch is not counted")
        raise
    try:
        steps.got_of_engine(batch)
    except Exception:
        log.exception("a fault in kernel_monitor: a batch is not counted")
    return batch


def _begin(loader: Any, frame: FrameType) -> _Begun | None:
    """Return an iteration that begins, asked for by this frame; None for one that is not to be measured."""
    global _first
    first, _first = _first, None
    if first is not None:
        first()
    site = loop_site(frame)
    if site.is_trial:
        return None
    at, place = site.frame, None
    if at is not None:
        place = _Place(at.f_code.co_filename, at.f_lineno, site.role, id(loader.dataset))
    held = weakref.ref(loader) if loader.persistent_workers else loader
    return _Begun(held, place, site.role or loader_name(loader, at))


def _replacement(loaders: _Loaders, loader: Any, begun: _Begun) -> Callable[[], Any] | None:
    """Return what makes the iterator in torch's place, for a loader on which somebody has clicked; else None."""
    entry = loaders.get(loader) or loaders.known(loader, begun.place)
    if entry is None or entry.takeover is None:
        return None
    if entry.loader is not loader:
        loaders.of(loader, begun.place, begun.name)
    make = entry.takeover.begin()
    return None if make is None else functools.partial(_made, entry, make)


def _made(entry: AttachedLoader, make: Callable[[], Any]) -> Any:
    iterator = make()
    try:
        entry.iterator = weakref.ref(iterator)
    except TypeError:  # after a fault of an engine: some iterator of Python's
        entry.iterator = None
    return iterator


def _started(iterator: Any, begun: _Begun) -> AttachedSteps | None:
    """Return the steps of an iteration whose first batch is asked for; None where its loader is gone."""
    iterator.__dict__.pop(ATTACHED, None)
    loader = begun.loader() if isinstance(begun.loader, weakref.ref) else begun.loader
    loaders = _loaders
    if loaders is None or loader is None:
        return None
    try:
        source = loaders.of(loader, begun.place, begun.name)
        source.iterator, source.of_torch = weakref.ref(iterator), begun.of_torch
        steps = AttachedSteps(source, loader, iterator)
    except Exception:
        log.exception("a fault in kernel_monitor: a DataLoader is not measured")
        return None
    iterator.__dict__[ATTACHED] = steps
    return steps


@in_forked_children
def _in_child() -> None:
    global _lock  # noqa: PLW0603 - some other thread of the parent may have held it
    _lock = threading.RLock()
    _handed_over.clear()  # their engines are the parent's
    _put_back()
