"""Two stretches side by side, with what was said before the change beside what it brought."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .model import Change, EpochCount, Gain, Stretch, Verdict

FEWEST_STEPS = 20
"""With fewer steps on a side, a caveat is added."""
MUCH_STEAL = 5.0
"""%, median over a side: from here on what other virtual machines took is a caveat."""


def change(
    before: Stretch, after: Stretch, *, predicted: Gain | None = None, epochs: Sequence[EpochCount] = ()
) -> Change:
    """Compare any two stretches, of one session or of two.

    Args:
        before, after: the stretches.
        predicted: the gain that was expected.
        epochs: counts of their loaders' epochs, for caveats.
    """
    saved = 1 - after.step / before.step if before.step > 0 else math.nan
    return Change(
        before=before.key,
        after=after.key,
        faster=after.rate / before.rate if before.rate > 0 else math.nan,
        saved=saved,
        histogram_distance=_distance(before.gpu_histogram, after.gpu_histogram),
        predicted=None if predicted is None else replace(predicted, measured=saved),
        caveats=_caveats(before, after, epochs),
    )


def changes(
    stretches: Sequence[Stretch],
    events: Sequence[Mapping[str, Any]] = (),
    *,
    verdicts: Sequence[Verdict] = (),
    epochs: Sequence[EpochCount] = (),
) -> tuple[Change, ...]:
    """Compare the neighbouring stretches of each loader, in the order of time.

    Args:
        stretches: in the order of time.
        events: the session's; those of kind `prediction` hold what was said when a switch was asked for, and a change
            of another loader is a caveat.
        verdicts: of the stretches; where nothing was noted, the gain expected of a switch is that of the one before it.
        epochs: counts, for caveats.
    """
    by_key = {one.stretch: one for one in verdicts}
    newest: dict[str, Stretch] = {}
    found = []
    for one in stretches:
        before = newest.get(one.loader)
        newest[one.loader] = one
        if before is None:
            continue
        predicted = None
        if one.began_by == "switch":
            action = "loader" if one.synthetic else one.backend
            said = _noted(events, one, before) or list(by_key[before.key].gains if before.key in by_key else ())
            predicted = next((gain for gain in said if gain.action == action), None)
        made = change(before, one, predicted=predicted, epochs=epochs)
        others = [
            event
            for event in events
            if event.get("kind") in ("switch", "knobs")
            and event.get("loader") not in (None, one.loader)
            and before.start < float(event.get("time", math.nan)) < one.end
        ]
        if others:
            made = replace(made, caveats=(*made.caveats, "another loader was changed meanwhile"))
        found.append(made)
    return tuple(found)


def _noted(events: Sequence[Mapping[str, Any]], after: Stretch, before: Stretch) -> list[Gain]:
    """What was said when the switch between two stretches was asked for."""
    for event in reversed(events):
        if (
            event.get("kind") == "prediction"
            and (event.get("loader"), event.get("target")) == (after.loader, after.backend)
            and before.start <= float(event["time"]) <= after.start
        ):
            return [
                Gain(str(one["action"]), float(one["low"]), float(one["high"]), basis=str(one.get("basis", "")))
                for one in event["gains"]
                if one.get("low") is not None and one.get("high") is not None
            ]
    return []


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Half the sum of absolute differences: the total variation distance, 0 (equal) to 1 (disjoint)."""
    if len(first) != len(second) or not len(first):
        return math.nan
    return float(np.abs(np.subtract(first, second)).sum() / 2)


def _caveats(before: Stretch, after: Stretch, epochs: Sequence[EpochCount]) -> tuple[str, ...]:
    found = []
    for side, one in (("before", before), ("after", after)):
        if one.steps < FEWEST_STEPS:
            found.append(f"{side}: {one.steps:,} step{'' if one.steps == 1 else 's'}")
        if one.synthetic:
            found.append(f"{side}: the batches were replayed")
        steal = next((found.values.p50 for found in one.statistics if found.metric == "steal"), 0.0)
        if steal >= MUCH_STEAL:
            found.append(f"{side}: the hypervisor gave {steal:.0f} % of the processor to others")
        if one.steps and not math.isfinite(one.rate):
            found.append(f"{side}: the rate is not known")
    if before.loader == after.loader and before.batches and after.batches:
        sizes = [one.samples / one.batches for one in (before, after)]
        if max(sizes) > 1.1 * min(sizes):
            found.append(f"{sizes[0]:,.0f} samples a batch before, {sizes[1]:,.0f} after")
    short = sorted(
        {
            one.epoch + 1
            for one in epochs
            if one.finished and one.problem and one.loader in (before.loader, after.loader)
        }
    )
    if short:
        numbers = ", ".join(map(str, short))
        found.append(f"epoch{'' if len(short) == 1 else 's'} {numbers} delivered less than planned")
    return tuple(found)
