"""Two segments side by side: the one comparison that the page, sentences, the report and JSON take their figures from.

`changes` compares the neighbours of a session, with the gain that was predicted before a switch beside the measured
one; `headline` chooses the switch that says most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .results import Change, EpochCount, Gain, Segment, Verdict
from .segments import change_time, switches
from .step_times import distance

# ---- Figures as text, rounded here alone, so that strip, sentence, report and offer show the same digits of the same
# value.

FEW = 9.95  # below it, one decimal is shown
LEAST = 0.05  # below it, 0 is shown
ALIKE = 0.05  # two rates this close to each other are called alike


def figure(value: float) -> str:
    """Format a value in images/s, ms, % or s: `1,280`, `27`, `5.3`; `–` where it is not known."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= FEW or abs(value) < LEAST else f"{value:.1f}"


def rounded(value: float) -> float:
    """Return the value of its `figure`: a page that formats it shows the same digits."""
    return float(figure(value).replace(",", "")) if math.isfinite(value) else math.nan


def percent(share: float) -> str:
    """Format a share in %, without the sign: `82` for 0.82, as in `82 → 74 %`."""
    return f"{100 * share:.0f}" if math.isfinite(share) else "–"


def factor(ratio: float) -> str:
    """Format a ratio of rates: `1.48 × faster` for 1.48, `2.00 × slower` for 0.5, `about as fast, 1.01 ×` for 1.01."""
    if not math.isfinite(ratio) or ratio <= 0:
        return "–"
    if abs(ratio - 1) < ALIKE:
        return f"about as fast, {ratio:.2f} ×"
    return f"{ratio:.2f} × faster" if ratio > 1 else f"{1 / ratio:.2f} × slower"


def amount(samples: float, seconds: float, unit: str = " images", space: str = " ") -> str:
    """Format a count and the time that it took: `3,264 images in 11 s`."""
    return f"{samples:,.0f}{unit} in {figure(seconds) if seconds < FEW else f'{seconds:,.0f}'}{space}s"


FEWEST_STEPS = 20  # with fewer steps on a side, a caveat is added
# each side of a comparison needs so many steps, and so many seconds in them
NEEDED_STEPS, NEEDED_S = 10, 2.0
_WELL_S = 10.0  # s on both sides, or half of the longest, that make a switch well measured
_MUCH_STEAL = 5.0  # %, median over a side: above it, steal by other virtual machines is a caveat


def change(
    before: Segment, after: Segment, *, predicted: Gain | None = None, epochs: Sequence[EpochCount] = ()
) -> Change:
    """Compare any two segments, of one session or of two; `epochs` of their loaders give caveats."""
    saved = 1 - after.step / before.step if before.step > 0 else math.nan
    return Change(
        before=before.key,
        after=after.key,
        faster=after.rate / before.rate if before.rate > 0 else math.nan,
        saved=saved,
        histogram_distance=distance(before.gpu_histogram, after.gpu_histogram),
        predicted=None if predicted is None else replace(predicted, measured=saved),
        caveats=_caveats(before, after, epochs),
        reason=_reason(before, after),
    )


def changes(
    segments: Sequence[Segment],
    events: Sequence[Mapping[str, Any]] = (),
    *,
    verdicts: Sequence[Verdict] = (),
    epochs: Sequence[EpochCount] = (),
) -> tuple[Change, ...]:
    """Compare the neighbouring segments of each loader, in the order of time, without those that were only tried.

    The gain predicted for a switch is from the event `prediction` of when it was asked for; without one, from the
    verdict on the segment before. A change of another loader meanwhile is a caveat.
    """
    by_key = {verdict.segment: verdict for verdict in verdicts}
    newest: dict[str, Segment] = {}
    found = []
    for segment in segments:
        if segment.tried:
            continue
        before = newest.get(segment.loader)
        newest[segment.loader] = segment
        if before is None:
            continue
        predicted = None
        if segment.began_by == "switch":
            action = "loader" if segment.synthetic else segment.backend
            expected = _predicted_gains(events, segment, before) or (
                by_key[before.key].gains if before.key in by_key else ()
            )
            predicted = next((gain for gain in expected if gain.action == action), None)
        made = change(before, segment, predicted=predicted, epochs=epochs)
        made = replace(made, switch=_switch(before, segment, events))
        if any(
            event.get("kind") in ("switch", "knobs")
            and event.get("loader") not in (None, segment.loader)
            and before.start < float(event.get("time", math.nan)) < segment.end
            for event in events
        ):
            made = replace(made, caveats=(*made.caveats, "another loader was changed meanwhile"))
        found.append(made)
    return tuple(found)


