"""The rate of a training loop beside a drawn dashboard, in the browser on the same cores, against that without a page.

A cell trains with 20 loaders in turn, or with two, each with two workers, so that every core is wanted. Three kinds of
segments take turns: with the dashboard on the screen; with the dashboard behind another tab, which is what JupyterLab
itself takes, with what the browser catches up after it was stopped; and without a page, where all processes of the
browser are stopped (SIGSTOP). Each rate is compared with
the mean of the two without a page beside it. The CPU time of the browser's processes, and of those that make chart
documents, is the second measure: other programs of the machine change it less than the rate.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.browser.lab import CELL, SHOW, Lab, chromium, server

from .common import Bar, images, spread

LOADERS_AND_BARS = ((20, 0.95), (2, 0.97))
SETTLE_S = 25.0  # in which all loaders come, and their charts
AGAIN_S = 4.0  # after which a dashboard that is shown again has caught up
TRAIN = """
import os, time, torch
from torch.utils.data import DataLoader, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
torch.set_num_threads(1)
transform = transforms.Compose([transforms.RandomResizedCrop(128), transforms.ToTensor()])
dataset = Subset(ImageFolder({root!r}, transform), range(64))
loaders = [DataLoader(dataset, batch_size=16, num_workers=2, shuffle=True) for _ in range({loaders})]
weights, done = torch.randn(300, 300), 0
with open('batches.txt', 'a') as out:
    while not os.path.exists('stop'):
        for loader in loaders:
            for batch, labels in loader:
                for _ in range(8):
                    weights @ weights
                done += 1
                out.write(f'{{time.monotonic()}} {{done}}\\n')
                out.flush()
"""
HIDE = """() => {
    const { shell, commands } = window.jupyterapp;
    const launcher = [...shell.widgets('main')].find(({ title }) => title.label === 'Launcher');
    return launcher ? shell.activateById(launcher.id) : void commands.execute('launcher:create');
}"""


class Rates(NamedTuple):
    """Ratios of the rate with a page to that without, one for each segment with it, and CPU seconds a second."""

    loaders: int
    ratios: list[float]
    browser: list[float]  # in the segments with the page
    hidden_ratios: list[float]  # the same beside a JupyterLab whose dashboard is hidden
    bare: list[float]  # and its CPU seconds a second
    renders: int  # the most processes that made chart documents at a time
    render_cpu: float  # seconds that they took in all


class Processes:
    """The processes of this run that are no part of the training, found among the descendants of this one."""

    def __init__(self) -> None:
        self.most_renders = 0
        self._renders: dict[int, float] = {}
        self._ended = threading.Event()

    def browser(self) -> list[psutil.Process]:
        return [process for process in psutil.Process().children(recursive=True) if "chrom" in _name(process)]

    def browser_cpu(self) -> float:
        """Return the CPU seconds of the browser's processes up to now."""
        return sum(map(_cpu, self.browser()))

    @property
    def render_cpu(self) -> float:
        return sum(self._renders.values())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count the processes that make chart documents during the block."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            found = [process for process in psutil.Process().children(recursive=True) if renders(process)]
            self.most_renders = max(self.most_renders, len(found))
            self._renders |= {process.pid: _cpu(process) for process in found}

    @contextmanager
    def stopped_browser(self) -> Iterator[None]:
        """Stop every process of the browser during the block."""
        stopped = self.browser()
        try:
            for process in stopped:
                process.suspend()
            yield
        finally:
            for process in stopped:
                process.resume()


