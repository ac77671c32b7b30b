"""The options of `kernel-monitor sweep`, and what the command does."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import MonitorError
from .presets import PRESETS

WORST = 0.10  # how far the ratio of a cell may be from that of another run, a share


def add_options(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("preset", metavar="PRESET", nargs="?", help="; ".join(f"{k}: {v}" for k, v in PRESETS.items()))
    parser.add_argument("--data", metavar="DIR", type=Path, help="images, a folder per class (default: a demo set)")
    parser.add_argument("--output", "-o", metavar="DIR", type=Path, help="results (default: sweep-PRESET here)")
    parser.add_argument("--full", action="store_true", help="all loads and long windows (default: quick)")
    short = "small images (default without a GPU, unless --full)"
    parser.add_argument("--short", action=argparse.BooleanOptionalAction, default=None, help=short)
    window = parser.add_mutually_exclusive_group()
    window.add_argument("--seconds", metavar="S", type=float, default=0.0, help="of a window at least")
    window.add_argument("--epochs", metavar="N", type=int, default=0, help="whole epochs in a window instead")
    parser.add_argument("--passes", metavar="N", type=int, default=0, help="how often each cell is measured")
    parser.add_argument("--models", metavar="M", nargs="+", help="of torchvision, instead of the preset's")
    parser.add_argument("--loads", metavar="N", type=int, nargs="+", help="repetitions of flips and rotation")
    engines = "torchvision, dali, dali-fused, synthetic …; the others are compared with the first"
    parser.add_argument("--engines", metavar="E", nargs="+", help=engines)
    parser.add_argument("--batch", metavar="N", type=int, default=0, help="samples in a batch, instead of the preset's")
    parser.add_argument(
        "--workers", metavar="N", type=int, default=0, help="workers or threads (default: one per core)"
    )
    parser.add_argument("--images", metavar="N", type=int, default=0, help="of the demo set")
    parser.add_argument("--price", metavar="P", help="of an hour of this machine, such as 2.50€: cost per epoch")
    parser.add_argument("--again", action="store_true", help="measure what is done, too")
    parser.add_argument("--json", action="store_true", help="the result as JSON, for other programs")
    compared = (
        "the ratios of two sweeps of one grid, by their folders; exit status 1 where one differs by more than 10 %%"
    )
    parser.add_argument("--compare", metavar=("A", "B"), nargs=2, type=Path, help=compared)


def command(options: argparse.Namespace) -> int:
    """Run the sweep, or compare two. Exit status 0, or 1 where a cell was not measured or differs."""
    from .sweep_command import STOPPED, compared, default_folder, is_short, sweep
    from .sweep_file import read

    if options.compare is not None:
        text, worst = compared(*options.compare)
        sys.stdout.write(f"{text}\nThe largest difference is {100 * worst:.1f} %.\n")
        return int(not worst <= WORST)
    if options.preset is None:
        raise MonitorError(f"Which sweep? There are: {', '.join(PRESETS)} (see kernel-monitor sweep --help).")
    names = ("data", "output", "short", "full", "seconds", "epochs", "passes", "models", "loads", "engines", "batch",
             "workers", "images", "price", "again")  # fmt: skip
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    chosen["short"] = is_short(options.short, full=options.full)
    default = default_folder(options.preset, short=chosen["short"], full=options.full)
    folder = chosen["output"] = options.output or Path(default)
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
