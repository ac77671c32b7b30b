"""`import kernel_monitor` is cheap: nothing happens at import."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys

import pytest

# 100 ms is what is promised; a test asserts three times the bar, as machines under test are busy.
LIMIT_MS = 300.0
HEAVY = ("torch", "torchvision", "bokeh", "nvidia", "pynvml", "numpy", "IPython", "ipykernel", "anywidget", "PIL")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def test_import_is_quick() -> None:
    times = []
    for _ in range(5):
        listing = run("-X", "importtime", "-c", "import kernel_monitor").stderr
        match = re.search(r"\|\s+(\d+) \|\s*kernel_monitor$", listing, re.MULTILINE)
        assert match, listing[-500:]
        times.append(int(match[1]) / 1000)
    print(f"import kernel_monitor: {statistics.median(times):.1f} ms")
    assert statistics.median(times) < LIMIT_MS


@pytest.mark.parametrize("use", ["", "kernel_monitor.errors.MonitorError;"], ids=["nothing", "the errors"])
def test_import_loads_nothing_heavy(use: str) -> None:
    loaded = run("-c", f"import kernel_monitor, sys; {use} print(*sys.modules)").stdout.split()
    assert "kernel_monitor" in loaded
    assert sorted(set(loaded) & set(HEAVY)) == []


@pytest.mark.parametrize("name", ["runtime", "ipython.magics", "control", "recorded", "cli", "steps"])
def test_what_watches_a_notebook_needs_no_torch_before_something_of_it_is_used(name: str) -> None:
    loaded = run("-c", f"import kernel_monitor.{name}, sys; print(*sys.modules)").stdout.split()
    assert {"torch", "torchvision", "bokeh", "nvidia", "PIL"} & set(loaded) == set()
