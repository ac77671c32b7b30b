"""A script that ends while an engine is being prepared: it ends with status 0 and nothing is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import make_folder

HEAD = """
import atexit, threading, time
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.data import file_check

atexit.register(time.sleep, 3)  # the user's own: what is being prepared goes on meanwhile
file_check.PATIENCE = -1.0  # as with slow storage: other threads look at the files
chain = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
loader = switchable(DataLoader(ImageFolder("images", chain), batch_size=4, num_workers=1))
"""
# The last line of a script is a click on another engine.
TO_DALI = """
for _ in loader:
    pass
loader.switch("dali-cpu")
"""
BACK_TO_WORKERS = """
loader.switch("dali-cpu")
served = threading.Event()

def train():
    while not served.is_set():
        for _ in loader:
            if loader.backend == "dali-cpu":
                served.set()

thread = threading.Thread(target=train, daemon=True)
thread.start()
thread.join(120)
assert served.is_set()
loader.set(workers=2)
loader.switch("torchvision")
"""
TRAINING_GOES_ON = """
loader.switch("dali-cpu")
served = threading.Event()

def train():
    while True:
        for _ in loader:
            if loader.backend == "dali-cpu":
                served.set()

threading.Thread(target=train, daemon=True).start()
assert served.wait(120)
loader.switch("torchvision")
"""


@pytest.mark.parametrize("body", [TO_DALI, BACK_TO_WORKERS, TRAINING_GOES_ON], ids=["to-dali", "back", "goes-on"])
def test_a_script_ends_quietly_while_an_engine_is_prepared(tmp_path: Path, body: str) -> None:
    make_folder(tmp_path / "images", 24)
    (tmp_path / "train.py").write_text(HEAD + body)
    done = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_thread_trains_on_dali_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    make_folder(tmp_path / "images", 24)
    body = """
def train():
    threading.main_thread().join()
    loader.switch("dali-cpu")
    for _ in range(100):
        engines = {loader.backend for _ in loader}
        if engines == {"dali-cpu"}:
            break
    print(engines, loader.state()["lost"], loader.clicks[-1].outcome)

threading.Thread(target=train).start()
"""
    (tmp_path / "train.py").write_text(HEAD + body)
    done = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "{'dali-cpu'} 0 done\n"


def test_a_script_that_waits_for_its_training_at_its_end_does_not_hang(tmp_path: Path) -> None:
    make_folder(tmp_path / "images", 24)
    body = """
loader.switch("dali-cpu")
served, stop = threading.Event(), threading.Event()

def train():
    while not stop.is_set():
        for _ in loader:
            if loader.backend == "dali-cpu":
                served.set()

thread = threading.Thread(target=train, daemon=True)
atexit.register(lambda: (stop.set(), thread.join()))  # ours runs before it
thread.start()
assert served.wait(120)
"""
    (tmp_path / "train.py").write_text(HEAD + body)
    done = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
