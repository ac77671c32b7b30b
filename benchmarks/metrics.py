"""The table of all series that the sampler measures: unit, period, source and meaning.

`docs/metrics.md` is written from this table, tests compare the probes with it, and `replay` simulates it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from kernel_monitor.sample.host.processes import ROLES

GROUPS = {
    "cpu": 0.0,
    "cpu-split": 1.0,
    "frequency": 2.0,
    "load": 1.0,
    "memory": 0.5,
    "disk": 0.5,
    "network": 0.5,
    "pressure": 1.0,
    "container": 1.0,
    "process": 1.0,
    "gpu": 0.1,
    "gpu-slow": 1.0,
    "gpu-bus": 1.0,
    "gpm": 1.0,
    "mig": 1.0,
}
"""The groups of metrics that are read together, and the seconds between two reads: 0 is every frame. No group is read
more often than there are frames, and `gpu` at most every 0.1 s."""

FRAME = "frame"
"""The group of the metrics of the frame itself."""


class Metric(NamedTuple):
    """A row of the table.

    Attributes:
        name: the series' name; `<n>` stands for a core, `<i>` for a GPU, `<j>` for a MIG instance, `<role>` for one of
            `ROLES`, `<group>` for one of `GROUPS`.
        unit: unit of its values; `1` is a plain number.
        group: the group with which it is read.
        period_s: seconds between two reads; 0 is every frame.
        source: the file or function that it is read from.
        meaning: its meaning in words.
    """

    name: str
    unit: str
    group: str
    period_s: float
    source: str
    meaning: str


def _of(group: str, *rows: tuple[str, str, str, str]) -> tuple[Metric, ...]:
    """Return the metrics of a group from rows (name, unit, source, meaning)."""
    period = GROUPS.get(group, 0.0)
    return tuple(Metric(name, unit, group, period, source, meaning) for name, unit, source, meaning in rows)


_STAT = "/proc/stat"
_MEMINFO = "/proc/meminfo"
_PSI = "/proc/pressure"
_CGROUP = "cgroup"

METRICS: tuple[Metric, ...] = (
    *_of(
        FRAME,
        ("sample/interval", "s", "the sampler", "nominal time between frames, as now set"),
        ("sample/<group>/age", "s", "the sampler", "time between the frame's stamp and the group's newest reading"),
        ("sample/<group>/window", "s", "the sampler", "time that this reading covers: since the reading before"),
    ),
    *_of(
        "cpu",
        ("cpu/<n>/busy", "%", _STAT, "share of the window in which the core neither idled nor waited for I/O"),
        ("cpu/<n>/iowait", "%", _STAT, "share of the window in which it idled with I/O outstanding"),
    ),
    *_of(
        "cpu-split",
        ("cpu/<n>/user", "%", _STAT, "programs, niced ones and guests included"),
        ("cpu/<n>/system", "%", _STAT, "the operating system, interrupts included"),
        ("cpu/<n>/steal", "%", _STAT, "time in which the hypervisor ran something else; part of busy"),
    ),
    *_of("frequency", ("cpu/<n>/frequency", "MHz", "cpufreq, else /proc/cpuinfo", "clock of the core at the moment")),
    *_of(
        "load",
        ("host/load1", "1", "/proc/loadavg", "runnable and uninterruptible tasks, mean of about 1 min"),
        ("host/load5", "1", "/proc/loadavg", "the same over 5 min"),
        ("host/load15", "1", "/proc/loadavg", "the same over 15 min"),
        ("host/processes", "1", "/proc/loadavg", "tasks that run or could run at the moment"),
    ),
    *_of(
        "memory",
        ("memory/used", "B", _MEMINFO, "what is not available for new work without swapping"),
        ("memory/percent", "%", _MEMINFO, "the same, of all memory of the host"),
        ("memory/available", "B", _MEMINFO, "what new work may take without swapping"),
        ("swap/used", "B", _MEMINFO, "swap space in use"),
        ("swap/in", "B/s", "/proc/vmstat", "read back from swap"),
        ("swap/out", "B/s", "/proc/vmstat", "written to swap"),
    ),
    *_of(
        "disk",
        ("disk/read", "B/s", "/proc/diskstats", "all disks of the host together"),
        ("disk/write", "B/s", "/proc/diskstats", "all disks of the host together"),
        ("disk/busy", "%", "/proc/diskstats", "share of the window in which the busiest disk had work"),
    ),
    *_of(
        "network",
        ("network/received", "B/s", "/proc/net/dev", "all interfaces but the loopback"),
        ("network/sent", "B/s", "/proc/net/dev", "all interfaces but the loopback"),
    ),
    *_of(
        "pressure",
        ("pressure/cpu", "%", f"{_PSI}/cpu", "share of the window in which some task waited for a core"),
        ("pressure/memory", "%", f"{_PSI}/memory", "some task waited for memory"),
        ("pressure/io", "%", f"{_PSI}/io", "some task waited for I/O"),
        ("pressure/memory_full", "%", f"{_PSI}/memory", "all tasks that were not idle waited for memory"),
        ("pressure/io_full", "%", f"{_PSI}/io", "all tasks that were not idle waited for I/O"),
    ),
    *_of(
        "container",
        ("container/cpu", "%", _CGROUP, "CPU time used, of the quota"),
        ("container/throttled", "%", _CGROUP, "share of the quota's periods in which the quota ran out"),
        ("container/memory", "B", _CGROUP, "charged to it, without file pages that it could give back at once"),
        ("container/memory_percent", "%", _CGROUP, "the same, of its limit"),
    ),
    *_of(
        "process",
        ("process/<role>/cpu", "%", "/proc/<pid>/stat", "of one core; the role's processes together"),
        ("process/<role>/memory", "B", "/proc/<pid>/stat", "resident; shared pages count in each process"),
        ("process/<role>/read", "B/s", "/proc/<pid>/io", "read from storage; the page cache does not count"),
        ("process/<role>/write", "B/s", "/proc/<pid>/io", "written to storage"),
        ("process/<role>/count", "1", "/proc", "processes of the role"),
    ),
    *_of(
        "gpu",
        ("gpu/<i>/utilisation", "%", "NVML samples, else utilisation rates", "time with a kernel running on the GPU"),
        ("gpu/<i>/memory", "%", "NVML memory", "memory in use, of all"),
        ("gpu/<i>/power", "%", "NVML power", "draw, of the enforced limit"),
        ("gpu/<i>/memory_used", "B", "NVML memory", "memory in use"),
        ("gpu/<i>/power_draw", "W", "NVML power", "draw"),
        ("gpu/<i>/memory_activity", "%", "NVML utilisation rates", "time with memory being read or written"),
    ),
    *_of(
        "gpu-slow",
        ("gpu/<i>/temperature", "°C", "NVML temperature", "of the GPU"),
        ("gpu/<i>/temperature_memory", "°C", "NVML field values", "of its memory"),
        ("gpu/<i>/clock_sm", "MHz", "NVML clocks", "of the multiprocessors"),
        ("gpu/<i>/clock_memory", "MHz", "NVML clocks", "of the memory"),
        ("gpu/<i>/power_limit", "W", "NVML power", "the enforced limit"),
        (
            "gpu/<i>/throttled",
            "%",
            "NVML clocks' event reasons",
            "100 while a harmful reason lowers clocks, else 0",
        ),
        ("gpu/<i>/encoder", "%", "NVML encoder", "time in which the video encoder worked"),
        ("gpu/<i>/decoder", "%", "NVML decoder", "time in which the video decoder worked"),
        ("gpu/<i>/jpeg", "%", "NVML JPEG", "time in which the JPEG engine worked"),
        ("gpu/<i>/ofa", "%", "NVML OFA", "time in which the optical-flow engine worked"),
        ("gpu/<i>/process_memory", "B", "NVML processes", "memory of this kernel's process tree"),
        ("gpu/<i>/process_utilisation", "%", "NVML processes", "utilisation by this kernel's process tree"),
        ("gpu/<i>/ecc_corrected", "1", "NVML ECC", "corrected memory errors since the driver was loaded"),
        ("gpu/<i>/ecc_uncorrected", "1", "NVML ECC", "uncorrected memory errors since the driver was loaded"),
    ),
    *_of(
        "gpu-bus",
        ("gpu/<i>/pcie_received", "B/s", "NVML PCIe throughput", "by the GPU; NVML measures for 20 ms"),
        ("gpu/<i>/pcie_sent", "B/s", "NVML PCIe throughput", "by the GPU; NVML measures for 20 ms"),
        ("gpu/<i>/nvlink_received", "B/s", "NVML field values", "all links together, payload"),
        ("gpu/<i>/nvlink_sent", "B/s", "NVML field values", "all links together, payload"),
    ),
    *_of(
        "gpm",
        ("gpu/<i>/sm_active", "%", "NVML GPM", "time in which a multiprocessor had work, mean of all"),
        ("gpu/<i>/sm_occupancy", "%", "NVML GPM", "warps resident, of those that there is room for"),
        ("gpu/<i>/tensor_active", "%", "NVML GPM", "tensor cores' share of their peak issue rate"),
        ("gpu/<i>/dram_active", "%", "NVML GPM", "memory bandwidth used, of its peak"),
        ("gpu/<i>/fp16_active", "%", "NVML GPM", "half-precision pipes' share of their peak issue rate"),
        ("gpu/<i>/fp32_active", "%", "NVML GPM", "single-precision pipes' share"),
        ("gpu/<i>/fp64_active", "%", "NVML GPM", "double-precision pipes' share"),
        ("gpu/<i>/gpm_pcie_received", "B/s", "NVML GPM", "by the GPU over PCIe"),
        ("gpu/<i>/gpm_pcie_sent", "B/s", "NVML GPM", "by the GPU over PCIe"),
    ),
    *_of(
        "mig",
        ("gpu/<i>/mig/<j>/memory", "%", "NVML memory", "memory of the instance in use, of all it has"),
        ("gpu/<i>/mig/<j>/memory_used", "B", "NVML memory", "memory of the instance in use"),
        ("gpu/<i>/mig/<j>/sm_active", "%", "NVML GPM", "time in which a multiprocessor of the instance had work"),
    ),
)

_WORDS = {"n": r"\d+", "i": r"\d+", "j": r"\d+", "role": "|".join(ROLES), "group": "|".join(GROUPS)}


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    return tuple(
        (re.compile(re.sub(r"<(\w+)>", lambda word: f"(?:{_WORDS[word[1]]})", metric.name)), metric)
        for metric in METRICS
    )


def matching(series: str) -> list[Metric]:
    """Return the entries that the name of a series fits; one, if the table is right."""
    return [metric for pattern, metric in _patterns() if pattern.fullmatch(series)]
