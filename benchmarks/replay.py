"""Frames as a large machine brings them: the real columns, values that move as real ones do.

Cores' shares are whole ticks of 10 ms (`/proc/stat`), slow groups are held between their readings, GPUs give whole per
cent, milliwatts and MiB, and fractions have all the digits of a float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kernel_monitor.sample.host.processes import ROLES

from .metrics import GROUPS, METRICS, Metric

Floats = npt.NDArray[np.floating[Any]]
BLOCK = 600  # rows that are made at a time
TICK_S = 0.01
GIB = 1 << 30


class Column(NamedTuple):
    """A series of the replay."""

    name: str
    metric: Metric


class Replay:
    """A machine of so many cores and GPUs.

    Args:
        cores: logical cores.
        gpus: GPUs, of eighty gigabytes each, without MIG.
        interval: seconds between frames.
        seed: the seed of all random values.
    """

    def __init__(self, cores: int = 64, gpus: int = 8, interval: float = 0.1, seed: int = 0) -> None:
        self.cores, self.gpus, self.interval = cores, gpus, interval
        self.columns = [
            Column(name, metric)
            for metric in METRICS
            if metric.group != "mig"
            for name in _names(metric.name, {"n": cores, "i": gpus})
        ]
        self._random = np.random.default_rng(seed)
        self._row = 0
        self._load = self._random.uniform(0.1, 0.9, cores)
        self._busy = self._random.uniform(20, 95, gpus)

    @property
    def hello(self) -> dict[str, Any]:
        """The sampler's hello for this machine."""
        half = self.cores // 2
        topology = [list(range(half)), list(range(half, self.cores))]
        return {
            "interval": self.interval,
            "series": [{"name": column.name, "unit": column.metric.unit} for column in self.columns],
            "cpus": list(range(self.cores)),
            "gpus": [
                {"index": index, "name": "NVIDIA H100 80GB HBM3 (simulated)", "memory_total": 80 * GIB, "reasons": {}}
                for index in range(self.gpus)
            ],
            "gpu_reason": None if self.gpus else "NVML lists no GPU",
            "host": {
                "cpu_model": "Replay",
                "logical_cpus": self.cores,
                "memory_total": 512 * GIB,
                "platform": "Linux",
                "topology": {"sockets": topology, "numa": topology},
                "limits": {"cpus": list(range(self.cores)), "cpu_quota": None, "memory": None, "source": None},
                "reasons": {},
            },
        }

    def block(self, rows: int = BLOCK) -> tuple[Floats, npt.NDArray[np.float32]]:
        """Return the next rows: times[n] in s since the beginning, float32[n, m]."""
        number = self._row + np.arange(rows)
        jitter = np.abs(self._random.normal(0, 5e-5, rows))
        time = (number + 0.5) * self.interval + jitter
        values = np.empty((rows, len(self.columns)), dtype=np.float32)
        walk = self._random.normal(0, 0.02, (rows, self.cores)).cumsum(axis=0)
        load = np.clip(self._load + walk, 0.02, 0.98)
        self._load = load[-1]
        ticks = np.round(self.interval / TICK_S + self._random.normal(0, 0.3, (rows, self.cores)))
        busy = self._random.binomial(ticks.astype(int), load)
        iowait = self._random.binomial((ticks - busy).astype(int), 0.03)
        pace = np.clip(self._busy + self._random.normal(0, 3, (rows, self.gpus)).cumsum(axis=0) / 3, 0, 100)
        self._busy = pace[-1]
        for place, (name, metric) in enumerate(self.columns):
            index = int(found[0]) if (found := re.findall(r"\d+", name)) else 0
            part = name.rpartition("/")[2]
            if part == "busy" and metric.group == "cpu":
                values[:, place] = 100 * busy[:, index] / ticks[:, index]
                continue
            if part == "iowait":
                values[:, place] = 100 * iowait[:, index] / ticks[:, index]
                continue
            if name == "sample/interval":
                values[:, place] = self.interval
                continue
            if part == "age":
                group = name.split("/")[1]
                period = GROUPS[group]
                values[:, place] = 0 if period == 0 else (time + 0.0123 * len(group)) % max(period, self.interval)
                continue
            if part == "window":
                values[:, place] = self._held(number, GROUPS[name.split("/")[1]], lambda n: self._around(1, 1e-3, n))
                continue
            steady = pace[:, index] if metric.group.startswith("g") and self.gpus else load[:, 0] * 100
            values[:, place] = self._held(
                number, metric.period_s, lambda n, m=metric, p=part, s=steady: self._of(m, p, s, n)
            )
        self._row += rows
        return time, values

    def frames(self, count: int) -> Iterator[tuple[float, npt.NDArray[np.float32]]]:
        """Yield `count` frames."""
        while count > 0:
            time, values = self.block(min(BLOCK, count))
            yield from zip(time.tolist(), values, strict=True)
            count -= len(time)

    def _held(self, number: npt.NDArray[np.int64], period: float, make: Any) -> Floats:
        """Return values that change every `period` seconds."""
        every = max(1, round(period / self.interval))
        readings = number // every - number[0] // every
        made = make(int(readings[-1]) + 1)
        found: Floats = np.asarray(made)[readings]
        return found

    def _around(self, middle: float, share: float, count: int) -> Any:
        return middle * (1 + share * self._random.standard_normal(count))

    def _of(self, metric: Metric, part: str, steady: Floats, count: int) -> Any:
        """Return `count` readings of a metric that follows the rows of `steady` (0 to 100)."""
        follow = steady[np.linspace(0, len(steady) - 1, count).astype(int)]
        random = self._random
        if metric.group == "cpu-split":
            ticks = random.integers(99, 102, count)
            return 100 * random.binomial(ticks, {"user": 0.4, "system": 0.1}.get(part, 0.0)) / ticks
        if part in ("ecc_corrected", "ecc_uncorrected", "throttled", "encoder", "decoder", "ofa", "jpeg"):
            return np.zeros(count)
        if part == "power_limit":
            return np.full(count, 700.0)
        if metric.group in ("gpu", "gpu-slow"):
            if part == "power_draw":
                return np.round(100_000 + 6_000 * follow + random.normal(0, 5_000, count)) / 1000
            if part == "power":
                return np.round(100_000 + 6_000 * follow + random.normal(0, 5_000, count)) / 7000
            if part in ("memory_used", "process_memory"):
                return (20 * 1024 + 2 * np.round(np.cumsum(random.random(count) < 0.02))) * (1 << 20)
            if part == "memory":
                return 100 * (20 * 1024 + 2 * np.round(np.cumsum(random.random(count) < 0.02))) / (80 * 1024)
            if part.startswith("clock"):
                return 1200 + 15 * np.round(follow / 10)
            if part.startswith("temperature"):
                return np.round(40 + follow / 4)
            return np.round(follow)
        if metric.unit == "B":
            return (1 << 30) * 8 + 4096 * np.round(random.normal(0, 2000, count).cumsum())
        if metric.unit == "B/s":
            return np.maximum(0, self._around(2e8, 0.3, count))
        if metric.unit == "MHz":
            return np.round(self._around(2_600_000, 0.1, count)) / 1000
        if part.startswith("load"):
            return np.round(follow, 2)
        if metric.unit == "1":
            return np.round(follow / 10)
        return np.clip(follow + random.normal(0, 3, count), 0, 100)


def _names(pattern: str, counts: dict[str, int]) -> list[str]:
    words: dict[str, list[str]] = {"role": list(ROLES), "group": [group for group in GROUPS if group != "mig"]}
    words |= {key: [str(number) for number in range(count)] for key, count in counts.items()}
    found = re.search(r"<(\w+)>", pattern)
    if found is None:
        return [pattern]
    return [pattern.replace(found[0], word) for word in words[found[1]]]
