"""From a segment's steps to the verdict on it with its gains (`judge`), and to its advice (`advised`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .advice import next_step
from .decision import Decision, decide
from .gains import Reckoned, gains, resources
from .machine_limits import usable_cores
from .measured_gains import tried
from .step_times import of_frames, of_steps
from .verdict import verdict

if TYPE_CHECKING:
    from .frames import Frames
    from .measured_gains import Pair
    from .results import Segment, Verdict


def judge(
    frames: Frames,
    segment: Segment,
    state: Mapping[str, Any],
    thresholds: Mapping[str, float] | None = None,
    *,
    events: Sequence[Mapping[str, Any]] = (),
    switched: Sequence[Pair] = (),
    until: float | None = None,
) -> Verdict:
    """The verdict on one segment, with the gains to expect; `advised` adds the advice.

    `state` is its loader's (empty where it is not known). What *Diagnose* (`events`) and the switches of the session
    (`switched`) measured until `until` (session s; the segment's end if left out) stands in place of predictions.
    """
    rows = frames.steps(segment.loader, segment.start, segment.end)
    # Where no single step was kept, there are only the means of the rows.
    timings = of_steps(rows) if len(rows) else of_frames(frames, segment.loader, segment.start, segment.end)
    expected = Reckoned()
    if len(timings) and not segment.synthetic:
        measured = tried(events, segment, switched, until)
        given = resources(segment, frames.schema, len(rows) or timings.steps)
        expected = gains(segment, timings, given, state, measured)
    gpu = bool(frames.schema.gpus) or _may_use_gpu(state)
    return verdict(segment, timings, gpu=gpu, gains=expected.gains, unknown=expected.unknown, thresholds=thresholds)


def advised(
    frames: Frames, segment: Segment, found: Verdict, state: Mapping[str, Any], withheld: str | None = None
) -> tuple[Verdict, Decision]:
    """The verdict `found` with its advice, and the decision that all advice on the segment is made from."""
    decision = decide(segment, found, state, usable_cores(frames.schema), withheld)
    return replace(found, advised=next_step(decision, found.missing)), decision


def _may_use_gpu(state: Mapping[str, Any]) -> bool:
    """Whether the loader could decode on a GPU: then the training may run on one that NVML does not report."""
    return any(
        backend.get("name") == "dali-gpu" and backend.get("available") for backend in state.get("backends") or []
    )
