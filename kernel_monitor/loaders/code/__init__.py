"""Writes a loader that DALI can serve as a Python file of its own, which needs DALI and torchvision, not this package.

In: the `Setting` of a switchable loader. Out: the file's text. First: `standalone.py`, which puts the file together.
`graph.py` writes DALI's operators, `draws.py` the code that draws their inputs; `expressions.py` finds where the data
set keeps files and labels; `comparison.py` runs the file and compares its batches with the data set's own.

Internal: no part of the public interface.
"""

from __future__ import annotations

from .comparison import compared, uncompared

__all__ = ["compared", "uncompared"]
