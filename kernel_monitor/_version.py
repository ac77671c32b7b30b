"""The version, where every layer may read it, and the names of the packages that bring DALI.

``package.json`` holds the same version as npm writes it: 1.0.0-rc.1 there is 1.0.0rc1 here.
"""

from __future__ import annotations

__version__ = "1.0.0rc1"

DALI_PACKAGES = ("nvidia-dali-cuda120", "nvidia-dali-cuda130")
"""By the CUDA that they are made for. Each brings the module `nvidia.dali`, so at most one of them is installed."""
