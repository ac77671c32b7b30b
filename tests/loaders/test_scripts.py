"""New workers in a user's own script, in a process of its own: the script is never run a second time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .conftest import make_folder

HEAD = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
with open("ran.txt", "a") as file:
    file.write(f"{__name__}\\n")
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision import transforms as v1
from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import switchable

def fixed(size):
    return v1.Compose([v1.Resize((size, size)), v1.ToTensor()])

def wait(condition):
    deadline = time.monotonic() + 150
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()

def sizes(loader):
    return sorted({images.shape[-1] for images, _ in loader})
"""

KNOB = """
loader = switchable(DataLoader(ImageFolder("images", fixed(8)), batch_size=4, num_workers=1))
loader.switch("dali-cpu")  # before the first epoch: this prepares it, once the worker has been forked
iterator = iter(loader)
next(iterator)
assert loader.backend == "dali-cpu"
loader.switch("torchvision")
pids = loader.worker_pids
try:
    loader.set(workers=2)
    wait(lambda: len(loader.worker_pids) > 1)
    wait(lambda: loader.pool["torchvision"].engine.started)
except MonitorError as error:
    print("refused:", error)
count = sum(1 for _ in iterator)
print("workers:", loader.knobs.workers, sizes(loader), loader.state()["lost"])
print("kept:", loader.worker_pids == pids)
"""

EPOCHS = """
dataset = ImageFolder("images", fixed(8))
loader = switchable(DataLoader(dataset, batch_size=4, num_workers=1))
loader.switch("dali-cpu")  # before the first epoch: this prepares it, once the worker has been forked
iterator = iter(loader)
next(iterator)
assert loader.backend == "dali-cpu"
loader.switch("torchvision")
print(sizes(iterator))
dataset.transform = fixed(16)
for _ in range(2):
    try:
        print(sizes(loader))
    except MonitorError as error:
        print("refused:", error)
dataset.transform = fixed(8)
print(sizes(loader), loader.backend)
dataset.transform = fixed(16)
loader.set(workers=0)
print(sizes(loader), loader.backend)
"""


def run(folder: Path, body: str, *, guarded: bool, head: str = "") -> tuple[list[str], list[str]]:
    """Run a script over 40 images, `head` above its guard; returns what it printed, and under which names it ran."""
    make_folder(folder / "images", 40)
    if guarded:
        body = "if __name__ == '__main__':" + body.replace("\n", "\n    ")
    (folder / "train.py").write_text(HEAD + head + body)
    done = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, timeout=300, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), (folder / "ran.txt").read_text().split()


def test_new_workers_in_an_unguarded_script_are_refused(tmp_path: Path) -> None:
    printed, ran = run(tmp_path, KNOB, guarded=False)
    assert ran == ["__main__"]
    assert printed[0].startswith(
        "refused: New workers cannot be forked, because DALI, Ray or CUDA runs in this process"
    )
    assert 'train.py would then run once more in each: put what it runs under if __name__ == "__main__":' in printed[0]
    assert printed[1:] == ["workers: 1 [8] 0", "kept: True"]


def test_new_workers_in_a_guarded_script_come(tmp_path: Path) -> None:
    printed, ran = run(tmp_path, KNOB, guarded=True)
    assert printed == ["workers: 2 [8] 0", "kept: False"]
    assert ran[0] == "__main__"
    assert set(ran[1:]) == {"__mp_main__"}


def test_a_changed_data_set_in_an_unguarded_script(tmp_path: Path) -> None:
    """It is refused for as long as it is changed, and nothing is lost by that."""
    printed, ran = run(tmp_path, EPOCHS, guarded=False)
    assert ran == ["__main__"]
    assert printed[0] == "[8]"
    for refused in printed[1:3]:
        assert refused.startswith("refused: The data set was changed since its workers were started, and new workers")
        assert "train.py would then run once more in each" in refused
        assert refused.endswith("Or go on without workers: set(workers=0).")
    assert printed[3:] == ["[8] torchvision", "[16] torchvision"]
