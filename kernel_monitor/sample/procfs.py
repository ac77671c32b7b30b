"""The host's `/proc` and `/sys`: where they are, and the reading of their small files.

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
NOT_THERE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What `read` raises where the kernel has no such file, or does not show it to everybody."""
_PIECE = 1 << 14

if Path("/") != ROOT:
    psutil.PROCFS_PATH = str(PROC)


def read(path: str) -> bytes:
    """The whole file, in a third of the time of `Path.read_bytes`: some are read by the hundred each second.

    Raises a ProcessLookupError if the file was of a process that has ended.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        data = os.read(file, _PIECE)
        while piece := os.read(file, _PIECE):  # a read may give less than there is
            data += piece
        return data
    finally:
        os.close(file)


def why_not(path: object) -> str:
    """Why a file cannot be read, in words; empty where it can."""
    try:
        read(str(path))
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return ""


def numbers(text: str) -> list[int]:
    """The numbers of a list as Linux writes it: `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found += range(int(first), int(last or first) + 1)
    return found
