"""Two sessions, or two segments of one, compared for an exit status: did the loop become slower?

Steps vary, and neighbouring ones alike (a cache that fills, a file system that is busy). Each side's steps are cut into
blocks of neighbours, the blocks drawn anew with replacement (a block bootstrap, its seed fixed), and the middle 99 % of
the ratios that result is the interval. *Slower* means that all of the interval is above what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import MonitorError
from ..store import Snapshot
from .cost import cost_per_step, hourly, node_price
from .frames import counted
from .loops import epoch_counts
from .results import EpochCount, Segment
from .segments import segments

Outcome = Literal["slower", "within", "faster", "unknown"]

FEWEST_STEPS = 20  # of each side; fewer say nothing of how much steps vary
BLOCKS = (10, 100)  # blocks that the steps of a side are cut into, at least and at most
DRAWS = 4000
_MIDDLE = 0.99
SEED = 20211


@dataclass(frozen=True)
class Side:
    """The figures of one segment in a comparison."""

    segment: str  # segment, backend: its key; the engine that delivered
    backend: str
    steps: int  # steps, images: of the steps that count (`frames.counted`)
    images: int
    step: float  # ms, the mean
    p50: float  # p50, p95: ms
    p95: float
    wait: float  # share of the step; NaN where it was not measured
    rate: float  # images/s of the steps counted; NaN without images
    cost: float = math.nan  # of 1,000 images, or of 1,000 steps where there are no images; NaN without a price


@dataclass(frozen=True)
class Comparison:
    """The comparison of one loader's two segments."""

    loader: str  # its name
    before: Side | None = None  # before, after: None where the loader has no such segment
    after: Side | None = None
    slower: float = math.nan  # time per image (per step without images) after, over that before, less 1; NaN: unknown
    low: float = math.nan  # low, high: the middle 99 % of what it may be
    high: float = math.nan
    outcome: Outcome = "unknown"  # `slower` than allowed, `within` what is allowed or the spread, or `faster`
    sentence: str = ""  # for people
    caveats: tuple[str, ...] = ()  # why it may not be taken at face value


def compare(
    a: Snapshot,
    b: Snapshot,
    *,
    loader: str | None = None,
    keys: Sequence[str] = (),
    allowed: float | None = None,
    prices: Sequence[float | None] = (None, None),
) -> tuple[Comparison, ...]:
    """Compare the loaders that two sessions have in common, by their names.

    Args:
        a, b: before and after; may be the same.
        loader: only that one.
        keys: of segments (`train/2`): one for both sessions, or one for each. Left out, it is the loader's segment
            with the most steps, real batches before replayed ones.
        allowed: share by which the time per image may grow; None: any.
        prices: per hour, before and after; None where none is known.

    Raises:
        MonitorError: a loader or a segment of that name is not there; the message says which there are.
    """
    sessions = (a, b)
    chosen = [
        _choose(segments(session), loader, key, letter)
        for letter, session, key in zip("AB", sessions, (keys[0], keys[-1]) if keys else (None, None), strict=True)
    ]
    if keys and len(chosen[0]) == len(chosen[1]) == 1:  # whatever the loaders are called
        chosen[1] = dict(zip(chosen[0], chosen[1].values(), strict=True))
    epochs = [epoch_counts(session) for session in sessions]
    made = []
    for name in (name for name in chosen[0] if name in chosen[1]):
        sides, steps, short, replayed = [], [], [], []
        parts = zip("AB", sessions, [found[name] for found in chosen], epochs, prices, strict=True)
        for letter, session, segment, counts, price in parts:
            rows = session.steps.of(segment.loader, segment.start, segment.end)
            steps.append(rows[counted(rows)])
            hour = None if price is None else hourly(segment, price, node_price(session))
            sides.append(_side(segment, steps[-1], hour))
            short += [f"{letter}: {words}" for words in _short_epochs(counts, segment)]
            replayed += [f"{letter}: its batches were replayed (synthetic)"] if segment.synthetic else []
        made.append(_compared(name, sides, steps, (*short, *replayed), allowed))
    for name in {**chosen[0], **chosen[1]}:
        if name not in chosen[0] or name not in chosen[1]:
            where = "A" if name in chosen[0] else "B"
            sentence = f"{name}: only in {where}, so there is nothing to compare it with."
            made.append(Comparison(name, sentence=sentence))
    return tuple(made)


def _choose(found: Sequence[Segment], loader: str | None, key: str | None, where: str) -> dict[str, Segment]:
    """Return one segment of each loader, by the loaders' names."""
    own = [segment for segment in found if loader in (None, segment.name)]
    if loader is not None and not own:
        names = ", ".join(dict.fromkeys(segment.name for segment in found)) or "none that stepped"
        raise MonitorError(f"{where} has no loader {loader!r}. Its loaders are: {names}.")
    if key is not None:
        own = [segment for segment in own if segment.key == key]
        if not own:
            known = ", ".join(f"{segment.key} ({segment.backend}, {segment.steps:,} steps)" for segment in found)
            raise MonitorError(f"{where} has no segment {key!r}. Its segments are: {known or 'none'}.")
    by_name: dict[str, list[Segment]] = {}
    for segment in own:
        by_name.setdefault(segment.name, []).append(segment)
    return {name: max(those, key=lambda one: (not one.synthetic, one.steps)) for name, those in by_name.items()}


def _short_epochs(epochs: Sequence[EpochCount], segment: Segment) -> list[str]:
    """Return a text on each epoch that ended with less than its plan; epochs under way are left out."""
    return [
        f"epoch {count.epoch + 1} {count.problem}"
        for count in epochs
        if count.loader == segment.loader
        and count.problem
        and count.planned is not None
        and "so far" not in count.problem
    ]


