"""The decision on one loader that all advice is made from: what speaks for and against each change of it.

`decide` takes what was measured (*Diagnose*, a switch) before what was predicted, and that before what holds in
general. `advice.py` makes the sentences. The verdict, what it takes to feed the loop, and the rules use the same
decision, so that they cannot contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .results import Gain, Kind, Segment, Stance, Verdict

CLEAR = 0.02
"""An engine is faster where at least this share of the step time is saved with all of the interval, and not faster
where less is."""
IDLE, FULL = 80.0, 90.0
"""%, median load: below `IDLE` more workers find idle cores, above `FULL` more workers than cores are too many."""
_MANY = 2.0  # workers or threads per core: more get in each other's way
WAITS = 0.2  # share of the step: larger batches are not advised to a loop that waits for more
WATCHED = "loader"  # the backend of what is watched and cannot be switched

Reason = Literal["idle", "full", "many", "busy", "not waiting", "no core left", "undetermined", "unknown"]


@dataclass(frozen=True)
class Outlook:
    """The expected effect of another engine; `gain` is None where nothing is known."""

    engine: str
    stance: Stance
    gain: Gain | None


@dataclass(frozen=True)
class Crowd:
    """How many processes or threads should load."""

    word: str  # `workers` or `threads`
    many: int  # many, wanted: how many there are, and how many there should be; equal where they should stay
    wanted: int
    reason: Reason  # why


@dataclass(frozen=True)
class Decision:
    """The decision on the loader of one segment."""

    segment: Segment  # what it is made from
    kind: Kind = "undetermined"  # what its step is bound by
    wait: float = math.nan  # share of its step that waits for data; NaN: not known
    cores: float = 0.0  # that this process may use; 0: not known
    load: float = math.nan  # %, median of what was taken of them; NaN: not measured
    needed: float = math.nan  # cores that would feed the loop; NaN: not known
    engines: tuple[Outlook, ...] = ()  # the others that can run here
    withheld: str | None = None  # why nothing is advised on this segment, as a sentence; None where something is
    # images/s that reach this machine from others at most, and what limits them (`driver` or `link`); NaN: not known
    reach: float = math.nan
    limited_by: str = ""

    @property
    def best(self) -> Outlook | None:
        """The engine to switch to: of those surely faster the one that saves most, measured before predicted."""
        faster = [
            (math.isfinite(outlook.gain.measured), outlook.gain.low, place, outlook)
            for place, outlook in enumerate(self.engines)
            if outlook.stance == "for" and outlook.gain is not None
        ]
        return max(faster)[-1] if faster else None

    @property
    def untried(self) -> bool:
        """Whether nothing is known of one of the other engines."""
        return any(outlook.stance == "neutral" and outlook.gain is None for outlook in self.engines)

    @property
    def waits(self) -> bool:
        """Whether faster loading may help."""
        return self.kind in ("input-bound", "undetermined")

    def crowd(self, many: float | None = None) -> Crowd | None:
        """Return whether more or fewer processes should load.

        None where neither the segment nor `many` says how many do.
        """
        word = self.segment.crowd
        known = many if self.segment.backend == WATCHED else self.segment.knobs.get(word, many)
        if self.segment.synthetic or known is None or not self.cores > 0 or self.segment.nodes:
            return None  # what loads on other machines has their cores
        return Crowd(word, int(known), *self._wanted(int(known), math.floor(self.cores)))

    def _wanted(self, many: int, whole: int) -> tuple[int, Reason]:
        if many > self.cores and self.load > FULL:
            return max(1, whole - 1), "full"
        if many > max(1.0, _MANY * self.cores):
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
    segment: Segment, verdict: Verdict, state: Mapping[str, Any], cores: float, withheld: str | None = None
) -> Decision:
    """The decision on a segment from its verdict with its gains.

    `state` is its loader's (empty where it is not known), `cores` those that this process may use, `withheld` why
    nothing is to be advised, as a sentence.
    """
    gains = {gain.action: gain for gain in verdict.gains}
    # What a person must agree to first is no advice: batches that are replayed, a Ray on this machine.
    able = [one for one in state.get("backends") or () if one.get("available") and one.get("confirm") is None]
    others = [name for name in (str(one.get("name")) for one in able) if name not in (segment.backend, "synthetic")]
    limits = {name: value for name, value in (state.get("remote") or {}).items() if isinstance(value, float)}
    limited_by = min(limits, key=limits.__getitem__, default="")
    return Decision(
        segment=segment,
        kind=verdict.kind,
        wait=verdict.shares.get("wait", segment.wait / segment.step if segment.step > 0 else math.nan),
        cores=cores,
        load=segment.load if math.isfinite(segment.load) else segment.median("cpu"),
        needed=cpu_per_image(segment) * rate_without_wait(segment),
        engines=tuple(Outlook(name, _stance(gains.get(name), verdict.kind), gains.get(name)) for name in others),
        withheld=withheld,
        reach=limits.get(limited_by, math.nan),
        limited_by=limited_by,
    )


def _stance(gain: Gain | None, kind: Kind) -> Stance:
    if gain is None:
        return "against" if kind == "compute-bound" else "neutral"
    if gain.low >= CLEAR:
        return "for"
    return "against" if gain.high < CLEAR else "neutral"


def cpu_per_image(segment: Segment) -> float:
    """CPU seconds that loading one image took; NaN where they are not separable from the rest.

    They are the workers' (`process/workers/cpu`) over the samples delivered; where the loop's own thread loads (no
    workers), its wait is that work. What DALI's threads take is not told apart from the kernel's own work,
    and what other machines take for `ray` is not measured.
    """
    if segment.samples == 0 or segment.backend.startswith(("dali", "ray")) or segment.synthetic:
        return math.nan
    if segment.knobs.get("workers") == 0:
        return segment.wait / 1e3 * segment.batches / segment.samples
    return segment.workers_cpu_seconds / segment.samples


def rate_without_wait(segment: Segment) -> float:
    """Images per second if there were always a batch; NaN where a step is nothing but waiting."""
    each = segment.samples / segment.batches if segment.batches else math.nan
    busy = segment.step - segment.wait
    if segment.on_device:  # the GPU's own time passes in the loop's waits, too
        busy = max(busy, sum(time for phase, time in segment.phases.items() if phase != "other"))
    return 1e3 * each / busy if busy > 0 else math.nan
