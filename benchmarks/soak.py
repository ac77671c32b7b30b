"""A soak test: an hour of a notebook with the monitor and one without; memory, and missed samples.

    python -m benchmarks.soak [--minutes 60] [--json FILE]

Two kernels run the same loop, a `switchable` loader over a few JPEGs and a pause after each batch, at the same time;
one has the monitor on at 10 Hz, recording, with a receiving client. Every ten seconds the resident memory of both and
of the sampler is read (VmRSS). After the first five minutes the sampler must stay within 5 MB, and the growth of the
kernel with the monitor within 5 MB of the growth of the one without.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .common import Bar, machine, report, versions
from .notebook import Notebook, notebook
from .receiver import receiving

PERIOD_S = 10.0
SETTLED_S = 300.0
MB = 1e6

SETUP = """
%load_ext kernel_monitor
import threading, time
from pathlib import Path
from kernel_monitor import monitor, switchable
from benchmarks.common import dataloader

ended = threading.Event()
epochs = 0
loader = switchable(dataloader(Path({folder!r}), samples=64, batch=8, workers=0), name="train")

def loop():
    global epochs
    while not ended.is_set():
        for pictures, labels in loader:
            if ended.wait(0.25):
                return
        epochs += 1

thread = threading.Thread(target=loop)
thread.start()
"""


class Reading(NamedTuple):
    """Resident bytes at one moment; `second` counts from the first reading."""

    second: float
    monitored: int
    plain: int
    sampler: int


def main() -> int:
    """Measure and print; the exit status is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    print(f"{machine()}\n{versions()}")
    from kernel_monitor.demo import demo_data

    with tempfile.TemporaryDirectory(prefix="kernel-monitor-soak-") as folder:
        root = str(demo_data(Path(folder, "images"), images=64))
        with notebook(KERNEL_MONITOR_SESSIONS=str(Path(folder, "sessions"))) as monitored, notebook() as plain:
            for cells in (monitored, plain):
                cells.run(SETUP.format(folder=root))
            monitored.run("monitor.start()")
            with receiving(monitored.connection_file) as receiver:
                readings = watch(monitored, plain, 60 * options.minutes)
                received = receiver.finish()
            rows, missed = monitored.value("(monitor.store.last_seq, monitor.live_session.missed)")
            restarts, epochs = monitored.value("(monitor.live_session.restarts, epochs)")
            stamps = monitored.value("(float(monitor.store.rows().time[-1]), monitor.settings['interval'])")
            print(monitored.value("monitor.status()"))
            for cells in (monitored, plain):
                cells.run("ended.set(); thread.join()")
    expected = stamps[0] / stamps[1]
    print(
        f"{rows:,} samples in {stamps[0]:.0f} s ({expected:,.0f} deadlines), {missed} said to be missed, "
        f"{restarts} restarts of the sampler; the client received {received.frames:,} frames, {received.missing} "
        f"missing; {epochs} epochs of the loop"
    )
    return judge(readings, missed, rows, expected, options.json)


def watch(monitored: Notebook, plain: Notebook, seconds: float) -> list[Reading]:
    """Read the memory every ten seconds, and print a line every minute; return the readings."""
    sampler = int(monitored.value("monitor.live_session.client.pid"))
    readings: list[Reading] = []
    began = time.monotonic()
    while (second := time.monotonic() - began) < seconds:
        readings.append(Reading(second, resident(monitored.pid), resident(plain.pid), resident(sampler)))
        if len(readings) % 6 == 1:
            print(f"{second / 60:5.1f} min  {line(readings[-1])}", flush=True)
        time.sleep(PERIOD_S - (time.monotonic() - began) % PERIOD_S)
    return readings


def line(reading: Reading) -> str:
    return (
        f"kernel with the monitor {reading.monitored / MB:7.1f}, without {reading.plain / MB:7.1f}, "
        f"sampler {reading.sampler / MB:6.1f} MB"
    )


def judge(readings: Sequence[Reading], missed: int, rows: int, expected: float, file: Path | None) -> int:
    """Print the bars over the readings after the first five minutes (a third of a shorter run)."""
    settled = min(SETTLED_S, readings[-1].second / 3)
    later = [reading for reading in readings if reading.second >= settled]
    span = max(reading.sampler for reading in later) - min(reading.sampler for reading in later)
    edge = max(1, len(later) // 10)

    def growth(values: Sequence[int]) -> float:
        """Return the growth between the medians of the first and the last tenth: single readings are noisy."""
        return statistics.median(values[-edge:]) - statistics.median(values[:edge])

    extra = growth([reading.monitored for reading in later]) - growth([reading.plain for reading in later])
    unaccounted = abs(expected - rows - missed)
    return report(
        [
            Bar("sampler's resident memory, largest less smallest", span / MB, 5.0, " MB", at_most=True),
            Bar("growth of the kernel with the monitor less without", extra / MB, 5.0, " MB", at_most=True),
            Bar("missed samples", 100 * missed / max(1, rows + missed), 0.1, " %", at_most=True),
            # The first second belongs to the sampler's start, and the last deadline may not be due yet.
            Bar("deadlines neither sampled nor counted as missed", unaccounted, 20.0, "", at_most=True),
        ],
        {"readings": readings, "missed": missed, "rows": rows, "machine": machine(), "versions": versions()},
        file,
    )


def resident(pid: int) -> int:
    """Return the resident bytes of process `pid` (VmRSS)."""
    for entry in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if entry.startswith("VmRSS:"):
            return 1024 * int(entry.split()[1])
    raise SystemExit(f"process {pid} has ended")


if __name__ == "__main__":
    sys.exit(main())
