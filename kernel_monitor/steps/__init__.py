"""What a training step consists of: the wait for its batch, and the phases of what is done with it.

Nothing happens at import, and torch is imported only when a model is watched.
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

    Watching the same model again returns the same watch, with that optimizer too. Neither is kept alive; the watch
    ends with the model. Nothing of the model changes: copies and pickled files of it are not watched.

    Args:
        model: what the loop calls: the compiled or wrapped one where there is one.
        optimizer: whose `step` is timed; left out, its time belongs to `other`.

    Raises:
        MonitorError: one of them is not torch's.
    """
    from . import model_watch

    return model_watch.watch(model, optimizer)
