"""Training with frameworks, unmodified, beside the monitor: what is measured, and when a click takes effect.

The scripts of `scripts/` are run by `running.py`, once as they are and once beside the monitor, where `beside.py`
clicks from a thread of its own; `training.py` is what they share. Each test asserts a row of `table.py`, from which the
table of docs/howto/frameworks.md is written. First: test_lightning.py.
"""
