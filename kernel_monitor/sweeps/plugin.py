"""The interface of `sweeps` to the rest of the package: `sweep`, and the command `kernel-monitor sweep`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import MonitorError
from ..plugins import Command
from .presets import PRESETS
from .sweep_command import STOPPED, compared, default_folder, sweep
from .sweep_file import read

__all__ = ["COMMANDS", "sweep"]

_WORST = 0.10  # how far the ratio of a cell may be from that of another run, a share


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("preset", metavar="PRESET", nargs="?", help="; ".join(f"{k}: {v}" for k, v in PRESETS.items()))
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="your images, a folder per class (default: made for it)"
    )
    parser.add_argument("--output", "-o", metavar="DIR", type=Path, help="results (default: sweep-PRESET-quick here)")
    longer = "more and longer measurements, all augmentation loads; without it a quick form that takes 2 to 3 minutes"
    parser.add_argument("--full", action="store_true", help=longer)
    small = "small images and short measurements: for machines without a GPU, where the quick form always takes them"
    parser.add_argument("--short", action="store_true", default=None, help=small)
    window = parser.add_mutually_exclusive_group()
    window.add_argument("--seconds", metavar="S", type=float, default=0.0, help="of each measurement at least")
    window.add_argument("--epochs", metavar="N", type=int, default=0, help="measure whole epochs instead")
    parser.add_argument("--passes", metavar="N", type=int, default=0, help="how often each is measured")
    parser.add_argument("--models", metavar="M", nargs="+", help="torchvision's models to train, such as resnet18")
    parser.add_argument("--loads", metavar="N", type=int, nargs="+", help="how often flips and rotation are repeated")
    engines = "torchvision, dali, dali-fused, synthetic …; the others are compared with the first"
    parser.add_argument("--engines", metavar="E", nargs="+", help=engines)
    parser.add_argument("--batch", metavar="N", type=int, default=0, help="images in a batch")
    parser.add_argument(
        "--workers", metavar="N", type=int, default=0, help="workers or threads (default: one per core)"
    )
    parser.add_argument("--images", metavar="N", type=int, default=0, help="made where there is no --data")
    parser.add_argument(
        "--price", metavar="P", help="of an hour of this machine, such as 2.50€: adds the cost of an epoch"
    )
    parser.add_argument("--again", action="store_true", help="begin anew, also what is measured already")
    parser.add_argument("--json", action="store_true", help="the result as JSON, for other programs")
    compared = "instead: compare two sweeps of one table, by folder; exit status 1 where one differs by more than 10 %%"
    parser.add_argument("--compare", metavar=("A", "B"), nargs=2, type=Path, help=compared)


def _run(options: argparse.Namespace) -> int:
    """Run the sweep, or compare two. Returns the exit status: 1 where a cell was not measured or differs, else 0."""
    if options.compare is not None:
        text, worst = compared(*options.compare)
        sys.stdout.write(f"{text}\nThe largest difference is {100 * worst:.1f} %.\n")
        return int(not worst <= _WORST)
    if options.preset is None:
        raise MonitorError(f"Which sweep? There are: {', '.join(PRESETS)} (see kernel-monitor sweep --help).")
    names = ("data", "output", "short", "full", "seconds", "epochs", "passes", "models", "loads", "engines", "batch",
             "workers", "images", "price", "again")  # fmt: skip
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    folder = chosen["output"] = options.output or Path(
        default_folder(options.preset, short=options.short, full=options.full)
    )
    try:
        swept = sweep(options.preset, **chosen)
    except KeyboardInterrupt:
        if (folder / "sweep.json").exists():
            done = len(read(folder).passes)
            sys.stderr.write(f"kernel-monitor: {STOPPED.format(folder=folder, done=done)}\n")
        raise
    text = json.dumps(swept.summary(), indent=1) if options.json else f"{swept}\n{swept.page}"
    sys.stdout.write(f"{text}\n")
    return int(any(cell.problem is not None for cell in swept.cells()))


COMMANDS = (
    Command(
        "sweep",
        "measure a table of trainings with torchvision and with DALI, and write one page of it",
        _run,
        _add_arguments,
        "Trains several models for some seconds each, with torchvision and with DALI in turns, and writes a page with "
        "the table of their speeds. The quick form is the default; --full measures longer. Ctrl-C stops it; the same "
        "command goes on from there. Exit status 1: a cell of the table could not be measured.",
    ),
)
