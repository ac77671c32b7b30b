"""The time from the keystroke that shows the dashboard to the first heatmap with data, in JupyterLab in Chromium.

    python -m benchmarks.first_minute [--rounds 5] [--images 512]
    python -m benchmarks.first_minute --wheel dist/NAME.whl [--rounds 3] [--installer uv]

In each round a new kernel runs a cell that imports torch and makes a loader; then Shift+Enter is pressed on `%monitor`
(for the sidebar, which is open and alone: on `%monitor start`) and, where the cores are to be filled, on a training
loop with two workers after it, which begins while the charts are awaited.

known    `%load_ext kernel_monitor` was run on this machine before, and the browser has shown the dashboard before.
first    neither was done: the timed cell has `%load_ext`, too, with a new browser profile and an empty cache each time.

With ``--wheel`` the whole way of a stranger is timed instead, part by part: a new environment, the wheel and JupyterLab
installed into it by pip or uv from the package index with an empty cache, the server started with no Node on its PATH,
the notebook opened in a new browser profile, and its cell run, which has `%load_ext` and `%monitor`.

The figures are seconds by the page's own clock, medians with the range. At last, the page load of a notebook is timed
with and without the extension, in turns: until the kernel is idle, and the CPU time of the page's main thread. Medians
of the differences are printed with their quartiles.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Browser

from kernel_monitor.demo import demo_data
from tests.browser.lab import CELL, SIDEBAR, Lab, Server, chromium, server

BARS_S = {("known", "idle"): 1.0, ("known", "filled"): 2.5, ("first", "idle"): 4.0, ("first", "filled"): 6.0}
BAR_LOAD_S = 0.1
BAR_WHEEL_S = 60.0
LOADS = 5  # pairs of page loads for each round: they differ by half a second among themselves
LOAD = "%load_ext kernel_monitor"
SETUP = """\
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from kernel_monitor import switchable
transform = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(),
                        v2.ToDtype(torch.float32, scale=True)])
