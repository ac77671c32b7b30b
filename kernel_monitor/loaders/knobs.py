"""The knobs of a loader: how many workers, batches in flight and threads."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from ..errors import MonitorError

MOST = 256  # of anything: a slip of the finger must not start ten thousand processes


class Knobs(NamedTuple):
    """How much a loader may use."""

    workers: int  # processes of `torchvision`; 0 computes in the process itself
    # batches in flight, for each worker of `torchvision` (torch's prefetch_factor), in all for DALI; as long as nobody
    # has set it, torch's own for the one and DALI's usual for the other
    prefetch: int
    threads: int | None  # CPU threads of DALI; None where no DALI backend can run


def checked(workers: Any, prefetch: Any, threads: Any) -> dict[str, int]:
    """Return the knobs that are given, by name; a `MonitorError` if a value is no whole number or out of range."""
    found: dict[str, int] = {}
    for name, value, least in (("workers", workers, 0), ("prefetch", prefetch, 1), ("threads", threads, 1)):
        if value is None:
            continue
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or type(value) is bool or not least <= number <= MOST:
            raise MonitorError(f"set({name}={value!r}): give a whole number from {least} to {MOST}.")
        found[name] = number
    return found
