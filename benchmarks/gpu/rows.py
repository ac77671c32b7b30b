"""GPU rows beside `nvidia-smi`: the sampler's figures and those of the driver's own program, at the same times.

    python -m benchmarks.gpu.rows [--seconds 8] [--json FILE]

The sampler process runs at 10 Hz, `nvidia-smi` prints five times a second, and the first GPU rests, multiplies matrices
and rests again. The first seconds of each phase are left out, because both show means of the last second. Printed are
the means of each phase. A figure of `nvidia-smi` is off by what it lies outside of our figures around it in time: a
clock that falls is seen by one before the other. A bar holds the mean of that, the largest of any GPU and phase.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernel_monitor.sample.sampler_client import SamplerClient

from ..common import Bar, machine, percentile, report, versions

INTERVAL_S = 0.1
SMI_MS = 200
LEFT_OUT_S = 3.0
LEAST = 5  # readings in each phase, or nothing was compared
AROUND_S = 1.2  # our slowest rows are read once a second
BAR_FRAME_MS = 10.0


class Row(NamedTuple):
    """What is compared: our series, `nvidia-smi`'s fields (their sum) and unit, which is `scale` of ours.

    The difference may be `absolute` (in that unit), or a `share` of nvidia-smi's figure where that is more.
    """

    series: str
    fields: tuple[str, ...]
    scale: float
    unit: str
    absolute: float
    share: float = 0.0


ROWS = (
    Row("utilisation", ("utilization.gpu",), 1, "%", 5),
    Row("memory_activity", ("utilization.memory",), 1, "%", 5),
    # The driver's own share counts as used in the call that gives our row, and apart in nvidia-smi.
    Row("memory_used", ("memory.used", "memory.reserved"), 2**20, "MiB", 64, 0.01),
    Row("power_draw", ("power.draw",), 1, "W", 5, 0.05),
    Row("power_limit", ("enforced.power.limit",), 1, "W", 1),
    Row("temperature", ("temperature.gpu",), 1, "°C", 2),
    Row("clock_sm", ("clocks.sm",), 1, "MHz", 30, 0.03),
    Row("clock_memory", ("clocks.mem",), 1, "MHz", 30, 0.03),
    Row("encoder", ("utilization.encoder",), 1, "%", 5),
    Row("decoder", ("utilization.decoder",), 1, "%", 5),
    Row("jpeg", ("utilization.jpeg",), 1, "%", 5),
    Row("ofa", ("utilization.ofa",), 1, "%", 5),
)
Phases = dict[str, tuple[float, float]]  # from when to when, s, by name
Reading = tuple[float, int, str, float]
"""`time.monotonic()` in s, the GPU's index, the name of a series or field, the value in its own unit."""


