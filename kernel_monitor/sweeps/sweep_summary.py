"""A sweep in words: as data for `--json`, as a table for a terminal, and in one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.results import plain
from ..analysis.segments import REPLAYS
from ..output import write
from ..report.formats import count, moment, money, number, percent, plural, zone
from ..report.page import STYLE, fill_page
from ..report.privacy import cleaned
from .presets import PRESETS, PUBLISHED
from .sweep_file import PAGE
from .table_cells import Cell, Drawn, Figures, cells, drawn, signs


def summary(content: Mapping[str, Any], price: float | None = None, currency: str = "") -> dict[str, Any]:
    """Return what is in `sweep.json`, with the cells that it gives, as JSON-able values without any folder."""
    found = cells(content, price)
    right, judged = signs(found)
    made = {
        **{key: value for key, value in content.items() if key != "passes"},
        "sentence": sentence(found),
        "price": price,
        "currency": currency,
        "signs": {"right": right, "judged": judged},
        "cells": [cell.to_json() for row in found for cell in row],
        "passes": len(content["passes"]),
        "passes_planned": len(content["grid"]["rows"]) * content["grid"]["passes"],
    }
    return dict(plain(cleaned(made)))


def failed(found: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Return the cells that were not measured."""
    return [cell for row in found for cell in row if cell.problem is not None]


def sentence(found: Sequence[Sequence[Cell]]) -> str:
    """Return the result in one sentence: the largest saving of an engine, and the largest loss."""
    known = [cell for row in found for cell in row if math.isfinite(cell.saved) and cell.engine != REPLAYS]
    if not known:
        return "No two engines of a row were measured yet."
    first = {cell.row: row[0] for row in found for cell in row}
    best, worst = max(known, key=lambda cell: cell.saved), min(known, key=lambda cell: cell.saved)
    words: list[str] = []
    for cell, share, what in ((best, best.saved, "saves {} of {}’s time"), (worst, -worst.saved, "takes {} longer")):
        if share > cell.noise:
            base, same = first[cell.row], words and cell.engine == best.engine
            change = what.format(percent(share), base.engine)
            words.append(
                f"{'it' if same else cell.engine} {change} in {cell.row} "
                f"({number(base.epoch)} → {number(cell.epoch)} s per epoch)"
            )
    return f"{'; '.join(words)}." if words else "No engine is faster or slower than the first beyond the noise."


def _said_of_signs(found: Sequence[Sequence[Cell]]) -> str | None:
    """Return in how many cells the predicted sign was right, and in how many there was a change at all."""
    right, judged = signs(found)
    if not judged:
        return None
    changed = sum(cell.sign_right is not None and abs(cell.saved) > cell.noise for row in found for cell in row)
    return (
        f"The predicted sign of the change was right in {right} of {plural(judged, 'cell')}; in {changed} of them the "
        "change was beyond the noise."
    )


def table(content: Mapping[str, Any], price: float | None = None, currency: str = "") -> str:
    """Return the table for a terminal: each cell with its seconds per epoch, what was delivered and what it saves."""
    found = cells(content, price)
    head = [
        "",
        "engine",
        "s/epoch",
        "images/s",
        "delivered",
        "batches",
        "saved",
        "noise",
        "wait",
        "own work",
        "predicted",
    ]
    if price is not None:
        head.append("cost/epoch")
    lines = [head]
    for row in found:
        for place, cell in enumerate(row):
            name = cell.row if place == 0 else ""
            if not cell.rates:
                lines.append([name, cell.engine, f"not measured: {cell.problem}"])
                continue
            delivered = f"{count(cell.replaced)} replayed" if cell.replaced else count(cell.samples)
            line = [
                name, cell.engine, number(cell.epoch), number(cell.rate), delivered, count(cell.batches),
                percent(cell.saved) if place else "", percent(cell.noise) if place else "",
                f"{number(cell.wait)} ms", f"{number(cell.own_work)} ms", predicted(cell) if place else "",
            ]  # fmt: skip
            lines.append([*line, *([money(cell.cost, currency)] if price is not None else [])])
    widths = [max(len(line[k]) for line in lines if len(line) == len(head)) for k in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]
    return "\n".join([*text, "", *closing(content, found)])


