"""What the templates show of the session as a whole, of its machine, and of how its figures were obtained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..analysis import allowed_cores
from ..steps.measured_step import ON_DEVICE
from ..store import Snapshot
from ..store.charts import PROCESS_ROLES, hosts_of
from .formats import amount, moment, ranges, size
from .subject import Subject

Figure = Callable[[str, str, str], str]

STATISTICS: dict[str, Callable[[npt.NDArray[np.float64]], Any]] = {
    "mean": np.mean,
    "p50": np.median,
    "p95": lambda values: np.percentile(values, 95),
    "most": np.max,
}


def header(subject: Subject) -> dict[str, Any]:
    """When the session began, on what machine, and what its recording says of itself."""
    schema, time = subject.snapshot.schema, subject.snapshot.time
    began = float(time[0]) if len(time) else 0.0
    what = "Recorded" if subject.recorded else "Training"
    return {
        "title": f"{what} session of {moment(schema.origin + began, subject.where)}",
        "cores": f"{len(schema.cpus) or schema.host.get('logical_cpus', '?')} logical cores",
        "gpus": _kinds(subject.snapshot),
        "rank": _rank(subject),
        "rows": len(time),
        "seconds": float(time[-1]) - began if len(time) else 0.0,
        "recorded": subject.recorded,
        "interval": schema.interval,
    }


def facts(subject: Subject) -> dict[str, Any]:
    """The machine and the software, and what watching them cost."""
    known = subject.snapshot.facts
    versions = {"python": known["python"]} if known.get("python") else {}
    return {
        **header(subject),
        "known": known,
        "host": subject.snapshot.schema.host,
        "software": {**versions, **known.get("versions", {})},
        "figure": _figure(subject.snapshot),
    }


def _kinds(snapshot: Snapshot) -> str:
    """`8 × NVIDIA H100 (80.0 GB)`; empty without a GPU."""
    gpus = snapshot.schema.gpus
    kinds = Counter(f"{gpu.name} ({size(gpu.memory_total)})" if gpu.memory_total else gpu.name for gpu in gpus)
    return ", ".join(f"{times} × {kind}" if times > 1 else kind for kind, times in kinds.items())


def _rank(subject: Subject) -> str:
    """`rank 0 of 8` where there are several; else empty."""
    rank, ranks = (subject.snapshot.facts.get(name) for name in ("rank", "world_size"))
    return f"rank {rank} of {ranks}" if rank is not None and ranks else ""


def limits(subject: Subject) -> dict[str, Any] | None:
    """The limits under which the process ran, and how much of them it used; None where it had the whole machine."""
    schema = subject.snapshot.schema
    found = schema.host.get("limits") or {}
    allowed = sorted(allowed_cores(schema))
    is_narrowed = len(allowed) < len(schema.cpus)
    throttled = len(_values(subject.snapshot, "container/throttled")) > 0
    if not (is_narrowed or throttled or found.get("cpu_quota") is not None or found.get("memory") is not None):
        return None
    return {
        "cores": f"{len(allowed)} of {len(schema.cpus)} ({ranges(allowed)})" if is_narrowed else None,
        "throttled": throttled,
        "found": found,
        "total": schema.host.get("memory_total"),
        "figure": _figure(subject.snapshot),
    }


def processes(subject: Subject) -> dict[str, Any] | None:
    """CPU, memory and I/O of the kernel and its children, by role."""
    snapshot = subject.snapshot
    roles = [
        (role, words)
        for role, words in PROCESS_ROLES
        if any(len(_values(snapshot, f"process/{role}/{part}")) for part in ("cpu", "memory"))
    ]
    return {"roles": roles, "figure": _figure(snapshot)} if roles else None


def nodes(subject: Subject) -> dict[str, Any] | None:
    """The other machines that worked for the loaders or ran ranks; None where there was none."""
    snapshot = subject.snapshot
    rows = [
        (node, *_busy(snapshot, [f"node/{node.id}/cpu/{core}/busy" for core in node.cores]))
        for node in snapshot.schema.nodes
    ]
    hosts = hosts_of(snapshot.schema)
    delivered = any(node.id not in hosts for node in snapshot.schema.nodes)
    return {"rows": rows, "figure": _figure(snapshot), "hosts": hosts, "delivered": delivered} if rows else None


def _busy(snapshot: Snapshot, names: Sequence[str]) -> list[str]:
    """Mean and p95 over time of the mean of these series."""
    columns = [snapshot.schema.columns[name] for name in names if name in snapshot.schema.columns]
    table = snapshot.values[:, columns].astype(np.float64)
    means = table[np.isfinite(table).all(axis=1)].mean(axis=1) if columns else np.empty(0)
    return [amount(float(STATISTICS[which](means)), "%") if len(means) else "-" for which in ("mean", "p95")]


def gpus(subject: Subject) -> dict[str, Any] | None:
    """Every metric of every GPU, and those that are missing with NVML's words; None without a GPU."""
    snapshot = subject.snapshot
    schema = snapshot.schema
    figure = _figure(snapshot)
    single = len(schema.gpus) == 1
    rows: dict[str, list[str]] = {}
    for series in schema.series:
        kind, _, part = (*series.name.split("/", 2), "", "")[:3]
        if kind != "gpu" or part.startswith("mig/") or part in rows:
            continue
        names = [f"gpu/{gpu.index}/{part}" for gpu in schema.gpus]
        if any(len(_values(snapshot, name)) for name in names):
            several = "mean" if part == "throttled" else "most" if series.unit == "1" else "p50"
            which = ("p50", "p95", "most") if single else (several,)
            rows[part] = [figure(name, series.unit, statistic) for name in names for statistic in which]
    if not rows:
        return None
    absent: dict[tuple[str, str], list[str]] = {}
    for part, why in {pair: None for gpu in schema.gpus for pair in gpu.reasons.items()}:
        indices = sorted(gpu.index for gpu in schema.gpus if gpu.reasons.get(part) == why)
        is_every = 1 < len(indices) == len(schema.gpus)
        absent.setdefault((why, "every GPU" if is_every else f"GPU {ranges(indices)}"), []).append(part)
    head = ["p50", "p95", "most"] if single else [f"GPU {gpu.index}" for gpu in schema.gpus]
    return {"single": single, "head": head, "found": rows, "absent": absent}


def method(subject: Subject) -> dict[str, Any]:
    """How the figures were obtained: how often was sampled, and by which clock the steps were timed."""
    steps = subject.snapshot.steps
    rows = steps.rows
    timed = np.isfinite(rows["forward"]) | np.isfinite(rows["copy"]) | np.isfinite(rows["backward"])
    return {
        "recorded": subject.recorded,
        "bin_s": subject.bin_s,
        "interval": subject.snapshot.schema.interval,
        "steps": len(steps),
        "dropped": steps.dropped,
        "timed": int(timed.sum()),
        "on_device": int(np.count_nonzero(rows["flags"][timed] & ON_DEVICE)),
    }


def _figure(snapshot: Snapshot) -> Figure:
    """What gives a statistic of a series with its unit; `-` where there is no value."""

    def figure(series: str, unit: str, statistic: str) -> str:
        values = _values(snapshot, series)
        return amount(float(STATISTICS[statistic](values)), unit) if len(values) else "-"

    return figure


def _values(snapshot: Snapshot, name: str) -> npt.NDArray[np.float64]:
    column = snapshot.schema.columns.get(name)
    values = np.empty(0) if column is None else snapshot.values[:, column].astype(np.float64)
    present: npt.NDArray[np.float64] = values[np.isfinite(values)]
    return present
