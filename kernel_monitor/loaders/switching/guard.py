"""The outermost guard of a loop: what fails in this package ends no iteration that plain torch would go on with.

Engines have a fallback of their own. What fails outside of them is logged and shown, and the iteration goes on from
the batch that the loop waits for with what the wrapped DataLoader delivers. What the DataLoader would raise as well is
raised: errors of the user's samples, of a sampler, of a worker that was killed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from ...errors import Refused
from ..engines import worker_start
from ..plan import is_plain
from .switch import SwitchState

_DEAD_WORKER = str(Path("_utils", "signal_handling.py"))

log = logging.getLogger(__name__)


def is_ours(error: Exception) -> bool:
    """Whether an exception is a fault of this package, which plain torch would not raise."""
    if isinstance(error, Refused | StopIteration) or is_plain(error):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    # torch's handler of SIGCHLD raises for a dead worker, wherever the loop is by then.
    return last is None or not last.tb_frame.f_code.co_filename.endswith(_DEAD_WORKER)


class Guard:
    """The guard of one loader."""

    def __init__(self, wrapped: DataLoader[Any], state: SwitchState) -> None:
        self._wrapped = wrapped
        self._state = state

    def unharmed(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call what only keeps records; where it fails, that is shown, and the loop goes on."""
        try:
            return function(*args, **named)
        except Exception as error:  # noqa: BLE001 - see above
            self.note(error, "the training goes on")
            return None

    def compute(self, dataset: Any, keys: Any) -> Any:
        """One batch as the wrapped DataLoader computes it without workers."""
        return next(self._plain_loader([keys], dataset, alone=True))

    def note(self, error: Exception, consequence: str) -> None:
        """Show a fault, after which something did not take place."""
        log.error("a fault in kernel_monitor; %s", consequence, exc_info=error)
        self._state.fault(error, consequence)

    def plainly(
        self, error: Exception, batches: Iterable[Any], *, dataset: Any = None, draws: bool = False
    ) -> Iterator[Any]:
        """After a fault: an iterator as the wrapped DataLoader has it.

        Args:
            error: the fault, which is logged and shown.
            batches: what to deliver, lists of keys.
            dataset: to read; the wrapped loader's where None is given.
            draws: whether the DataLoader draws the seed of its workers; else the training's generators are left alone.
        """
        self.note(error, "the wrapped DataLoader goes on until the epoch ends")
        alone = worker_start.dali_runs() and worker_start.forks(self._wrapped)
        return self._plain_loader(batches, dataset, alone=alone, draws=draws)

    def _plain_loader(self, batches: Iterable[Any], dataset: Any, *, alone: bool, draws: bool = False) -> Iterator[Any]:
        plain: Any = copy.copy(self._wrapped)
        settings = vars(plain)  # the class refuses to have some of them assigned
        settings.pop("_iterator", None)
        settings["batch_sampler"] = batches
        if dataset is not None:
            settings["dataset"] = dataset
        if not draws:
            settings["generator"] = torch.Generator().manual_seed(torch.initial_seed())
        if alone:
            settings |= {"num_workers": 0, "prefetch_factor": None, "timeout": 0, "persistent_workers": False}
        return iter(plain)
