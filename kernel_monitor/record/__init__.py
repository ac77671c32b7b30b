"""The flight recorder: what is written while sampling, and how it is read after any crash.

`writer` and `places` run in the sampler and import nothing heavy; `reader` has NumPy.
"""

from __future__ import annotations
