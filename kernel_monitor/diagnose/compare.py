"""Two sessions, or two stretches of one, for a machine that has to say yes or no: did the loop become slower?

Steps differ by chance, and neighbouring ones alike (a cache that fills, a file system that is busy): each side's steps
are cut into blocks of neighbours, the blocks drawn anew with replacement (a block bootstrap, its seed fixed), and the
middle 99 % of the ratios that come out is the interval. Slower than allowed is what lies above it with all of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..errors import MonitorError
from ..steps.records import PROFILED, WARM_UP
from .cost import cost_per_step
from .epochs import epoch_counts
from .stretches import stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..store import Snapshot
    from .model import EpochCount, Stretch

Outcome = Literal["slower", "within", "faster", "unknown"]

FEWEST_STEPS = 20
"""Of each side; fewer say nothing of how much steps differ."""
BLOCKS = (10, 100)
"""Blocks that the steps of a side are cut into, at least and at most."""
DRAWS = 4000
MIDDLE = 0.99
SEED = 20211


@dataclass(frozen=True)
class Side:
    """One stretch of a comparison.

    Attributes:
        stretch, backend: its key; the engine that delivered.
        steps, images: counted, without steps of warm-up and profiling.
        step: ms, the mean.
        p50, p95: ms.
        wait: share of the step; NaN where it was not measured.
        rate: images/s of the steps counted; NaN without images.
        cost: of 1,000 images, or of 1,000 steps where there are no images; NaN without a price.
    """

    stretch: str
    backend: str
    steps: int
    images: int
    step: float
    p50: float
    p95: float
    wait: float
    rate: float
    cost: float = math.nan


@dataclass(frozen=True)
class Comparison:
    """A loader in two stretches.

    Attributes:
        loader: its name.
        before, after: None where the loader has no such stretch.
        slower: time per image (per step without images) after, over that before, less 1; NaN where it is unknown.
        low, high: the middle 99 % of what it may be.
        outcome: `slower` than allowed, `within` what is allowed or the spread, `faster`, or `unknown`.
        sentence: for people.
        caveats: why it may not be taken at face value.
    """

    loader: str
    before: Side | None
    after: Side | None
    slower: float
    low: float
    high: float
    outcome: Outcome
    sentence: str
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prices:
    """What an hour cost before and after; None where nobody said."""

    before: float | None = None
    after: float | None = None


def compare(
    a: Snapshot,
    b: Snapshot,
    *,
    loader: str | None = None,
    keys: Sequence[str] = (),
    allowed: float | None = None,
    prices: Prices | None = None,
) -> tuple[Comparison, ...]:
    """Compare the loaders that two sessions have in common, by their names.

    Args:
        a, b: before and after; may be the same.
        loader: only that one.
        keys: of stretches (`train/2`): one for both sessions, or one for each. Left out, it is the loader's stretch
            with the most steps, real batches before replayed ones.
        allowed: share by which the time per image may grow; None: any.
        prices: per hour.

    Raises:
        MonitorError: a loader or a stretch of that name is not there; the message says which there are.
    """
    prices = prices or Prices()
    sides = [(a, stretches(a), epoch_counts(a)), (b, stretches(b), epoch_counts(b))]
    chosen: list[dict[str, Stretch]] = []
    for number, (_, found, _) in enumerate(sides):
        key = None if not keys else keys[min(number, len(keys) - 1)]
        chosen.append(_choose(found, loader, key, "AB"[number]))
    names = [name for name in chosen[0] if name in chosen[1]]
    if keys and len(chosen[0]) == len(chosen[1]) == 1 and not names:
        names = [next(iter(chosen[0]))]
        chosen[1] = {names[0]: next(iter(chosen[1].values()))}
    made = []
    for name in names:
        samples = [_steps(side[0], pick[name]) for side, pick in zip(sides, chosen, strict=True)]
        flagged = [_flagged(side[2], pick[name]) for side, pick in zip(sides, chosen, strict=True)]
        made.append(_compared(name, [pick[name] for pick in chosen], samples, flagged, allowed, prices))
    for name in {**chosen[0], **chosen[1]}:
        if name not in names:
            where = "A" if name in chosen[0] else "B"
            made.append(_unknown(name, f"{name}: only in {where}, so there is nothing to compare it with."))
    return tuple(made)


def _choose(found: Sequence[Stretch], loader: str | None, key: str | None, where: str) -> dict[str, Stretch]:
    """One stretch of each loader, by the loaders' names."""
    own = [one for one in found if loader in (None, one.name)]
    if loader is not None and not own:
        names = ", ".join(dict.fromkeys(one.name for one in found)) or "none that stepped"
        raise MonitorError(f"{where} has no loader {loader!r}. Its loaders are: {names}.")
    if key is not None:
        own = [one for one in own if one.key == key]
        if not own:
            raise MonitorError(f"{where} has no stretch {key!r}. Its stretches are: {_keys(found)}.")
    best: dict[str, Stretch] = {}
    for one in own:
        known = best.get(one.name)
        if known is None or (not one.synthetic, one.steps) > (not known.synthetic, known.steps):
            best[one.name] = one
    return best


