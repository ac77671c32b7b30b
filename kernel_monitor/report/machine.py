"""The parts of the page about the machine: what the process may use, its children, its GPUs, and what watching cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..diagnose import allowed_cores
from ..views.machine import ROLES
from .markup import Html, el, join, section, table
from .words import amount, number, ranges, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from ..store import Schema, Snapshot

GPU_WORDS = {
    "utilisation": "busy",
    "memory": "memory",
    "memory_used": "memory in use",
    "memory_activity": "memory busy",
    "power": "power of its limit",
    "power_draw": "power",
    "power_limit": "power limit",
    "temperature": "temperature",
    "temperature_memory": "temperature of the memory",
    "clock_sm": "SM clock",
    "clock_memory": "memory clock",
    "throttled": "throttled",
    "encoder": "encoder",
    "decoder": "decoder",
    "jpeg": "JPEG engine",
    "ofa": "optical flow",
    "process_memory": "memory of this kernel's processes",
    "process_utilisation": "busy for this kernel's processes",
    "ecc_corrected": "ECC errors corrected",
    "ecc_uncorrected": "ECC errors not corrected",
    "pcie_received": "PCIe received",
    "pcie_sent": "PCIe sent",
    "nvlink_received": "NVLink received",
    "nvlink_sent": "NVLink sent",
    "sm_active": "SM active",
    "sm_occupancy": "SM occupancy",
    "tensor_active": "tensor cores active",
    "dram_active": "DRAM active",
    "fp16_active": "FP16 active",
    "fp32_active": "FP32 active",
    "fp64_active": "FP64 active",
    "gpm_pcie_received": "PCIe received (GPM)",
    "gpm_pcie_sent": "PCIe sent (GPM)",
    "xid": "Xid errors",
}
"""The last part of a GPU's series, and what a person calls it; others are called as they are."""


def limits(snapshot: Snapshot) -> Html | None:
    """The limits under which the process ran, and how much of them it used; None where it had the whole machine."""
    schema = snapshot.schema
    told = schema.host.get("limits") or {}
    allowed, total = sorted(allowed_cores(schema)), schema.host.get("memory_total")
    rows = []
    if len(allowed) < len(schema.cpus):
        rows.append(["cores", f"{len(allowed)} of {len(schema.cpus)} ({ranges(allowed)})", "-", "-"])
    if told.get("cpu_quota") is not None:
        quota = f"{told['cpu_quota']:g} cores"
        rows.append(["CPU quota", quota, _used(snapshot, "container/cpu"), _most(snapshot, "container/cpu")])
    if told.get("memory") is not None:
        of = f"{size(float(told['memory']))}" + (f" of {size(float(total))}" if total else "")
        name = "container/memory_percent"
        rows.append(["memory", of, _used(snapshot, name), _most(snapshot, name)])
    if len(_values(snapshot, "container/throttled")):
        name = "container/throttled"
        rows.append(["CPU quota run out, % of its periods", "", _used(snapshot, name), _most(snapshot, name)])
    if not rows:
        return None
    note = "Set from outside" + (f", by {told['source']}" if told.get("source") else "") + "."
    head = ["", "limit", "in use, mean", "in use, most"]
    return section("limits", "What this process may use", note, table(head, rows, numbers=range(1, 4), label="Limits"))


def processes(snapshot: Snapshot) -> Html | None:
    """CPU, memory and I/O of the kernel and its children, by role."""
    rows = []
    for role, words in ROLES:
        cpu, memory = (_values(snapshot, f"process/{role}/{part}") for part in ("cpu", "memory"))
        if not len(cpu) and not len(memory):
            continue
        count = _values(snapshot, f"process/{role}/count")
        rows.append(
            [
                words,
                f"{count.max():.0f}" if len(count) else "-",
                f"{number(float(cpu.mean()), '%')} %" if len(cpu) else "-",
                f"{number(float(np.percentile(cpu, 95)), '%')} %" if len(cpu) else "-",
                amount(float(memory.mean()), "B") if len(memory) else "-",
                amount(float(memory.max()), "B") if len(memory) else "-",
                *(_mean(snapshot, f"process/{role}/{part}", "B/s") for part in ("read", "write")),
            ]
        )
    if not rows:
        return None
    head = ["process", "at most", "CPU, mean", "CPU, p95", "memory, mean", "memory, at most", "read", "written"]
    note = "CPU in % of one core, memory resident; pages that forked workers share are counted in each."
    return section("processes", "Processes", note, table(head, rows, numbers=range(1, 8), label="Processes"))


