"""Interrupts at random moments of a cell that trains and switches, and the kernel's violent end: nothing is left.

INTERRUPTS=200 for more of them; the seed is in each failure, and INTERRUPTS=200:SEED takes it again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import time

import psutil

from ..waiting import until
from .kernels import Page, kernel

NEWEST_ONLY = True

COUNT, _, GIVEN = os.environ.get("INTERRUPTS", "12").partition(":")
SEED = int(GIVEN or random.SystemRandom().randrange(10**6))

PREPARE = """
import glob, os, tempfile, threading, time
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from kernel_monitor import switchable

folder = tempfile.mkdtemp()
for number in range(32):
    pixels = np.random.default_rng(number).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(f"{folder}/{number:02}.jpg")

class Own(Dataset):
    def __init__(self):
        self.paths, self.lock = sorted(glob.glob(f"{folder}/*.jpg")), threading.Lock()
        self.transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        with self.lock:
            return self.transform(Image.open(self.paths[index]).convert("RGB")), index

loader = switchable(DataLoader(Own(), batch_size=4, shuffle=True, num_workers=2))
targets = ["dali-cpu", "torchvision"]
"""
TRAIN = """
begun = True
while True:
    for number, (images, indices) in enumerate(loader):
        if number == 3:
            loader.switch(targets[0])
            targets.reverse()
        time.sleep(0.002)
"""
WHOLE = "sorted(index for _, indices in loader for index in indices.tolist())"


def descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def workers(pid: int) -> list[str]:
    """What runs below a kernel besides the fork server and multiprocessing's tracker, which end with it."""
    found = []
    for process in descendants(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join([process.name(), *process.cmdline()])
            if "km-fork-server" not in command and "resource_tracker" not in command:
                found.append(command)
    return found


def interrupted(page: Page, after: float) -> None:
    """Run the training, and interrupt it some time after it has begun."""
    page.run("begun = False")
    page.start(TRAIN)
    time.sleep(after)
    page.manager.interrupt_kernel()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            page.client.get_shell_msg(timeout=5)
            break
        page.manager.interrupt_kernel()  # the first may have come while the cell was only being compiled
    else:
        raise AssertionError("the cell does not end")
    page.started = False


def test_a_loop_can_be_run_again_after_every_interrupt() -> None:
    chance = random.Random(SEED)
    with kernel() as page:
        page.run(PREPARE)
        pid = page.pid
        for number in range(int(COUNT)):
            after = 0.05 + chance.random() * 0.6
            interrupted(page, after)
            message = f"INTERRUPTS={COUNT}:{SEED}: number {number}, after {after:.3f} s"
            assert page.value(WHOLE) == list(range(32)), message
            assert page.value("loader.state()['lost'], loader.state()['doubled']") == (0, 0), message
        assert page.value("list(loader.switch_state.faults)") == []
        page.run("loader.release()")
        until(lambda: not workers(pid), say=lambda: workers(pid))


def test_a_kernel_that_is_killed_leaves_no_process() -> None:
    with kernel() as page:
        page.run("%load_ext kernel_monitor\n%monitor start\n" + PREPARE)
        page.run("list(loader); loader.switch('dali-cpu')")
        page.run("until = time.monotonic() + 60")
        page.run("while loader.backend != 'dali-cpu' and time.monotonic() < until: list(loader)")
        page.run("loader.dataset.transform = transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])")
        page.run("loader.switch('torchvision')")
        page.run("while loader.backend != 'torchvision' and time.monotonic() < until: list(loader)")
        pid = page.pid
        left = descendants(pid)
        assert any(process.name() == "km-fork-server" for process in left)
        page.start(TRAIN)
        time.sleep(0.3)
        left += descendants(pid)
        psutil.Process(pid).kill()
        _, alive = psutil.wait_procs(left, timeout=15)
        assert not alive, [process.cmdline() for process in alive]