def _keys(found: Sequence[Stretch]) -> str:
    return ", ".join(f"{one.key} ({one.backend}, {one.steps:,} steps)" for one in found) or "none"


def _steps(snapshot: Snapshot, stretch: Stretch) -> npt.NDArray[Any]:
    rows = snapshot.steps.of(stretch.loader, stretch.start, stretch.end)
    kept: npt.NDArray[Any] = rows[(rows["flags"] & (WARM_UP | PROFILED)) == 0]
    return kept


def _flagged(epochs: Sequence[EpochCount], stretch: Stretch) -> list[str]:
    """Epochs that ended with less than their plan: what is under way is none."""
    return [
        f"epoch {one.epoch + 1} {one.problem}"
        for one in epochs
        if one.loader == stretch.loader and one.problem and one.planned is not None and "so far" not in one.problem
    ]


def _side(stretch: Stretch, steps: npt.NDArray[Any], price: float | None) -> Side:
    images, spent = int(steps["images"].sum()), float(steps["step"].astype(float).sum())
    p50, p95 = 1e3 * np.percentile(steps["step"].astype(float), [50, 95]) if len(steps) else (math.nan, math.nan)
    each = spent / images if images else spent / len(steps) if len(steps) else math.nan
    return Side(
        stretch=stretch.key,
        backend=stretch.backend,
        steps=len(steps),
        images=images,
        step=1e3 * spent / len(steps) if len(steps) else math.nan,
        p50=float(p50),
        p95=float(p95),
        wait=float(steps["wait"].astype(float).sum()) / spent if spent > 0 else math.nan,
        rate=images / spent if images and spent > 0 else math.nan,
        cost=math.nan if price is None else 1000 * cost_per_step(price, each),
    )


def _compared(
    name: str,
    pair: Sequence[Stretch],
    samples: Sequence[npt.NDArray[Any]],
    flagged: Sequence[Sequence[str]],
    allowed: float | None,
    prices: Prices,
) -> Comparison:
    per_hour = (prices.before, prices.after)
    before, after = (_side(one, steps, price) for one, steps, price in zip(pair, samples, per_hour, strict=True))
    caveats = [f"{'AB'[number]}: {words}" for number, some in enumerate(flagged) for words in some]
    caveats += [f"{'AB'[k]}: its batches were replayed (synthetic)" for k, one in enumerate(pair) if one.synthetic]
    counts = f"{before.steps:,} and {after.steps:,} steps"
    if min(before.steps, after.steps) < FEWEST_STEPS:
        sentence = f"{name}: {counts} are too few to compare; it takes {FEWEST_STEPS} of each, after the warm-up."
        return _unknown(name, sentence, before, after, tuple(caveats))
    per_image = before.images > 0 and after.images > 0
    slower, low, high = interval(*(_work(steps, per_image=per_image) for steps in samples))
    what = "an image takes" if per_image else "a step takes"
    share = f"{100 * abs(slower):.1f} % {'longer' if slower >= 0 else 'less'}"
    spread = f"99 % interval {100 * low:+.1f} to {100 * high:+.1f} %, {counts}"
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
        verdict = f"not surely more than the {100 * allowed:g} % that are allowed: the difference is within the spread"
    else:
        verdict = f"slower, and within the {100 * allowed:g} % that are allowed"
    sentence = f"{name}: {what} {share} in B ({spread}): {verdict}."
    return Comparison(name, before, after, slower, low, high, outcome, sentence, tuple(caveats))


