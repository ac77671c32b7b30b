"""Measurement of every DataLoader that this process iterates, with no change to the user's code.

From `attach` to `detach`, `DataLoader.__iter__` and the `__next__` and `__init__` of torch's iterators are replaced in
their classes by functions that call the originals. Loaders and iterators keep their classes, and batches, random
numbers and workers are torch's own.
"""

from __future__ import annotations

import contextlib
import functools
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
from . import loader_kinds, phase_times, sample_times, slow_samples, torch_iterators
from .attached_entries import Loaders, Place
from .attached_loader import OWN, AttachedLoader, Rest, Takeover
from .loop_site import loader_name, loop_site
from .watched_loader import ATTACHED, Epoch, IterationSteps

log = logging.getLogger(__name__)

MODULE = loader_kinds.TORCH
_OURS = "_kernel_monitor_function"
"""The attribute that marks our functions. Its value is the function itself: `functools.wraps` copies attributes, so
that a wrapper by another tool has it, too, with another function as its value."""
_ACTIVE = "_kernel_monitor_attached"
"""The attribute of torch's module that has the mark of the newest `attach`; functions with another mark do nothing."""


class AttachedSteps(IterationSteps):
    """The steps of one iteration by torch's own iterator, and by the engine that may take over in mid-epoch."""

    _source: AttachedLoader

    def __init__(self, source: AttachedLoader, loader: Any, iterator: Any) -> None:
        super().__init__(source)
        self.mark = _mark
        self._skipped = iterator._num_yielded  # batches of the first epoch before the resumed state
        self._endless = not loader_kinds.makes_iterators(loader)  # one iterator may deliver several epochs
        # A strong reference where it makes no cycle: `for batch in DataLoader(…)` keeps only the iterator alive.
        self._loader = None if loader_kinds.keeps(loader, iterator) else loader
        self._rest: Rest | None = None  # the batches left to the engine, once one takes over
        self._engine: Iterator[Any] | None = None  # its iterator, once torch's workers have delivered theirs
        self._failed = False  # the engine could not begin: torch's iterator delivers the whole epoch
        self._in_sampler: Any = None  # what the iterator has in place of its sampler since an engine has the rest

    def handed_over(self, iterator: Any) -> bool:
        """Return whether an engine has the epoch, or its rest, and torch has not begun another one meanwhile."""
        return self._in_sampler is not None and iterator._sampler_iter is self._in_sampler

    def adopt(self, iterator: Any, engine: Iterator[Any]) -> None:
        """Let an engine deliver a whole epoch through torch's iterator, which torch has not reset for it."""
        self._engine, iterator._num_yielded = engine, 0
        iterator._sampler_iter = self._in_sampler = iter(())
        _handed_over.add(self)

    def before(self, iterator: Any) -> Iterator[Any] | None:
        """Note that the next batch is requested; return the engine's iterator if that delivers it, else None."""
        if self._engine is not None:
            return self._engine
        if self._rest is None and not self._failed and self._epoch is not None and self._source.takeover is not None:
            self._safely(self._hand_over, iterator, self._source.takeover)
        if self._rest is not None and not getattr(iterator, "_task_info", None):
            return self._start_engine(iterator, self._rest)
        self._safely(self._ask)
        return None

    def stopped(self, iterator: Any, ended: bool) -> Iterator[Any] | None:
        """Note that torch's iterator raised an exception; return the engine's iterator if that continues, else None.

        `ended`: the exception is a StopIteration.
        """
        if ended and self._rest is not None:
            return self._start_engine(iterator, self._rest)
        self._safely(self._stop, ended)
        return None

    def got(self, batch: Any) -> None:
        """Note a batch that torch's iterator has returned."""
        self._safely(self._got, batch)

    def got_of_engine(self, batch: Any) -> None:
        """Count a batch of the engine, which measures its steps itself."""
        if self._epoch is not None:
            self._epoch.samples += self._source.samples_of(self._epoch, batch)
            self._epoch.batches += 1

    def end(self) -> None:
        """Note that the engine has delivered the last batch."""
        if self._epoch is not None:
            self.ended = self._epoch.finished = True
        self._loader = None
        _handed_over.discard(self)
        if _loaders is None:
            detach()  # `__next__` was left replaced until now

    def _hand_over(self, iterator: Any, takeover: Takeover) -> None:
        """Give the engine the batches that torch's iterator has not given to its workers yet, if an engine is ready."""
        rest = takeover.hand_over(iterator)
        if rest is not None:
            self._rest = rest
            _handed_over.add(self)
            iterator._sampler_iter = self._in_sampler = rest

    def _start_engine(self, iterator: Any, rest: Rest) -> Iterator[Any] | None:
        """Return the engine's iterator over the rest; after a fault give the rest back to torch's, and return None."""
        asked = time.monotonic()
        self._safely(self._ask)
        try:
            if self._epoch is None:
                raise RuntimeError("an epoch that did not begin")
            self._engine = rest.continue_epoch(self._epoch, iterator._base_seed, asked)
        except Exception:
            log.exception("a fault in kernel_monitor: torch's own iterator goes on")
            self._rest, self._in_sampler, self._failed = None, None, True
            iterator._sampler_iter = rest.batches()
            for _ in range(getattr(iterator, "_prefetch_factor", 0) * iterator._num_workers):
                iterator._try_put_index()
            return None
        self._clock.stop()
        if iterator._num_workers > 0 and not iterator._persistent_workers:
            iterator._shutdown_workers()  # as torch does at the end of its iterator
        return self._engine

    def _stop(self, ended: bool) -> None:
        super()._stop(ended)
        if ended:
            self._loader = None

    def _ask(self) -> None:
        if self._endless and self._epoch is not None and self._epoch.finished:
            self._clock.stop()  # the end of that epoch's last step is not known
        super()._ask()

    def _begin(self) -> Epoch:
        skipped, self._skipped = self._skipped, 0
        return self._source.begin(skipped)

    def _got(self, batch: Any) -> None:
        if self._endless and self._epoch is not None and self._epoch.finished and not self.ended:
            self._epoch = self._begin()
        super()._got(batch)
        # Frameworks count the batches, and never make the request that would raise StopIteration.
        if self._epoch is not None and self._epoch.batches == self._source.length:
            self._epoch.finished = True