def renders(process: psutil.Process) -> bool:
    """Return whether a process makes chart documents."""
    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "kernel_monitor.views" in words or "kernel_monitor.warm" in words


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def measure(root: Path, loaders: int, *, pairs: int, seconds: float) -> Rates:
    """Train with so many loaders over the images of `root`; `seconds`: of each segment."""
    processes = Processes()
    with (
        tempfile.TemporaryDirectory(prefix="kernel-monitor-page-") as directory,
        server(Path(directory, "lab")) as running,
        chromium() as browser,
        processes.watched(),
        Lab(browser, running, width=1500, height=1300) as lab,
    ):
        lab.open(running.notebook("train.ipynb", SHOW, TRAIN.format(root=str(root), loaders=loaders)))
        lab.run_all()
        lab.wait_running(CELL, 180)
        lab.page.wait_for_timeout(SETTLE_S * 1000)
        batches = running.root / "batches.txt"
        with_page: list[float] = []
        hidden: list[float] = []
        browser_cpu: list[float] = []
        bare: list[float] = []

        def measured(rates: list[float], cores: list[float]) -> None:
            before, begun = processes.browser_cpu(), time.monotonic()
            rates.append(_rate(batches, seconds))
            cores.append((processes.browser_cpu() - before) / (time.monotonic() - begun))

        _hide(lab)
        without = [_without_page(batches, processes, seconds)]
        for _ in range(pairs):
            measured(hidden, bare)
            lab.bring("train.ipynb")
            lab.dashboard()
            lab.page.evaluate(f"() => document.querySelector({CELL!r}).scrollIntoView()")
            lab.page.wait_for_timeout(AGAIN_S * 1000)
            drawn = _draws(lab)
            measured(with_page, browser_cpu)
            if _draws(lab) <= drawn:
                raise SystemExit("the dashboard drew nothing: there is nothing to compare")
            _hide(lab)
            without.append(_without_page(batches, processes, seconds))
        (running.root / "stop").touch()
    beside = [(without[k] + without[k + 1]) / 2 for k in range(pairs)]
    return Rates(
        loaders,
        [rate / mean for rate, mean in zip(with_page, beside, strict=True)],
        browser_cpu,
        [rate / mean for rate, mean in zip(hidden, beside, strict=True)],
        bare,
        processes.most_renders,
        processes.render_cpu,
    )


def _hide(lab: Lab) -> None:
    lab.page.evaluate(HIDE)
    lab.page.locator(CELL).first.wait_for(state="hidden")
    lab.page.wait_for_timeout(1000)


def _without_page(batches: Path, processes: Processes, seconds: float) -> float:
    with processes.stopped_browser():
        return _rate(batches, seconds)


def _draws(lab: Lab) -> int:
    return int(lab.monitor(CELL, "monitor.feed.draws.count"))


def _rate(batches: Path, seconds: float) -> float:
    """Return the batches a second of the loop over the next `seconds`."""
    from_time, from_count = _newest(batches)
    time.sleep(seconds)
    to_time, to_count = _newest(batches)
    if to_count == from_count:
        raise SystemExit("the loop delivered no batch in a whole segment")
    return (to_count - from_count) / (to_time - from_time)


def _newest(batches: Path) -> tuple[float, int]:
    """Return when the loop's newest batch came, and how many came."""
    at, count = batches.read_text().rpartition("\n")[0].rpartition("\n")[2].split()
    return float(at), int(count)


def run(*, pairs: int, seconds: float) -> tuple[list[Rates], list[Bar]]:
    """Measure both numbers of loaders; prints a line for each."""
    found, bars = [], []
    with images(256, None) as root:
        for loaders, least in LOADERS_AND_BARS:
            rates = measure(root, loaders, pairs=pairs, seconds=seconds)
            median, lower, upper = spread(rates.ratios)
            drawn, bare, hidden = spread(rates.browser), spread(rates.bare), spread(rates.hidden_ratios)
            print(
                f"{loaders:2} loaders: {median:.3f} of the rate without a page ({lower:.3f} to {upper:.3f}, "
                f"{len(rates.ratios)} pairs); browser {drawn[0]:.3f} cores ({drawn[1]:.3f} to {drawn[2]:.3f}); "
                f"hidden dashboard: {hidden[0]:.3f} ({hidden[1]:.3f} to {hidden[2]:.3f}), {bare[0]:.3f} cores; "
                f"charts made in {rates.render_cpu:.1f} s of CPU; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            bars.append(Bar(f"rate beside a page, {loaders} loaders", median, least))
            bars.append(Bar(f"rendering processes at a time, {loaders} loaders", rates.renders, 1, at_most=True))
            found.append(rates)
    return found, bars
