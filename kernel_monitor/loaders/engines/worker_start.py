"""How worker processes are started: by a fork where that is safe, else by forkserver or spawn."""

from __future__ import annotations

import io
import multiprocessing
import threading
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ...integrations import ray_cluster
from ..data.keyed_dataset import KeyedDataset
from . import main_guard

TRIED = 100  # elements of a list that are pickled to see whether all can be
NOT_FORKED = "new workers cannot be forked, because DALI, Ray or CUDA runs in this process, nor started otherwise"

_dali_runs = threading.Event()  # set once a DALI pipeline was built in this process


def note_dali() -> None:
    """Remember that DALI's threads exist in this process."""
    _dali_runs.set()


def dali_runs() -> bool:
    """Whether a DALI pipeline was built in this process."""
    return _dali_runs.is_set()


def fork_is_safe() -> bool:
    """Whether the process has no threads of DALI or Ray and no CUDA context, which do not survive a fork.

    Ray runs here only where the user has joined a cluster; the engine `ray` does so in a process of its own.
    """
    return not dali_runs() and not torch.cuda.is_initialized() and ray_cluster.joined() is None


def forks(wrapped: DataLoader[Any]) -> bool:
    """Whether a DataLoader makes its workers by a fork of this process."""
    context = wrapped.multiprocessing_context or multiprocessing
    # allow_none: asking must not fix the method, which the user may still set.
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return bool(method == "fork")


def without_fork() -> Any:
    """The multiprocessing context for workers that must not be made by a fork."""
    methods = multiprocessing.get_all_start_methods()
    if "forkserver" not in methods:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    _start_server(context)
    return context


def _start_server(context: Any) -> None:
    """Start multiprocessing's server, if it does not run yet, with torch imported: else each worker imports it, in 6 s.

    The user's own preload modules are imported too, and stay set.
    """
    from multiprocessing import forkserver  # not on Windows

    wanted = list(forkserver._forkserver._preload_modules)  # type: ignore[attr-defined]
    context.set_forkserver_preload([*wanted, __name__])
    try:
        forkserver.ensure_running()
    finally:
        context.set_forkserver_preload(wanted)


def why_not_sent(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> str | None:
    """Why workers cannot be started without a fork, with the remedy; None if they can.

    To be checked before any such worker is started where the user's own DataLoader would fork: a process that is not
    forked imports the user's script. Of the data set's long lists only the beginning is pickled.
    """
    script = main_guard.unguarded()
    if script is not None and not script.is_file():
        return f"{NOT_FORKED}, because {script.name} is no file that they could import; run a script from a file."
    if script is not None:
        return (
            f"{NOT_FORKED}, because {script.name} would then run once more in each: put what it runs under "
            'if __name__ == "__main__":, or set workers before the first switch.'
        )
    try:
        sent = _TrialPickler.bytes_of((keyed, wrapped.collate_fn, wrapped.worker_init_fn))
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return (
            f"{NOT_FORKED}: {cause}; define what the data set uses in a module, or set workers before the first switch."
        )
    # A notebook's own classes are sent by name, and a new process has no notebook to find them in.
    if b"__main__" in sent and main_guard.imported_again() is None:
        return (
            f"{NOT_FORKED}, because the data set uses what is defined in the notebook; move it to a module, or set "
            "workers before the first switch."
        )
    return None


def why_not_by_value(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> str | None:
    """Why a data set cannot be sent to another machine, together with what the notebook defines; None if it can."""
    import cloudpickle

    class ByValue(_Trial, cloudpickle.Pickler):  # type: ignore[misc]
        pass

    try:
        ByValue.bytes_of((keyed, wrapped.collate_fn, wrapped.worker_init_fn))
    except Exception as error:  # noqa: BLE001 - whatever the user's own classes raise
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return None


class _Trial:
    """Of a pickler: finds out what cannot be pickled, without the time and memory that a million samples would take."""

    @classmethod
    def bytes_of(cls, value: Any) -> bytes:
        sink = io.BytesIO()
        pickler: Any = cls(sink)  # type: ignore[call-arg]
        pickler.dump(value)
        return sink.getvalue()

    def persistent_id(self, value: Any) -> Any:
        if type(value) is list and len(value) > TRIED:
            return self.bytes_of(value[:TRIED])
        if type(value) is dict and len(value) > TRIED:
            return self.bytes_of(list(islice(value.items(), TRIED)))
        # ForkingPickler would move a tensor's memory to where other processes have it, too.
        numbers = isinstance(value, torch.Tensor) or (type(value) is np.ndarray and not value.dtype.hasobject)
        return "numbers" if numbers else None


class _TrialPickler(_Trial, ForkingPickler):
    pass


def sentence(words: str) -> str:
    """Words with a capital letter at their start."""
    return words[:1].upper() + words[1:]
