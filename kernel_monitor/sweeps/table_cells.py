"""The cells of a sweep's table, from its passes: what each engine delivered, saved, cost, and was expected to save."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..analysis.cost import cost_per_step
from ..analysis.decision import CLEAR
from ..analysis.switches import REPLAYS

Figures = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One engine in one row, over all its passes; what is not known is NaN, None or empty.

    Attributes:
        problem: why it was not measured; the figures are then those of the passes that were.
        seconds, steps, batches, samples, replaced: of all windows together.
        rate: images/s really delivered (of `synthetic`: replayed); `rates` by pass.
        epoch: s for as many images as the data set has: measured where `whole`, else from the rate.
        saved: share of the time of the row's first engine that it saves; negative: it takes longer.
        noise: what of `saved` is within the noise, see `noise_of`.
        ceiling: share of the rate of `synthetic`, where that was measured.
        wait, step, own_work: ms, means over the steps; `own_work` is the step without its wait.
        slower: by how much the own work takes longer than with the row's first engine, a share.
        low, high: of the share that was expected to be saved; `sign_right` as `sign_right` has it.
        cost: of an epoch, at the price of an hour.
        windows: the figures of each pass.
    """

    row: str
    engine: str
    problem: str | None = None
    seconds: float = 0.0
    steps: int = 0
    batches: int = 0
    samples: int = 0
    replaced: int = 0
    decoded: dict[str, int] = field(default_factory=dict)
    rate: float = math.nan
    rates: tuple[float, ...] = ()
    epoch: float = math.nan
    whole: bool = False
    saved: float = math.nan
    noise: float = math.nan
    ceiling: float = math.nan
    wait: float = math.nan
    step: float = math.nan
    own_work: float = math.nan
    slower: float = math.nan
    low: float = math.nan
    high: float = math.nan
    basis: str = ""
    sign_right: bool | None = None
    cost: float = math.nan
    kind: str | None = None
    sentence: str | None = None
    rules: tuple[Figures, ...] = ()
    windows: tuple[Figures, ...] = ()

    def to_json(self) -> Figures:
        return {name: value for name, value in asdict(self).items() if name != "windows"}


def cells(content: Mapping[str, Any], price: float | None = None) -> list[list[Cell]]:
    """The cells of each row, in the order of the grid; of rows that were not measured yet, cells without figures."""
    grid = content["grid"]
    return [_row(row, content, int(grid["images"]), price) for row in grid["rows"]]


def _row(row: Mapping[str, Any], content: Mapping[str, Any], images: int, price: float | None) -> list[Cell]:
    passes = [one for one in content["passes"] if one["row"] == row["name"]]
    engines = list(row["engines"])
    windows = {engine: [one["windows"][engine] for one in passes] for engine in engines}
    good = {engine: [one for one in found if "problem" not in one] for engine, found in windows.items()}
    ceiling = _rate(good.get(REPLAYS, []))
    predicted: Figures = next((one["predicted"] for one in passes if one["predicted"]), {})
    made = []
    for engine in engines:
        known, rate = good[engine], _rate(good[engine])
        problem = next((one["problem"] for one in windows[engine] if "problem" in one), None)
        if not passes:
            problem = "not measured yet"
        cell: Figures = {"row": row["name"], "engine": engine, "problem": problem}
        if known:
            base = good[engines[0]]
            saved = _saved(_rate(base), rate) if engine != engines[0] else math.nan
            noise = noise_of(base, known) if engine != engines[0] else math.nan
            whole = all(one["epochs"] for one in known)
            epoch = (
                sum(one["seconds"] for one in known) / sum(one["epochs"] for one in known) if whole else images / rate
            )
            own, first = _mean(known, "own_work"), _mean(base, "own_work")
            said = predicted.get(engine) or {}
            low, high = _number(said.get("low")), _number(said.get("high"))
            decoded: dict[str, int] = {}
            for one in known:
                for name, count in one["decoded"].items():
                    decoded[name] = decoded.get(name, 0) + count
            cell |= {
                **{name: sum(one[name] for one in known) for name in
                   ("seconds", "steps", "batches", "samples", "replaced")},
                "decoded": decoded,
                "rate": rate,
                "rates": tuple(one["rate"] for one in known),
                "epoch": epoch,
                "whole": whole,
                "saved": saved,
                "noise": noise,
                "ceiling": rate / ceiling if ceiling > 0 else math.nan,
                **{name: _mean(known, name) for name in ("wait", "step")},
                "own_work": own,
                "slower": own / first - 1 if engine != engines[0] and first > 0 else math.nan,
                "low": low,
                "high": high,
                "basis": str(said.get("basis") or ""),
                "sign_right": sign_right(low, high, saved, noise),
                "cost": math.nan if price is None else cost_per_step(price, epoch),
                "kind": known[-1].get("kind"),
                "sentence": known[-1].get("sentence"),
                "rules": tuple({rule["rule"]: rule for one in known for rule in one.get("rules", ())}.values()),
                "windows": tuple(known),
            }  # fmt: skip
        made.append(Cell(**cell))
    return made


def noise_of(base: Sequence[Figures], other: Sequence[Figures]) -> float:
    """What of a saving is within the noise: a share of the time.

    Each pass has measured the saving once. Twice the standard error of their mean (the sample's standard deviation over
    the root of the count) is what the machine's own changes make of it; at least `decision.CLEAR`, below which no
    engine is called faster, and that where there is one pass.
    """
    savings = [_saved(one["rate"], two["rate"]) for one, two in zip(base, other, strict=False)]
    if not savings:
        return math.nan
    return max(CLEAR, 2 * statistics.stdev(savings) / math.sqrt(len(savings)) if len(savings) > 1 else 0.0)


def sign_right(low: float, high: float, saved: float, noise: float) -> bool | None:
    """Whether the predicted sign of a change is the measured one; None where one of them is not known.

    The predicted sign is that of the middle of the interval `low` to `high`, the measured one that of `saved`. What
    is within the noise is no change, in both. Where one of them is no change and the other is not, the prediction was
    right if what was measured lies in its interval, which the noise widens.
    """
    if not all(map(math.isfinite, (low, high, saved, noise))):
        return None
    said, came = (0 if abs(one) <= noise else math.copysign(1, one) for one in ((low + high) / 2, saved))
    return said == came or (0 in (said, came) and low - noise <= saved <= high + noise)


def signs(found: Sequence[Sequence[Cell]]) -> tuple[int, int]:
    """How many predicted signs were right, and how many there were to judge."""
    known = [cell.sign_right for row in found for cell in row if cell.sign_right is not None]
    return sum(known), len(known)


def ratios(content: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """The rate of each engine over that of its row's first, by row and engine."""
    found = {}
    for row in cells(content):
        for cell in row[1:]:
            if row[0].rate > 0 and math.isfinite(cell.rate):
                found[cell.row, cell.engine] = cell.rate / row[0].rate
    return found


def _rate(windows: Sequence[Figures]) -> float:
    """Images/s of some windows together; NaN of none."""
    seconds = sum(one["seconds"] for one in windows)
    return sum(one["samples"] + one["replaced"] for one in windows) / seconds if seconds > 0 else math.nan


def _saved(before: float, after: float) -> float:
    return 1 - before / after if after > 0 else math.nan


def _mean(windows: Sequence[Figures], name: str) -> float:
    """Of a figure in ms, weighted by the steps that it is the mean of."""
    known = [(one[name], one["timed_steps"]) for one in windows if one.get(name) is not None and one.get("timed_steps")]
    steps = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / steps if steps else math.nan


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
