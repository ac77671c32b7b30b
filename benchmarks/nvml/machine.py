"""GPUs that are not there, and the machine that has them: what the answers are about."""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30
Process = tuple[int, int, int]
"""pid, bytes of GPU memory (-1 where the driver does not tell), utilisation in %."""


@dataclass
class FakeMig:
    """One MIG instance: its name, its GPU instance's number, bytes used and in all, and its SMs' activity in %."""

    name: str
    instance: int
    used: int
    total: int
    sm_active: float = 50.0


@dataclass
class FakeGpu:
    """One GPU. `errors`: NVML's error codes by the function that fails, `field <id>`, `gpm <id>`, or `*` for all.

    Attributes:
        lost_load: the load of the library in which it was lost: its handles work again after the next `nvmlInit`.
        samples: (µs since 1970, %) of the driver's utilisation buffer; None for one every `SAMPLE_US`.
        process_age_s: how old the driver's samples of the processes are.
        delay: seconds that each question takes, in place of its own latency.
        asked: how often each function was called.
    """

    name: str = "NVIDIA H200"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    utilisation: float = 37
    memory_activity: float = 12
    used: float = 30 * GIB
    total: int = 120 * GIB
    power_mw: float = 350_000
    limit_mw: int = 700_000
    temperature: float = 61
    temperature_memory: float = 70
    clock_sm: float = 1980
    clock_memory: float = 3201
    clocks_event: int = 0
    encoder: float = 1
    decoder: float = 2
    jpeg: float = 3
    ofa: float = 4
    engine_period_us: int = 167_000
    pcie_received_kb: float = 900_000
    pcie_sent_kb: float = 50_000
    nvlink_received_kib: float = 0
    nvlink_sent_kib: float = 0
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    gpm_supported: bool = True
    gpm: dict[int, float] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    graphics: list[Process] = field(default_factory=list)
    process_age_s: float = 0.0
    mig_mode: int | None = 0
    migs: list[FakeMig] = field(default_factory=list)
    samples: list[tuple[int, int]] | None = None
    errors: dict[str, int] = field(default_factory=dict)
    lost_load: int = -1
    delay: float = 0.0
    asked: dict[str, int] = field(default_factory=dict)

    def value(self, name: str, _at: float | None = None) -> Any:
        """The attribute of this name as it is at `_at` (Unix time; None for now)."""
        return getattr(self, name)

    def gpm_value(self, metric: int, _at: float) -> float:
        return self.gpm.get(metric, float(metric))


@dataclass
class Machine:
    """The GPUs of a machine and its driver.

    Attributes:
        events: (GPU's index, Xid) that the driver is to report.
        loads: how often the library was started.
        latency: how long a function takes in s, by its name.
    """

    gpus: list[FakeGpu]
    init_error: int | None = None
    init_delay: float = 0.0
    latency: Callable[[str], float] = lambda _: 0.0
    loads: int = 0
    running: bool = False
    events: queue.Queue[tuple[int, int]] = field(default_factory=queue.Queue)


@dataclass(frozen=True, eq=False)
class Handle:
    """NVML's handle of a GPU or of a MIG instance; it is good until the library is shut down."""

    gpu: FakeGpu
    index: int
    load: int
    mig: FakeMig | None = None

    @property
    def _as_parameter_(self) -> ctypes.c_void_p:
        """The address that a handle of NVML's has."""
        return ctypes.c_void_p(0x1000 + self.index)
