"""What makes a switchable loader fit into a framework; one file per framework.

`distributed` shares the samples out among the ranks of a `torch.distributed` process group; `accelerate` lets
accelerate's functions, and with them Transformers' Trainer, hand on the loader itself instead of a copy; `samplers`
refuses, when it is iterated, a copy that another framework has made.

These know torch and the framework, never a loader: `kernel_monitor.loaders` calls them.
"""

from __future__ import annotations