loader = switchable(DataLoader(ImageFolder({root!r}, transform), batch_size=32, shuffle=True, num_workers=2))
model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 7, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                            torch.nn.Flatten(), torch.nn.Linear(16, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)"""
TRAIN = """\
while True:
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step()"""
WATCH = """
(where) => {
    window.pressed = window.painted = null;
    addEventListener('keydown', () => { window.pressed ??= performance.now(); }, true);
    const look = () => {
        const monitor = document.querySelector(where)?.monitor;
        if (monitor?.stats.received > 0 && monitor.feed?.drawn) {
            // The heatmap's source holds measured values, Bokeh paints them in this frame: the next one follows that.
            requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = performance.now(); }));
        } else {
            requestAnimationFrame(look);
        }
    };
    look();
}
"""
PLACES = {"cell": CELL, "sidebar": SIDEBAR}


def painted(lab: Lab, name: str, images: Path, place: str, *, first: bool, filled: bool) -> float:
    """Return the seconds from the keystroke to the heatmap."""
    setup = SETUP.format(root=str(images))
    show = "%monitor" if place == "cell" else "%monitor start"
    shown = f"{LOAD}\n{show}" if first else show
    path = lab.server.notebook(f"{name}.ipynb", setup if first else f"{LOAD}\n{setup}", shown, TRAIN)
    lab.open(path, reload=True)  # without the notebook of the round before
    if place == "sidebar":
        lab.open_sidebar()
    lab.run_cell(0)
    lab.page.wait_for_timeout(500)
    lab.wait_for_idle()
    lab.page.evaluate(WATCH, PLACES[place])
    lab.page.locator(".jp-Notebook .jp-CodeCell").nth(1).locator(".cm-content").first.click()
    lab.page.evaluate("() => { window.pressed = null; }")
    for _ in range(2 if filled else 1):
        lab.page.keyboard.press("Shift+Enter")
    lab.page.wait_for_function("() => window.painted !== null", timeout=120_000)
    found: float = lab.page.evaluate("() => (window.painted - window.pressed) / 1000")
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    lab.page.wait_for_timeout(500)
    return found


def page_load(browser: Browser, running: Server) -> tuple[float, float]:
    """Return seconds until a plain notebook's kernel is idle, and the CPU seconds of the page's main thread."""
    lab = Lab(browser, running)
    try:
        session = lab.context.new_cdp_session(lab.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})  # without the time of other processes
        path = running.notebook("plain.ipynb", "1 + 1")
        began = time.monotonic()
        lab.open(path)
        took = time.monotonic() - began
        metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
        lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        return took, metrics["TaskDuration"]
    finally:
        lab.close()


def line(name: str, values: Sequence[float], bar: float | None) -> str:
    """Return a line `name  median (least to most)  bar`."""
    middle = statistics.median(values)
    told = "" if bar is None else f"   bar {bar:g} s: {'met' if middle <= bar else 'MISSED'}"
    return f"{name:32} {middle:6.2f} s ({min(values):.2f} to {max(values):.2f}, {len(values)} rounds){told}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_minute", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--wheel", type=Path, help="time the way from this wheel to the first heatmap")
    parser.add_argument("--installer", choices=("pip", "uv"), default="pip")
    options = parser.parse_args()
    if options.wheel is not None:
        from_wheel(options.wheel.resolve(), options.installer, options.rounds)
        return
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        root = Path(folder)
        images = demo_data(root / "images", images=options.images)
        cache = root / "cache"
        print(f"{os.cpu_count()} cores; load average before: {os.getloadavg()[0]:.1f}")
        with server(root / "lab", KERNEL_MONITOR_CACHE=str(cache)) as running:
            for place in PLACES:
                known = Lab(browser, running)
                painted(known, f"seen-{place}", images, place, first=True, filled=False)
                for (state, load), bar in BARS_S.items():
                    rounds = []
                    for number in range(options.rounds):
                        lab = known
                        if state == "first":
                            shutil.rmtree(cache, ignore_errors=True)
                            lab = Lab(browser, running)
                        name = f"{place}-{state}-{load}-{number}"
                        kind = {"first": state == "first", "filled": load == "filled"}
                        rounds.append(painted(lab, name, images, place, **kind))
                        if lab is not known:
                            lab.close()
                    print(line(f"{place}, {state}, {load}", rounds, bar), flush=True)
                known.close()
        loads(browser, root, LOADS * options.rounds)


def from_wheel(wheel: Path, installer: str, rounds: int) -> None:
    """Print what each part of the way from a wheel to the first heatmap takes, and the whole."""
    print(f"{os.cpu_count()} cores; load average before: {os.getloadavg()[0]:.1f}; installed by {installer}")
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, chromium() as browser:
            for part, seconds in _stranger(browser, Path(folder), wheel, installer).items():
                taken.setdefault(part, []).append(seconds)
    for part, values in taken.items():
        print(line(part, values, None))
    print(line("wheel to first heatmap", [sum(parts) for parts in zip(*taken.values(), strict=True)], BAR_WHEEL_S))


def _stranger(browser: Browser, root: Path, wheel: Path, installer: str) -> dict[str, float]:
    """Go the way once; return the seconds of each part."""
    environment = root / "environment"
    python = environment / "bin" / "python"
    empty = {**os.environ, "PIP_NO_CACHE_DIR": "1", "UV_NO_CACHE": "1", "PYTHONPATH": ""}
    if installer == "pip":
        create = [sys.executable, "-m", "venv", str(environment)]
        install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    else:
        create = [sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, str(environment)]
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    moments = [time.monotonic()]
    for command in (create, [*install, str(wheel), "jupyterlab"]):
        subprocess.run(command, env=empty, check=True)
        moments.append(time.monotonic())
    alone = {"PATH": str(environment / "bin"), "PYTHONPATH": "", "JUPYTER_CONFIG_DIR": str(root / "config")}
    with server(root / "lab", python=python, **alone) as running, closing(Lab(browser, running)) as lab:
        lab.open(running.notebook("first.ipynb", f"{LOAD}\n%monitor"))
        lab.page.evaluate(WATCH, CELL)
        moments.append(time.monotonic())
        lab.page.locator(".jp-Notebook .jp-CodeCell").first.locator(".cm-content").first.click()
        lab.page.keyboard.press("Shift+Enter")
        lab.page.wait_for_function("() => window.painted !== null", timeout=120_000)
        moments.append(time.monotonic())
        lab.shut_down()
    parts = ("new environment", "wheel and JupyterLab installed", "JupyterLab and its notebook", "%monitor")
    return {part: end - start for part, (start, end) in zip(parts, itertools.pairwise(moments), strict=True)}


def loads(browser: Browser, root: Path, rounds: int) -> None:
    """Print what the extension adds to a page load: pairs of loads, in turns (with, without, without, with)."""
    for name, disabled in (("with", {}), ("without", {"kernel-monitor": True})):
        config = root / f"config-{name}" / "labconfig"
        config.mkdir(parents=True)
        (config / "page_config.json").write_text(json.dumps({"disabledExtensions": disabled}))
    with (
        server(root / "with", JUPYTER_CONFIG_DIR=str(root / "config-with")) as one,
        server(root / "without", JUPYTER_CONFIG_DIR=str(root / "config-without")) as other,
    ):
        arms = [("with", one), ("without", other)]
        times: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
        for number in range(rounds + 1):
            for name, running in arms if number % 2 else reversed(arms):
                took = page_load(browser, running)
                if number > 0:  # the first of each reads from the disk
                    times[name].append(took)
    for name, values in times.items():
        print(line(f"page load {name} the extension", [seconds for seconds, _ in values], None))
    for which, what in enumerate(("the load", "the CPU time of the page's main thread")):
        more = [with_[which] - without[which] for with_, without in zip(times["with"], times["without"], strict=True)]
        low, middle, high = (1000 * quartile for quartile in statistics.quantiles(more, method="inclusive"))
        bar = f": bar {1000 * BAR_LOAD_S:.0f} ms" if which == 0 else ""
        print(f"the extension adds {middle:+.0f} ms to {what} ({low:+.0f} to {high:+.0f}, {rounds} pairs){bar}")


if __name__ == "__main__":
    main()
