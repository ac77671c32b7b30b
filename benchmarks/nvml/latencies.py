"""How long NVML takes to answer, in seconds, with where each figure is from.

Documented: NVIDIA's NVML reference. Reported: somebody measured it and said so in public. Assumed: no figure was
found; the order of magnitude of the reported ones is taken.
"""

from __future__ import annotations

TOGETHER_S = 0.5e-3
"""Latencies are slept from this on: a sleep of 25 µs takes more than 100 µs on Linux (the timer's slack), so shorter
ones are added up, by thread, and slept together. What the driver itself computes meanwhile is not simulated."""

SHORT_S = 25e-6
"""Reported: temperature, utilisation, memory and power together took 0.09 ms through pynvml on a GeForce RTX 5080
(OpenKraken, pull request 3), so about a quarter of that each. The slowest report found: `nvmlDeviceGetPowerUsage` on
a Tesla K40m, 2,743 calls a second (gpustat, issue 76)."""

LATENCIES = {
    # Documented: "querying a byte counter over a 20ms interval".
    "nvmlDeviceGetPcieThroughput": 0.021,
    # Assumed: both walk a table of the driver.
    "nvmlDeviceGetComputeRunningProcesses": 200e-6,
    "nvmlDeviceGetGraphicsRunningProcesses": 200e-6,
    "nvmlDeviceGetProcessUtilization": 200e-6,
    # Assumed: a sample is read from the GPU's counters.
    "nvmlGpmSampleGet": 500e-6,
    "nvmlGpmMigSampleGet": 500e-6,
    # Assumed.
    "nvmlDeviceGetFieldValues": 100e-6,
    # Computed by the library from two samples that it has.
    "nvmlGpmMetricsGet": 0.0,
    # Answered from what the library knows since its start.
    "nvmlDeviceGetName": 0.0,
    "nvmlDeviceGetUUID": 0.0,
    "nvmlDeviceGetIndex": 0.0,
    "nvmlDeviceGetMaxMigDeviceCount": 0.0,
}
"""By the name of pynvml's function; those not named take `SHORT_S`."""

INIT_S = 0.1
"""Assumed, for `nvmlInit` with a driver that is awake (persistence mode)."""


def latency(function: str) -> float:
    """Seconds that this function of pynvml takes."""
    return LATENCIES.get(function, SHORT_S)
