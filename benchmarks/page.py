"""The cost of a large machine's dashboard for the browser's main thread, with JupyterLab, Chromium and a real kernel.

    python -m benchmarks.page [--seconds 600] [--hidden-seconds 60] [--cores 256] [--gpus 8] [--interval 0.1]
    python -m benchmarks.page --rate [--pairs 6] [--segment 10]

With `--rate`: what it costs a training on the same cores (`benchmarks.page_rate`), in nine minutes. Without, the
sampler is the real one, on a simulated host (`benchmarks.fakehost`) with simulated GPUs (`benchmarks.nvml`). A cell
runs meanwhile, as training would. Milliseconds are the main thread's own CPU time per second of wall time, by the
browser's count (`ThreadTime`), so that a loaded machine does not increase them:

bare     JupyterLab with the running cell, before the monitor is loaded: the cost of the rest of the page.
visible  the dashboard on the screen, from its first drawing on.
hidden   the dashboard's notebook behind another tab of JupyterLab, while another client watches the same kernel, so
         that its messages reach this page, too.

Heap is measured after forced collections, at the beginning and at the end of the visible segment. At last the monitor
is stopped, and the page must account for every row that the kernel has numbered.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import CDPSession

from tests.browser.lab import CELL, Lab, Server, chromium, server

from .receiver import receiving

ROOT = Path(__file__).resolve().parents[1]
SETTLE_S = 5.0  # after which the charts have been built and the compiler has seen them
BAR_VISIBLE_MS, BAR_HIDDEN_MS = 100.0, 25.0  # of the main thread in each second
BAR_HEAP_MB = 5.0
# Both charts of a large machine are on the screen at once.
WIDTH, HEIGHT = 1500, 1300

BUSY = """
import os, time
from ipykernel.connect import get_connection_file
def facts(path, **more):
    import json
    with open(path + '.part', 'w') as file:
        json.dump({'connection': get_connection_file(), **more}, file)
    os.replace(path + '.part', path)
facts('connection.json')
while not os.path.exists('show'): time.sleep(0.1)
"""
SHOW = "%load_ext kernel_monitor\n%monitor start --interval {interval:g}\n%monitor"
TRAIN = """
while not os.path.exists('stop'): time.sleep(0.1)
from kernel_monitor import monitor
monitor.stop()
facts('last.json', seq=monitor.store.last_seq)
"""


class Cost(NamedTuple):
    """The CPU ms per second of a page's main thread in a segment: all, those of scripts, and those of layout."""

    thread: float
    script: float
    layout: float


class Accounts(NamedTuple):
    """The page's account of the rows that the kernel has numbered: see `StreamStats` in accounts.ts."""

    sent: int
    received: int
    missed: int
    hidden: int
    backfilled: int
    gone: int
    held: int

    @property
    def unaccounted(self) -> int:
        """The number of rows that the page cannot account for, or wrongly lists as received."""
        return abs(self.sent - self.received - self.missed - self.hidden) + abs(
            self.missed + self.hidden - self.backfilled - self.gone
        )


class Result(NamedTuple):
    """The figures of a run; heap in MB."""

    bare: Cost
    visible: Cost
    hidden: Cost
    heap_before: float
    heap_after: float
    draws: float
    accounts: Accounts


class Meter:
    """A reader of a page's counters, from the browser itself."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._session: CDPSession = lab.context.new_cdp_session(lab.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def metrics(self) -> dict[str, float]:
        reply = self._session.send("Performance.getMetrics")
        return {entry["name"]: entry["value"] for entry in reply["metrics"]}

    def over(self, seconds: float) -> Cost:
        """Return the main thread's cost over so many seconds."""
        before, begun = self.metrics(), time.monotonic()
        # Through Playwright, which has to answer the browser meanwhile.
        self._lab.page.wait_for_timeout(seconds * 1000)
        after, took = self.metrics(), time.monotonic() - begun

        def rate(*names: str) -> float:
            return sum(after[name] - before[name] for name in names) / took * 1000

        return Cost(rate("ThreadTime"), rate("ScriptDuration"), rate("LayoutDuration", "RecalcStyleDuration"))

    def heap(self) -> float:
        """Return the MB in use after a garbage collection."""
        for _ in range(3):
            self._session.send("HeapProfiler.collectGarbage")
        return self.metrics()["JSHeapUsedSize"] / 1e6


