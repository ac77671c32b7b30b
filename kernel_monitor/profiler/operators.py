"""Traces of torch.profiler: their tables (operators and the GPU's kernels by their own time), and their files, which
lie beside the recording of their session for as long as that exists.

`python -m kernel_monitor.profiler.operators` reads a request from stdin and runs in a process of its own, because
torch's `key_averages` holds the GIL of the process that trains for seconds. Standard library only.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .. import own_files
from ..errors import MonitorError
from ..output import write

TOP = 10  # rows of each table
LONGEST_NAME = 160  # characters of a kernel's name that are kept: those of templates run to thousands

MOST = 50  # traces kept in a folder; the oldest go
_PART = "-profile-"
_ON_CPU = ("cpu_op", "cuda_runtime", "cuda_driver")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
# Facts about the machine that a trace holds and a reader of it does not need.
_PRIVATE = ("host_name", "traceName")

Row = dict[str, Any]


def tables(events: Iterable[Mapping[str, Any]], top: int = TOP) -> dict[str, Any]:
    """Return the tables of a trace's events (Chrome's trace format; times in µs).

    Returns:
        `cpu`: rows of `name`, `share` (of all operators' own time), `self_ms` (without the operators that it called),
        `count`; `gpu`: rows of `name`, `share` (of all kernels' and copies' time), `ms`, `launches`; the longest
        first, `top` of each; `cpu_ms` and `gpu_ms`: those sums.
    """
    threads: dict[tuple[Any, Any], list[tuple[float, float, str]]] = defaultdict(list)
    kernels: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for event in events:
        if event.get("ph") != "X":
            continue
        kind = event.get("cat")
        if kind in _ON_CPU:
            name = str(event["name"])
            threads[event.get("pid"), event.get("tid")].append((float(event["ts"]), -float(event["dur"]), name))
        elif kind in ON_GPU:
            row = kernels[str(event["name"])]
            row[0] += float(event["dur"]) / 1e3
            row[1] += 1
    operators: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for calls in threads.values():
        _own_times(calls, operators)
    cpu_ms = sum(ms for ms, _ in operators.values())
    gpu_ms = sum(ms for ms, _ in kernels.values())
    return {
        "cpu": _rows(operators, cpu_ms, top, "self_ms", "count"),
        "gpu": _rows(kernels, gpu_ms, top, "ms", "launches"),
        "cpu_ms": cpu_ms,
        "gpu_ms": gpu_ms,
    }


def _own_times(calls: list[tuple[float, float, str]], into: dict[str, list[float]]) -> None:
    """Add the calls of one thread (`(start, −duration, name)`, µs): each one's time less that of those inside it."""
    calls.sort()
    open_calls: list[tuple[float, str]] = []  # (end, name), the innermost last
    for start, minus, name in calls:
        while open_calls and open_calls[-1][0] <= start:
            open_calls.pop()
        row = into[name]
        row[0] -= minus / 1e3
        # An operator that only passes on to another form of itself was called once.
        row[1] += not (open_calls and open_calls[-1][1] == name)
        if open_calls:
            # Clocks are read one after the other: a call may seem to end a little after the one that it is in.
            end, outer = open_calls[-1]
            into[outer][0] -= min(-minus, end - start) / 1e3
        open_calls.append((start - minus, name))


def _rows(sums: Mapping[str, list[float]], whole: float, top: int, ms: str, count: str) -> list[Row]:
    longest = sorted(sums.items(), key=lambda row: (-row[1][0], row[0]))[:top]
    return [
        {
            "name": name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…",
            "share": took / whole if whole > 0 else 0.0,
            ms: round(took, 4),
            count: int(times),
        }
        for name, (took, times) in longest
    ]


def keep(trace: Mapping[str, Any], path: Path) -> None:
    """Write a trace for ui.perfetto.dev, readable by its owner only, without host name and paths.

    Raises a `MonitorError` where it cannot be written; nothing is left.
    """
    shown = {key: value for key, value in trace.items() if key not in _PRIVATE}
    packed = io.BytesIO()
    with gzip.GzipFile(path.stem, "wb", 5, packed) as file:
        file.write(json.dumps(shown, separators=(",", ":")).encode())
    write(path, packed.getvalue(), mode=0o600)


def new_trace(recording: str | os.PathLike[str] | None) -> Path:
    """Return a new name for a trace: `SESSION-profile-1.json.gz`, or, without a recording, in a folder of its own in
    /tmp.
    """
    if recording is None:
        return Path(tempfile.mkdtemp(prefix="kernel-monitor-trace-"), "profile-1.json.gz")
    session = Path(recording)
    prune(session.parent)
    number = 1
    while (place := session.with_name(f"{session.stem}{_PART}{number}.json.gz")).exists():
        number += 1
    return place


def prune(folder: Path) -> list[Path]:
    """Delete traces whose recording is gone, and the oldest where there are many; return their paths."""
    found = [trace for trace in own_files.files_in(folder, ".json.gz") if _PART in trace.name]
    traces = sorted(found, key=lambda trace: trace.lstat().st_mtime)
    alone = [trace for trace in traces if not (folder / f"{trace.name.rsplit(_PART, 1)[0]}.kmsession").exists()]
    kept = [trace for trace in traces if trace not in alone]
    gone = [*alone, *kept[: max(0, len(kept) - MOST + 1)]]
    for trace in gone:
        trace.unlink(missing_ok=True)
    return gone


def main() -> None:
    """Reads `{"trace", "keep"}` (paths), writes the tables, `trace` (a file's name) and `problem`."""
    request = json.load(sys.stdin)
    with Path(request["trace"]).open(encoding="utf-8", errors="replace") as file:
        trace = json.load(file)
    result: dict[str, Any] = {**tables(trace["traceEvents"]), "trace": None, "problem": None}
    kept = Path(request["keep"])
    try:
        keep(trace, kept)
        result["trace"] = kept.name
    except MonitorError as error:
        result["problem"] = f"the trace could not be kept: {str(error).rstrip('.')}"
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
