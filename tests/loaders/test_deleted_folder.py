"""The working directory was deleted: every engine delivers what it delivers elsewhere, as the paths are absolute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .conftest import make_folder

ROOT = Path(__file__).parents[2]
# Trains in a folder that is deleted first, or not, without workers and then with two; prints, for each, what each
# engine delivered in an epoch of its own.
SCRIPT = """
import hashlib, json, os, sys, tempfile, time

def main():
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose, Resize, ToTensor
    from kernel_monitor import monitor

    data, deleted = sys.argv[1], sys.argv[2] == "deleted"
    place = tempfile.mkdtemp()
    os.chdir(place)
    if deleted:
        os.rmdir(place)
    dataset = ImageFolder(data, Compose([Resize((32, 32)), ToTensor()]))

    def epoch(loader):
        digest = hashlib.sha256()
        labels = []
        for images, targets in loader:
            digest.update(images.numpy().tobytes())
            labels += targets.tolist()
        return [digest.hexdigest(), labels]

    found = {"plain": epoch(DataLoader(dataset, batch_size=4))}
    monitor.start()
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=4, num_workers=workers)
        epoch(loader)
        for engine in ("torchvision", "threads", "dali-cpu", "torchvision"):
            monitor.switch(engine, loader=monitor.loaders[-1].id)
            until = time.monotonic() + 60
            while monitor.loader_states()[-1]["backend"] != engine and time.monotonic() < until:
                epoch(loader)
            found[f"{engine} {workers}"] = [*epoch(loader), monitor.loader_states()[-1]["backend"]]
        del loader
    found["recording"] = monitor.recording["state"]
    monitor.stop()
    if not deleted:
        os.chdir("/")
        os.rmdir(place)
    print(json.dumps(found))

if __name__ == "__main__":
    main()
"""


def run(script: Path, data: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(script), str(data), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_engine_delivers_the_same(tmp_path: Path) -> None:
    data, script = make_folder(tmp_path / "data", 24), tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = run(script, data, "deleted")
    assert found["recording"] == "recording"
    for workers in (0, 2):
        for engine in ("torchvision", "threads", "dali-cpu"):
            pixels, labels, backend = found[f"{engine} {workers}"]
            assert backend == engine
            assert labels == found["plain"][1]
            assert engine != "torchvision" or pixels == found["plain"][0]
    assert found == run(script, data, "there")
