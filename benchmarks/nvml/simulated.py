"""GPUs whose values move as those of a training machine might: deterministic in time and in the GPU's index."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .latencies import INIT_S, latency
from .machine import GIB, FakeGpu, FakeMig, Machine

VARIABLE = "KERNEL_MONITOR_FAKE_NVML"


@dataclass(frozen=True)
class Model:
    """What a product has: memory in GiB, power limit in W, SM and memory clock in MHz, and what it answers."""

    name: str
    memory: int
    limit: int
    sm: int
    memory_clock: int
    gpm: bool = False
    mig: bool = False
    absent: tuple[str, ...] = ()


_TX, _RX, _MEMORY_TEMPERATURE = "field 138", "field 139", "field 82"
MODELS = {
    "H200": Model("NVIDIA H200", 141, 700, 1980, 3201, gpm=True, mig=True),
    "H100": Model("NVIDIA H100 80GB HBM3", 80, 700, 1980, 2619, gpm=True, mig=True),
    "A100": Model("NVIDIA A100-SXM4-80GB", 80, 400, 1410, 1593, mig=True),
    "T4": Model(
        "Tesla T4",
        15,
        70,
        1590,
        5001,
        absent=("nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization", _TX, _RX, _MEMORY_TEMPERATURE),
    ),
}
"""By the name used in the options; `absent` are refused as not supported."""

NOT_SUPPORTED = 3

# Mean, swing and period in s.
_WAVES: dict[str, tuple[float, float, float]] = {
    "memory_activity": (30, 20, 17),
    "encoder": (2, 2, 31),
    "decoder": (5, 4, 29),
    "jpeg": (55, 35, 11),
    "ofa": (1, 1, 41),
    "pcie_received_kb": (6_000_000, 5_000_000, 13),
    "pcie_sent_kb": (400_000, 300_000, 19),
}
_GPM_SHARE = {2: 0.85, 3: 0.4, 5: 0.5, 10: 0.45, 11: 0.0, 12: 0.2, 13: 0.15, 20: 4.0, 21: 60.0}
"""GPM metric → its value per per cent of load (MiB/s for PCIe)."""


class SimulatedGpu(FakeGpu):
    """A GPU of a model, the `index`-th of its machine."""

    def __init__(self, model: Model, index: int, pids: list[int], migs: int) -> None:
        total = model.memory * GIB
        super().__init__(
            name=f"{model.name} (simulated)",
            total=total,
            limit_mw=model.limit * 1000,
            gpm_supported=model.gpm,
            mig_mode=(1 if migs else 0) if model.mig else None,
            errors=dict.fromkeys(model.absent, NOT_SUPPORTED),
        )
        self._model = model
        self._index = index
        self._pids = pids
        self._start = time.time()
        self._computed: dict[str, Callable[[float], Any]] = {
            "utilisation": self._load,
            "used": lambda at: total * (0.3 + 0.5 * self._load(at) / 100),
            "power_mw": lambda at: self.limit_mw * (0.15 + 0.83 * self._load(at) / 100),
            "temperature": lambda at: 38 + 0.35 * self._load(at - 4),
            "temperature_memory": lambda at: 45 + 0.4 * self._load(at - 4),
            "clock_sm": lambda at: model.sm - 2 * max(0.0, self._load(at) - 80),
            "clock_memory": lambda _: model.memory_clock,
            "clocks_event": lambda at: 4 if self._load(at) > 94 else 0 if self._load(at) > 5 else 1,
            "nvlink_sent_kib": lambda at: (at - self._start) * 20e6,
            "nvlink_received_kib": lambda at: (at - self._start) * 21e6,
            "processes": self._processes,
        }
        name = model.name.removeprefix("NVIDIA ")
        self.migs = [
            FakeMig(f"NVIDIA {name} MIG 1g.{model.memory // 8}gb (simulated)", 7 + which, 2 * GIB, total // 8)
            for which in range(migs)
        ]
        if migs:
            refused = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples")
            self.errors |= dict.fromkeys(refused, NOT_SUPPORTED)

    def value(self, name: str, at: float | None = None) -> Any:
        at = time.time() if at is None else at
        computed = self._computed.get(name)
        if computed is not None:
            return computed(at)
        wave = _WAVES.get(name)
        if wave is None:
            return getattr(self, name)
        mean, swing, period = wave
        return mean + swing * math.sin(math.tau * at / period + self._index)

    def gpm_value(self, metric: int, at: float) -> float:
        return _GPM_SHARE.get(metric, 0.0) * self._load(at)

    def _load(self, at: float) -> float:
        """Busy for most of a minute, starved now and then; 0 to 100."""
        slow = math.sin(math.tau * at / 47 + 0.7 * self._index)
        fast = math.sin(math.tau * at / 5 + 1.3 * self._index)
        return min(100.0, max(0.0, 62 + 34 * slow + 8 * fast))

    def _processes(self, at: float) -> list[tuple[int, int, int]]:
        used = int(self.value("used", at) * 0.9)
        return [(pid, used // len(self._pids), int(self._load(at)) // len(self._pids)) for pid in self._pids]


def options() -> dict[str, Any]:
    """The options of the environment: JSON, or `gpus=8,model=H100`."""
    text = os.environ.get(VARIABLE, "").strip()
    if text.startswith("{"):
        found: dict[str, Any] = json.loads(text)
        return found
    pairs = (part.split("=", 1) for part in text.split(",") if part)
    return {key.strip(): json.loads(value) if value.strip().isdigit() else value.strip() for key, value in pairs}


def machine(real: Any) -> Machine:
    """The machine that the options describe.

    `gpus` (8), `model` (H100; a list for several), `latency` (true), `errors` ({function: code or its name}, or
    {"0": {…}} for one GPU), `mig` (instances of every GPU, or {"0": 3}), `pids` (the parent process),
    `init_error`, `xid` ([[seconds from the start, GPU, code]…]).

    Raises:
        ValueError: an option or a model that is not known.
    """
    chosen: dict[str, Any] = {
        "gpus": 8,
        "model": "H100",
        "latency": True,
        "errors": {},
        "mig": 0,
        "pids": [os.getppid()],
        "xid": [],
    }
    chosen |= {"init_error": None} | options()
    unknown = set(chosen) - {"gpus", "model", "latency", "errors", "mig", "pids", "xid", "init_error"}
    models = chosen["model"] if isinstance(chosen["model"], list) else [chosen["model"]]
    unknown |= set(models) - set(MODELS)
    if unknown:
        raise ValueError(f"{VARIABLE}: unknown: {', '.join(sorted(unknown))}")

    def code(value: Any) -> int:
        return int(getattr(real, value)) if isinstance(value, str) else int(value)

    gpus: list[FakeGpu] = []
    for index in range(chosen["gpus"]):
        mig = chosen["mig"]
        migs = mig.get(str(index), 0) if isinstance(mig, dict) else mig
        gpu = SimulatedGpu(MODELS[models[index % len(models)]], index, chosen["pids"], migs)
        errors = chosen["errors"].get(str(index)) or {
            name: value for name, value in chosen["errors"].items() if not isinstance(value, dict)
        }
        gpu.errors |= {name: code(value) for name, value in errors.items()}
        gpus.append(gpu)
    timed = bool(chosen["latency"])
    found = Machine(
        gpus,
        init_error=None if chosen["init_error"] is None else code(chosen["init_error"]),
        init_delay=INIT_S if timed else 0.0,
        latency=latency if timed else (lambda _: 0.0),
    )
    for seconds, index, xid in chosen["xid"]:
        timer = threading.Timer(seconds, found.events.put, ((index, xid),))
        timer.daemon = True
        timer.start()
    return found
