"""GPUs of AMD, Intel and Apple, from files as the kernel documents them and from what `ioreg` prints."""

from __future__ import annotations

import json
import math
import plistlib
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fakehost import FakeHost
from kernel_monitor.analysis import analyse
from kernel_monitor.runtime import Monitor
from kernel_monitor.sample import probe as probe_files
from kernel_monitor.sample.gpu import cards, gpus
from kernel_monitor.sample.gpu.cards import LOAD, STATE, AppleGpu, Card, find_cards
from kernel_monitor.sample.gpu.gpus import Gpus
from kernel_monitor.sample.gpu.nvml import NvmlError
from kernel_monitor.views import document
from tests.unit.checks import wait_for

RADEON = {
    "vendor": "0x1002",
    "device": "0x744c",
    "product_name": "",
    "power/runtime_status": "active",
    "gpu_busy_percent": "37",
    "mem_busy_percent": "12",
    "mem_info_vram_used": str(6 << 30),
    "mem_info_vram_total": str(24 << 30),
    "pp_dpm_sclk": "0: 500Mhz\n1: 1500Mhz *\n2: 2482Mhz",
    "pp_dpm_mclk": "0: 96Mhz\n3: 1249Mhz *",
    "hwmon/hwmon3/power1_average": "120000000",
    "hwmon/hwmon3/power1_cap": "300000000",
    "hwmon/hwmon3/temp1_label": "edge",
    "hwmon/hwmon3/temp1_input": "55000",
    "hwmon/hwmon3/temp3_label": "mem",
    "hwmon/hwmon3/temp3_input": "71000",
}
ARC = {
    "vendor": "0x8086",
    "device": "0x56a0",
    "hwmon/hwmon2/energy1_input": "1000000",
    "hwmon/hwmon2/power1_max": "190000000",
    "hwmon/hwmon2/temp2_label": "pkg",
    "hwmon/hwmon2/temp2_input": "48000",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")
    return folder


def answers(card: Card, now: float = 1.0) -> dict[str, Any]:
    names = [part for part, _ in (*LOAD, *STATE)]
    return dict(zip(names, [*card.load(now), *card.state(now)], strict=True))


def test_amd(tmp_path: Path) -> None:
    folder = write(tmp_path / "class/drm/card1/device", RADEON)
    write(tmp_path / "class/drm/card1-DP-1/device", RADEON)  # a connector
    write(tmp_path / "class/drm/card0/device", {"vendor": "0x10de"})
    (card,) = find_cards(tmp_path)
    assert (card.name, card.memory_total) == ("AMD GPU 0x744c", 24 << 30)
    assert answers(card) == {
        "utilisation": 37,
        "memory_activity": 12,
        "memory": 25,
        "memory_used": 6 << 30,
        "power": pytest.approx(40),
        "power_draw": pytest.approx(120),
        "temperature": 55,
        "temperature_memory": 71,
        "clock_sm": 1500,
        "clock_memory": 1249,
        "power_limit": pytest.approx(300),
    }
    (folder / "gpu_busy_percent").unlink()
    (folder / "pp_dpm_sclk").write_text("garbage\n")
    (folder / "hwmon/hwmon3/power1_average").unlink()
    write(folder, {"hwmon/hwmon3/power1_input": "90000000", "mem_busy_percent": "\0\xff"})
    found = answers(card)
    assert found["utilisation"] == "gpu_busy_percent cannot be read: No such file or directory"
    assert found["clock_sm"] == "pp_dpm_sclk marks no clock"
    assert found["memory_activity"] == "mem_busy_percent holds no number"
    assert found["power_draw"] == pytest.approx(90)


def test_a_suspended_card_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of its load would start it, and a laptop's battery with it."""
    folder = write(tmp_path / "class/drm/card0/device", {**RADEON, "power/runtime_status": "suspended"})
    (card,) = find_cards(tmp_path)
    asked: list[str] = []
    true_read = probe_files.read

    def noted(path: str) -> bytes:
        asked.append(Path(path).name)
        return true_read(path)

    monkeypatch.setattr(cards, "read", noted)
    assert set(answers(card).values()) == {"the card is suspended, and a reading would wake it"}
    assert set(asked) == {"runtime_status"}
    write(folder, {"power/runtime_status": "active"})
    assert answers(card)["utilisation"] == 37


def test_intel(tmp_path: Path) -> None:
    folder = write(tmp_path / "class/drm/card0/device", ARC)
    write(tmp_path / "class/drm/card0", {"gt/gt0/rps_act_freq_mhz": "1300"})
    write(tmp_path / "class/drm/card1/device", {"vendor": "0x8086"})  # in the processor: it has no hwmon
    (card,) = find_cards(tmp_path)
    first = answers(card, 1.0)
    assert card.name == "Intel GPU 0x56a0"
    assert math.isnan(first["power_draw"])
    assert (first["clock_sm"], first["temperature"], first["power_limit"]) == (1300, 48, pytest.approx(190))
    assert "xpu-smi" in first["utilisation"]
    write(folder, {"hwmon/hwmon2/energy1_input": "39000000"})
    second = answers(card, 3.0)
    assert (second["power_draw"], second["power"]) == (pytest.approx(19), pytest.approx(10))
    write(folder, {"tile0/gt0/freq0/act_freq": "900", "hwmon/hwmon2/energy1_input": "5"})
    third = answers(card, 4.0)
    assert third["clock_sm"] == 900
    assert math.isnan(third["power_draw"])  # the counter began anew


def test_apple() -> None:
    printed: dict[str, Any] = {"model": "Apple M2", "PerformanceStatistics": {"Device Utilization %": 41}}
    gpu = AppleGpu(lambda: plistlib.dumps([printed]))
    found = answers(gpu)
    assert (gpu.name, found["utilisation"]) == ("Apple M2", 41)
    assert found["memory_used"] == "ioreg has no `In use system memory`"
    printed["PerformanceStatistics"]["In use system memory"] = 1 << 30
    assert answers(gpu)["memory_used"] == 1 << 30

    def missing() -> bytes:
        raise FileNotFoundError(2, "No such file or directory", "ioreg")

    assert "No such file" in str(AppleGpu(missing).load(0.0)[0])
    for output in (b"", plistlib.dumps([]), plistlib.dumps({"a": 1}), plistlib.dumps([{"PerformanceStatistics": 3}])):
        assert all(isinstance(answer, str) for answer in AppleGpu(partial(bytes, output)).load(0.0))


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[Any]:
        raise NvmlError("NVML Shared Library Not Found")

    monkeypatch.setattr(gpus, "open_devices", none)


@pytest.fixture
def probe(no_nvml: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    monkeypatch.setattr(gpus, "find_cards", lambda: find_cards(tmp_path))
    write(tmp_path / "class/drm/card0/device", RADEON)
    write(tmp_path / "class/drm/card1/device", ARC)
    found = Gpus(0.1)
    found.start()
    yield found
    found.stop()
    found._thread.join(20)
    assert not found._thread.is_alive()


def test_they_are_read_where_nvml_lists_none(probe: Gpus, tmp_path: Path) -> None:
    said = probe.hello()
    assert [gpu["name"] for gpu in said["gpus"]] == ["AMD GPU 0x744c", "Intel GPU 0x56a0"]
    assert said["gpu_reason"] is None
    assert said["gpus"][0]["reasons"] == {}
    assert set(said["gpus"][1]["reasons"]) == {
        "utilisation",
        "memory_activity",
        "memory",
        "memory_used",
        "temperature_memory",
        "clock_sm",
        "clock_memory",
    }
    write(tmp_path / "class/drm/card0/device", {"gpu_busy_percent": "99"})
    wait_for(lambda: 99.0 in probe.read())
    assert [group for group, _, _ in probe.groups(0.0)] == ["gpu", "gpu-slow"]
    shutil.rmtree(tmp_path / "class/drm/card0")  # a card that is unplugged
    wait_for(lambda: probe.refresh(1.0) and "utilisation" in probe.hello()["gpus"][0]["reasons"])


def test_a_session_has_their_rows_and_says_nothing_of_another_vendor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real sampler over a host that has such a card; its rows are those of any GPU."""
    FakeHost(tmp_path, sockets=1, cores=2)
    write(tmp_path / "sys/class/drm/card0/device", RADEON)
    monkeypatch.setenv("KERNEL_MONITOR_ROOT", str(tmp_path))
    monitor = Monitor()
    monitor.start(record=False)
    try:
        wait_for(lambda: monitor.store.schema.gpus)
        wait_for(lambda: monitor.store.last_seq > 5)
        snapshot = monitor.snapshot()
    finally:
        monitor.stop()
    (gpu,) = snapshot.schema.gpus
    assert (gpu.name, gpu.memory_total) == ("AMD GPU 0x744c", 24 << 30)
    column = snapshot.values[:, snapshot.schema.columns["gpu/0/utilisation"]]
    assert column[-1] == 37
    assert "gpu/0/memory" in snapshot.schema.columns
    assert not re.search("NVIDIA|NVML", repr(analyse(snapshot).findings))
    page = json.dumps(document(snapshot.schema))
    assert "AMD GPU 0x744c" in page
    assert not re.search("NVIDIA|NVML", page)
