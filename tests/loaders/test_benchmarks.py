"""The benchmarks run and count every sample; whether their bars are met is for `make bench` to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import Bar, percentile
from kernel_monitor.demo import demo_data

from ..combinations import LONG

ROOT = Path(__file__).parents[2]
COLD = int(LONG)  # cold swaps in each direction; each is a process of its own


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_data(tmp_path_factory.mktemp("photos") / "set", images=32, progress=False)


def benchmark(module: str, photos: Path, file: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Run one in a process of its own, where nothing has loaded DALI yet; its figures and what it printed."""
    command = [
        sys.executable,
        "-m",
        module,
        f"--data={photos}",
        "--images=32",
        f"--json={file}",
        "--workers=2",
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), done.stderr  # 1: a bar was missed, which says nothing on a set this small
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found, done.stdout


def test_loaders(photos: Path, tmp_path: Path) -> None:
    found, shown = benchmark(
        "benchmarks.loaders", photos, tmp_path / "figures.json", "--rounds=1", "--samples=16", "--batch=1"
    )
    names = [bar["name"].split(",")[0] for bar in found["bars"]]
    assert [name for name in names if "gpu" not in name] == [
        "switchable: torchvision / DataLoader",
        "switchable: dali-cpu / DALI by hand (cpu)",
        "switchable: dali-cpu / DataLoader",
        "switchable: threads / DataLoader",
        "switchable: threads / switchable: dali-cpu",
        "RandAugment: dali-cpu / RandAugment: torchvision",
        "preset object: dali-cpu / preset object: torchvision",
        "timm: dali-cpu / timm: torchvision",
        "augmentation parameters",
    ]
    assert all(bar["value"] > 0 for bar in found["bars"])
    assert "RandAugment: dali-cpu: DALI decodes and does RandomResizedCrop, RandomHorizontalFlip; RandAugment" in shown
    for name in (
        "DataLoader",
        "switchable: torchvision",
        "switchable: threads",
        "switchable: dali-cpu",
        "DALI by hand (cpu)",
    ):
        line = next(line for line in shown.splitlines() if line.startswith(f"{name}  "))
        *_, epochs, samples, _cold, _warm = line.split()
        assert (epochs, samples) == ("1", "16")
        assert found[name]["cold_s"] > 0


def test_swap(photos: Path, tmp_path: Path) -> None:
    found, shown = benchmark(
        "benchmarks.swap",
        photos,
        tmp_path / "figures.json",
        "--swaps=11",
        "--timed=6",
        f"--cold-runs={COLD}",
        "--batch=1",
    )
    assert "none lost or doubled" in shown
    for direction in ("torchvision to dali-cpu", "dali-cpu to torchvision"):
        figures = found[direction]
        assert len(figures["click_ms"]) == len(figures["stall_ms"]) >= 2
        assert len(figures["cold"]) == COLD
        assert all(cold["click_ms"] > 0 for cold in figures["cold"])
    memory = found["memory_mb"]
    assert memory["released"] < memory["end"]


def test_a_bar_says_whether_it_is_met() -> None:
    assert Bar("ratio", 0.991, 0.99).line() == "met     ratio: 0.991 (at least 0.99)"
    assert Bar("ratio", 0.98, 0.99).line().startswith("MISSED")
    assert Bar("click", 251.0, 250.0, " ms", at_most=True).line() == "MISSED  click: 251.0 ms (at most 250)"
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([3.0], 0.95) == 3.0
