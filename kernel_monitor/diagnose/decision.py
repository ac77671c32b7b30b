"""What can be said for and against each change of one loader: the one decision that all advice is made from.

In goes what was measured and what was predicted of this loader's chain in this session, `decide`; what is measured
(*Diagnose*, a switch) goes before what is predicted, and that before what holds in general. `advice.py` makes the
sentences. The verdict, what it takes to feed the loop, and the rules ask it, so that they cannot contradict each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .cost import cpu_per_image, rate_without_wait
from .model import Gain, Kind, Stance

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .model import Stretch, Verdict

CLEAR = 0.02
"""An engine is faster where at least this share of the step time is saved with all of the interval, and not faster
where less is."""
IDLE, FULL = 80.0, 90.0
"""%, median load: below the one more workers find idle cores, above the other more of them than cores are too many."""
MANY = 2.0
"""Workers or threads per core: more get in each other's way."""
WAITS = 0.2
"""Share of the step: a loop that waits for more is not told to take larger batches."""
WATCHED = "loader"
"""The backend of what is watched and cannot be switched."""

Reason = Literal["idle", "full", "many", "busy", "not waiting", "no core left", "undetermined", "unknown"]


@dataclass(frozen=True)
class Outlook:
    """What another engine would bring; `gain` is None where nothing is known of it."""

    engine: str
    stance: Stance
    gain: Gain | None


@dataclass(frozen=True)
class Crowd:
    """How many processes or threads should load.

    Attributes:
        word: `workers` or `threads`.
        many, wanted: how many there are, and how many there should be; equal where they should stay.
        reason: why.
    """

    word: str
    many: int
    wanted: int
    reason: Reason


@dataclass(frozen=True)
class Decision:
    """What is decided of the loader of one stretch.

    Attributes:
        stretch: what it is made from.
        kind: what its step is bound by.
        wait: share of its step that waits for data; NaN: not known.
        cores: that this process may use; 0: not known.
        load: %, median of what was taken of them; NaN: not measured.
        needed: cores that would feed the loop; NaN: not known.
        engines: the others that can run here.
        withheld: why nothing is advised on this stretch, as a sentence; None where something is.
    """

    stretch: Stretch
    kind: Kind = "undetermined"
    wait: float = math.nan
    cores: float = 0.0
    load: float = math.nan
    needed: float = math.nan
    engines: tuple[Outlook, ...] = ()
    withheld: str | None = None

    @property
    def best(self) -> Outlook | None:
        """The engine to switch to: of those that are surely faster, a measured one first, the one that saves most."""
        faster = [
            (math.isfinite(one.gain.measured), one.gain.low, place, one)
            for place, one in enumerate(self.engines)
            if one.stance == "for" and one.gain is not None
        ]
        return max(faster)[-1] if faster else None

    @property
    def measured(self) -> bool:
        """Whether every other engine was measured in this loop."""
        return all(one.gain is not None and math.isfinite(one.gain.measured) for one in self.engines)

    @property
    def waits(self) -> bool:
        """Whether faster loading may help."""
        return self.kind in ("input-bound", "undetermined")

    @property
    def larger_batch(self) -> bool:
        """Whether larger batches may be advised."""
        return self.withheld is None and not self.wait > WAITS

    def crowd(self, many: float | None = None, word: str = "workers") -> Crowd | None:
        """Whether more or fewer processes should load; None where it is not known how many do.

        Args:
            many: how many do, where the stretch does not know.
            word: what they are.
        """
        if self.stretch.synthetic:
            return None
        if self.stretch.backend != WATCHED:
            word = "threads" if self.stretch.backend.startswith("dali") else "workers"
            many = self.stretch.knobs.get(word, many)
        if many is None or not self.cores > 0:
            return None
        count, whole = int(many), math.floor(self.cores)
        wanted, reason = self._wanted(count, whole)
        return Crowd(word, count, wanted, reason)

    def _wanted(self, many: int, whole: int) -> tuple[int, Reason]:
        if many > self.cores and self.load > FULL:
            return max(1, whole - 1), "full"
        if many > max(1.0, MANY * self.cores):
            return max(1, whole), "many"
        if not self.waits:
            return many, "not waiting"
        if many >= whole:
            return many, "no core left"
        if self.load >= IDLE:
            return many, "busy"
        if self.kind == "undetermined":
            return many, "undetermined"
        return (whole, "idle") if self.load < IDLE else (many, "unknown")


def decide(
    stretch: Stretch, verdict: Verdict, state: Mapping[str, Any], cores: float, withheld: str | None = None
) -> Decision:
    """Decide.

    Args:
        stretch: what to advise on.
        verdict: on it, with its gains.
        state: its loader's state; empty where it is not known.
        cores: that this process may use.
        withheld: why nothing is to be advised, as a sentence.
    """
    known = {one.action: one for one in verdict.gains}
    names = [str(one.get("name")) for one in state.get("backends") or () if one.get("available")]
    others = [one for one in names if one not in (stretch.backend, "synthetic")]
    usual = next((one.values.p50 for one in stretch.statistics if one.metric == "cpu"), math.nan)
    return Decision(
        stretch=stretch,
        kind=verdict.kind,
        wait=verdict.shares.get("wait", stretch.wait / stretch.step if stretch.step > 0 else math.nan),
        cores=cores,
        load=stretch.load if math.isfinite(stretch.load) else usual,
        needed=cpu_per_image(stretch) * rate_without_wait(stretch),
        engines=tuple(Outlook(one, _stance(known.get(one), verdict.kind), known.get(one)) for one in others),
        withheld=withheld,
    )


def _stance(gain: Gain | None, kind: Kind) -> Stance:
    if gain is None:
        return "against" if kind == "compute-bound" else "neutral"
    if gain.low >= CLEAR:
        return "for"
    return "against" if gain.high < CLEAR else "neutral"
