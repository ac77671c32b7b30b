"""From a session's rows and steps to the verdict on one of its stretches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .advice import next_step
from .decision import Decision, decide
from .gain import Reckoned, gains, resources
from .limits import usable_cores
from .timings import Timings, of_frames, of_steps
from .tried import tried
from .verdict import verdict

if TYPE_CHECKING:
    from ..store.steps import StepTable
    from .model import Stretch, Verdict
    from .table import Table
    from .tried import Pair


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
    switched: Sequence[Pair] = (),
    until: float | None = None,
) -> Verdict:
    """The verdict on one stretch, with the gains to expect; `advised` puts the advice to it.

    Args:
        table: rows, oldest first.
        steps: of the session.
        stretch: of it.
        state: its loader's state; empty where it is not known.
        thresholds: in place of `verdict.THRESHOLDS`, those given.
        events: of the session: what *Diagnose* measured is known from them.
        switched: what switches of the session measured.
        until: session s; what was measured later is not known. The stretch's end if left out.
    """
    found, count = timings(table, steps, stretch)
    reckoned = Reckoned()
    if len(found) and not stretch.synthetic:
        measured = tried(events, stretch, switched, until)
        reckoned = gains(stretch, found, resources(stretch, table.schema, count), state, measured)
    gpu = bool(table.schema.gpus) or _cuda(state)
    return verdict(stretch, found, gpu=gpu, gains=reckoned.gains, unknown=reckoned.unknown, thresholds=thresholds)


def advised(
    table: Table, stretch: Stretch, found: Verdict, state: Mapping[str, Any], withheld: str | None = None
) -> tuple[Verdict, Decision]:
    """A verdict with its advice, and the decision that this, and all other advice on the stretch, is made from.

    Args:
        table: rows.
        stretch: of them.
        found: the verdict on it.
        state: its loader's state.
        withheld: why nothing is to be advised, as a sentence.
    """
    decision = decide(stretch, found, state, usable_cores(table.schema), withheld)
    return replace(found, advised=next_step(decision, found.missing)), decision


def _cuda(state: Mapping[str, Any]) -> bool:
    """Whether the loader could decode on a GPU: then the training may run on one that NVML does not tell of."""
    return any(one.get("name") == "dali-gpu" and one.get("available") for one in state.get("backends") or [])
