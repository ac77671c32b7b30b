"""The start of worker processes: forked from this process, as torch does, or from the fork server once DALI runs."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import logging
import multiprocessing
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from ...steps import attached, watched_loader
from ...steps.attached_loader import AttachedLoader
from ...text import log_outside
from ..data.keyed_dataset import KeyedDataset
from . import fork_server, process_end
from .fork_server import NoWorkers
from .worker_pickle import Trial, pickled

log = logging.getLogger(__name__)

MOST_COPIED = 1 << 30  # bytes of NumPy arrays that may be copied to each worker
NO_WORKERS = "no new workers can be started once DALI runs in this process"

_dali_runs = threading.Event()  # set before the first DALI pipeline of this process is built
fork_lock = threading.RLock()
"""Held while workers are forked from this process; DALI starts its threads only while it is free."""
dali_lock = threading.RLock()
"""Held while DALI is loaded and a pipeline is built. A process that is forked meanwhile may inherit a library's lock
that is held, and wait for it forever: seen with the lock of `atexit` in the C library."""
_loaders: weakref.WeakKeyDictionary[KeyedDataset, weakref.ref[DataLoader[Any]]] = weakref.WeakKeyDictionary()


def note_loader(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> None:
    """Remember a loader whose workers may be forked from the server, for as long as it lives."""
    _loaders[keyed] = weakref.ref(wrapped)


def before_dali() -> None:
    """Start the fork server unless it runs; called on the thread that iterates, on which torch forks workers, too.

    DALI runs even if it cannot be started; the sentence of `NoWorkers` is then shown when workers are needed.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        return
    attached.worker_start_context = _plain_worker_start
    # Where workers are not forked (on Linux, too, from Python 3.14 on) there may be threads that no fork survives.
    if ready_for_dali():
        return
    from .worker_pickle import unpicklable

    sent = [_worker_arguments(keyed, wrapped) for keyed, wrapped in _live_loaders()]
    try:
        with fork_lock:
            fork_server.start(unpicklable(sent))
    except OSError:  # no memory, or too many processes
        log_outside(log, "The fork server cannot be made: workers cannot be started anew once DALI runs")


def ready_for_dali() -> bool:
    """Return whether DALI may start threads in this process now."""
    return dali_runs() or fork_server.server() is not None or not _forks_by_default()


def note_dali() -> None:
    """Note that DALI starts threads in this process: from now on the engines fork no workers from it."""
    process_end.notice()
    with fork_lock:
        _dali_runs.set()


def dali_runs() -> bool:
    """Return whether a DALI pipeline was built in this process."""
    return _dali_runs.is_set()


def forks(wrapped: DataLoader[Any]) -> bool:
    """Return whether a DataLoader forks its workers from this process (start method `fork`)."""
    return _forks(wrapped.multiprocessing_context or multiprocessing)


def _forks(context: Any) -> bool:
    return _start_method(context) == "fork"


def _start_method(context: Any) -> str:
    # allow_none: asking must not fix the method, which the user may still set.
    return str(context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0])


def _forks_by_default() -> bool:
    return _forks(multiprocessing) or any(forks(loader) for _, loader in _live_loaders())


def _live_loaders() -> list[tuple[Any, DataLoader[Any]]]:
    """Return the live DataLoaders that may start workers, wrapped and attached ones, each with its data set."""
    wrapped = [(keyed, reference()) for keyed, reference in list(_loaders.items())]
    plain = [source.loader for source in watched_loader.live() if isinstance(source, AttachedLoader)]
    found = [*wrapped, *((getattr(loader, "dataset", None), loader) for loader in plain)]
    return [(dataset, loader) for dataset, loader in found if isinstance(loader, DataLoader)]


def _worker_arguments(dataset: Any, loader: DataLoader[Any]) -> tuple[Any, ...]:
    """Return the objects that a worker of a loader is given."""
    return dataset, loader.collate_fn, loader.worker_init_fn


class Transfer(NamedTuple):
    """The way in which a data set gets to workers that are forked from the fork server."""

    obstacle: str | None  # why it cannot be sent; None if it can
    by_value: bool = False  # whether cloudpickle has to send its classes and functions; else multiprocessing sends it


def transfer_of(dataset: Any, loader: DataLoader[Any]) -> Transfer:
    """Return how workers can get the data set as it is now. To find out, it is pickled, long lists only in part."""
    sent = _worker_arguments(dataset, loader)
    if _pickles_by_itself(sent):
        return Transfer(None)
    if importlib.util.find_spec("cloudpickle") is None:  # of the extra `torch`
        return Transfer(
            f"{NO_WORKERS}, as cloudpickle is missing, which sends the data set to them; pip install cloudpickle"
        )
    from .worker_pickle import ValueTrial

    trial = ValueTrial(io.BytesIO())
    try:
        trial.dump(sent)
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Transfer(f"{NO_WORKERS}, as the data set cannot be sent to them: {cause}")
    if trial.copied > MOST_COPIED:
        return Transfer(
            f"{NO_WORKERS}, as each would get a copy of {trial.copied / 1e9:.1f} GB of NumPy arrays; a torch.Tensor or "
            "a np.memmap is shared with them"
        )
    return Transfer(None, by_value=True)


