"""How worker processes are started: by a fork where that is safe, else by forkserver or spawn."""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import threading
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ...integrations import ray_cluster
from ..data.keyed_dataset import KeyedDataset
from . import main_guard
from .trial_pickler import Trial, pickled

MOST_COPIED = 1 << 30  # bytes, for each worker
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


class Way(NamedTuple):
    """How a data set is sent to workers that are not forked."""

    obstacle: str | None  # why it cannot be, with the remedy; None if it can
    by_value: bool = False  # whether it has to be, see `by_value`; else as multiprocessing sends it


def way(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> Way:
    """How workers are started without a fork.

    To be asked before any such worker is started where the user's own DataLoader would fork: a process that is not
    forked imports the user's script. Of the data set's long lists only the beginning is pickled.
    """
    script = main_guard.unguarded()
    if script is not None and not script.is_file():
        return Way(f"{NOT_FORKED}, because {script.name} is no file that they could import; run a script from a file.")
    if script is not None:
        return Way(
            f"{NOT_FORKED}, because {script.name} would then run once more in each: put what it runs under "
            'if __name__ == "__main__":, or set workers before the first switch.'
        )
    sent = keyed, wrapped.collate_fn, wrapped.worker_init_fn
    if _goes_plainly(sent):
        return Way(None)
    if importlib.util.find_spec("cloudpickle") is None:  # of the extra `torch`
        return Way(
            f"{NOT_FORKED}, because cloudpickle is missing, which sends what is defined in a notebook; pip install "
            "cloudpickle, or set workers before the first switch."
        )
    from .by_value import ValueTrial

    trial = ValueTrial(io.BytesIO())
    try:
        trial.dump(sent)
    except Exception as error:  # noqa: BLE001 - as above
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Way(f"{NOT_FORKED}: {cause}; make that when it is first needed, or set workers before the first switch.")
    if trial.copied > MOST_COPIED:
        return Way(
            f"{NOT_FORKED}, because each would get a copy of {trial.copied / 1e9:.1f} GB of NumPy arrays; keep them in "
            "a torch.Tensor or a np.memmap, which are shared, or set workers before the first switch."
        )
    return Way(None, by_value=True)


def why_not_sent(keyed: KeyedDataset, wrapped: DataLoader[Any]) -> str | None:
    """Why workers cannot be started without a fork, with the remedy; None if they can."""
    return way(keyed, wrapped).obstacle


def _goes_plainly(sent: Any) -> bool:
    """Whether multiprocessing can send something by itself."""
    try:
        data = pickled(Trial, sent)
    except Exception:  # noqa: BLE001 - of a lambda, a closure; whatever the user's own classes raise
        return False
    # A notebook's own classes would be sent by name, and a new process has no notebook to find them in.
    return b"__main__" not in data or main_guard.imported_again() is not None


def sentence(words: str) -> str:
    """Words with a capital letter at their start."""
    return words[:1].upper() + words[1:]
