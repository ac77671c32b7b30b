"""Users' own scripts, each in a process of its own: new workers never run it a second time, and it ends quietly."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..conftest import make_folder, run_python

HEAD = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
with open("ran.txt", "a") as file:
    file.write(f"{__name__}\\n")
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision import transforms as v1
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
loader.set(workers=2)
wait(lambda: len(loader.worker_pids) > 1)
wait(lambda: loader.pool["torchvision"].engine.started)
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
for size in (16, 24):
    dataset.transform = fixed(size)
    print(sizes(loader), loader.backend, len(loader.worker_pids))
loader.switch("dali-cpu")
dataset.transform = fixed(16)
print(sizes(loader), len(loader.worker_pids))
loader.set(workers=0)
print(sizes(loader), loader.backend)
"""


FIRST_WORKERS = """
import multiprocessing
from torch.utils.data import Dataset
from kernel_monitor.errors import MonitorError
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")  # as on macOS and Windows; Linux has another such one from Python 3.14 on

class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index

def first_workers(data):
    loader = switchable(DataLoader(data, batch_size=4))
    try:
        loader.set(workers=1)
    except MonitorError as error:
        print(error)
    wait(lambda: not loader.pool._preparing)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    print(len(loader.worker_pids), "workers")
    loader.release()
"""


def run(folder: Path, body: str, *, guarded: bool, head: str = "") -> tuple[list[str], list[str]]:
    """Run a script over 40 images, `head` above its guard; returns what it printed, and under which names it ran."""
    make_folder(folder / "images", 40)
    if guarded:
        body = "if __name__ == '__main__':" + body.replace("\n", "\n    ")
    (folder / "train.py").write_text(HEAD + head + body)
    done = run_python("train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), (folder / "ran.txt").read_text().split()


@pytest.mark.parametrize("guarded", [False, True])
def test_new_workers_come_with_and_without_a_guard(tmp_path: Path, guarded: bool) -> None:
    printed, ran = run(tmp_path, KNOB, guarded=guarded)
    assert printed == ["workers: 2 [8] 0", "kept: False"]
    assert ran == ["__main__"]


@pytest.mark.parametrize("guarded", [False, True])
def test_a_script_without_workers_gets_spawned_ones_only_under_its_guard(tmp_path: Path, guarded: bool) -> None:
    printed, ran = run(tmp_path, "\nfirst_workers(Numbers())\n", guarded=guarded, head=FIRST_WORKERS)
    if guarded:
        assert (printed, ran) == (["1 workers"], ["__main__", "__mp_main__"])
    else:
        assert printed[0].startswith("No workers are started: with the start method spawn each would run this script")
        assert (printed[1:], ran) == (["0 workers"], ["__main__"])


def test_a_notebook_without_workers_gets_spawned_ones_only_for_what_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "numbers_of_a_module.py").write_text(
        "import torch\n\n\n"
        "class Numbers(torch.utils.data.Dataset):\n    def __len__(self):\n        return 12\n\n"
        "    def __getitem__(self, index):\n        return index\n"
    )
    own = "first_workers(Numbers())"
    imported = "from numbers_of_a_module import Numbers as Imported\nfirst_workers(Imported())"
    done = run_python("-c", f"{HEAD}{FIRST_WORKERS}{own}\n{imported}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused, *rest = done.stdout.splitlines()
    assert refused.endswith("they can be sent nothing that a notebook defines. Move the data set into a module.")
    assert rest == ["0 workers", "1 workers"]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_process_whose_workers_are_not_forked_is_never_forked(tmp_path: Path, method: str) -> None:
    make_folder(tmp_path / "images", 8)
    body = (
        f"import multiprocessing\nmultiprocessing.set_start_method('{method}')\n"
        "from kernel_monitor.loaders.engines import fork_server\n"
        "loader = switchable(DataLoader(ImageFolder('images', fixed(8)), batch_size=4))\n"
        "loader.switch('dali-cpu')\n"
        "wait(lambda: sizes(loader) and loader.backend == 'dali-cpu')\n"
        "print(loader.backend, fork_server.server() is not None)\n"
    )
    done = run_python("-c", HEAD + body, cwd=tmp_path)
    assert done.stdout.split() == ["dali-cpu", str(method == "fork")], done.stderr


def test_a_changed_data_set_in_an_unguarded_script(tmp_path: Path) -> None:
    """New workers have it, and the way back to torchvision is never lost."""
    printed, ran = run(tmp_path, EPOCHS, guarded=False)
    assert ran == ["__main__"]
    assert printed[:3] == ["[8]", "[16] torchvision 1", "[24] torchvision 1"]
    assert printed[3].startswith("[16] ")
    assert printed[4].startswith("[16] ")


CLICK = """
from torch.utils.data import Dataset
from PIL import Image
import glob

class Own(Dataset):
    def __init__(self):
        self.paths, self.transform = sorted(glob.glob("images/*/*.jpg")), fixed(8)
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index

loader = switchable(DataLoader(Own(), batch_size=4, shuffle=True, num_workers=2))
for epoch in range(6):
    indices = [index for _, batch in loader for index in batch.tolist()]
    print(sorted(indices) == list(range(40)))
    if epoch == 0:
        loader.switch("dali-cpu")  # while it is prepared the next epoch begins
wait(lambda: loader.switch_state.active == "dali-cpu")
print(len([0 for _ in loader]), loader.backend, [click.outcome for click in loader.clicks])
"""


def test_a_switch_between_epochs_of_an_own_data_set(tmp_path: Path) -> None:
    """An epoch that begins while DALI is prepared took its workers for outdated, and ended the training."""
    printed, ran = run(tmp_path, CLICK, guarded=False)
    assert printed == ["True"] * 6 + ["10 dali-cpu ['done']"]
    assert ran == ["__main__"]


ENDING = """
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


def ended(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    make_folder(folder / "images", 24)
    (folder / "train.py").write_text(ENDING + body)
    return run_python("train.py", cwd=folder)


@pytest.mark.parametrize("body", [TO_DALI, BACK_TO_WORKERS, TRAINING_GOES_ON], ids=["to-dali", "back", "goes-on"])
def test_a_script_ends_quietly_while_an_engine_is_prepared(tmp_path: Path, body: str) -> None:
    done = ended(tmp_path, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_thread_trains_on_dali_after_the_main_thread_has_ended(tmp_path: Path) -> None:
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
    done = ended(tmp_path, body)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "{'dali-cpu'} 0 done\n"


def test_a_script_that_waits_for_its_training_at_its_end_does_not_hang(tmp_path: Path) -> None:
    body = """
from kernel_monitor.loaders.engines import process_end

process_end.PATIENCE_S = 4.0  # not 20
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
    done = ended(tmp_path, body)
    assert done.returncode == 0, done.stderr
