"""A test of sweeps: two runs must give the same table, and predict the signs.

    python -m benchmarks.sweep [--preset sagemaker-dali] [--runs 2] [--whole] [--data DIR] [--output DIR]
                              [--arguments '…'] [--json FILE]

Each run is `kernel-monitor sweep PRESET --short` in a process and a folder of its own; with `--output` the folders
stay, and an interrupted run goes on. The ratio of a cell is its images/s divided by those of its row's first engine:
engines that take turns must give the same ratio in another run, even if the machine's speed has changed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kernel_monitor.sweeps.presets import PRESETS
from kernel_monitor.sweeps.sweep_command import compared
from kernel_monitor.sweeps.sweep_file import read
from kernel_monitor.sweeps.table_cells import cells, signs

from .common import Bar, machine, report, versions

BAR_APART, BAR_SIGNS, BAR_MINUTES = 10.0, 0.95, 20.0
BAR_SAVED = 0.726  # the published share for ResNet18 at load 12
BAR_CEILING = 0.97  # the published share for an AWS P3, with fused decode
LIMIT_S = 1800.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=list(PRESETS), default="sagemaker-dali")
    parser.add_argument("--runs", type=int, default=2, help="of the same sweep, to be compared")
    parser.add_argument("--whole", action="store_true", help="not the short form")
    parser.add_argument("--data", type=Path, help="a folder of images; a demo set by default")
    parser.add_argument("--output", type=Path, help="a folder for the sweeps, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--arguments", default="", help="further ones of the sweep, in one word: '--loads 1 12'")
    options = parser.parse_args(arguments)
    print(f"{machine()}\n{versions()}")
    made = tempfile.TemporaryDirectory(prefix="kernel-monitor-sweeps-") if options.output is None else None
    with made or nullcontext(str(options.output)) as parent:
        folders = [Path(parent) / f"run-{number + 1}" for number in range(options.runs)]
        minutes = [one_run(options, folder) / 60 for folder in folders]
        return show(options, folders, minutes)


def one_run(options: argparse.Namespace, folder: Path) -> float:
    """Run the sweep in a process; return its duration in s.

    Raises:
        SystemExit: the sweep failed.
    """
    command = [sys.executable, "-m", "kernel_monitor", "sweep", options.preset, "--output", str(folder)]
    command += ["--full"] if options.whole else ["--full", "--short"]
    command += [] if options.data is None else ["--data", str(options.data)]
    began = time.monotonic()
    done = subprocess.run([*command, *shlex.split(options.arguments)], check=False, timeout=LIMIT_S)
    if done.returncode not in (0, 1):
        raise SystemExit(f"the sweep ended with status {done.returncode}")
    return time.monotonic() - began


def show(options: argparse.Namespace, folders: Sequence[Path], minutes: Sequence[float]) -> int:
    """Print the bars; return the exit status."""
    contents = [read(folder).content for folder in folders]
    found = [cells(content) for content in contents]
    every = [cell for one in found for row in one for cell in row]
    bars = [
        Bar("cells that were not measured", sum(cell.problem is not None for cell in every), 0, at_most=True),
        Bar("samples delivered or replayed in the cell with fewest", min(c.samples + c.replaced for c in every), 1),
    ]
    if not options.whole:
        bars += [Bar(f"run {k}", taken, BAR_MINUTES, " min", at_most=True) for k, taken in enumerate(minutes, 1)]
    for number, one in enumerate(found, 1):
        right, judged = signs(one)
        if judged:
            print(f"run {number}: the predicted sign was right in {right} of {judged} cells")
    right, judged = (sum(counts) for counts in zip(*map(signs, found), strict=True))
    if judged:
        bars.append(Bar("share of the predicted signs that were right", right / judged, BAR_SIGNS))
    for cell in every:
        if (cell.row, cell.engine) == ("resnet18 · load 12", "dali-gpu"):
            bars.append(Bar("resnet18 at load 12, share of the time that dali-gpu saves", cell.saved, BAR_SAVED))
    ceilings = [cell.ceiling for one in found for row in one for cell in row if cell.engine.startswith("dali-gpu")]
    if options.preset == "resnet50-case-study" and ceilings:
        bars.append(Bar("dali-gpu / synthetic, best configuration", max(ceilings), BAR_CEILING))
    apart: dict[str, Any] = {}
    for folder in folders[1:]:
        text, worst = compared(folders[0], folder)
        print(text)
        apart[folder.name] = worst
        bars.append(Bar("largest difference of a ratio between two runs", 100 * worst, BAR_APART, " %", at_most=True))
    figures = {
        "preset": options.preset,
        "minutes": list(minutes),
        "signs": {"right": right, "judged": judged},
        "apart": apart,
        "cells": [json.loads(json.dumps(cell.to_json())) for cell in every],
        "counts": {"cells": len(every), "samples": sum(cell.samples + cell.replaced for cell in every)},
    }
    return report(bars, figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
