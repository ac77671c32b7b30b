"""The overlaid histograms of a row: how busy GPUs or cores were with each engine, as paths of an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 20
"""Of 5 % each: a window has some tens of samples."""
LEFT, RIGHT, HIGH, BASE = 34.0, 312.0, 8.0, 92.0  # edges of the frame, in units of the drawing
CLASSES = ("before", "after", "third", "fourth", "fifth", "sixth")
"""Of the style sheet, one for each engine."""


@dataclass(frozen=True)
class Side:
    """One engine of a histogram: the `path` of its outline, and how it is described."""

    engine: str
    style: str
    path: str
    samples: int
    mode: str


@dataclass(frozen=True)
class Drawn:
    """The histograms of a row; the highest bin has the share `top` of its samples."""

    row: str
    top: float
    sides: tuple[Side, ...]


def drawn(row: str, engines: Sequence[tuple[str, Sequence[dict[str, Any]]]], metric: str) -> Drawn | None:
    """The histograms of the engines of a row from the figures of their windows; None where nothing was measured."""
    shares = {engine: _joined(windows, metric) for engine, windows in engines}
    known = {engine: found for engine, found in shares.items() if found is not None}
    if not known:
        return None
    top = max(float(bins.max()) for bins, _ in known.values())
    sides = []
    for style, (engine, (bins, samples)) in zip(CLASSES, known.items(), strict=False):
        k = int(bins.argmax())
        mode = f"mostly {k * 100 // BINS} to {(k + 1) * 100 // BINS} %"
        sides.append(Side(engine, style, _path(bins, top, closed=style == CLASSES[0]), samples, mode))
    return Drawn(row, top, tuple(sides))


def _joined(windows: Sequence[dict[str, Any]], metric: str) -> tuple[Any, int] | None:
    """The shares of all windows together, in `BINS` bins, and how many samples they are of."""
    total, samples = np.zeros(BINS), 0
    for window in windows:
        bins, spread = window.get(f"{metric}_histogram"), window.get(metric)
        if not bins or not spread:
            continue
        # Bins of 2 % into wider ones: each goes where its middle lies.
        places = ((np.arange(len(bins)) + 0.5) * BINS / len(bins)).astype(int)
        np.add.at(total, places, np.asarray(bins) * spread["count"])
        samples += int(spread["count"])
    return (total / samples, samples) if samples else None


def _path(shares: Any, top: float, *, closed: bool) -> str:
    wide, high = (RIGHT - LEFT) / BINS, (BASE - HIGH) / top
    steps = "".join(f"V{BASE - share * high:.1f}H{LEFT + (k + 1) * wide:.1f}" for k, share in enumerate(shares))
    return f"M{LEFT} {BASE}{steps}V{BASE}{'Z' if closed else ''}"