def closing(content: Mapping[str, Any], found: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the sentences below the table: result, predicted signs, and what failed."""
    lines = [sentence(found)]
    if (exact := exactness(content, found)) is not None:
        lines.append(exact)
    if (said := _said_of_signs(found)) is not None:
        lines.append(said)
    return lines


def exactness(content: Mapping[str, Any], found: Sequence[Sequence[Cell]]) -> str | None:
    """Return how exact the quick form is; None of a full sweep."""
    grid = content["grid"]
    if not grid.get("quick"):
        return None
    window = plural(grid["epochs"], "epoch") if grid["epochs"] else f"{grid['seconds']:g} s"
    words = f"This is the quick form: {plural(grid['passes'], 'measurement')} of {window} for each engine of a row."
    known = sorted(cell.noise for row in found for cell in row if math.isfinite(cell.noise))
    if known:
        low, high = (number(100 * share) for share in (known[0], known[-1]))
        span = low if low == high else f"{low} to {high}"
        words += f" Its savings are exact to ± {span} percentage points (the column noise)."
    return f"{words} More exact: --full, in Python full=True."


def predicted(cell: Cell) -> str:
    """Return words such as `12 to 31 %, right`; `-` where nothing was predicted."""
    if not (math.isfinite(cell.low) and math.isfinite(cell.high)):
        return "-"
    words = f"{percent(cell.low).removesuffix(' %')} to {percent(cell.high)}"
    return words if cell.sign_right is None else f"{words}, {'right' if cell.sign_right else 'wrong'}"


# ---- The page of a sweep: one HTML file without a script, which asks nothing of the network.

HERE = Path(__file__).parent
_OWN_TITLE = "A sweep of your own loop"


def write_page(folder: Path, content: dict[str, Any], price: float | None, currency: str) -> Path:
    """Write the page into the sweep's folder. Raises MonitorError if the disk does not take it."""
    return write(folder / PAGE, render(content, price, currency))


def render(content: dict[str, Any], price: float | None = None, currency: str = "") -> str:
    """Return the page of what a `sweep.json` holds, freed of folders and of names of users."""
    content = cleaned(content)
    grid = content["grid"]
    found = cells(content, price)
    return fill_page(
        "sweep",
        [STYLE, HERE / "sweep.css"],
        folder=HERE / "templates",
        version=content["versions"]["kernel-monitor"],
        title=PRESETS.get(grid["preset"], _OWN_TITLE),
        grid=grid,
        began=moment(content["began"], zone(content["began"])),
        machine=content["machine"],
        versions=content["versions"],
        sentence=sentence(found),
        signs=_said_of_signs(found),
        exact=exactness(content, found),
        failed=failed(found),
        rows=found,
        engines=_engines(found),
        longest=max((cell.epoch for row in found for cell in row if math.isfinite(cell.epoch)), default=1.0),
        ceiling=any(math.isfinite(cell.ceiling) for row in found for cell in row),
        replays=REPLAYS,
        price=price,
        currency=currency,
        histograms=_histograms(found),
        on_gpu=_on_gpu(found),
        spread=_spread,
        predicted=predicted,
        slower=_slower(found),
        rules=_rules(found),
        published=PUBLISHED.get(grid["preset"]),
        planned=len(grid["rows"]) * grid["passes"],
        passes=content["passes"],
    )


def _engines(found: Sequence[Sequence[Cell]]) -> list[str]:
    """Return all engines, those of the first row first."""
    return list(dict.fromkeys(cell.engine for row in found for cell in row))


def _on_gpu(found: Sequence[Sequence[Cell]]) -> bool:
    return any(window.get("gpu_histogram") for row in found for cell in row for window in cell.windows)


def _histograms(found: Sequence[Sequence[Cell]]) -> list[Drawn]:
    """Return the utilisation of the GPUs in each row (of the cores where there is none), all engines over each
    other.
    """
    metric = "gpu" if _on_gpu(found) else "cpu"
    made = [drawn(row[0].row, [(cell.engine, cell.windows) for cell in row if cell.windows], metric) for row in found]
    return [one for one in made if one is not None]


def _spread(cell: Cell, metric: str, quantile: str) -> float:
    """Return a percentile of a metric, the mean over the passes; NaN where it was not measured."""
    known = [window[metric][quantile] for window in cell.windows if window.get(metric)]
    return sum(known) / len(known) if known else math.nan


def _slower(found: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Cells in which the engine takes more of the training's own steps than the noise does."""
    return [cell for row in found for cell in row[1:] if cell.slower > cell.noise and cell.engine != REPLAYS]


def _rules(found: Sequence[Sequence[Cell]]) -> list[tuple[Figures, list[Cell]]]:
    """Return every rule that fired, with the cells in which it did."""
    fired: dict[str, tuple[Figures, list[Cell]]] = {}
    for row in found:
        for cell in row:
            for rule in cell.rules:
                fired.setdefault(str(rule["rule"]), (rule, []))[1].append(cell)
    return sorted(fired.values(), key=lambda one: (one[0]["severity"] != "critical", -len(one[1])))
