"""The cost of a training's ranks, for the ranks, for the kernel that receives their frames, and for the page.

    python -m benchmarks.ranks [--part rank] [--part kernel] [--part page] [--hosts 8] [--ranks 8] [--cores 64]
                               [--seconds 30] [--pairs 60]

rank     the cost of joining: the rank's thread, and its steps of 20 ms, in alternating pairs (`benchmarks.rank_cost`).
kernel   a monitor in a process of its own, measuring and recording, first alone and then with the ranks of other hosts
         (`benchmarks.rank_replay`: real frames at the real rate). The cost is the process's CPU with ranks minus that
         without; no page is open.
page     the same in JupyterLab with the dashboard on the screen: the CPU time of the page's main thread in each second
         (as `benchmarks.page` counts it), with every host folded, and with one unfolded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import rank_cost
from .common import Bar, machine, report

ROOT = Path(__file__).resolve().parents[1]
SETTLE_S = 8.0
HALF_S = 2.0  # of a pair: the machine's speed drifts
BAR_KERNEL = 5.0  # % of a core
BAR_PAGE_MS = 100.0  # of the main thread in each second
KERNEL = """
import sys, time
from kernel_monitor import monitor
monitor.start()
print(monitor.live_session.ranks.server.folder, flush=True)
for line in sys.stdin:
    schema = monitor.store.schema
    print(time.process_time(), time.monotonic(), len(schema.ranks), len(schema.names), flush=True)
"""
SETUP = "%load_ext kernel_monitor\n%monitor"
FOLDER = """
from pathlib import Path
from kernel_monitor import monitor
Path("folder").write_text(monitor.live_session.ranks.server.folder)"""
BUSY = """
import os, time
while not os.path.exists("stop"): time.sleep(0.1)"""


@contextmanager
def replayed(folder: str, options: argparse.Namespace) -> Iterator[None]:
    """Let ranks of other hosts send to the session of this folder during the block."""
    shape = [f"--{name}={getattr(options, name)}" for name in ("hosts", "ranks", "cores", "gpus")]
    command = [sys.executable, "-m", "benchmarks.rank_replay", folder, *shape]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        process.wait(20)


def kernel(options: argparse.Namespace) -> list[Bar]:
    """Measure the kernel's cost without a page; return the bars."""
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-ranks-") as directory:
        environment = {**os.environ, "KERNEL_MONITOR_SESSIONS": directory}
        process = subprocess.Popen(
            [sys.executable, "-c", KERNEL],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def look() -> list[float]:
            stdin.write("\n")
            stdin.flush()
            return [float(word) for word in stdout.readline().split()]

        def over(seconds: float) -> tuple[float, list[float]]:
            """Return the process's % of a core over so many seconds, and its figures at the end."""
            before = look()
            time.sleep(seconds)
            after = look()
            return 100 * (after[0] - before[0]) / (after[1] - before[1]), after

        try:
            folder = stdout.readline().strip()
            time.sleep(SETTLE_S)
            alone, _ = over(options.seconds)
            with replayed(folder, options):
                time.sleep(SETTLE_S)
                heard, said = over(options.seconds)
        finally:
            stdin.close()
            process.wait(20)
            stdout.close()
    print(
        f"kernel: {alone:.2f} % of a core alone, {heard:.2f} % with {said[2]:.0f} ranks on {options.hosts} hosts "
        f"({said[3]:.0f} series)"
    )
    every = options.hosts * options.ranks
    return [
        Bar("the kernel's half, % of a core", heard - alone, BAR_KERNEL, at_most=True),
        Bar("ranks without a row", every - said[2], 0, at_most=True),
    ]


def page(options: argparse.Namespace) -> list[Bar]:
    """Measure the page's main thread, with all hosts folded and with one unfolded; return the bars."""
    from tests.browser.lab import CELL, Lab, chromium, server

    from .page import Meter

    with (
        tempfile.TemporaryDirectory(prefix="kernel-monitor-ranks-") as directory,
        server(Path(directory)) as running,
        chromium() as browser,
    ):
        lab = Lab(browser, running, width=1500, height=1300)
        try:
            lab.open(running.notebook("ranks.ipynb", SETUP + FOLDER, BUSY))
            meter = Meter(lab)
            lab.run_cell(0)
            lab.wait_running(CELL)
            lab.wait_for_idle()
            lab.run_cell(1)
            with replayed((running.root / "folder").read_text(), options):
                toggles = lab.dashboard(CELL).get_by_role("group", name="Machines").get_by_role("button")
                toggles.nth(options.hosts - 1).wait_for(state="visible")
                if toggles.first.get_attribute("aria-expanded") == "true":
                    toggles.last.click()
                lab.page.evaluate(f"() => document.querySelector({CELL!r}).scrollIntoView()")
                lab.page.wait_for_timeout(1000 * SETTLE_S)
                folded = meter.over(options.seconds)
                toggles.first.click()
                lab.page.wait_for_timeout(1000 * SETTLE_S)
                expanded = [each.get_attribute("aria-expanded") for each in toggles.all()]
                unfolded = meter.over(options.seconds)
                rows = lab.monitor(CELL, "monitor.newestTileColumn('nodes').length")
            (running.root / "stop").touch()
        finally:
            lab.close()
    print("main thread, ms per second     all  scripts  layout")
    for name, cost in (("folded", folded), ("one unfolded", unfolded)):
        print(f"{name:28} {cost.thread:5.1f}    {cost.script:5.1f}   {cost.layout:5.1f}")
    print(f"rows of machines with one unfolded: {rows}; unfolded: {expanded.count('true')}")
    return [
        Bar("main thread, folded", folded.thread, BAR_PAGE_MS, " ms/s", at_most=True),
        Bar("main thread, one host unfolded", unfolded.thread, BAR_PAGE_MS, " ms/s", at_most=True),
    ]


def rank(options: argparse.Namespace) -> list[Bar]:
    """Measure a rank's cost; return the bars."""
    return rank_cost.measure(options.pairs, HALF_S)


PARTS = {"rank": rank, "kernel": kernel, "page": page}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="all of them if left out")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="of each host")
    parser.add_argument("--cores", type=int, default=64, help="of each host")
    parser.add_argument("--gpus", type=int, default=8, help="of each host")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each segment")
    parser.add_argument("--pairs", type=int, default=60, help="of a rank that has joined and one that has not")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    print(machine())
    print(
        f"{options.hosts} hosts x {options.ranks} ranks, {options.cores} cores and {options.gpus} GPUs each, replayed"
    )
    bars = [bar for part in options.part or PARTS for bar in PARTS[part](options)]
    return report(bars, {}, options.json)


if __name__ == "__main__":
    sys.exit(main())
