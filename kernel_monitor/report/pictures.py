"""Small pictures as SVG in the page: there before any script runs, printed as they are, each with its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .markup import Html, el

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARTS = {
    "wait": "data wait",
    "copy": "copy to device",
    "compute": "compute",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
"""The parts of a step in the order in which they are drawn; each has a colour of its name in `page.css`."""
LETTER, NARROW = 6.4, 640
"""Pixels of a letter, and of the narrowest bar whose parts are named in it (narrower screens leave the names out)."""
MOST_SHARES = 3
"""Bars whose shares stand with the colours; those of more are in a table."""
HIGH, LEFT, BASE, WIDE = 14.0, 44.0, 168.0, 660.0
"""Of the histogram, in its own units: top and left edge of its frame, its base, its width with the margins."""


def bar(shares: Mapping[str, float], words: str) -> Html:
    """A bar cut into parts of these shares (0 to 1, in all at most 1), each named where it has room.

    Args:
        shares: by the names of `PARTS`.
        words: what a screen reader says in place of the picture.
    """
    pieces, at = [], 0.0
    for part, name in PARTS.items():
        share = max(shares.get(part, 0.0), 0.0)
        if share <= 0:
            continue
        text = f"{name} {100 * share:.0f} %"
        box = {"x": f"{100 * at:.3f}%", "width": f"{100 * share:.3f}%"}
        pieces.append(el("rect", el("title", text), **box, y="0", height="26", class_=f"part {part}"))
        if NARROW * share > LETTER * len(text) + 16:
            middle = f"{100 * (at + share / 2):.3f}%"
            pieces.append(el("text", text, x=middle, y="17.5", text_anchor="middle", aria_hidden="true"))
        at += share
    return el("svg", *pieces, class_="bar", width="100%", height="26", role="img", aria_label=words)


def key(sides: Sequence[Mapping[str, float]]) -> Html:
    """The colours of the parts, with their shares in each bar one after the other."""
    entries = []
    for part, name in PARTS.items():
        shares = [side.get(part, 0.0) for side in sides]
        if any(share > 0 for share in shares):
            figures = " → ".join(f"{100 * share:.0f} %" for share in shares) if len(shares) <= MOST_SHARES else ""
            box = el("rect", width="12", height="12", class_=f"part {part}")
            swatch = el("svg", box, class_="swatch", width="12", height="12", aria_hidden="true")
            entries.append(el("li", swatch, f"{name} {figures}".strip()))
    return el("ul", *entries, class_="key")


def histograms(sides: Sequence[tuple[str, Sequence[float]]], words: str) -> Html:
    """One or two histograms of 50 bins from 0 to 100 % over each other: the first filled, the second as a line.

    Args:
        sides: name and shares (0 to 1) of each.
        words: what a screen reader says in place of the picture.
    """
    top = max((max(shares) for _, shares in sides), default=0.0) or 1.0
    right, deep = WIDE - 24.0, BASE - HIGH
    grid = []
    for share in (0.0, 0.5, 1.0):
        y = BASE - share * deep
        grid.append(el("path", d=f"M{LEFT:g} {y:.1f}H{right:g}", class_="grid"))
        grid.append(el("text", f"{100 * share * top:.0f} %", x=f"{LEFT - 6:g}", y=f"{y + 4:.1f}", text_anchor="end"))
    for percent in range(0, 101, 20):
        x = LEFT + percent / 100 * (right - LEFT)
        grid.append(el("text", f"{percent} %", x=f"{x:.1f}", y=f"{BASE + 16:g}", text_anchor="middle"))
    shapes = []
    for k, (_, shares) in enumerate(sides[:2]):
        path = _steps(shares, top, right, deep)
        if k == 0:
            shapes.append(el("path", d=f"M{LEFT:g} {BASE:g}{path}V{BASE:g}Z", class_="before"))
        else:
            shapes.append(el("path", d=f"M{LEFT:g} {BASE:g}{path}V{BASE:g}", class_="after"))
    return el(
        "svg", *grid, *shapes, class_="histogram", viewBox=f"0 0 {WIDE:g} {BASE + 22:g}", role="img", aria_label=words
    )


def _steps(shares: Sequence[float], top: float, right: float, deep: float) -> str:
    """The outline of a histogram, from the left to the right."""
    wide = (right - LEFT) / max(len(shares), 1)
    return "".join(f"V{BASE - share / top * deep:.1f}H{LEFT + (k + 1) * wide:.1f}" for k, share in enumerate(shares))