def _side(segment: Segment, rows: npt.NDArray[Any], price: float | None) -> Side:
    times, images = rows["step"].astype(float), int(rows["images"].sum())
    spent, steps = float(times.sum()), len(rows)
    p50, p95 = 1e3 * np.percentile(times, [50, 95]) if steps else (math.nan, math.nan)
    step = spent / steps if steps else math.nan
    return Side(
        segment=segment.key,
        backend=segment.backend,
        steps=steps,
        images=images,
        step=1e3 * step,
        p50=float(p50),
        p95=float(p95),
        wait=float(rows["wait"].astype(float).sum()) / spent if spent > 0 else math.nan,
        rate=images / spent if images and spent > 0 else math.nan,
        cost=math.nan if price is None else 1000 * cost_per_step(price, spent / images if images else step),
    )


def _compared(
    name: str,
    sides: Sequence[Side],
    steps: Sequence[npt.NDArray[Any]],
    caveats: tuple[str, ...],
    allowed: float | None,
) -> Comparison:
    before, after = sides
    counts = f"{before.steps:,} and {after.steps:,} steps"
    if min(before.steps, after.steps) < FEWEST_STEPS:
        sentence = f"{name}: {counts} are too few to compare; it takes {FEWEST_STEPS} of each, after the warm-up."
        return Comparison(name, before, after, sentence=sentence, caveats=caveats)
    per_image = before.images > 0 and after.images > 0
    # Seconds and pieces of work (images or steps) of each step.
    work = [np.stack([rows["step"], rows["images"] if per_image else np.ones(len(rows))], axis=1) for rows in steps]
    slower, low, high = interval(*(pairs.astype(float) for pairs in work))
    outcome: Outcome = "within"
    if allowed is not None and low > allowed:
        outcome, verdict = "slower", f"slower than the {100 * allowed:g} % that are allowed"
    elif high < 0:
        outcome, verdict = "faster", "faster"
    elif low <= 0:
        verdict = "no difference beyond the spread"
    elif allowed is None:
        verdict = "slower"
    elif slower > allowed:
        verdict = f"perhaps within the {100 * allowed:g} % that are allowed: the spread is too large to tell"
    else:
        verdict = f"slower, and within the {100 * allowed:g} % that are allowed"
    what = "an image takes" if per_image else "a step takes"
    share = f"{100 * abs(slower):.1f} % {'longer' if slower >= 0 else 'less'}"
    spread = f"99 % interval {100 * low:+.1f} to {100 * high:+.1f} %, {counts}"
    sentence = f"{name}: {what} {share} in B ({spread}): {verdict}."
    return Comparison(name, before, after, slower, low, high, outcome, sentence, caveats)


def interval(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the relative change of the seconds per piece, and the bounds of its middle 99 %.

    `before`, `after`: float64[n, 2], seconds and pieces of each step, in the order of time.
    """
    rng = np.random.default_rng(SEED)
    drawn = []
    for steps in (before, after):
        blocks = min(BLOCKS[1], max(BLOCKS[0], round(math.sqrt(len(steps)))))
        sums = np.array([part.sum(axis=0) for part in np.array_split(steps, blocks)])
        picked = sums[rng.integers(0, blocks, (DRAWS, blocks))].sum(axis=1)
        drawn.append(picked[:, 0] / picked[:, 1])
    low, high = np.quantile(drawn[1] / drawn[0] - 1, [(1 - _MIDDLE) / 2, (1 + _MIDDLE) / 2])
    means = [steps[:, 0].sum() / steps[:, 1].sum() for steps in (before, after)]
    return float(means[1] / means[0] - 1), float(low), float(high)


def status(comparisons: Sequence[Comparison]) -> int:
    """Return the exit status: 1 if a loader became slower than allowed, 3 if none could be compared, else 0."""
    outcomes = {comparison.outcome for comparison in comparisons}
    if "slower" in outcomes:
        return 1
    return 3 if outcomes <= {"unknown"} else 0


def table(comparisons: Sequence[Comparison], currency: str = "") -> str:
    """Return the comparison as text: a line for each side, then the sentences."""
    if not comparisons:
        return "Neither session has a loader that stepped: there is nothing to compare."
    head = ("", "segment", "engine", "steps", "step", "p50", "p95", "waiting", "images/s", "per 1,000")
    lines: list[tuple[str, ...]] = [head]
    words = []
    for comparison in comparisons:
        sides = (("A", comparison.before), ("B", comparison.after))
        lines += [(which, *_cells(side, currency)) for which, side in sides if side is not None]
        words += [comparison.sentence, *(f"  but {caveat}" for caveat in comparison.caveats)]
    shown = [column for column in range(len(head)) if any(line[column] != "–" for line in lines[1:])]
    widths = {column: max(len(line[column]) for line in lines) for column in shown}
    text = ["  ".join(line[column].ljust(widths[column]) for column in shown).rstrip() for line in lines]
    return "\n".join([*(text if len(lines) > 1 else []), *words])


def _cells(side: Side, currency: str) -> tuple[str, ...]:
    figures = (
        (side.step, ",.1f", " ms"),
        (side.p50, ",.1f", " ms"),
        (side.p95, ",.1f", " ms"),
        (100 * side.wait, ".0f", " %"),
        (side.rate, ",.0f", ""),
        (side.cost, ",.4g", f" {currency}" if currency else ""),
    )
    cells = (f"{value:{form}}{unit}" if math.isfinite(value) else "–" for value, form, unit in figures)
    return side.segment, side.backend, f"{side.steps:,}", *cells