def gpus(snapshot: Snapshot) -> Html | None:
    """Every metric of every GPU, and those that are missing with NVML's words; None without a GPU."""
    schema = snapshot.schema
    parts = _gpu_parts(schema)
    if not parts:
        return None
    single = len(schema.gpus) == 1
    rows = []
    for part, unit in parts.items():
        found = [_values(snapshot, f"gpu/{gpu.index}/{part}") for gpu in schema.gpus]
        if not any(len(values) for values in found):
            continue
        cells = [cell for values in found for cell in _cells(values, part, unit, single=single)]
        rows.append([GPU_WORDS.get(part, part), *cells])
    if not rows:
        return None
    head = ["", "p50", "p95", "most"] if single else ["", *(f"GPU {gpu.index}" for gpu in schema.gpus)]
    note = None if single else "Medians; of throttling the share of the time, of errors the most."
    return section("gpus", "GPUs", note, table(head, rows, numbers=range(1, len(head)), label="GPUs"), _absent(schema))


def _cells(values: npt.NDArray[np.float64], part: str, unit: str, *, single: bool) -> list[str]:
    """What a GPU's columns say of one metric: p50, p95 and the most of a single one, one figure of each of several."""
    quantiles = (50, 95, 100) if single else (50,)
    if not len(values):
        return ["-"] * len(quantiles)
    if not single and part == "throttled":
        return [amount(float(values.mean()), unit)]
    if not single and unit == "1":
        quantiles = (100,)
    return [amount(float(np.percentile(values, q)), unit) for q in quantiles]


def cost(snapshot: Snapshot) -> str | None:
    """What watching took, in a line: `sampler 0.8 % of one core, 24 MB`; None where nobody measured it."""
    cpu, memory = (_values(snapshot, f"process/sampler/{part}") for part in ("cpu", "memory"))
    words = []
    if len(cpu):
        words.append(f"{number(float(cpu.mean()), '%')} % of one core")
    if len(memory):
        words.append(amount(float(memory.max()), "B"))
    return f"sampler {', '.join(words)}" if words else None


def _gpu_parts(schema: Schema) -> dict[str, str]:
    """The metrics of any GPU and their units, in the order of `GPU_WORDS`, unknown ones last."""
    units = {
        series.name.split("/", 2)[2]: series.unit
        for series in schema.series
        if series.name.startswith("gpu/") and "/mig/" not in series.name
    }
    order = [*(part for part in GPU_WORDS if part in units), *(part for part in units if part not in GPU_WORDS)]
    return {part: units[part] for part in order}


def _absent(schema: Schema) -> Html | None:
    """Which metrics which GPUs do not have, and why; the same words once."""
    told: dict[tuple[str, str], list[int]] = {}
    for gpu in schema.gpus:
        for part, why in gpu.reasons.items():
            told.setdefault((part, why), []).append(gpu.index)
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (part, why), numbers in told.items():
        together.setdefault((why, tuple(numbers)), []).append(GPU_WORDS.get(part, part))
    lines = [
        el("li", f"{', '.join(parts)} ({_which(schema, numbers)}): {why}")
        for (why, numbers), parts in sorted(together.items())
    ]
    return join(el("p", "Not there:", class_="absent"), el("ul", *lines)) if lines else None


def _which(schema: Schema, numbers: Iterable[int]) -> str:
    chosen = sorted(numbers)
    if len(chosen) == len(schema.gpus):
        return "every GPU" if len(chosen) > 1 else f"GPU {chosen[0]}"
    return f"GPU {ranges(chosen)}"


def _values(snapshot: Snapshot, name: str) -> npt.NDArray[np.float64]:
    """The present values of a series."""
    column = snapshot.schema.columns.get(name)
    if column is None:
        return np.empty(0)
    values = snapshot.values[:, column].astype(np.float64)
    present: npt.NDArray[np.float64] = values[np.isfinite(values)]
    return present


def _mean(snapshot: Snapshot, name: str, unit: str) -> str:
    values = _values(snapshot, name)
    return amount(float(values.mean()), unit) if len(values) else "-"


def _used(snapshot: Snapshot, name: str) -> str:
    return _mean(snapshot, name, "%")


def _most(snapshot: Snapshot, name: str) -> str:
    values = _values(snapshot, name)
    return amount(float(values.max()), "%") if len(values) else "-"


def recorded(facts: Mapping[str, object]) -> list[str]:
    """How a recorded session ended, and how its rows were thinned out; nothing for a live one."""
    told = facts.get("recorded")
    if not isinstance(told, dict):
        return []
    words = []
    ended = told.get("ended")
    if told.get("live"):
        words.append("still being recorded when this was made")
    elif isinstance(ended, dict) and ended.get("goodbye"):
        words.append(f"ended: {ended.get('reason') or 'stopped'}")
    else:
        words.append("ended without goodbye: its kernel was killed or the machine stopped")
    if told.get("bin_s"):
        words.append(f"values are means over bins of {float(told['bin_s']):.3g} s")
    return words
