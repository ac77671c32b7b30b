"""Facts about the machine that do not change."""

from __future__ import annotations

import platform
from typing import Any

import psutil

from ..system import LINUX, PROC


def facts() -> dict[str, Any]:
    """`cpu_model`, `logical_cpus`, `memory_total` (bytes) and `platform` of this machine."""
    return {
        "cpu_model": _cpu_model(),
        "logical_cpus": psutil.cpu_count(logical=True) if not LINUX else _cores(),
        "memory_total": psutil.virtual_memory().total,
        "platform": platform.system(),
    }


def _cpu_model() -> str:
    if LINUX:
        with (PROC / "cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """How many are online; psutil asks the C library, which knows no other root."""
    with (PROC / "stat").open("rb") as file:
        return sum(line.startswith(b"cpu") and not line.startswith(b"cpu ") for line in file)
