"""The one switch that may be offered to a loop that waits for its data; when it is, is `kernel_monitor.live`'s."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import advice
from .gain import COMPUTES, SATURATED
from .model import Advice, Gain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .decision import Decision, Outlook

WORTH = 0.05
"""Share of the step time: for less nobody is asked."""


@dataclass(frozen=True)
class Offer:
    """A switch with a reason for it.

    Attributes:
        engine: to which.
        advised: the sentence. `advice` of its JSON is the same as prose.
        gain: what to expect; None where nothing is known of that.
    """

    engine: str
    advised: tuple[Advice, ...]
    gain: Gain | None


def offer(decision: Decision, state: Mapping[str, Any]) -> Offer | None:
    """What may be offered on a stretch; None where no switch is likely to help, or nothing speaks for one.

    The engine that is surely faster; else the one of those predicted to be that should save most; else one of which
    nothing is known and that takes the whole of the loading over, unless the loop waits for its storage.

    Args:
        decision: on the stretch.
        state: its loader's state.
    """
    stretch = decision.stretch
    if decision.kind != "input-bound" or decision.withheld is not None or stretch.synthetic:
        return None
    told = {str(one.get("name")): one for one in state.get("backends") or ()}
    engines = [one for one in decision.engines if told[one.engine].get("confirm") is None]
    best = decision.best
    if best is not None:
        return _made(decision, best) if best in engines and _middle(best) >= WORTH else None
    if stretch.backend != "torchvision" or advice.storage(decision) is not None or _waits_for_files(decision):
        return None
    open_ones = [one for one in engines if one.stance == "neutral" and not told[one.engine].get("note")]
    predicted = [one for one in open_ones if one.gain is not None and not math.isfinite(one.gain.measured)]
    likely = max(predicted, key=_middle, default=None)
    if likely is not None and _middle(likely) >= WORTH:
        return _made(decision, likely)
    untried = [one for one in open_ones if one.gain is None]
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
    stretch = decision.stretch
    workers = stretch.knobs.get("workers", 0)
    # Without workers the loop's own thread loads, while it waits.
    loading = stretch.workers_cpu_seconds / workers if workers else stretch.cpu_seconds
    could = stretch.seconds * (1.0 if workers else stretch.wait / stretch.step)
    return loading < COMPUTES * could and not decision.load >= 100 * SATURATED