_handed_over: weakref.WeakSet[AttachedSteps] = weakref.WeakSet()
"""Iterations whose rest was given to an engine: torch's own `__next__` would end them early."""


class _PendingIteration(NamedTuple):
    """An iteration whose first batch was not requested yet. Until then nothing is measured: it may be unused."""

    loader: Any  # a weak reference if it keeps its iterator: else both would be in a cycle
    place: Place | None
    name: str
    of_torch: bool = True


_lock = threading.RLock()  # reentrant: a finalizer that runs while it is held may attach, or detach
_loaders: Loaders | None = None  # None: not attached
_entries = Loaders()  # stay from one `attach` to the next: a DataLoader that is iterated in both is one loader
_replaced: set[tuple[type, str]] = set()  # classes and names of the methods that are replaced now
_mark: object = None  # of the newest `attach`, see `_ACTIVE`
_on_first_iteration: Callable[[], object] | None = None  # see `attach`


def attach(on_first_iteration: Callable[[], object] | None = None) -> bool:
    """Measure the iterations of DataLoaders that begin from now on; return False if torch is not imported yet.

    Torch is not imported for it: call this again once the user's code has. `on_first_iteration` is called once, on the
    thread of the first of those iterations, before that starts workers.
    """
    global _loaders, _on_first_iteration, _mark  # noqa: PLW0603 - one attachment a process
    with _lock:
        module = sys.modules.get(MODULE)
        if _loaders is not None:
            _replace(module)  # torchdata may be imported later
            return True
        # The class that the module defines last: without it another thread is still importing.
        if module is None or not hasattr(module, "_MultiProcessingDataLoaderIter"):
            return False
        _mark = vars(module)[_ACTIVE] = object()
        _replace(module)
        _loaders, _on_first_iteration = _entries, on_first_iteration
        sample_times.allow_looks()
        phase_times.on_loop_start = _time_phases
        return True


