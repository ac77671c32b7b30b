"""What makes a switchable loader fit into a framework; one file per framework.

`distributed` shares the samples out among the ranks of a `torch.distributed` process group; `accelerate` lets
accelerate's functions, and with them Transformers' Trainer, hand on the loader itself instead of a copy; `samplers`
is the net beneath: a copy that some other framework makes says so when it is iterated.

These know torch and the framework, never a loader: `kernel_monitor.loaders` calls them.
"""

from __future__ import annotations
