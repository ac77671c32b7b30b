"""What a trace of the profiler says, in words and in files; torch itself is in tests/loaders/test_profiling.py."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.errors import MonitorError
from kernel_monitor.profiler.operators import LONGEST_NAME, MOST, keep, new_trace, prune, tables
from kernel_monitor.profiler.plugin import pairs, text
from kernel_monitor.runtime import Monitor
from tests.unit.checks import loaded_by, not_none


def call(name: str, start: float, took: float, thread: int = 1, kind: str = "cpu_op") -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 7, "tid": thread, "ts": start, "dur": took}


TRACE = [
    call("aten::conv2d", 0, 1000),
    call("aten::convolution", 100, 800),
    call("cudaLaunchKernel", 200, 300, kind="cuda_runtime"),
    call("aten::conv2d", 2000, 1000),
    call("aten::mm", 0, 4000, thread=2),
    call("Optimizer.step#SGD", 0, 9000, kind="user_annotation"),
    call("gemm", 300, 2000, thread=99, kind="kernel"),
    call("gemm", 2300, 2000, thread=99, kind="kernel"),
    call("Memcpy HtoD", 300, 1000, thread=98, kind="gpu_memcpy"),
    {"ph": "M", "name": "process_name", "pid": 7},
]


def test_an_operator_s_own_time_is_without_what_it_called() -> None:
    found = tables(TRACE)
    own = {row["name"]: (row["self_ms"], row["count"]) for row in found["cpu"]}
    assert own == {
        "aten::mm": (4.0, 1),
        "aten::conv2d": (1.2, 2),  # 0.2 of the first, all of the second
        "aten::convolution": (0.5, 1),
        "cudaLaunchKernel": (0.3, 1),
    }
    assert found["cpu_ms"] == pytest.approx(6.0)
    assert [row["name"] for row in found["cpu"]][:2] == ["aten::mm", "aten::conv2d"]
    assert sum(row["share"] for row in found["cpu"]) == pytest.approx(1.0)


def test_times_and_counts_are_added_up_by_name() -> None:
    found = tables(TRACE)
    assert found["gpu"] == [
        {"name": "gemm", "share": 0.8, "ms": 4.0, "launches": 2},
        {"name": "Memcpy HtoD", "share": 0.2, "ms": 1.0, "launches": 1},
    ]
    assert tables([])["gpu"] == []
    assert tables([])["cpu_ms"] == 0
    found = tables([call("outer", 0, 100), call("inner", 90, 20)])
    assert {row["name"]: row["self_ms"] for row in found["cpu"]} == {"outer": 0.09, "inner": 0.02}
    (row,) = tables([call("aten::sum", 0, 100), call("aten::sum", 10, 80), call("aten::sum", 200, 50)])["cpu"]
    assert (row["self_ms"], row["count"]) == (0.15, 2)


def test_only_the_first_rows_and_no_endless_names() -> None:
    found = tables([call(f"op{k}", 100 * k, k + 1) for k in range(30)] + [call("x" * 5000, 9000, 500)], top=10)
    assert (len(found["cpu"]), len(found["cpu"][0]["name"])) == (10, LONGEST_NAME)
    assert found["cpu"][1]["name"] == "op29"
    whole = sum(range(1, 31)) + 500
    assert found["cpu"][1]["share"] == pytest.approx(30 / whole)  # of everything, not of what is shown


def test_a_kept_trace_is_the_owner_s_and_names_no_machine(tmp_path: Path) -> None:
    path = tmp_path / "s-profile-1.json.gz"
    keep({"host_name": "secret-host", "traceName": "/home/me/x.json", "traceEvents": TRACE}, path)
    assert path.stat().st_mode & 0o777 == 0o600
    told = json.loads(gzip.decompress(path.read_bytes()))
    assert set(told) == {"traceEvents"}
    assert len(told["traceEvents"]) == len(TRACE)
    assert b"secret" not in gzip.decompress(path.read_bytes())
    with pytest.raises(MonitorError, match="nowhere does not exist"):
        keep({"traceEvents": []}, tmp_path / "nowhere" / "x.json.gz")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_the_process_reads_a_trace(tmp_path: Path) -> None:
    raw = tmp_path / "trace.json"
    raw.write_text(json.dumps({"traceEvents": TRACE}))
    request = {"trace": str(raw), "keep": str(tmp_path / "gone" / "t.json.gz")}
    done = subprocess.run(
        [sys.executable, "-m", "kernel_monitor.profiler.operators"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert len(found["cpu"]) == 4
    assert found["trace"] is None
    assert found["problem"].startswith("the trace could not be kept: Cannot write ")
    assert found["problem"].endswith("gone does not exist: name a file in another folder")


def test_reading_a_trace_imports_neither_torch_nor_numpy() -> None:
    assert loaded_by("import kernel_monitor.profiler.operators", "torch", "numpy") == []


def test_traces_go_with_their_recordings(tmp_path: Path) -> None:
    session = tmp_path / "2026-a.kmsession"
    session.touch()
    first = new_trace(session)
    assert first.name == "2026-a-profile-1.json.gz"
    first.touch()
    assert new_trace(str(session)).name == "2026-a-profile-2.json.gz"
    orphan = tmp_path / "2026-b-profile-1.json.gz"
    orphan.touch()
    other = tmp_path / "mine.json.gz"
    other.touch()
    assert prune(tmp_path) == [orphan]
    for number in range(2, MOST + 10):
        trace = tmp_path / f"2026-a-profile-{number}.json.gz"
        trace.touch()
        os.utime(trace, (time.time() + number, time.time() + number))
    new_trace(session)
    kept = sorted(int(one.name.split("-")[3].split(".")[0]) for one in tmp_path.glob("2026-a-profile-*"))
    assert kept == list(range(11, MOST + 10))
    assert other.exists()
    assert session.exists()


def result(backend: str = "torchvision", **fields: Any) -> dict[str, Any]:
    row = {"name": "aten::mm", "share": 0.5, "self_ms": 20.0, "count": 40}
    made = {"loader": "loader-1", "name": "train", "backend": backend, "began": 1.0, "ended": 2.0, "steps": 10}
    made |= {"cpu": [row], "gpu": [], "gpu_reason": "torch finds no GPU that it can use", "wall_ms": 1000.0}
    return made | {"trace": None, **fields}


def test_two_profiles_stand_side_by_side() -> None:
    before = result("torchvision", cpu=[{"name": "aten::add", "share": 0.25, "self_ms": 9.0, "count": 3}])
    after = result("dali-cpu")
    assert [(name, was is None, now is None) for name, was, now in pairs(before, after, "cpu")] == [
        ("aten::mm", True, False),
        ("aten::add", False, True),
    ]
    said = text(after, before)
    assert "train, dali-cpu: 10 steps in 1,000 ms" in said
    header, mm, add = (line.split() for line in said.splitlines()[1:4])
    assert header[-1] == "torchvision"
    assert mm == ["aten::mm", "50.0", "%", "20.0", "40", "–"]
    assert add == ["aten::add", "–", "25.0", "%"]
    assert said.endswith("no GPU kernels: torch finds no GPU that it can use")
    assert "torchvision" not in text(after)


@pytest.mark.parametrize("steps", [0, -1, 201, 2.5, True, "10"])
def test_what_cannot_be_profiled_is_refused(steps: Any) -> None:
    with pytest.raises(MonitorError, match="1 to 200 steps can be profiled"):
        Monitor().profile(steps)


def test_a_loader_that_is_not_there_is_named() -> None:
    with pytest.raises(MonitorError, match="No single loader is called 'nobody'"):
        Monitor().profile(loader="nobody")


def test_without_a_loop_it_says_so() -> None:
    monitor = Monitor()
    monitor.configure(record=False)
    try:
        with pytest.raises(MonitorError, match=r"No step ended within 0\.3 s: start the loop"):
            monitor.profile(patience=0.3)
        state = not_none(monitor.profiling)
        assert (state["state"], state["done"], state["total"], state["result"]) == ("failed", 0, 10, None)
    finally:
        monitor.stop()
