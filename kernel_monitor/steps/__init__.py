"""Measurement of training steps: the wait for the batch, and the phases of the work on it.

First: `step_meter`, which times the steps of a loop; `phase_times` times their phases. `attached` measures every
DataLoader while the monitor runs, `watched_loader` the iterables that the user names. The import has no side effects,
and torch is imported only when a model is watched.

Internal: no part of the public interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .watched_loader import phase, step, watch_loader

if TYPE_CHECKING:
    import torch

    from .model_watch import ModelWatch

__all__ = ["phase", "step", "watch", "watch_loader"]


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> ModelWatch:
    """Measure how long a model's forward, backward and optimizer take in each step of the loops that run it.

    Watching the same model again returns the same watch, to which the optimizer is added. Model and optimizer are not
    kept alive; the watch ends with the model. The model stays as it is: its copies and pickles are not watched.

    Args:
        model: the module that the loop calls: if there is a compiled or wrapped module, that one.
        optimizer: the optimizer whose `step` is timed; if it is left out, its time belongs to `other`.

    Raises:
        MonitorError: the model is no torch.nn.Module, or the optimizer no torch.optim.Optimizer.
    """
    from . import model_watch

    return model_watch.watch(model, optimizer)
