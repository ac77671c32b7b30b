"""Figures as text: the one place that rounds what a strip, a sentence, a report or an offer says of the same value."""

from __future__ import annotations

import math

FEW = 9.95  # below it, one decimal is shown
LEAST = 0.05  # below it, 0 is shown
ALIKE = 0.05  # two rates this close to each other are called alike


def figure(value: float) -> str:
    """`1,280`, `27` or `5.3`: of images/s, of ms, of %, of s; `–` where it is not known."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= FEW or abs(value) < LEAST else f"{value:.1f}"


def rounded(value: float) -> float:
    """The value of its `figure`: a page that formats it shows the same digits."""
    return float(figure(value).replace(",", "")) if math.isfinite(value) else math.nan


def percent(share: float) -> str:
    """`82` of 0.82: without the sign, for `82 → 74 %`."""
    return f"{100 * share:.0f}" if math.isfinite(share) else "–"


def factor(ratio: float) -> str:
    """`1.48 × faster` of 1.48, `2.00 × slower` of 0.5, `about as fast, 1.01 ×` of 1.01."""
    if not math.isfinite(ratio) or ratio <= 0:
        return "–"
    if abs(ratio - 1) < ALIKE:
        return f"about as fast, {ratio:.2f} ×"
    return f"{ratio:.2f} × faster" if ratio > 1 else f"{1 / ratio:.2f} × slower"


def amount(samples: float, seconds: float, unit: str = " images", space: str = " ") -> str:
    """`3,264 images in 11 s`."""
    return f"{samples:,.0f}{unit} in {figure(seconds) if seconds < FEW else f'{seconds:,.0f}'}{space}s"