def _replace(module: Any) -> None:
    for owner, name, make in _replacements(module):
        if (owner, name) not in _replaced:
            _restore(owner, name)
            setattr(owner, name, make(getattr(owner, name), vars(module), _mark))
            _replaced.add((owner, name))


def detach() -> None:
    """Restore torch's own functions. Iterations under way go on unmeasured, also in a forked child.

    While an engine has the rest of an iteration, `__next__` stays replaced: it passes the engine's batches to the loop.
    """
    _restore_all()
    sample_times.forbid_looks()
    watches = sys.modules.get(f"{__package__}.automatic_watch")
    if watches is not None:
        watches.end()


def _restore_all() -> None:
    global _loaders, _on_first_iteration  # noqa: PLW0603 - as above
    with _lock:
        _loaders = _on_first_iteration = phase_times.on_loop_start = None
        _replaced.clear()
        module = sys.modules.get(MODULE)
        if module is None or vars(module).get(_ACTIVE) is not _mark:
            return  # a copy of this module, imported later, has replaced the functions
        for owner, name, _ in _replacements(module):
            if name != "__next__" or not len(_handed_over):
                _restore(owner, name)
        if not len(_handed_over):
            vars(module).pop(_ACTIVE, None)


def _time_phases() -> None:
    """Time the phases of the loop that begins on this thread, from the first step of an optimizer on."""
    if not hasattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook"):
        return  # the loop's code has not imported torch
    try:
        from . import automatic_watch

        automatic_watch.begin()
    except Exception:
        log.exception("a fault in kernel_monitor: the phases of steps are not measured")
        phase_times.on_loop_start = None


def attached(loader: Any) -> AttachedLoader | None:
    """Return the entry of a DataLoader; None if it was not measured."""
    loaders = _loaders
    return None if loaders is None else loaders.get(loader)


_MakeReplacement = Callable[[Callable[..., Any], dict[str, Any], object], Callable[..., Any]]


def _replacements(module: Any) -> list[tuple[type, str, _MakeReplacement]]:
    """Return the classes, the names of the methods to replace, and the functions that make the replacements."""
    places: list[tuple[type, str, _MakeReplacement]] = [
        (module.DataLoader, "__iter__", _measured_iter),
        (module._BaseDataLoaderIter, "__next__", _measured_next),
        # Not `__init__` of the base class: it attributes its warnings to its caller, which would then be ours.
        (module._SingleProcessDataLoaderIter, "__init__", _measured_init),
        (module._MultiProcessingDataLoaderIter, "__init__", _measured_init),
    ]
    stateful = loader_kinds.stateful_class()
    if stateful is None:
        return places
    places.append((stateful, "__iter__", _measured_iter))
    with_workers = loader_kinds.stateful_workers_class()
    return places if with_workers is None else [*places, (with_workers, "__init__", _measured_worker_start)]


def _restore(owner: type, name: str) -> None:
    """Restore a method that this module, or a copy of it that was imported before, has replaced.

    If another tool has wrapped our function, ours stays inside of that tool's and only calls the original.
    """
    function: Any = getattr(owner, name)
    while getattr(function, _OURS, None) is function:
        setattr(owner, name, function := vars(function)["__wrapped__"])


def _measured_iter(original: Callable[[Any], Any], module: dict[str, Any], mark: object) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        loaders = _loaders
        if loaders is None or module.get(_ACTIVE) is not mark or OWN in self.__dict__:
            return original(self)
        taken_over = begun = None
        try:
            begun = _begin(self, sys._getframe(1))
            if begun is not None:
                taken_over = _engine_iterator_maker(loaders, self, begun)
        except Exception:
            log.exception("a fault in kernel_monitor: a DataLoader is not measured")
        if taken_over is not None:
            return _through_torch_iterator(self, *taken_over)
        outer, _in_torch.loader = getattr(_in_torch, "loader", None), self
        try:
            iterator = original(self)
        finally:
            _in_torch.loader = outer
        kept = getattr(iterator, "__dict__", None)  # a generator has none, which a user's class may return
        try:
            if begun is not None and kept is not None:
                held = weakref.ref(self) if loader_kinds.keeps(self, iterator) else begun.loader
                kept[ATTACHED] = begun._replace(loader=held)
                torch_iterators.hold(iterator, self)
        except Exception:
            log.exception("a fault in kernel_monitor: a DataLoader is not measured")
        return iterator

    setattr(__iter__, _OURS, __iter__)
    return __iter__


