"""What users mark in their code and pages: moments, steps and phases of a loop, and the model to measure."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from ..errors import MonitorError, SessionError
from ..text import given

if TYPE_CHECKING:
    import torch

    from ..steps.manual_steps import phase, step
    from ..steps.model_watch import Watch
    from .session import Session

MAX_LABEL = 200
"""Characters of a mark's label; charts show the first forty."""


class Marks:
    """Adds marks to a session. What needs torch is imported when it is first used."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def mark(self, label: str) -> dict[str, Any]:
        """Mark this moment: charts draw a line with this label, and a new segment begins for the analysis.

        Args:
            label: a few words, such as `augment x12`.

        Returns:
            The event: `id`, `kind`, `time` (session s), `label`.

        Raises:
            MonitorError: the label is empty or too long, or nothing is measured yet.
        """
        words = given(label, "A mark", sys.maxsize)
        if not words:
            raise MonitorError("A mark needs words: monitor.mark('augment x12').")
        if len(words) > MAX_LABEL:
            raise MonitorError(f"A mark has {MAX_LABEL} letters at most, not {len(words)}.")
        at = self._session.session_time(time.monotonic())
        if at is None:
            raise SessionError("Nothing is measured yet: start the monitor first (%monitor start).")
        return self._session.add_event("mark", at, label=words)

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Watch:
        """Measure how long a model's forward, backward and optimizer take in each step of the loops that run it.

        Model and optimizer are neither kept alive nor changed; `stop` of the returned object ends the measurement.

        Args:
            model: the object that the loop calls: the compiled or wrapped one if there is one.
            optimizer: its `step` is timed; without it that time counts as `other`.

        Raises:
            MonitorError: one of them is not an object of torch.
        """
        from ..steps import watch

        return watch(model, optimizer)

    def step(self, name: str | None = None) -> step:
        """One step of a loop that has no loader to watch: `with monitor.step() as step: …`.

        Call `step.got(samples)` when the batch has arrived; without it the wait for data is not measured.

        Args:
            name: of the loop, for a thread that has several.
        """
        from ..steps import step

        return step(name)

    def phase(self, name: str) -> phase:
        """Count a block as `copy`, `forward`, `backward` or `optimizer`: `with monitor.phase("copy"): …`.

        Raises:
            MonitorError: there is no such phase.
        """
        from ..steps import phase

        return phase(name)
