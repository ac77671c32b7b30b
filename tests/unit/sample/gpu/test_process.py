"""The sampler as a process, with the stand-in for pynvml that benchmarks and screenshots use."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import metrics
from benchmarks.nvml import simulated
from tests.unit.nvml_standin import pynvml
from tests.unit.sampler_taken import ROOT, Messages, sampler


@contextmanager
def started(options: dict[str, Any] | None = None, *more: str, **command: Any) -> Iterator[Messages]:
    """A sampler, with a stand-in for pynvml where there are options; it ends when its stdin does."""
    environment = {}
    if options is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "benchmarks" / "nvml"), str(ROOT)])
        environment[simulated.VARIABLE] = json.dumps(options)
    with sampler(*more, environment=environment, **command) as process:
        messages = Messages(process)
        yield messages
        messages.stdin.close()
        assert process.wait(10) == 0


def test_all_series_of_8_gpus_are_there_and_their_periods_kept() -> None:
    with started({"gpus": 8, "model": "H100"}, "--interval=0.1") as found:
        found.listen(60)
    hello = found.hellos[-1]
    assert hello["gpu_reason"] is None
    assert [gpu["name"] for gpu in hello["gpus"]] == ["NVIDIA H100 80GB HBM3 (simulated)"] * 8
    units = {series["name"]: series["unit"] for series in hello["series"]}
    for metric in metrics.METRICS:
        if metric.name.startswith("gpu/") and metric.group != "mig":
            for gpu in range(8):
                assert units[metric.name.replace("<i>", str(gpu))] == metric.unit
    pids = {f"gpu/{gpu}/process_{what}" for gpu in range(8) for what in ("memory", "utilisation")}
    missing = {name for name, value in found.values[-1].items() if name.startswith("gpu/") and math.isnan(value)}
    assert missing <= pids
    limits = {"gpu": 0.1, "gpu-slow": 1.0, "gpu-bus": 1.7, "gpm": 1.0}
    for group, period in limits.items():
        ages = sorted(values[f"sample/{group}/age"] for values in found.values[20:])
        # On average half a period old; three times that leaves room for a loaded machine.
        assert ages[len(ages) // 2] < 3 * (period / 2 + 0.1), group
    windows = {group: found.values[-1][f"sample/{group}/window"] for group in limits}
    assert (windows["gpu-bus"], windows["gpu-slow"]) == pytest.approx((0.02, 0.167))
    assert 0.15 < windows["gpu"] < 1.0
    assert 0.8 < windows["gpm"] < 3.0
    # They move, and not all of them together.
    first, last = found.values[10], found.values[-1]
    assert any(first[f"gpu/{gpu}/utilisation"] != last[f"gpu/{gpu}/utilisation"] for gpu in range(8))
    assert len({last[f"gpu/{gpu}/utilisation"] for gpu in range(8)}) > 1


def test_absent_metrics_mig_and_xid_reach_the_hello_and_the_notices() -> None:
    options = {
        "gpus": 3,
        "model": ["T4", "A100", "H100"],
        "latency": False,
        "mig": {"1": 2},
        "errors": {"2": {"nvmlDeviceGetPowerUsage": "NVML_ERROR_NO_PERMISSION"}},
        "xid": [[1.0, 2, 79]],
    }
    with started(options, "--interval=0.1") as found:
        found.listen(25)
    t4, a100, h100 = found.hellos[-1]["gpus"]
    assert t4["reasons"]["jpeg"] == t4["reasons"]["sm_active"] == t4["reasons"]["nvlink_sent"] == "Not Supported"
    assert a100["reasons"]["utilisation"] == "Not Supported (MIG is on)"
    assert [instance["index"] for instance in a100["mig"]] == [0, 1]
    assert h100["reasons"]["power_draw"] == "Insufficient Permissions"
    values = found.values[-1]
    assert math.isnan(values["gpu/0/jpeg"])
    assert math.isnan(values["gpu/2/power"])
    assert 0 < values["gpu/1/mig/1/memory"] < 100
    assert 0 < values["gpu/0/temperature"] < 100
    xids = [notice for notice in found.notices if notice.get("kind") == "xid"]
    assert [(notice["gpu"], notice["code"], notice["message"]) for notice in xids] == [
        (2, 79, "GPU 2: Xid 79 (GPU has fallen off the bus)")
    ]


LATE = """
import sys
from tests.unit.nvml_standin import FakeGpu, nvml
from kernel_monitor.sample.gpu import gpus as gpu
gpu.SLOWEST_START_S = 0.1
sys.argv = ["sample", "--interval=0.05"]
from kernel_monitor.sample.__main__ import main
with nvml([FakeGpu(), FakeGpu(utilisation=80)], init_delay=1.0):
    sys.exit(main())
"""


def test_frames_carry_gpus_that_come_late_and_a_hello_goes_before_them() -> None:
    with started(command=["-c", LATE]) as found:
        found.listen(5)
        assert (found.hellos[0]["gpus"], found.hellos[0]["gpu_reason"]) == ([], "NVML has not answered yet")
        assert not any(name.startswith("gpu/") for name in found.values[0])
        found.listen(40)
    assert [gpu["name"] for gpu in found.hellos[-1]["gpus"]] == ["NVIDIA H200"] * 2
    assert (found.values[-1]["gpu/1/utilisation"], found.values[-1]["gpu/0/power"]) == (80.0, 50.0)
    assert "NVML lists 2 GPU(s)" in [notice["message"] for notice in found.notices]


def test_without_the_stand_in_this_machine_is_as_it_is() -> None:
    words: str | None = None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        words = str(error)
    else:
        pynvml.nvmlShutdown()
    with started(None, "--interval=0.1") as found:
        found.listen(3)
    assert found.hellos[-1]["gpu_reason"] == words


def test_the_stand_ins_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(simulated.VARIABLE, "gpus=2, model=T4, latency=0")
    machine = simulated.machine(pynvml)
    assert [gpu.name for gpu in machine.gpus] == ["Tesla T4 (simulated)"] * 2
    assert machine.latency("nvmlDeviceGetPcieThroughput") == 0.0
    monkeypatch.setenv(simulated.VARIABLE, "")
    assert len(simulated.machine(pynvml).gpus) == 8
    assert simulated.machine(pynvml).latency("nvmlDeviceGetPcieThroughput") > 0.02
    monkeypatch.setenv(simulated.VARIABLE, '{"model": "Voodoo2"}')
    with pytest.raises(ValueError, match="Voodoo2"):
        simulated.machine(pynvml)