def _through_torch_iterator(loader: Any, entry: AttachedLoader, make: Callable[[], Iterator[Any]]) -> Any:
    """Return an iterator of torch's class whose batches are those of the engine's iterator that `make` returns.

    It is the one that the DataLoader keeps, if it keeps one: `iter(loader) is iter(loader)` then, as with torch.
    """
    engine: Any = make()
    try:
        kept = torch_iterators.kept(loader)
        iterator = torch_iterators.without_workers(loader, getattr(engine, "seed", None)) if kept is None else kept
        steps = AttachedSteps(entry, loader, iterator)
        steps.adopt(iterator, engine)
        vars(iterator)[ATTACHED] = steps
    except Exception:
        log.exception("a fault in kernel_monitor: an iterator is not of torch's class")
        iterator = engine
    try:
        entry.iterator = weakref.ref(iterator)
    except TypeError:  # after a fault it may be a built-in iterator, which takes no weak references
        entry.iterator = None
    return iterator


_in_torch = threading.local()  # `loader`: the DataLoader whose original `__iter__` runs on this thread
worker_start_context: Callable[[Any], AbstractContextManager[None]] | None = None
"""A context manager for a DataLoader, entered while torch starts workers for it; see `loaders.engines.worker_start`."""


def _worker_start(loader: Any) -> contextlib.ExitStack:
    """Return the context in which an iterator of a DataLoader is made, which starts its workers; already entered."""
    around = contextlib.ExitStack()
    try:
        if worker_start_context is not None and loader.num_workers and OWN not in vars(loader):
            around.enter_context(worker_start_context(loader))
    except Exception:
        log.exception("a fault in kernel_monitor: workers are started as torch starts them")
    return around


def _measured_worker_start(original: Callable[..., Any], _module: dict[str, Any], _mark: object) -> Callable[..., Any]:
    """Start the workers of iterators that `_measured_iter` attaches to, and that are no torch's own."""

    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        with _worker_start(loader):
            original(self, loader, *args, **kwargs)

    setattr(__init__, _OURS, __init__)
    return __init__


def _measured_init(original: Callable[..., Any], module: dict[str, Any], mark: object) -> Callable[..., Any]:
    """Attach to the iterators that are made without torch's `__iter__`, as by Ultralytics and fastai."""

    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        measured = _loaders is not None and module.get(_ACTIVE) is mark and OWN not in vars(loader)
        if measured:
            torch_iterators.hold(self, loader)
        with _worker_start(loader), slow_samples.timed_workers(loader) if measured else _no_rings as rings:
            original(self, loader, *args, **kwargs)
        if measured:
            _time_samples(self, loader, rings)
        if _loaders is None or module.get(_ACTIVE) is not mark or getattr(_in_torch, "loader", None) is loader:
            return
        try:
            begun = None if OWN in vars(loader) else _begin(loader, sys._getframe(1))
            if begun is not None:
                # Weak: the code that made the iterator keeps the loader alive.
                self.__dict__[ATTACHED] = begun._replace(loader=weakref.ref(loader), of_torch=False)
        except Exception:
            log.exception("a fault in kernel_monitor: a DataLoader is not measured")

    setattr(__init__, _OURS, __init__)
    return __init__


_no_rings: AbstractContextManager[None] = contextlib.nullcontext()