def headline(
    segments: Sequence[Segment], changes: Sequence[Change], secondary_ids: Collection[str] = frozenset()
) -> Change | None:
    """Return the most informative switch of a session; None where none can be compared.

    It is the newest that was measured well of the loader of which most was measured on both sides. A loop that trains
    comes before those that stand beside it (`secondary_ids`, see `loops.secondary`), real batches before replayed ones.
    """
    by_key = {segment.key: segment for segment in segments}
    found = []
    for made in changes:
        if made.switch is not None and made.reason is None:
            before, after = by_key[made.before], by_key[made.after]
            rank = after.loader not in secondary_ids, not (before.synthetic or after.synthetic)
            found.append((rank, after.name, min(before.seconds, after.seconds), made))
    if not found:
        return None
    # A loader that its cell made again has the same name.
    rank, name, most, _ = max(found, key=lambda one: one[:1] + one[2:3])
    well = [one for one in found if one[:2] == (rank, name) and one[2] >= min(_WELL_S, most / 2)]
    return well[-1][3]


def _switch(before: Segment, after: Segment, events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the event of the switch between two segments; None where something else divides them."""
    # Between two engines there was a switch; where others were only tried in between, knobs may have begun the segment.
    if after.began_by not in ("switch", "knobs") or before.backend == after.backend:
        return None
    own = [
        event
        for event in switches(events)
        if str(event["loader"]) == after.loader and change_time(event) <= after.start
    ]
    # An engine that was left before its first step is in no segment.
    return {**own[-1], "source": before.backend} if own else None


def _reason(before: Segment, after: Segment) -> str | None:
    for side, words in ((before, "before"), (after, "after")):
        if side.steps < NEEDED_STEPS or side.seconds < NEEDED_S or not side.rate > 0:
            return f"too little was measured {words} the switch to compare ({amount(side.samples, side.seconds)})"
    return None


def _predicted_gains(events: Sequence[Mapping[str, Any]], after: Segment, before: Segment) -> Sequence[Gain]:
    """Return the gains predicted when the switch between two segments was asked for."""
    for event in reversed(events):
        if (
            event.get("kind") == "prediction"
            and (event.get("loader"), event.get("target")) == (after.loader, after.backend)
            and before.start <= float(event["time"]) <= after.start
        ):
            return [
                Gain(str(gain["action"]), float(gain["low"]), float(gain["high"]), basis=str(gain.get("basis", "")))
                for gain in event["gains"]
                if gain.get("low") is not None and gain.get("high") is not None
            ]
    return ()


def _caveats(before: Segment, after: Segment, epochs: Sequence[EpochCount]) -> tuple[str, ...]:
    found = []
    for side, segment in (("before", before), ("after", after)):
        if segment.steps < FEWEST_STEPS:
            found.append(f"{side}: {segment.steps:,} step{'' if segment.steps == 1 else 's'}")
        if segment.synthetic:
            found.append(f"{side}: the batches were replayed")
        steal = segment.median("steal")
        if steal >= _MUCH_STEAL:
            found.append(f"{side}: the hypervisor gave {steal:.0f} % of the processor to others")
        if segment.steps and not math.isfinite(segment.rate):
            found.append(f"{side}: the rate is not known")
    if before.loader == after.loader and before.batches and after.batches:
        sizes = [segment.samples / segment.batches for segment in (before, after)]
        if max(sizes) > 1.1 * min(sizes):
            found.append(f"{sizes[0]:,.0f} samples a batch before, {sizes[1]:,.0f} after")
    own = [count for count in epochs if count.loader in (before.loader, after.loader)]
    short = sorted({count.epoch + 1 for count in own if count.finished and count.problem})
    if short:
        numbers = ", ".join(map(str, short))
        found.append(f"epoch{'' if len(short) == 1 else 's'} {numbers} delivered less than planned")
    return tuple(found)