def main() -> int:
    """Measure, print both side by side; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.rows", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of the three phases")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    if options.seconds < LEFT_OUT_S + 1:
        parser.error(f"--seconds must be {LEFT_OUT_S + 1:g} at least")
    print(f"{machine()}\n{versions()}")
    fields = known_fields()
    theirs: list[Reading] = []
    phases: Phases = {}
    with sampling() as sampled, printing(fields, theirs):
        for name in ("rest", "work", "rest again"):
            begun = time.monotonic()
            if name == "work" and torch.cuda.is_available():
                work(options.seconds)
            else:
                time.sleep(options.seconds)
            phases[name] = (begun + LEFT_OUT_S, time.monotonic())
    return show(sampled, theirs, fields, phases, options.json)


# -- the two sources --------------------------------------------------------------------------------------------------


class Sampled:
    """What the sampler process gave."""

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {}
        self.stamps: list[float] = []
        self.missed = 0
        self.readings: list[Reading] = []
        self.problems: list[str] = []

    def on_frame(self, stamp: float, missed: int, values: Sequence[float]) -> None:
        self.stamps.append(stamp)
        self.missed += missed
        for series, value in zip(self.hello["series"], values, strict=True):
            parts = series["name"].split("/")
            if parts[0] == "gpu" and len(parts) == 3 and math.isfinite(value):
                self.readings.append((stamp, int(parts[1]), parts[2], value))


@contextmanager
def sampling() -> Iterator[Sampled]:
    """The sampler, for as long as the block takes."""
    found = Sampled()
    client = SamplerClient(
        INTERVAL_S, lambda hello: setattr(found, "hello", hello), found.on_frame, print, found.problems.append
    )
    client.start()
    try:
        until = time.monotonic() + 30
        while not found.readings:
            if time.monotonic() > until:
                raise SystemExit(f"no GPU rows within 30 s: {found.hello.get('gpu_reason') or found.problems}")
            time.sleep(0.05)
        yield found
    finally:
        client.stop()


def query(fields: Sequence[str], *options: str) -> list[str]:
    return ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *options]


def known_fields() -> list[str]:
    """The fields that this `nvidia-smi` has; those that it lacks are named."""
    known = []
    for field in dict.fromkeys(itertools.chain.from_iterable(row.fields for row in ROWS)):
        done = subprocess.run(query([field]), capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            known.append(field)
        else:
            print(f"nvidia-smi does not know {field}: {(done.stdout + done.stderr).strip().splitlines()[:1]}")
    if not known:
        raise SystemExit("nvidia-smi knows none of the fields that are compared")
    return known


def parse(line: str, fields: Sequence[str], now: float) -> list[Reading]:
    """The readings of one line that `nvidia-smi` printed; what it does not give (`[N/A]`) is none."""
    cells = [cell.strip() for cell in next(csv.reader([line]))]
    if len(cells) != len(fields) + 1 or not cells[0].isdigit():
        return []  # the end of a program that is being ended
    readings = []
    for field, cell in zip(fields, cells[1:], strict=True):
        try:
            readings.append((now, int(cells[0]), field, float(cell)))
        except ValueError:
            continue
    return readings


@contextmanager
def printing(fields: Sequence[str], readings: list[Reading]) -> Iterator[None]:
    """`nvidia-smi`, for as long as the block takes."""
    command = query(["index", *fields], f"--loop-ms={SMI_MS}")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            readings.extend(parse(line, fields, time.monotonic()))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        thread.join(10)


def work(seconds: float) -> None:
    """Keep the first GPU busy."""
    left = torch.ones(4096, 4096, device="cuda", dtype=torch.float16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(20):
            left @ left
        torch.cuda.synchronize()


# -- what is printed --------------------------------------------------------------------------------------------------


Series = list[tuple[float, float]]  # `time.monotonic()` in s, value


def series(readings: Sequence[Reading], gpu: int, name: str, span: tuple[float, float]) -> Series:
    """One figure within a span of time."""
    return [(at, value) for at, index, of, value in readings if (index, of) == (gpu, name) and span[0] <= at <= span[1]]


def total(parts: Sequence[Series]) -> Series:
    """The sum of fields of the same lines."""
    return [(lines[0][0], sum(value for _, value in lines)) for lines in zip(*parts, strict=False)]


def mean(found: Series) -> float:
    return statistics.fmean(value for _, value in found)


def off(theirs: Series, ours: Series) -> float:
    """The mean distance of their figures from the range of ours around each in time."""
    found = []
    for at, value in theirs:
        around = [other for when, other in ours if abs(when - at) <= AROUND_S]
        found.append(max(0.0, min(around) - value, value - max(around)) if around else math.inf)
    return statistics.fmean(found)


def show(
    sampled: Sampled,
    theirs: list[Reading],
    fields: list[str],
    phases: Phases,
    file: Path | None,
) -> int:
    """Print the table and the bars."""
    print(f"\n{'':12}{'':22}" + "".join(f"{phase + ', ours':>20}{'nvidia-smi':>14}" for phase in phases))
    figures: dict[str, Any] = {"rows": []}
    bars = []
    for row in ROWS:
        excess: list[float] = []
        for gpu in sampled.hello["gpus"]:
            pairs = {}
            for phase, (first, last) in phases.items():
                wider = (first - AROUND_S, last + AROUND_S)
                ours = [
                    (at, value / row.scale) for at, value in series(sampled.readings, gpu["index"], row.series, wider)
                ]
                smi = total(
                    [series(theirs, gpu["index"], field, (first, last)) for field in row.fields if field in fields]
                )
                meanwhile = [(at, value) for at, value in ours if first <= at <= last]
                if min(len(meanwhile), len(smi)) < LEAST:
                    continue
                pairs[phase] = (mean(meanwhile), mean(smi))
                excess.append(off(smi, ours) / max(row.absolute, row.share * mean(smi)))
            reason = gpu["reasons"].get(row.series)
            print(f"GPU {gpu['index']:<8}{row.series + ', ' + row.unit:22}", end="")
            side_by_side = "".join(f"{a:20,.1f}{b:14,.1f}" for a, b in pairs.values())
            print(side_by_side or f"  not compared: {reason or 'no figures'}")
            figures["rows"].append({"gpu": gpu["index"], "series": row.series, "phases": pairs, "reason": reason})
        if excess:
            bars.append(Bar(f"{row.series}: difference, of what is allowed", max(excess), 1.0, at_most=True))
    if not bars:
        raise SystemExit("no row could be compared")
    steps = [after - before for before, after in itertools.pairwise(sampled.stamps[10:])]
    late = percentile([1000 * abs(step - INTERVAL_S) for step in steps], 0.99)
    bars.append(Bar("frames: p99 error of the interval", late, BAR_FRAME_MS, " ms", at_most=True))
    figures["counts"] = {
        "rows compared": len(bars) - 1,
        "frames": len(sampled.stamps),
        "frames missed": sampled.missed,
        "lines of nvidia-smi": len({at for at, *_ in theirs}),
    }
    print(f"\n{', '.join(f'{name}: {count}' for name, count in figures['counts'].items())}\n")
    return report(bars, figures, file)


if __name__ == "__main__":
    sys.exit(main())