def _unknown(
    name: str, sentence: str, before: Side | None = None, after: Side | None = None, caveats: tuple[str, ...] = ()
) -> Comparison:
    return Comparison(name, before, after, math.nan, math.nan, math.nan, "unknown", sentence, caveats)


def _work(steps: npt.NDArray[Any], *, per_image: bool) -> npt.NDArray[np.float64]:
    """float64[n, 2]: seconds and pieces of work of each step."""
    pieces = steps["images"] if per_image else np.ones(len(steps))
    return np.stack([steps["step"].astype(float), np.asarray(pieces, dtype=float)], axis=1)


def interval(before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Seconds per piece after, over those before, less 1; and the bounds of its middle 99 %.

    Args:
        before, after: float64[n, 2], seconds and pieces of each step, in the order of time.
    """
    rng = np.random.default_rng(SEED)
    drawn = []
    for steps in (before, after):
        blocks = min(BLOCKS[1], max(BLOCKS[0], round(math.sqrt(len(steps)))))
        sums = np.array([part.sum(axis=0) for part in np.array_split(steps, blocks)])
        picked = sums[rng.integers(0, blocks, (DRAWS, blocks))].sum(axis=1)
        drawn.append(picked[:, 0] / picked[:, 1])
    low, high = np.quantile(drawn[1] / drawn[0] - 1, [(1 - MIDDLE) / 2, (1 + MIDDLE) / 2])
    means = [steps[:, 0].sum() / steps[:, 1].sum() for steps in (before, after)]
    return float(means[1] / means[0] - 1), float(low), float(high)


def status(comparisons: Sequence[Comparison]) -> int:
    """The exit status: 1 if a loader became slower than allowed, 3 if none could be compared, else 0."""
    if any(one.outcome == "slower" for one in comparisons):
        return 1
    return 3 if all(one.outcome == "unknown" for one in comparisons) else 0


def table(comparisons: Sequence[Comparison], currency: str = "") -> str:
    """The comparison as text: a line for each side, then the sentences."""
    if not comparisons:
        return "Neither session has a loader that stepped: there is nothing to compare."
    head = ("", "stretch", "engine", "steps", "step", "p50", "p95", "waiting", "images/s", "per 1,000")
    lines: list[tuple[str, ...]] = [head]
    words = []
    for one in comparisons:
        sides = (("A", one.before), ("B", one.after))
        lines += [(which, *_cells(side, currency)) for which, side in sides if side is not None]
        words += [one.sentence, *(f"  but {caveat}" for caveat in one.caveats)]
    shown = [column for column in range(len(head)) if any(line[column] != "–" for line in lines[1:])]
    widths = {column: max(len(line[column]) for line in lines) for column in shown}
    text = ["  ".join(line[column].ljust(widths[column]) for column in shown).rstrip() for line in lines]
    return "\n".join([*(text if len(lines) > 1 else []), *words])


def _cells(side: Side, currency: str) -> tuple[str, ...]:
    def number(value: float, form: str, unit: str = "") -> str:
        return f"{value:{form}}{unit}" if math.isfinite(value) else "–"

    return (
        side.stretch,
        side.backend,
        f"{side.steps:,}",
        number(side.step, ",.1f", " ms"),
        number(side.p50, ",.1f", " ms"),
        number(side.p95, ",.1f", " ms"),
        number(100 * side.wait, ".0f", " %"),
        number(side.rate, ",.0f"),
        number(side.cost, ",.4g", f" {currency}" if currency else ""),
    )
