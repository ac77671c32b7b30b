"""The working directory was deleted: every engine delivers what it delivers elsewhere, as the paths are absolute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import make_folder

ROOT = Path(__file__).parents[2]
# Trains in a folder that is deleted first, or not; prints what each engine delivered in an epoch of its own.
SCRIPT = """
import hashlib, json, os, sys, tempfile, time

def main():
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose, Resize, ToTensor
    from kernel_monitor import monitor

    data, deleted, workers = sys.argv[1], sys.argv[2] == "deleted", int(sys.argv[3])
    place = tempfile.mkdtemp()
    os.chdir(place)
    if deleted:
        os.rmdir(place)
    loader = DataLoader(ImageFolder(data, Compose([Resize((32, 32)), ToTensor()])), batch_size=4, num_workers=workers)

    def epoch():
        digest = hashlib.sha256()
        labels = []
        for images, targets in loader:
            digest.update(images.numpy().tobytes())
            labels += targets.tolist()
        return [digest.hexdigest(), labels]

    found = {"plain": epoch()}
    monitor.start()
    epoch()
    for engine in ("torchvision", "threads", "dali-cpu", "torchvision"):
        monitor.switch(engine)
        until = time.monotonic() + 60
        while monitor.loader_states()[0]["backend"] != engine and time.monotonic() < until:
            epoch()
        found[engine] = [*epoch(), monitor.loader_states()[0]["backend"]]
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


@pytest.mark.parametrize("workers", ["0", "2"])
def test_every_engine_delivers_the_same(tmp_path: Path, workers: str) -> None:
    data, script = make_folder(tmp_path / "data", 24), tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = run(script, data, "deleted", workers)
    assert [found[engine][2] for engine in ("torchvision", "threads", "dali-cpu")] == [
        "torchvision", "threads", "dali-cpu",
    ]  # fmt: skip
    assert found["recording"] == "recording"
    assert found["torchvision"][:2] == found["plain"]
    assert found["threads"][1] == found["dali-cpu"][1] == found["plain"][1]
    assert found == run(script, data, "there", workers)
