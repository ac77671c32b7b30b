"""CPU: one row per logical core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .heatmap import heatmap, row_height

if TYPE_CHECKING:
    from bokeh.plotting import figure

    from ..store import Schema
    from .style import Page


def cpu(schema: Schema, page: Page) -> figure | None:
    """How busy each logical core is, in %; None before the sampler has said which cores there are."""
    cores = schema.cpus
    if not cores:
        return None
    return heatmap(
        page,
        name="cpu",
        title="CPU busy, % per core",
        rows=[f"cpu/{core}/busy" for core in cores],
        labels=[f"core {core}" for core in cores],
        inner_height=len(cores) * row_height(len(cores)),
    )
