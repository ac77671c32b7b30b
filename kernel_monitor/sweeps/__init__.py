"""Sweeps: a grid of models, augmentation loads, engines and knobs, measured in one process and shown on one page.

In: a preset and a folder of images, or the `switchable` loader and the step of a notebook. Out: a folder with
`sweep.json`, `index.html` and the recordings. Read `grid.py` first (what is measured), then `sweep_run.py` (in which
order), `training_loop.py` (a window), `sweep_file.py` (what is kept) and `table_cells.py` (what is shown of it).
"""

from __future__ import annotations

from .sweep_command import sweep

__all__ = ["sweep"]
