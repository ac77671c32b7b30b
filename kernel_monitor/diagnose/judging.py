"""From a session's rows and steps to the verdict on one of its stretches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .gain import Reckoned, gains, resources
from .timings import Timings, of_frames, of_steps
from .tried import tried
from .verdict import verdict

if TYPE_CHECKING:
    from ..store.steps import StepTable
    from .model import Stretch, Verdict
    from .table import Table


def timings(table: Table, steps: StepTable, stretch: Stretch) -> tuple[Timings, int]:
    """A stretch's steps, and how many ended in it in all; from the series where no steps were kept."""
    rows = steps.of(stretch.loader, stretch.start, stretch.end)
    if len(rows):
        return of_steps(rows), len(rows)
    found = of_frames(table, stretch.loader, stretch.start, stretch.end)
    return found, found.steps


def judge(
    table: Table,
    steps: StepTable,
    stretch: Stretch,
    state: Mapping[str, Any],
    thresholds: Mapping[str, float] | None = None,
    *,
    events: Sequence[Mapping[str, Any]] = (),
) -> Verdict:
    """The verdict on one stretch, with the gains to expect.

    Args:
        table: rows, oldest first.
        steps: of the session.
        stretch: of it.
        state: its loader's state; empty where it is not known.
        thresholds: in place of `verdict.THRESHOLDS`, those given.
        events: of the session: what *Diagnose* measured is known from them.
    """
    found, count = timings(table, steps, stretch)
    reckoned = Reckoned()
    if len(found) and not stretch.synthetic:
        reckoned = gains(stretch, found, resources(stretch, table.schema, count), state, tried(events, stretch))
    gpu = bool(table.schema.gpus) or _cuda(state)
    return verdict(stretch, found, gpu=gpu, gains=reckoned.gains, unknown=reckoned.unknown, thresholds=thresholds)


def _cuda(state: Mapping[str, Any]) -> bool:
    """Whether the loader could decode on a GPU: then the training may run on one that NVML does not tell of."""
    return any(one.get("name") == "dali-gpu" and one.get("available") for one in state.get("backends") or [])