@contextmanager
def fake_host(directory: Path, cores: int) -> Iterator[None]:
    """Simulate a host with so many cores in four sockets, in real time, during the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fakehost", str(directory), "--cores", str(cores)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


@contextmanager
def large_machine(directory: Path, cores: int, gpus: int) -> Iterator[Server]:
    """A Jupyter server whose kernels see so many cores and GPUs."""
    host = directory / "host"
    host.mkdir()
    environment = {
        "KERNEL_MONITOR_ROOT": str(host),
        "KERNEL_MONITOR_SESSIONS": str(directory / "sessions"),
        "KERNEL_MONITOR_FAKE_NVML": f"gpus={gpus}",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "benchmarks" / "nvml"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    with fake_host(host, cores), server(directory / "lab", **environment) as running:
        yield running


def measure(lab: Lab, *, seconds: float, hidden_seconds: float, interval: float, settle: float = SETTLE_S) -> Result:
    """Open the notebook, show the dashboard, hide it, stop, and count."""
    files = lab.server.root
    lab.open(lab.server.notebook("page.ipynb", BUSY, SHOW.format(interval=interval), TRAIN))
    meter = Meter(lab)
    lab.run_all()
    connection = _facts(files / "connection.json")["connection"]
    lab.page.wait_for_timeout(settle * 1000)
    bare = meter.over(min(seconds, hidden_seconds))
    (files / "show").touch()
    lab.wait_running(CELL, seconds=120)
    lab.dashboard().scroll_into_view_if_needed()
    lab.page.evaluate(f"() => document.querySelector({CELL!r}).scrollIntoView()")
    lab.page.wait_for_timeout(settle * 1000)
    heap_before = meter.heap()
    drawn = lab.monitor(CELL, "monitor.feed.draws.count")
    visible = meter.over(seconds)
    draws = (lab.monitor(CELL, "monitor.feed.draws.count") - drawn) / seconds
    heap_after = meter.heap()
    with receiving(connection) as watcher:
        lab.command("launcher:create")
        lab.page.locator(CELL).first.wait_for(state="hidden")
        lab.page.wait_for_timeout(settle * 1000)
        hidden = meter.over(hidden_seconds)
        # That other client did watch.
        assert watcher.finish().frames > 0
    lab.command("docmanager:open", {"path": "page.ipynb"})
    lab.page.locator(CELL).first.wait_for(state="visible")
    (files / "stop").touch()
    sent = int(_facts(files / "last.json")["seq"])
    return Result(bare, visible, hidden, heap_before, heap_after, draws, _accounts(lab, sent))


def _accounts(lab: Lab, sent: int) -> Accounts:
    """Return the page's books after the end, once nothing is owed any more."""
    lab.page.wait_for_function(
        """([where, sent]) => {
            const { stats } = document.querySelector(where).monitor;
            return stats.outstanding === 0 && stats.expected + stats.hidden >= sent;
        }""",
        arg=[CELL, sent],
    )
    stats: dict[str, Any] = lab.monitor(
        CELL,
        """(({ received, missed, hidden, backfilled, gone }) => ({ received, missed, hidden, backfilled, gone }))
           (monitor.stats)""",
    )
    return Accounts(sent=sent, held=lab.monitor(CELL, "monitor.feed.rows"), **stats)


def _facts(path: Path, seconds: float = 120) -> Any:
    until = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > until:
            raise AssertionError(f"{path.name} was not written: the cell failed")
        time.sleep(0.1)
    return json.loads(path.read_text("utf-8"))


def run(*, seconds: float, hidden_seconds: float, cores: int, gpus: int, interval: float) -> Result:
    """Run the benchmark in a new server and browser."""
    with (
        tempfile.TemporaryDirectory(prefix="kernel-monitor-page-") as directory,
        large_machine(Path(directory), cores, gpus) as running,
        chromium() as browser,
    ):
        lab = Lab(browser, running, width=WIDTH, height=HEIGHT)
        try:
            return measure(lab, seconds=seconds, hidden_seconds=hidden_seconds, interval=interval)
        finally:
            lab.close()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of the visible segment")
    parser.add_argument("--hidden-seconds", type=float, default=60.0, help="of the hidden segment")
    parser.add_argument("--cores", type=int, default=256)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between samples")
    parser.add_argument("--rate", action="store_true", help="measure a training's rate with and without a page instead")
    parser.add_argument("--pairs", type=int, default=6, help="of segments with and without a page")
    parser.add_argument("--segment", type=float, default=10.0, help="seconds of each of them")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    from .common import Bar, machine, report

    if options.rate:
        from . import page_rate

        print(machine())
        rates, bars = page_rate.run(pairs=options.pairs, seconds=options.segment)
        return report(bars, {"rates": [found._asdict() for found in rates]}, options.json)
    print(f"{machine()}\n{options.cores} cores and {options.gpus} GPUs simulated, {1 / options.interval:g} Hz")
    result = run(
        seconds=options.seconds,
        hidden_seconds=options.hidden_seconds,
        cores=options.cores,
        gpus=options.gpus,
        interval=options.interval,
    )
    accounts = result.accounts
    print("main thread, ms per second     all  scripts  layout")
    for name in ("bare", "visible", "hidden"):
        cost: Cost = getattr(result, name)
        print(f"{name:28} {cost.thread:5.1f}    {cost.script:5.1f}   {cost.layout:5.1f}")
    print(f"{result.draws:.2f} drawings per second; heap {result.heap_before:.1f} → {result.heap_after:.1f} MB")
    print(
        f"rows: {accounts.sent} sent, {accounts.received} received, {accounts.missed} missed, {accounts.hidden} while "
        f"not subscribed; of these {accounts.backfilled} fetched, {accounts.gone} gone; {accounts.held} in the charts"
    )
    bars = [
        Bar("main thread, visible", result.visible.thread, BAR_VISIBLE_MS, " ms/s", at_most=True),
        Bar("main thread, hidden", result.hidden.thread, BAR_HIDDEN_MS, " ms/s", at_most=True),
        Bar("heap growth", result.heap_after - result.heap_before, BAR_HEAP_MB, " MB", at_most=True),
        Bar("ticks unaccounted for", accounts.unaccounted, 0, at_most=True),
    ]
    figures = {
        **{name: getattr(result, name)._asdict() for name in ("bare", "visible", "hidden", "accounts")},
        "heap": [result.heap_before, result.heap_after],
        "draws": result.draws,
        "cores": options.cores,
        "gpus": options.gpus,
    }
    return report(bars, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
