"""What a person tells the monitor about the steps of a loop: the model to watch, steps and phases by hand."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError
from ..text import given

if TYPE_CHECKING:
    import torch

    from ..steps.by_hand import phase, step
    from ..steps.watching import Watch


MOST_LETTERS = 200
"""Of a mark's words; charts show the first forty."""


class Stepping(ABC):
    """The part of the monitor that looks into a training step; it works before `start`, too."""

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Watch:
        """Measure how long a model's forward, backward and optimizer take in each step of the loops that run it.

        Neither is kept alive, and nothing of them changes; `stop` of what this returns ends it.

        Args:
            model: what the loop calls: the compiled or wrapped one where there is one.
            optimizer: whose `step` is timed; left out, its time belongs to `other`.

        Raises:
            MonitorError: one of them is not torch's.
        """
        from ..steps import watch

        return watch(model, optimizer)

    def step(self, name: str | None = None) -> step:
        """One step of a loop that has no loader to watch: ``with monitor.step() as step: …``.

        `step.got(samples)` says that the batch has come; without it the wait for data is not measured.

        Args:
            name: of the loop, where a thread has several.
        """
        from ..steps import step

        return step(name)

    def phase(self, name: str) -> phase:
        """Count a block as `copy`, `forward`, `backward` or `optimizer`: ``with monitor.phase("copy"): …``.

        Raises:
            MonitorError: there is no such phase.
        """
        from ..steps import phase

        return phase(name)

    def step_notices(self) -> list[str]:
        """What stands in the way of measuring steps, for people."""
        # Not there until it is imported, nor while another thread imports it.
        return list(getattr(sys.modules.get("kernel_monitor.steps.device"), "LOST", []))

    def mark(self, label: str) -> dict[str, Any]:
        """Mark this moment: a line with these words crosses every chart, and a new stretch begins for the analysis.

        Args:
            label: a few words, such as `augment x12`.

        Returns:
            The event: `id`, `kind`, `time` (session s), `label`.

        Raises:
            MonitorError: there are no words or too many, or nothing is measured yet.
        """
        words = given(label, "A mark", sys.maxsize)
        if not words:
            raise MonitorError("A mark needs words: monitor.mark('augment x12').")
        if len(words) > MOST_LETTERS:
            raise MonitorError(f"A mark has {MOST_LETTERS} letters at most, not {len(words)}.")
        return self._note("mark", label=words)

    @abstractmethod
    def _note(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Note that something happens now; returns the event."""
