"""What *Diagnose* has measured already: better than anything that can be reckoned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .model import Gain
from .switches import REPLAYS

if TYPE_CHECKING:
    from .model import Stretch

ANOTHER_LOOP = ("knobs", "mark")
"""Events after which the loop is not the one that was measured."""


def tried(events: Sequence[Mapping[str, Any]], stretch: Stretch) -> tuple[Gain, ...]:
    """What the other engines would save of this stretch's steps, by the newest diagnosis of its loop.

    Args:
        events: the session's, in the order of time.
        stretch: whose engine the others are compared with; what came after its end is not known yet.

    Returns:
        Gains with `measured`, `low` and `high` being the quartiles' extremes; none where the loop was changed since
        it began, or the stretch's own engine was not measured.
    """
    known = [
        event
        for event in events
        if event.get("loader") in (None, stretch.loader) and float(event.get("time", math.inf)) <= stretch.end
    ]
    newest = next((event for event in reversed(known) if event.get("kind") == "diagnosis"), None)
    if newest is None:
        return ()
    result = newest.get("result") or {}
    began = result.get("began")
    since = float(newest["time"]) if began is None else float(began)
    if any(event.get("kind") in ANOTHER_LOOP and float(event["time"]) > since for event in known):
        return ()
    runs = {str(run.get("backend")): run for run in result.get("runs") or () if _counts(run)}
    own = runs.pop(stretch.backend, None)
    return () if own is None else tuple(_gain(own, run) for name, run in runs.items() if name != REPLAYS)


def _counts(run: Mapping[str, Any]) -> bool:
    figures = [run.get(name) for name in ("step", "rate_low", "rate_high", "steps")]
    return run.get("problem") is None and all(isinstance(one, int | float) and one > 0 for one in figures)


def _gain(own: Mapping[str, Any], other: Mapping[str, Any]) -> Gain:
    return Gain(
        action=str(other["backend"]),
        low=1 - own["rate_high"] / other["rate_low"],
        high=1 - own["rate_low"] / other["rate_high"],
        measured=1 - other["step"] / own["step"],
        basis=(
            f"by Diagnose: {own['step']:,.1f} → {other['step']:,.1f} ms per step "
            f"({own['steps']:,} → {other['steps']:,} steps)"
        ),
    )
