"""A machine with GPUs for those that have none: pynvml's functions answer from a table, errors are pynvml's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from benchmarks.nvml.answers import functions
from benchmarks.nvml.machine import GIB, FakeGpu, FakeMig, Machine

__all__ = ["GIB", "FakeGpu", "FakeMig", "Machine", "nvml", "pynvml"]

pynvml: Any = import_module("pynvml")


@contextmanager
def nvml(gpus: list[FakeGpu], *, init_error: int | None = None, init_delay: float = 0.0) -> Iterator[Machine]:
    """Have pynvml answer for these GPUs meanwhile."""
    machine = Machine(gpus, init_error, init_delay)
    replaced = functions(pynvml, machine)
    before = {name: getattr(pynvml, name) for name in replaced}
    for name, function in replaced.items():
        setattr(pynvml, name, function)
    try:
        yield machine
    finally:
        for name, function in before.items():
            setattr(pynvml, name, function)
