"""The sampler: a process that measures the machine's load and sends a frame of values at each deadline.

`python -m kernel_monitor.sample` is that process: `loop` keeps its deadlines, `frame_builder` puts the frames together,
and `host/` and `gpu/` hold the probes. `sampler_client` starts and reads it in the kernel. Both sides share `pipes` and
`clock`.

Internal: no part of the public interface.
"""

from __future__ import annotations
