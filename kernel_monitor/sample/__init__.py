"""The measurements of the machine, by a process of its own: the sampler.

`python -m kernel_monitor.sample` is that process (`loop` keeps its deadlines, `host/` and `gpu/` are its probes);
`sampler_client` is the kernel's half. They share `messages`, `pipes` and `clock`.
"""

from __future__ import annotations
