"""Tests of frameworks' unmodified trainings while the monitor runs: what is measured, when a click takes effect.

`script_runs.py` runs each script of `scripts/` alone and with the monitor; with it, `monitored_run.py` clicks from a
thread of its own. `training.py` has the data, the model and the record of steps that the scripts share. Each test
asserts a row of `table.py`, from which the table of docs/howto/frameworks.md is written. First: test_lightning.py.
"""
