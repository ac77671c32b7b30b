"""The identity of this process: its rank, its job and its GPU."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ..os_process import start_of
from .rank_frames import KEY, Identity

# ---- Which rank of which job this process is, from its environment and torch's process group.


_groups: dict[int, tuple[int, int]] = {}
"""Rank and size of the last process group, by process: it is often destroyed before the process ends."""


def own() -> Identity:
    """Return the identity of this process now: a process group may come later."""
    pid, parent = os.getpid(), os.getppid()
    rank, world = ranks_of(os.environ)
    group = _group()
    if group is not None:
        _groups[pid] = group
    if pid in _groups:
        rank, world = _groups[pid]
    return Identity(
        host=host_key(),
        name=platform.node() or "unnamed",
        pid=pid,
        start=_start(pid),
        parent=parent,
        rank=rank,
        world=world,
        job=job_of(os.environ, parent),
    )


def ranks_of(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return RANK (or LOCAL_RANK) and WORLD_SIZE."""
    found = [environment.get(name, "") for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
    rank, local, world = (int(text) if text.isdecimal() and len(text) < 8 else None for text in found)
    return (local if rank is None else rank), world


def job_of(environment: Mapping[str, str], parent: int) -> str:
    """Return what all ranks of a job have in common, and keep when they are started again.

    The run's name where torchrun has one, as an elastic job meets at another port after each restart; else the address
    at which they meet, else the process that started them.
    """
    run, port = environment.get("TORCHELASTIC_RUN_ID", ""), environment.get("MASTER_PORT")
    if run not in ("", "none"):  # torchrun's names for no name
        return f"run {run}"[:KEY]
    if port:
        return f"{environment.get('MASTER_ADDR', '')}:{port}"[:KEY]
    return f"{host_key()} {parent}"


@cache
def host_key() -> str:
    """Return an id of this machine's boot and, in a container, of its process numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux: process numbers are the machine's
        return platform.node()


@cache
def _start(pid: int) -> float:
    return start_of(pid) or 0.0


def _group() -> tuple[int, int] | None:
    """Return rank and size of torch's process group, where there is one; torch is not imported for it."""
    module = sys.modules.get("torch.distributed")
    try:
        if module is not None and module.is_available() and module.is_initialized():
            return int(module.get_rank()), int(module.get_world_size())
    except (AttributeError, RuntimeError, ValueError):  # half imported, or destroyed meanwhile
        return None
    return None


# ---- Which GPU a rank works on, from torch as it is: torch is not imported for it, and no context is made.


def device_uuid() -> str:
    """Return the UUID of this process's GPU, as torch writes it; empty while none is known.

    It is the GPU on which torch has allocated the most: `torch.cuda.current_device` is each thread's own, and loops
    that only move their model (`model.to(f"cuda:{rank}")`) leave it at 0.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return ""
        allocated = [int(cuda.memory_allocated(k)) for k in range(cuda.device_count())]
        if not any(allocated):
            return ""
        found = cuda.get_device_properties(allocated.index(max(allocated)))
        return without_prefix(str(getattr(found, "uuid", "")))
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):  # half imported, or without CUDA
        return ""


def without_prefix(uuid: str) -> str:
    """Return a UUID as torch and NVML have in common: NVML's begins with `GPU-`."""
    return uuid.removeprefix("GPU-").lower()
