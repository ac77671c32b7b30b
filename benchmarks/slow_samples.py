"""Slow samples: how soon a planted 1 % is named with its transform, and how many clean runs are alarmed.

    python -m benchmarks.slow_samples [--clean 20] [--planted 5] [--seconds 12]

Each run iterates over a folder of JPEGs with torchvision's transforms, with no, one or two workers in turn, a step of
5 ms and a fixed seed. In a planted run 1 % of the files are large, and RandomRotation (bicubic), which stands before
the resize, takes most of the time that they cost. The tracker of a session reads the times, and the rule `slow-samples`
is asked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.analysis.results import Finding
from kernel_monitor.analysis.rules import evaluate
from kernel_monitor.runtime.loader_tracker import LoaderTracker
from kernel_monitor.steps import attached, attached_entries
from kernel_monitor.store import Store

from .common import Bar, machine, report, versions

FILES, EACH = 300, 100  # files, of which one in so many is large in a planted run
STEP_S = 0.005
TOLD_S = 30.0


def make_files(root: Path, *, planted: bool) -> None:
    """Write the files; those of a planted run have large ones among them."""
    draw = np.random.default_rng(0)
    (root / "class").mkdir(parents=True)
    for number in range(FILES):
        wide, high = (int(draw.integers(200, 320)), int(draw.integers(160, 240)))
        if planted and number % EACH == 7:
            wide, high = 2000, 1600
        coarse = draw.integers(0, 256, (high // 8, wide // 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((wide, high)).save(root / "class" / f"photo_{number:04}.jpg")


def run(root: Path, workers: int, seconds: float, *, until_told: bool) -> tuple[Finding, float]:
    """Return what the rule says of one run, and after how many s it was over."""
    store, began = Store(), time.monotonic()

    def add(kind: str, at: float, **fields: Any) -> None:
        store.add_event(kind, at, **fields)

    tracker = LoaderTracker(store, lambda at: at - began, add)
    chain = [
        v1.RandomRotation(20, v1.InterpolationMode.BICUBIC),
        v1.Resize((112, 112)),
        v1.ToTensor(),
        v1.Normalize([0.5] * 3, [0.5] * 3),
    ]
    attached.detach()
    attached._entries = attached_entries.Loaders()
    attached.attach()
    loader = DataLoader(
        ImageFolder(str(root), v1.Compose(chain)),
        batch_size=16,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    read, finding = began, _finding(store)
    while (passed := time.monotonic() - began) < seconds:
        for _ in loader:
            time.sleep(STEP_S)
            if time.monotonic() - read > 0.2:
                read = time.monotonic()
                tracker.refresh()
                for name, rows, dropped in tracker.steps(0.2):
                    store.steps.add(name, rows, dropped)
            if (passed := time.monotonic() - began) > seconds:
                break
        finding = _finding(store)
        if until_told and finding.state == "fired" and "RandomRotation" in finding.advice:
            break
    attached.detach()
    return finding, passed


def _finding(store: Store) -> Finding:
    (found,) = evaluate(store.snapshot([], {}), (), only=("slow-samples",))
    return found


def main() -> int:
    """Measure and print; the exit status is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_samples", description=__doc__.splitlines()[0])
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--planted", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each clean run")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    print(f"{machine()}\n{versions()}")
    torch.set_num_threads(1)
    told: list[float] = []
    alarms, judged = 0, 0
    with tempfile.TemporaryDirectory(prefix="kernel-monitor-benchmark-") as folder:
        for planted in (True, False):
            root = Path(folder) / str(planted)
            make_files(root, planted=planted)
            for number in range(options.planted if planted else options.clean):
                torch.manual_seed(number)
                seconds = TOLD_S if planted else options.seconds
                found, passed = run(root, number % 3, seconds, until_told=planted)
                if planted:
                    named = "RandomRotation" in found.advice and "photo_0" in str(found.evidence)
                    told.append(passed if found.state == "fired" and named else float("inf"))
                else:
                    alarms += found.state == "fired"
                    judged += found.state != "abstained"
                text = "; ".join(one.text for one in found.evidence)
                kind = "planted" if planted else "clean"
                print(
                    f"{kind} {number + 1}, {number % 3} workers: {found.state} after {passed:.1f} s. {text}", flush=True
                )
    print(f"planted: named after {', '.join(f'{one:.1f}' for one in told)} s; clean: {alarms} alarms, {judged} judged")
    bars = [Bar("the longest time until a planted 1 % is named, s", max(told), TOLD_S, at_most=True)] if told else []
    if options.clean:
        bars.append(Bar(f"false alarms in {options.clean} clean runs", alarms, 1, at_most=True))
    return report(bars, {"told": told, "alarms": alarms, "judged": judged, "machine": machine()}, options.json)


if __name__ == "__main__":
    sys.exit(main())
