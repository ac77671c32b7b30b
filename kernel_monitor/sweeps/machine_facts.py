"""Machine and versions of a sweep, as they stand in its file and on its page: no name of a host or a user."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from .._version import __version__
from ..os_process import usable_cores
from ..sample.host import facts as host

PACKAGES = ("torch", "torchvision", "pillow", "nvidia-dali-cuda120")


def machine_facts() -> dict[str, Any]:
    """`machine` (processor, cores, memory in bytes, system, GPU or None) and `versions`."""
    import torch

    found = host.facts()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"kernel-monitor": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "machine": {
            "processor": found["cpu_model"],
            "cores": found["logical_cpus"],
            "usable_cores": usable_cores(),
            "memory": found["memory_total"],
            "system": found["platform"],
            "gpu": gpu,
        },
        "versions": versions,
    }
