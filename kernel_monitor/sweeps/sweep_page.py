"""The page of a sweep: one HTML file without a script, which asks nothing of the network.

Its templates are in `templates`, beside those of the report, whose macros, filters and style it uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader
from markupsafe import Markup

from ..analysis.switches import REPLAYS
from ..output import write
from ..report.formats import moment, zone
from ..report.page import STYLE, TEMPLATES, environment
from ..report.privacy import cleaned
from .histograms import Drawn, drawn
from .presets import PRESETS
from .published import PUBLISHED
from .sweep_file import PAGE
from .sweep_summary import exactness, failed, predicted, said_of_signs, sentence
from .table_cells import Cell, Figures, cells

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
OWN_TITLE = "A sweep of your own loop"


def write_page(folder: Path, content: dict[str, Any], price: float | None, currency: str) -> Path:
    """Write the page into the sweep's folder. Raises MonitorError if the disk does not take it."""
    return write(folder / PAGE, render(content, price, currency))


def render(content: dict[str, Any], price: float | None = None, currency: str = "") -> str:
    """The page of what a `sweep.json` holds, freed of folders and of names of users."""
    content = cleaned(content)
    grid = content["grid"]
    found = cells(content, price)
    templates = environment().overlay(loader=FileSystemLoader([HERE / "templates", TEMPLATES]))
    return templates.get_template("sweep.html").render(
        policy=POLICY,
        style=Markup(STYLE.read_text("utf-8") + (HERE / "sweep.css").read_text("utf-8")),  # noqa: S704 - our own
        title=PRESETS.get(grid["preset"], OWN_TITLE),
        grid=grid,
        began=moment(content["began"], zone(content["began"])),
        machine=content["machine"],
        versions=content["versions"],
        sentence=sentence(found),
        signs=said_of_signs(found),
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
        empty=content.get("empty_epoch"),
        published=PUBLISHED.get(grid["preset"]),
        planned=len(grid["rows"]) * grid["passes"],
        passes=content["passes"],
    )


def _engines(found: Sequence[Sequence[Cell]]) -> list[str]:
    """All engines, those of the first row first."""
    return list(dict.fromkeys(cell.engine for row in found for cell in row))


def _on_gpu(found: Sequence[Sequence[Cell]]) -> bool:
    return any(window.get("gpu_histogram") for row in found for cell in row for window in cell.windows)


def _histograms(found: Sequence[Sequence[Cell]]) -> list[Drawn]:
    """Of each row the utilisation of the GPUs, of the cores where there is none, all engines over each other."""
    metric = "gpu" if _on_gpu(found) else "cpu"
    made = [drawn(row[0].row, [(cell.engine, cell.windows) for cell in row if cell.windows], metric) for row in found]
    return [one for one in made if one is not None]


def _spread(cell: Cell, metric: str, quantile: str) -> float:
    """A percentile of a metric, the mean over the passes; NaN where it was not measured."""
    known = [window[metric][quantile] for window in cell.windows if window.get(metric)]
    return sum(known) / len(known) if known else math.nan


def _slower(found: Sequence[Sequence[Cell]]) -> list[Cell]:
    """Cells in which the engine takes more of the training's own steps than the noise does."""
    return [cell for row in found for cell in row[1:] if cell.slower > cell.noise and cell.engine != REPLAYS]


def _rules(found: Sequence[Sequence[Cell]]) -> list[tuple[Figures, list[Cell]]]:
    """Every rule that fired, with the cells in which it did."""
    fired: dict[str, tuple[Figures, list[Cell]]] = {}
    for row in found:
        for cell in row:
            for rule in cell.rules:
                fired.setdefault(str(rule["rule"]), (rule, []))[1].append(cell)
    return sorted(fired.values(), key=lambda one: (one[0]["severity"] != "critical", -len(one[1])))
