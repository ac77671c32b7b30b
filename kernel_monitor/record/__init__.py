"""The flight recorder: writes a session's file while it is sampled, and reads it after any crash.

`format` describes the file. `writer` runs in the sampler process and imports nothing heavy; `reader` needs NumPy.

Internal: no part of the public interface.
"""

from __future__ import annotations
