"""The package where macOS or Windows lacks something: real Python, loader and sampler without it (`sitecustomize`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SERVERS = ["kernel_monitor.loaders.calibration_process", "kernel_monitor.ranks.tcp_gateway"]
"""Processes that start where DALI or Unix sockets are; they need `resource`."""
SCRIPT = """
import importlib, io, json, pkgutil, sys, time
from contextlib import redirect_stdout
from pathlib import Path

import kernel_monitor
import torch
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

said = {"platform": sys.platform, "not imported": []}
for module in pkgutil.walk_packages(kernel_monitor.__path__, "kernel_monitor."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError:
            said["not imported"].append(module.name)

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "kernel_monitor")
from kernel_monitor import monitor
from kernel_monitor.loaders import switchable

root = Path(sys.argv[1])
(root / "a").mkdir()
for number in range(12):
    Image.effect_noise((64, 48), 50 + number).convert("RGB").save(root / "a" / f"{number:02}.jpg")
monitor.start()

def made():
    chain = v1.Compose([v1.CenterCrop(24), v1.ToTensor()])
    return DataLoader(ImageFolder(root, chain), 4, num_workers=int(sys.argv[2]))

plain = torch.cat([images for images, _ in made()])
loader = switchable(made(), seed=1)
said["reasons"] = {name: loader.backends[name].reason for name in ("torchvision", "threads", "dali-cpu")}
said["differences"] = {}
for engine in ("torchvision", "threads"):
    loader.switch(engine)
    while loader.switch_state.preparing is not None:
        time.sleep(0.01)
    delivered = torch.cat([images for images, _ in loader])
    said["differences"][engine] = 255 * float((delivered - plain).abs().max())
    said.setdefault("decoded", []).append(loader.decoded())
until = time.monotonic() + 60
while monitor.status().splitlines()[0].split(":")[1].split()[0] == "0" and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(1)
snapshot = monitor.snapshot()
said |= {"series": [one.name for one in snapshot.schema.series], "host": dict(snapshot.schema.host),
         "recording": monitor.recording["state"], "status": monitor.status()}
with redirect_stdout(io.StringIO()) as printed:
    try:
        shell.run_line_magic("monitor", "join")
    except Exception as error:
        print(error)
said["join"] = printed.getvalue()
monitor.stop()
print(json.dumps(said))
"""


def session(system: str, workers: int, folder: Path) -> dict[str, Any]:
    """What a notebook's session with a training says there."""
    images = folder / "images"
    images.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
        "SUBSTITUTED": system,
        "KERNEL_MONITOR_SESSIONS": str(folder / "sessions"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    command = [sys.executable, "-P", "-c", SCRIPT, str(images), str(workers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("system", "workers"), [("darwin", 1), ("win32", 0)])
def test_a_session_with_a_training(system: str, workers: int, tmp_path: Path) -> None:
    """macOS with a worker, which is spawned; Windows without, as torch's own worker would look for DLLs there."""
    said = session(system, workers, tmp_path)
    windows = system == "win32"
    assert said["platform"] == system
    assert said["not imported"] == (SERVERS if windows else [])
    assert said["reasons"] == {
        "torchvision": None,
        "threads": None,
        "dali-cpu": "DALI runs on Linux only (on Windows: in WSL).",
    }
    assert said["differences"]["torchvision"] == 0
    assert said["differences"]["threads"] < 1
    assert said["decoded"] == [{"torchvision": 12}, {"threads": 12}]
    assert said["recording"] == "recording"
    assert {"cpu/0/busy", "memory/used"} <= set(said["series"])
    assert not [name for name in said["series"] if name.startswith("pressure/")]
    assert ("host/load1" in said["series"]) is not windows
    assert said["host"]["platform"] == ("Windows" if windows else "Darwin")
    assert ("no Unix sockets; run ranks on Linux or macOS" in said["join"]) is windows
    assert "the sampler ended" not in said["status"]
