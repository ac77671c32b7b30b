"""Sessions of machines that are not at hand: 256 cores in four sockets, eight GPUs, a container's share of a host.

Every series that the samplers give has values here, shaped like a training run: the loader starves the GPUs until a
switch in the middle. What is tested or photographed with them is layout and size, never a figure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.node_sources import Node
from kernel_monitor.store import LoaderInfo, Schema, Snapshot
from kernel_monitor.store.schema import Gpu, Series, loader_series, nodes_series
from tests.unit.analysis.test_compare_segments import state

Floats = npt.NDArray[np.float64]
ORIGIN = 1_790_000_000.0
GB = 10**9
ROLES = ("kernel", "workers", "sampler", "others")
GPU_UNITS = {
    "utilisation": "%", "memory": "%", "power": "%", "memory_used": "B", "power_draw": "W", "memory_activity": "%",
    "temperature": "°C", "temperature_memory": "°C", "clock_sm": "MHz", "clock_memory": "MHz", "power_limit": "W",
    "throttled": "%", "encoder": "%", "decoder": "%", "jpeg": "%", "ofa": "%", "process_memory": "B",
    "process_utilisation": "%", "ecc_corrected": "1", "ecc_uncorrected": "1", "pcie_received": "B/s",
    "pcie_sent": "B/s", "nvlink_received": "B/s", "nvlink_sent": "B/s", "sm_active": "%", "sm_occupancy": "%",
    "tensor_active": "%", "dram_active": "%", "fp16_active": "%", "fp32_active": "%", "fp64_active": "%",
    "gpm_pcie_received": "B/s", "gpm_pcie_sent": "B/s",
}  # fmt: skip
HOST_UNITS = {
    "sample/interval": "s", "host/load1": "1", "host/load5": "1", "host/load15": "1", "host/processes": "1",
    "memory/used": "B", "memory/percent": "%", "memory/available": "B", "swap/used": "B", "swap/in": "B/s",
    "swap/out": "B/s", "disk/read": "B/s", "disk/write": "B/s", "disk/busy": "%", "network/received": "B/s",
    "network/sent": "B/s", "pressure/cpu": "%", "pressure/memory": "%", "pressure/io": "%",
    "pressure/memory_full": "%", "pressure/io_full": "%",
}  # fmt: skip
CONTAINER_UNITS = {
    "container/cpu": "%", "container/throttled": "%", "container/memory": "B", "container/memory_percent": "%",
}  # fmt: skip
PROCESS_UNITS = {"cpu": "%", "memory": "B", "read": "B/s", "write": "B/s", "count": "1"}


def machine(
    *,
    cores: int = 256,
    sockets: int = 4,
    nodes: int = 4,
    gpus: int = 8,
    allowed: list[int] | None = None,
    quota: float | None = None,
    memory_limit: int | None = None,
    interval: float = 0.1,
    charts: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    reasons: dict[str, str] | None = None,
    loaders: tuple[str, ...] = ("train",),
    others: tuple[Node, ...] = (),
) -> Schema:
    """The schema of such a machine; the second half of the cores are the first half's second threads.

    Args:
        cores, sockets, nodes: logical cores and how they are divided.
        gpus: how many H100.
        allowed, quota, memory_limit: what the container may use.
        interval: seconds between rows.
        charts: ids of the charts to draw.
        without: beginnings of the names of series that this machine does not give.
        reasons: why not.
        loaders: their names.
        others: other machines that work for the loaders.
    """
    units = {f"cpu/{core}/{part}": "%" for core in range(cores) for part in ("busy", "iowait")}
    units |= HOST_UNITS
    units |= {f"process/{role}/{part}": unit for role in ROLES for part, unit in PROCESS_UNITS.items()}
    if quota is not None or memory_limit is not None:
        units |= CONTAINER_UNITS
    units |= {f"gpu/{gpu}/{part}": unit for gpu in range(gpus) for part, unit in GPU_UNITS.items()}
    infos = tuple(LoaderInfo(f"loader-{k}", name) for k, name in enumerate(loaders, start=1))
    series = tuple(Series(name, unit) for name, unit in units.items() if not name.startswith(without or ("-",)))
    return Schema(
        version=1,
        interval=interval,
        origin=ORIGIN,
        capacity=6000,
        series=series + loader_series(infos) + nodes_series(others),
        cpus=tuple(range(cores)),
        gpus=tuple(Gpu(gpu, "NVIDIA H100 80GB HBM3 (simulated)", 85 * GB) for gpu in range(gpus)),
        gpu_reason=None if gpus else "NVML Shared Library Not Found",
        loaders=infos,
        nodes=others,
        host={
            "cpu_model": "AMD EPYC 9554 64-Core Processor (simulated)",
            "logical_cpus": cores,
            "memory_total": 1024 * GB if cores > 8 else 16 * GB,
            "platform": "Linux",
            "topology": {"sockets": _divided(cores, sockets), "numa": _divided(cores, nodes)},
            "limits": {
                "cpus": list(range(cores)) if allowed is None else allowed,
                "cpu_quota": quota,
                "memory": memory_limit,
                "source": None if quota is None and memory_limit is None else "cgroup v2",
            },
            "reasons": reasons or {},
        },
        charts=charts,
    )


LOADER_VALUES = {
    "images": (3200.0, 11800.0), "wait": (71.0, 3.0), "step": (96.0, 26.0), "copy": (2.0, 0.5),
    "forward": (7.0, 7.0), "backward": (13.0, 13.0), "optimizer": (2.0, 2.0), "other": (1.0, 0.5),
}  # fmt: skip
"""What each series of a loader is about, before and after the switch."""


def run(schema: Schema, *, seconds: float = 120.0, seed: int = 0) -> Snapshot:
    """A session on that machine: torchvision in its first half, dali-gpu in the second."""
    rng = np.random.default_rng(seed)
    time = np.arange(0.03, seconds, schema.interval)
    late = time > seconds / 2
    values = np.full((len(time), len(schema.series)), np.nan, dtype=np.float32)
    for column, series in enumerate(schema.series):
        values[:, column] = _values(series.name, series.unit, time, late, schema, rng)
    first = float(time[late][0]) if late.any() else 0.0
    where = {"loader": "loader-1", "source": "torchvision", "target": "dali-gpu"}
    events: list[dict[str, Any]] = []
    if schema.loaders:
        events = [
            {"id": 1, "kind": "switch-asked", "time": first - 1.5, **where},
            {"id": 2, "kind": "switch", "time": first, **where, "epoch": 0, "batch": 412, "asked": first - 1.5,
             "first": first},
        ]  # fmt: skip
    return Snapshot(
        schema=schema,
        seq=np.arange(1, len(time) + 1),
        time=time,
        values=values,
        events=events,
        loaders=[state(id=one.id, name=one.name, backend="dali-gpu") for one in schema.loaders],
        facts={"python": "3.12.3", "versions": {"kernel-monitor": "0.1.0", "torch": "2.15.0"}, "restarts": 0},
    )


def pictured() -> dict[str, Snapshot]:
    """Machines whose charts are worth looking at, by a name for their picture."""
    scarce = {"pressure": "this kernel has no /proc/pressure"}
    return {
        "scale": run(machine(nodes=8)),
        "laptop": run(machine(cores=2, sockets=1, nodes=1, gpus=0, without=("pressure/",), reasons=scarce)),
        "container": run(
            machine(cores=64, sockets=2, nodes=2, gpus=1, allowed=list(range(8, 16)), quota=2.5, memory_limit=64 * GB)
        ),
    }


def _divided(cores: int, parts: int) -> list[list[int]]:
    """The cores in equal parts, both threads of a physical core in the same where there are that many."""
    half = cores // 2 if parts <= cores // 2 else cores
    each = max(half // parts, 1)
    return [[core for core in range(cores) if min(core % half // each, parts - 1) == part] for part in range(parts)]


def _values(
    name: str, unit: str, time: Floats, late: npt.NDArray[np.bool_], schema: Schema, rng: np.random.Generator
) -> Floats:
    noise = rng.normal(0.0, 1.0, len(time))
    if name.startswith("cpu/"):
        core = int(name.split("/")[1])
        if name.endswith("iowait"):
            return np.clip(2 + 3 * noise, 0, 100)
        starved = 96.0 if core % 8 < 5 else 35.0
        return np.clip(np.where(late, 18 + 10 * (core % 3), starved) + 9 * noise, 0, 100)
    if name.startswith("node/"):
        alive = {node.id: node.alive for node in schema.nodes}[name.split("/")[1]]
        there = (time > time[-1] / 3) & (alive | (time < time[-1] / 2))
        usual = {"busy": 80.0, "received": 15e6, "sent": 40e6, "memory": 11e9, "batches": 6.0}[name.rpartition("/")[2]]
        return np.where(there, np.clip(usual * (1 + 0.1 * noise), 0, 100 if unit == "%" else None), np.nan)
    if name.startswith("loader/"):
        low, high = LOADER_VALUES[name.rpartition("/")[2]]
        return np.clip(np.where(late, high, low) * (1 + 0.06 * noise), 0, None)
    if name == "sample/interval":
        return np.full(len(time), schema.interval)
    scale = _level(name, unit, schema)
    load = np.where(late, 0.85, 0.32)
    held = np.repeat(noise[:: round(1 / min(schema.interval, 1.0))], round(1 / min(schema.interval, 1.0)))[: len(time)]
    if name.endswith(("throttled", "full")):
        return np.where(np.abs(held) > 1.9, 100.0 if "throttled" in name else 4.0, 0.0)
    if name.endswith(("ecc_corrected", "ecc_uncorrected", "_total")):
        return np.zeros(len(time))
    return np.clip(scale * load * (1 + 0.08 * held), 0, 100 if unit == "%" and "process/" not in name else None)


def _level(name: str, unit: str, schema: Schema) -> float:
    """A value of that unit near the top of what is usual."""
    if name.endswith(("encoder", "decoder", "ofa", "fp64_active")):
        return 4.0
    if name.startswith("process/") and name.endswith("cpu"):
        return {"kernel": 110.0, "workers": 760.0, "sampler": 2.5, "others": 20.0}[name.split("/")[1]]
    if name.startswith("process/") and name.endswith("memory"):
        return {"kernel": 9e9, "workers": 21e9, "sampler": 5e7, "others": 8e8}[name.split("/")[1]]
    if name in ("memory/used", "memory/available"):
        return 0.6 * float(schema.host["memory_total"])
    if name == "container/memory":
        return 0.9 * float(schema.host["limits"]["memory"] or 0)
    if name == "swap/used":
        return 2e9
    pci = {"B": 70e9, "B/s": 12e9 if "/pcie" in name or "nvlink" in name else 9e8, "MHz": 1980.0, "W": 690.0}
    return {"%": 98.0, "°C": 74.0, "1": 12.0, "s": 0.1, **pci}[unit]


HEAVY_SETUP = """\
%load_ext kernel_monitor
import os, torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from kernel_monitor import monitor, switchable

torch.set_num_threads(1)
heavy = [transforms.RandomHorizontalFlip(), transforms.RandomVerticalFlip(), transforms.RandomRotation(20)]
transform = transforms.Compose([*(heavy * 4), transforms.RandomResizedCrop(96), transforms.ToTensor()])
data = DataLoader(ImageFolder({root!r}, transform), batch_size=16, shuffle=True, num_workers=1)
loader = switchable(data, name="train")
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                            torch.nn.Flatten(), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
monitor.watch(model, optimizer)
%monitor"""
HEAVY_LOOP = """\
while not os.path.exists({enough!r}):
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels % 4)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if os.path.exists({enough!r}):
            break
print("finished")"""
"""A loop that its loader holds up: a dozen operations on every image before the crop."""
