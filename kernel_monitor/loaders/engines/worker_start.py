"""The start of worker processes: by a fork, as torch does; once DALI runs in this process, from the fork server."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import multiprocessing
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import popen_fork
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from ...steps import attached, watched_loader
from ...steps.attached_loader import AttachedLoader
from ..data.keyed_dataset import KeyedDataset
from . import fork_server, process_end
from .fork_server import NoWorkers
from .worker_pickle import Trial, pickled

log = logging.getLogger(__name__)

MOST_COPIED = 1 << 30  # bytes, for each worker
NO_WORKERS = "no new workers can be started once DALI runs in this process"

_dali_runs = threading.Event()  # set before the first DALI pipeline of this process is built
forking = threading.RLock()
"""Held while workers are forked from this process; DALI waits for it before it starts threads."""
building = threading.RLock()
"""Held while DALI is loaded and a pipeline is built. A copy of the process that is made meanwhile may have libraries'
locks that stay locked: a worker was seen to wait forever for the one of `atexit` in C."""
_loaders: weakref.WeakKeyDictionary[KeyedDataset, weakref.ref[DataLoader[Any]]] = weakref.WeakKeyDictionary()


def note_loader(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> None:
    """Remember a loader whose workers may be forked from the server, for as long as it lives."""
    _loaders[keyed] = weakref.ref(wrapped)


def before_dali() -> None:
    """Make the fork server, unless it is there; on the thread that iterates, which is where torch forks workers.

    Where it cannot be made, DALI runs all the same; the sentence of `NoWorkers` is then shown when workers are wanted.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return
    attached.starting_workers = _starting_plainly
    if dali_runs() or fork_server.server() is not None:
        return
    from .worker_pickle import unpicklable

    sent = [_what_is_sent(keyed, wrapped) for keyed, wrapped in _living()]
    try:
        with forking:
            fork_server.start(unpicklable(sent))
    except OSError:  # no memory, or too many processes
        log.warning("the fork server cannot be made; workers cannot be started anew once DALI runs", exc_info=True)


def ready_for_dali() -> bool:
    """Return whether DALI may start threads in this process now."""
    return dali_runs() or fork_server.server() is not None or not _forks_by_default()


def note_dali() -> None:
    """DALI's threads exist in this process from now on: nothing is forked from it any more."""
    process_end.notice()
    with forking:
        _dali_runs.set()


def dali_runs() -> bool:
    """Return whether a DALI pipeline was built in this process."""
    return _dali_runs.is_set()


def forks(wrapped: DataLoader[Any]) -> bool:
    """Return whether a DataLoader makes its workers by a fork of this process."""
    return _forks(wrapped.multiprocessing_context or multiprocessing)


def _forks(context: Any) -> bool:
    # allow_none: asking must not fix the method, which the user may still set.
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return bool(method == "fork")


def _forks_by_default() -> bool:
    return _forks(multiprocessing) or any(forks(loader) for _, loader in _living())


def _living() -> list[tuple[Any, DataLoader[Any]]]:
    """Return the data sets and the DataLoaders that may need workers, wrapped and attached ones."""
    wrapped = [(keyed, reference()) for keyed, reference in list(_loaders.items())]
    plain = [source.loader for source in watched_loader.live() if isinstance(source, AttachedLoader)]
    found = [*wrapped, *((getattr(loader, "dataset", None), loader) for loader in plain)]
    return [(dataset, loader) for dataset, loader in found if isinstance(loader, DataLoader)]


def _what_is_sent(dataset: Any, loader: DataLoader[Any]) -> tuple[Any, ...]:
    """Return what a worker of a loader is given."""
    return dataset, loader.collate_fn, loader.worker_init_fn


class _Way(NamedTuple):
    """The way in which a data set is sent to workers that are forked from the server."""

    obstacle: str | None  # why it cannot be; None if it can
    by_value: bool = False  # whether it has to be, see `by_value`; else as multiprocessing sends it


