"""A training loop of known parts, event by event: loaders, a host and a device, and what would happen without a part.

Nothing here is taken from `kernel_monitor.analysis`. What a loop is bound by is found by taking a part away and letting
the loop run again: the part without which it is faster.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.steps.measured_step import ON_DEVICE, WARM_UP
from kernel_monitor.store.snapshot import STEP

Random = np.random.Generator


@dataclass(frozen=True)
class Loop:
    """Times in s, of one batch.

    Attributes:
        load: of one worker for a batch.
        workers, ahead: processes, and batches each keeps in flight; 0 workers: the loop loads by itself.
        copy, forward, backward, optimizer: of the device where there is one, else of the host.
        other: of the host, in no phase.
        launch: of the host, to hand a step's work to the device.
        device: a GPU works through a queue; else everything is done by the host.
        sync: the host waits for the device in every step (`loss.item()`).
        queue: steps that the host may be ahead of the device.
        jitter: standard deviation of every time's logarithm.
    """

    load: float
    workers: int
    ahead: int
    copy: float
    forward: float
    backward: float
    optimizer: float
    other: float
    launch: float = 0.0
    device: bool = False
    sync: bool = False
    queue: int = 3
    jitter: float = 0.05

    @property
    def phases(self) -> tuple[float, float, float, float]:
        return self.copy, self.forward, self.backward, self.optimizer


def run(loop: Loop, steps: int, random: Random, began: float = 0.0, warm_up: int = 3) -> npt.NDArray[Any]:
    """`STEP` rows of a loop's first steps."""
    rows = np.zeros(steps, dtype=STEP)
    shape = (steps + 1,)

    def times(mean: float) -> npt.NDArray[np.float64]:
        drawn: npt.NDArray[np.float64] = mean * np.exp(random.normal(-(loop.jitter**2) / 2, loop.jitter, shape))
        return drawn

    load, other, launch = times(loop.load), times(loop.other), times(loop.launch)
    phases = np.stack([times(one) for one in loop.phases], axis=1)
    ready = _Workers(loop, load, began)
    now, device_free = began, began
    ends: list[float] = []  # of the device's work on each step
    for n in range(steps):
        asked = now
        got = ready.take(n, asked)
        work = float(phases[n].sum())
        if loop.device:
            handed = got + launch[n]
            device_free = max(device_free, handed) + work
            ends.append(device_free)
            now = handed + other[n]
            behind = n if loop.sync else n - loop.queue
            if behind >= 0:
                now = max(now, ends[behind])
        else:
            now = got + work + other[n]
        rows[n] = (0, now, 0, n, 32, got - asked, now - asked, *phases[n], 0)
    rows["flags"] = (ON_DEVICE if loop.device else 0) | np.where(np.arange(steps) < warm_up, WARM_UP, 0)
    return rows


class _Workers:
    """Batches in order: worker `n % workers` makes batch n; so many are asked for ahead of what the loop has taken."""

    def __init__(self, loop: Loop, load: npt.NDArray[np.float64], began: float) -> None:
        self._loop = loop
        self._load = load
        self._free = [began] * max(1, loop.workers)
        self._asked = [began] * (loop.workers * loop.ahead)
        self._done: list[float] = []
        heapq.heapify(self._asked)

    def take(self, n: int, now: float) -> float:
        """When batch `n`, asked for at `now`, is there."""
        if self._loop.workers == 0:
            return now + float(self._load[n])
        while self._asked:
            worker = len(self._done) % self._loop.workers
            begins = max(self._free[worker], heapq.heappop(self._asked))
            self._free[worker] = begins + float(self._load[min(len(self._done), len(self._load) - 1)])
            self._done.append(self._free[worker])
        got = max(now, self._done[n])
        heapq.heappush(self._asked, got)
        return got


PARTS = ("wait", "copy", "compute", "other")


def without(loop: Loop, part: str) -> Loop:
    """The loop without one of `PARTS`."""
    gone = {
        "wait": {"load": 0.0},
        "copy": {"copy": 0.0},
        "compute": {"forward": 0.0, "backward": 0.0, "optimizer": 0.0},
        "other": {"other": 0.0, "launch": 0.0, "sync": False},
    }
    return replace(loop, **gone[part])  # type: ignore[arg-type]


def savings(loop: Loop, steps: int = 600) -> dict[str, float]:
    """Share of the step time that the loop would save without each part, in the long run."""

    def mean(one: Loop) -> float:
        rows = run(one, steps, np.random.default_rng(1))
        half = steps // 2
        return float(rows["end"][-1] - rows["end"][half]) / (steps - 1 - half)

    whole = mean(loop)
    return {part: 1 - mean(without(loop, part)) / whole for part in PARTS}
