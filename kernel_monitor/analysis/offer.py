"""The one switch that may be offered to a loop that waits for its data; when it is, is `kernel_monitor.runtime`'s."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import advice
from .gains import COMPUTES, SATURATED
from .results import Advice, Gain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .decision import Decision, Outlook

WORTH = 0.05  # share of the step time: for less nobody is asked


@dataclass(frozen=True)
class Offer:
    """A switch with a reason for it."""

    engine: str  # to which
    advised: tuple[Advice, ...]  # the sentence. `advice` of its JSON is the same as prose
    gain: Gain | None  # what to expect; None where nothing is known of that


def offer(decision: Decision, state: Mapping[str, Any]) -> Offer | None:
    """What may be offered on a segment; None where no switch is likely to help, or nothing speaks for one.

    The engine that is surely faster; else the one of those predicted to be that should save most; else one of which
    nothing is known and that takes the whole of the loading over, unless the loop waits for its storage, or the engine
    is being run on some of the files to predict its gain.

    Args:
        decision: on the segment.
        state: its loader's state.
    """
    segment = decision.segment
    if decision.kind != "input-bound" or decision.withheld is not None or segment.synthetic:
        return None
    backends = {str(one.get("name")): one for one in state.get("backends") or ()}
    engines = [one for one in decision.engines if backends[one.engine].get("confirm") is None]
    best = decision.best
    if best is not None:
        return _made(decision, best) if best in engines and _middle(best) >= WORTH else None
    if segment.backend != "torchvision" or advice.storage(decision) is not None or _waits_for_files(decision):
        return None
    open_ones = [one for one in engines if one.stance == "neutral" and not backends[one.engine].get("note")]
    predicted = [one for one in open_ones if one.gain is not None and not math.isfinite(one.gain.measured)]
    likely = max(predicted, key=_middle, default=None)
    if likely is not None and _middle(likely) >= WORTH:
        return _made(decision, likely)
    measuring = {name for name, one in (state.get("calibration") or {}).items() if one.get("state") == "running"}
    untried = [one for one in open_ones if one.gain is None and one.engine not in measuring]
    # As `dali` stands for it: on the GPU where there is one.
    untried.sort(key=lambda one: one.engine != "dali-gpu")
    return _made(decision, untried[0]) if untried else None


def _made(decision: Decision, one: Outlook) -> Offer:
    return Offer(one.engine, (advice.ready(decision, one),), one.gain)


def _middle(one: Outlook) -> float:
    """What is to be expected, as a share of the step time."""
    gain = one.gain
    if gain is None:
        return -math.inf
    return gain.measured if math.isfinite(gain.measured) else (gain.low + gain.high) / 2


def _waits_for_files(decision: Decision) -> bool:
    """Whether what loads has little to compute, though the cores would let it: then it waits for the storage."""
    segment = decision.segment
    workers = segment.knobs.get("workers", 0)
    # Without workers the loop's own thread loads, while it waits.
    loading = segment.workers_cpu_seconds / workers if workers else segment.cpu_seconds
    could = segment.seconds * (1.0 if workers else segment.wait / segment.step)
    return loading < COMPUTES * could and not decision.load >= 100 * SATURATED