def way(dataset: Any, loader: DataLoader[Any]) -> _Way:
    """Return how workers get the data set as it is now. Of its long lists only the beginning is pickled."""
    sent = _what_is_sent(dataset, loader)
    if _goes_plainly(sent):
        return _Way(None)
    if importlib.util.find_spec("cloudpickle") is None:  # of the extra `torch`
        return _Way(
            f"{NO_WORKERS}, as cloudpickle is missing, which sends the data set to them; pip install cloudpickle"
        )
    from .worker_pickle import ValueTrial

    trial = ValueTrial(io.BytesIO())
    try:
        trial.dump(sent)
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return _Way(f"{NO_WORKERS}, as the data set cannot be sent to them: {cause}")
    if trial.copied > MOST_COPIED:
        return _Way(
            f"{NO_WORKERS}, as each would get a copy of {trial.copied / 1e9:.1f} GB of NumPy arrays; a torch.Tensor or "
            "a np.memmap is shared with them"
        )
    return _Way(None, by_value=True)


def why_not_sent(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> str | None:
    """Return why a worker that is started once DALI runs cannot get the data set, a sentence; None if it can.

    As long as the fork server is not there, it will inherit what cannot be pickled.
    """
    if not forks(wrapped) or (not dali_runs() and fork_server.server() is None):
        return None
    obstacle = way(keyed, wrapped).obstacle if fork_server.server() is not None else NoWorkers.ended().args[0]
    return None if obstacle is None else f"{obstacle[:1].upper()}{obstacle[1:]}."


def _goes_plainly(sent: Any) -> bool:
    """Return whether multiprocessing can send something by itself, and nothing of it is from a script or notebook."""
    try:
        data = pickled(Trial, sent)
    except Exception:  # of a lambda, a closure; whatever the user's own classes raise
        log.debug("the data set is sent by value", exc_info=True)
        return False
    # Classes and functions of the script may refer to globals that have changed since the server was made.
    return b"__main__" not in data


# ---- Workers of torch's own iterators, while DALI runs for another loader.

_CONTEXT = "_DataLoader__multiprocessing_context"


class _PlainProcess(fork_server.WorkerProcess):
    """A worker that torch starts. What keeps it from being forked from the server is not raised in the loop."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
        given, collate = process_obj._args, vars(process_obj).pop("collate", None)
        try:
            if collate is not None:
                from . import worker_pickle

                process_obj._args = worker_pickle.arguments(given, collate)
            handle = fork_server.WorkerProcess._Popen(process_obj)
            vars(process_obj)["sent"] = process_obj._args  # what the worker returns refers to it
        except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
            log.warning("a worker is forked beside DALI's threads: %s", error)
            process_obj._args = given
            with building:
                handle = popen_fork.Popen(process_obj)
        return handle


class _PlainContext(fork_server.WorkerContext):
    """The context in which torch starts workers; `collate`: its function, where all is sent by value."""

    def __init__(self, collate: Any) -> None:
        super().__init__()
        self._collate = collate

    def Process(self, **named: Any) -> Any:  # type: ignore[override]  # noqa: N802 - multiprocessing's name
        process_obj = _PlainProcess(**named)
        if self._collate is not None:
            vars(process_obj)["collate"] = self._collate
        return process_obj


@contextlib.contextmanager
def _starting_plainly(loader: DataLoader[Any]) -> Iterator[None]:
    """Around the start of the workers of a DataLoader's own iterator: beside DALI they are forked from the server.

    Their batches and random numbers are those of workers that this process forks. Where the data set cannot be sent,
    they are forked from this process, but not while DALI is loaded.
    """
    if not forks(loader):
        yield
        return
    with forking:  # DALI starts no threads meanwhile
        if not dali_runs():
            yield
            return
    sent = way(loader.dataset, loader) if fork_server.server() is not None else _Way(str(NoWorkers.ended()))
    if sent.obstacle is not None:
        log.warning("workers are forked beside DALI's threads, where one may hang: %s", sent.obstacle)
        with building:
            yield
        return
    settings = vars(loader)
    own = settings.get(_CONTEXT)
    settings[_CONTEXT] = _PlainContext(loader.collate_fn if sent.by_value else None)
    try:
        yield
    finally:
        settings[_CONTEXT] = own
