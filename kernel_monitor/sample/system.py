"""Where the host's `/proc` and `/sys` are found.

In a container that is to show its host, these are mounted elsewhere; the environment variable `KERNEL_MONITOR_ROOT`
names the folder that holds them. What concerns processes by their number (the kernel's end, its process tree, its
limits) is always read from this process's own `/proc`, where these numbers are valid.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

ROOT = Path(os.environ.get("KERNEL_MONITOR_ROOT") or "/")
PROC = ROOT / "proc"
SYS = ROOT / "sys"
LINUX = sys.platform.startswith("linux")

if Path("/") != ROOT:
    psutil.PROCFS_PATH = str(PROC)