def _time_samples(iterator: Any, loader: Any, rings: slow_samples.Rings | None) -> None:
    """Keep the rings of an iterator's workers, or time the samples that it computes itself."""
    try:
        if rings is not None:
            iterator._worker_init_fn = loader.worker_init_fn  # the user's own again
        elif iterator._num_workers == 0:
            rings = slow_samples.timed_here(iterator, loader)
        if rings is not None:
            iterator.__dict__[slow_samples.RINGS] = rings
    except Exception:
        log.exception("a fault in kernel_monitor: samples are not timed")


def _measured_next(original: Callable[[Any], Any], module: dict[str, Any], mark: object) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807
        steps = self.__dict__.get(ATTACHED)
        if steps is None or module.get(_ACTIVE) is not mark:
            return original(self)
        # Of what was delivered between `detach` and another `attach`, its counts would know nothing.
        unmeasured = _loaders is None or getattr(steps, "mark", mark) is not mark
        if unmeasured and not (hasattr(steps, "handed_over") and steps.handed_over(self)):
            return original(self)
        engine = None
        try:
            if type(steps) is _PendingIteration:
                steps = _start_steps(self, steps)
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
        return _next_of_engine(self, steps, engine)

    setattr(__next__, _OURS, __next__)
    return __next__


def _next_of_engine(iterator: Any, steps: Any, engine: Iterator[Any]) -> Any:
    try:
        batch = next(engine)
    except StopIteration:
        try:
            steps.end()
        except Exception:
            log.exception("a fault in kernel_monitor: an epoch is not counted")
        raise
    try:
        iterator._num_yielded += 1
        steps.got_of_engine(batch)
    except Exception:
        log.exception("a fault in kernel_monitor: a batch is not counted")
    return batch


def _begin(loader: Any, frame: FrameType) -> _PendingIteration | None:
    """Return the iteration that this frame begins; None if it is not to be measured."""
    global _on_first_iteration
    first, _on_first_iteration = _on_first_iteration, None
    if first is not None:
        first()
    site = loop_site(frame)
    if site.is_trial:
        return None
    at, place = site.frame, None
    if at is not None:
        where = (at.f_code.co_filename, at.f_lineno, site.role)
        if loader_kinds.is_iterable(loader):
            place = Place(*where, type(loader.dataset), weakref.ref(at.f_code))
            hash(place)  # while the code lives
        else:
            place = Place(*where, id(loader.dataset), None)
    held = weakref.ref(loader) if loader.persistent_workers else loader
    return _PendingIteration(held, place, site.role or loader_name(loader, at))


def _engine_iterator_maker(
    loaders: Loaders, loader: Any, begun: _PendingIteration
) -> tuple[AttachedLoader, Callable[[], Any]] | None:
    """Return a loader's entry and a function that makes its iterator, if a click gave it an engine; else None."""
    entry = loaders.get(loader) or loaders.find_earlier(loader, begun.place)
    if entry is None or entry.takeover is None:
        return None
    if entry.loader is not loader:
        loaders.get_or_make(loader, begun.place, begun.name)
    make = entry.takeover.begin()
    if make is None:
        return None
    getattr(torch_iterators.kept(loader), "__dict__", {}).pop(ATTACHED, None)  # its epoch ends here
    return entry, make


def _start_steps(iterator: Any, begun: _PendingIteration) -> AttachedSteps | None:
    """Return the steps of an iteration whose first batch is requested; None if its loader is gone."""
    iterator.__dict__.pop(ATTACHED, None)
    loader = begun.loader() if isinstance(begun.loader, weakref.ref) else begun.loader
    loaders = _loaders
    if loaders is None or loader is None:
        return None
    try:
        source = loaders.get_or_make(loader, begun.place, begun.name)
        source.iterator, source.of_torch = weakref.ref(iterator), begun.of_torch
        source.samples.add(iterator)
        steps = AttachedSteps(source, loader, iterator)
    except Exception:
        log.exception("a fault in kernel_monitor: a DataLoader is not measured")
        return None
    iterator.__dict__[ATTACHED] = steps
    return steps


@in_forked_children
def _in_child() -> None:
    global _entries, _lock
    _entries, _lock = Loaders(), threading.RLock()
    _handed_over.clear()  # their engines run in the parent
    _restore_all()
