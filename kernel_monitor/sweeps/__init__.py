"""Sweeps: a grid of models, augmentation loads, engines and knobs, measured in one process and shown on one page.

Optional: see `kernel_monitor.plugins`. In: a preset and a folder of images, or the `switchable` loader and the step of
a notebook. Out: a folder with `sweep.json`, `index.html` and the recordings. Read `presets.py` first (what is
measured), then `sweep_command.py` (the entry), `sweep_run.py` (in which order), `training.py` (a window),
`sweep_file.py` (what is kept) and `table_cells.py` (what is shown of it).

Internal: no part of the public interface.
"""