def why_not_sent(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> str | None:
    """Return why a worker that is started once DALI runs cannot get the data set, a sentence; None if it can.

    Before the fork server runs there is no obstacle: it inherits what cannot be pickled.
    """
    if not forks(wrapped):
        return None if wrapped.num_workers > 0 else _why_not_imported(keyed, wrapped)
    if not dali_runs() and fork_server.server() is None:
        return None
    obstacle = transfer_of(keyed, wrapped).obstacle if fork_server.server() is not None else NoWorkers.ended().args[0]
    return None if obstacle is None else f"{obstacle[:1].upper()}{obstacle[1:]}."


def _why_not_imported(dataset: Any, wrapped: DataLoader[Any]) -> str | None:
    """Return why a DataLoader that had no workers can have none that are spawned, or come from Python's fork server.

    These import the script: one that was written without workers would train a second time, in each of them.
    """
    method = _start_method(wrapped.multiprocessing_context or multiprocessing)
    if getattr(sys.modules.get("__main__"), "__file__", None) is None:
        if _pickles_by_itself(_worker_arguments(dataset, wrapped)):
            return None
        why = "they can be sent nothing that a notebook defines. Move the data set into a module"
    elif _guarded():
        return None
    else:
        why = 'each would run this script from its beginning, as its loop is not under if __name__ == "__main__":'
    return f"No workers are started: with the start method {method} {why}."


def _guarded() -> bool:
    """Return whether the script's line that runs now is surely under `if __name__ == "__main__":`."""
    main = vars(sys.modules["__main__"])
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_globals is main):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, ast.If)
        and any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test))
        and node.body[0].lineno <= frame.f_lineno <= (node.body[-1].end_lineno or 0)
        for node in tree.body
    )


def _pickles_by_itself(sent: Any) -> bool:
    """Return whether plain pickle can send an object, and nothing of it is defined in a script or notebook."""
    try:
        data = pickled(Trial, sent)
    except Exception:  # of a lambda, a closure; whatever the user's own classes raise
        log.debug("the data set is sent by value", exc_info=True)
        return False
    # Those of a script may refer to globals that have changed since the fork server was started.
    return b"__main__" not in data


# ---- Workers of attached DataLoaders that no click has switched, while DALI runs for another loader.

_CONTEXT = "_DataLoader__multiprocessing_context"


class _TorchWorker(fork_server.WorkerProcess):
    """A worker of torch's own iterator. If the fork server cannot start it, it is forked from this process."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 - multiprocessing's name
        given, collate = process_obj._args, vars(process_obj).pop("collate", None)
        try:
            if collate is not None:
                from . import worker_pickle

                process_obj._args = worker_pickle.arguments(given, collate)
            handle = fork_server.WorkerProcess._Popen(process_obj)
            vars(process_obj)["sent"] = process_obj._args  # kept alive: what the worker returns refers to it
        except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
            log.warning("a worker is forked from a process with DALI's threads: %s", error)
            process_obj._args = given
            with dali_lock:
                handle = popen_fork.Popen(process_obj)
        return handle


class _TorchWorkerContext(fork_server.WorkerContext):
    """The multiprocessing context of torch's own iterator; `collate`: its function if all is sent by value, or None."""

    def __init__(self, collate: Any) -> None:
        super().__init__()
        self._collate = collate

    def Process(self, **named: Any) -> Any:  # type: ignore[override]  # noqa: N802 - multiprocessing's name
        process_obj = _TorchWorker(**named)
        if self._collate is not None:
            vars(process_obj)["collate"] = self._collate
        return process_obj


@contextlib.contextmanager
def _plain_worker_start(loader: DataLoader[Any]) -> Iterator[None]:
    """Let torch fork the workers of a DataLoader's own iterator from the fork server if DALI runs in this process.

    Their batches and random numbers are the same as those of workers forked from this process. If the data set cannot
    be sent to them, they are forked from this process, but not while DALI is being loaded.
    """
    if not forks(loader):
        yield
        return
    with fork_lock:  # DALI starts no threads meanwhile
        if not dali_runs():
            yield
            return
    transfer = (
        transfer_of(loader.dataset, loader) if fork_server.server() is not None else Transfer(str(NoWorkers.ended()))
    )
    if transfer.obstacle is not None:
        log.warning("workers are forked from a process with DALI's threads, and may hang: %s", transfer.obstacle)
        with dali_lock:
            yield
        return
    settings = vars(loader)
    own = settings.get(_CONTEXT)
    settings[_CONTEXT] = _TorchWorkerContext(loader.collate_fn if transfer.by_value else None)
    try:
        yield
    finally:
        settings[_CONTEXT] = own
