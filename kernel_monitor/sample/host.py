"""Facts about the machine that do not change."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import psutil


def facts() -> dict[str, Any]:
    """`cpu_model`, `logical_cpus`, `memory_total` (bytes) and `platform` of this machine."""
    return {
        "cpu_model": _cpu_model(),
        "logical_cpus": psutil.cpu_count(logical=True),
        "memory_total": psutil.virtual_memory().total,
        "platform": platform.system(),
    }


def _cpu_model() -> str:
    if sys.platform.startswith("linux"):
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    return platform.processor() or platform.machine()
