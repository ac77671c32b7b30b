"""A test of the predictions made before a swap: ten real swaps to DALI at ten augmentation loads.

    python -m benchmarks.diagnose [--seconds 12] [--steps 30] [--rounds 2] [--swaps pil-1,tensor-2,…]
                                   [--json FILE]

The loop is the quickstart's on this machine's cores, with N times [horizontal flip, vertical flip, rotation] before the
crop, on PIL images (`pil-N`) and on tensors (`tensor-N`), which cost torchvision very different amounts. Each swap has
a process of its own. The loop runs with torchvision; `dali-cpu` is calibrated on 32 of its files in another process
(the processor time of that, and how much longer the steps are meanwhile, are measured, too). The verdict and the gain
are read then, before any other engine has run in the loop, and only then the loader is switched. The gain is the share
of the step time that is saved; a negative gain is a predicted loss.

The prediction is about the engines, but a shared machine may be half as fast 15 s later. So the loop is switched back
and to DALI again, and the measured gain compares the steps of all segments of either engine. A process beside the loop
decodes an image four times a second and reads the share of the processor that went to other virtual machines (steal).
Both give a second figure, the gain on a machine of one's own: each segment's step without the stolen share, in units of
decodings. A loop is measured again if decoding took a quarter more in one segment than in another, or if more than a
twentieth was stolen; the steadiest measurement counts, whatever its result.

Then *Diagnose* runs in such a loop, `synthetic` included; its duration and result are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .common import Bar, images, machine, report, versions

SWAPS = "pil-0,pil-1,pil-2,tensor-1,tensor-2,tensor-3,tensor-4,tensor-6,tensor-8,tensor-12"
DIAGNOSED = "tensor-4"
BAR_IN, BAR_WIDTH, BAR_DIAGNOSE_S = 8, 0.40, 120.0
BAR_CPU_S, BAR_SLOWER = 5.0, 0.05
LEAD = 12
"""Steps that do not count: the first ones wait for the workers to start."""
LONGEST_S = 45.0
STEADY, STOLEN = 1.25, 0.05
LATER = 0.6
"""The share of the first segment's seconds and steps that each later segment has."""
TARGET = "dali-cpu"
LIMIT_S = 320.0
"""The longest wait for a calibration."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose", description=__doc__.splitlines()[0])
    parser.add_argument("--swaps", default=SWAPS, help="kinds and loads, with commas")
    parser.add_argument("--seconds", type=float, default=12.0, help="before the first switch, at least")
    parser.add_argument("--steps", type=int, default=30, help="before the first switch, at least")
    parser.add_argument("--rounds", type=int, default=2, help="switches to DALI in each swap")
    parser.add_argument(
        "--attempts", type=int, default=3, help="at a loop, where the machine is not the same all along"
    )
    parser.add_argument("--images", type=int, default=512, help="files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(diagnosis(options) if options.whole else swap(options)))
        return 0
    print(f"{machine()}\n{versions()}")
    names = options.swaps.split(",")
    with images(options.images, options.data) as root:
        found = []
        for name in names:
            tried: list[dict[str, Any]] = []
            while len(tried) < options.attempts and not (tried and steady(tried[-1])):
                tried.append(in_process(options, name, root))
                print(line(tried[-1]), flush=True)
            found.append(min(tried, key=unrest))
        whole = in_process(options, DIAGNOSED, root, "--whole")
    print(f"\nDiagnose at {DIAGNOSED}, {whole['seconds']:.0f} s: {whole['sentence']}\n{whole['table']}")
    return show(found, whole, options.json)


def in_process(options: argparse.Namespace, name: str, root: Path, *more: str) -> dict[str, Any]:
    """Run `swap` or `diagnosis` in a new process; return its figures."""
    command = [sys.executable, "-m", "benchmarks.diagnose", "--one", name, f"--data={root}"]
    command += [*more, *(f"--{part}={getattr(options, part)}" for part in ("seconds", "steps", "rounds", "workers"))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S + 4 * LONGEST_S * options.rounds
    )
    if done.returncode:
        raise SystemExit(f"the swap {name} failed")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def swap(options: argparse.Namespace) -> dict[str, Any]:
    """Run a loop with its switches; return the prediction before the first switch, and the measured gain."""
    from kernel_monitor import monitor
    from kernel_monitor.analysis import analyse
    from kernel_monitor.analysis.segments import IN_FLIGHT

    gauge = Gauge(options.data)
    loader, model, optimizer, loss_of = loop_of(options)
    monitor.start(record=False)
    monitor.watch(model, optimizer)
    said: Any = None
    windows: list[tuple[float, float]] = []
    targets = [TARGET, *["torchvision", TARGET] * (options.rounds - 1)]
    awaited, left, began, counted = "torchvision", LEAD, 0.0, 0
    seconds, steps, longest = options.seconds, options.steps, LONGEST_S
    beside: Calibrated | None = None
    for pictures, labels in loader:
        loss = loss_of(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loader.backend != awaited:
            continue
        if left:  # what was loaded before, and the first wait
            left -= 1
            began, counted = time.monotonic(), 0
            continue
        counted += 1
        passed = time.monotonic() - began
        if (passed < seconds or counted < steps) and passed < longest:
            continue
        if said is None:
            beside = beside or Calibrated(loader, passed / counted)
            if beside.runs(counted):
                continue
        windows.append((began, time.monotonic()))
        if said is None:
            time.sleep(1.2)  # until the last second's processor time has been read
            if loader.history:
                raise SystemExit("another engine has run before the prediction")
            said = analyse(monitor.snapshot())
            seconds, steps, longest = LATER * seconds, round(LATER * steps), LATER * longest
        if not targets:
            break
        awaited, left = targets.pop(0), IN_FLIGHT
        loader.switch(awaited)
    time.sleep(1.2)
    after = analyse(monitor.snapshot())
    monitor.stop()
    loader.release()
    seen = gauge.end(windows)
    gains = {one.action: one for one in said.verdict.gains}
    if TARGET not in gains:
        raise SystemExit(f"nothing was said of {TARGET}: {said.verdict}")
    if len(after.segments) != len(windows):
        raise SystemExit(f"{len(after.segments)} segments instead of {len(windows)}")
    pairs = list(zip(after.segments, seen, strict=True))
    before, behind = (pooled([pair for pair in pairs if pair[0].backend == name]) for name in ("torchvision", TARGET))
    return {
        "name": options.one,
        **({} if beside is None else beside.end()),
        "kind": said.verdict.kind,
        "sentence": said.verdict.sentence,
        "wait": said.verdict.shares.get("wait"),
        "loader": [gains["loader"].low, gains["loader"].high],
        "low": gains[TARGET].low,
        "high": gains[TARGET].high,
        "basis": gains[TARGET].basis,
        "measured": 1 - behind["step_ms"] / before["step_ms"],
        "single": [one.saved for one in after.changes[::2]],
        "corrected": 1 - behind["decodings"] / before["decodings"],
        "pace": max(pace for pace, _ in seen) / min(pace for pace, _ in seen),
        "stolen": max(stolen for _, stolen in seen),
        "seen": seen,
        "caveats": [list(one.caveats) for one in after.changes],
        "before": before,
        "after": behind,
        "segments": [figures(one) for one in after.segments],
    }


def unrest(one: dict[str, Any]) -> float:
    """Return how unsteady the machine was during the segments; at most 1 means steady."""
    return float(max((one["pace"] - 1) / (STEADY - 1), one["stolen"] / STOLEN))


def steady(one: dict[str, Any]) -> bool:
    """Return whether the machine was steady during all segments."""
    return unrest(one) <= 1


def pooled(pairs: list[tuple[Any, tuple[float, float]]]) -> dict[str, Any]:
    """Return the mean step of all segments of an engine: by the clock, and without what others took, in decodings."""
    steps = sum(one.steps for one, _ in pairs)
    return {
        "steps": steps,
        "segments": len(pairs),
        "step_ms": sum(one.step * one.steps for one, _ in pairs) / steps,
        "decodings": sum(one.step * (1 - stolen) / pace * one.steps for one, (pace, stolen) in pairs) / steps,
    }


class Calibrated:
    """The calibration beside a loop: its processor time, and its cost for the loop.

    Args:
        loader: the loop's loader.
        step: s, the mean step before the calibration.
    """

    def __init__(self, loader: Any, step: float) -> None:
        self._loader = loader
        self._before = step
        self._began = time.monotonic()
        self._counted: int | None = None
        self._cpu = cpu_of_children()
        self._step = self._seconds = math.nan
        self._asked = 0.0

    def runs(self, counted: int) -> bool:
        """Return whether the calibration runs, or has not begun yet; the loop goes on until it has ended.

        Args:
            counted: steps of the loop so far.
        """
        from kernel_monitor import monitor

        now = time.monotonic()
        if self._counted is None:
            self._counted = counted
        state = self._loader.state()["calibration"].get(TARGET, {}).get("state")
        if state is None and now > self._asked + 2:  # as a page asks
            self._asked = now
            threading.Thread(target=lambda: monitor.verdict, daemon=True).start()
        if state in (None, "running") and now < self._began + LIMIT_S:
            return True
        if math.isnan(self._step):
            self._seconds = now - self._began
            self._step = self._seconds / max(1, counted - self._counted)
            self._cpu = cpu_of_children() - self._cpu
        return False

    def end(self) -> dict[str, Any]:
        """Return its figures: `cpu`, s; its duration, s; `slower`, the share by which a step was longer meanwhile."""
        found = self._loader.state()["calibration"].get(TARGET, {})
        return {
            "calibration": found,
            "cpu": self._cpu,
            "took": self._seconds,
            "slower": self._step / self._before - 1,
        }


def cpu_of_children() -> float:
    """Return the processor time, s, of the child processes that have ended: here only the calibration."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Gauge:
    """A process beside the loop that measures the machine's present speed: the time to decode an image."""

    def __init__(self, root: Path) -> None:
        file = min(root.rglob("*.jpg"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gauge", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self, windows: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """End the process, and return its figures in each of some windows of `time.monotonic()`.

        Returns:
            For each window the median CPU time of decoding, ms, and the share of the processor that was stolen.
        """
        out, _ = self._process.communicate("")
        found = [tuple(map(float, one.split())) for one in out.splitlines()]
        seen = []
        for began, ended in windows:
            part = [one for one in found if began <= one[0] <= ended]
            stolen = (part[-1][2] - part[0][2]) / ((os.cpu_count() or 1) * (part[-1][0] - part[0][0]))
            seen.append((1e3 * statistics.median(one[1] for one in part), stolen))
        return seen


def diagnosis(options: argparse.Namespace) -> dict[str, Any]:
    """Run *Diagnose* in the running loop, until the engine from before is in use again; return its figures."""
    from kernel_monitor import monitor

    loader, model, optimizer, loss_of = loop_of(options)
    monitor.start(record=False)
    monitor.watch(model, optimizer)
    asked = 0.0
    state: Any = {"state": "running"}
    for number, (pictures, labels) in enumerate(loader):
        loss = loss_of(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == LEAD:
            asked = time.monotonic()
            monitor.diagnose(confirmed=True, wait=False)
        elif number > LEAD:
            state = dict(monitor.diagnosing or state)
            if state["state"] != "running":
                break
    seconds = time.monotonic() - asked
    monitor.stop()
    backend = loader.backend
    loader.release()
    if state["state"] != "done" or backend != "torchvision":
        raise SystemExit(f"Diagnose ended as {state}, the loader at {backend}")
    result = dict(state["result"])
    table = [
        f"  {run['backend']:12} {run['rate']:7.0f} images/s ({run['rate_low']:.0f} to {run['rate_high']:.0f}; "
        f"{run['steps']} steps, {run['samples']} samples in {run['seconds']:.0f} s), of the ceiling "
        f"{100 * run['of_ceiling']:.0f} %, CPU p50 {run['cpu_p50']:.0f} %, p95 {run['cpu_p95']:.0f} %"
        for run in result["runs"]
    ]
    return {"seconds": seconds, "sentence": result["sentence"], "table": "\n".join(table), "result": result}


def figures(segment: Any) -> dict[str, Any]:
    """Return a segment's step with its spread and counts."""
    step = next((one.values for one in segment.statistics if one.metric == "step"), None)
    return {
        "backend": segment.backend,
        "steps": segment.steps,
        "samples": segment.samples,
        "seconds": segment.seconds,
        "step_ms": segment.step,
        "step_p50_ms": step.p50 if step else None,
        "step_p95_ms": step.p95 if step else None,
        "wait_ms": segment.wait,
        "cpu_seconds": segment.cpu_seconds,
        "workers_cpu_seconds": segment.workers_cpu_seconds,
    }


def loop_of(options: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """Return the quickstart's loader, model and optimizer, with a load of augmentation."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, RandomSampler
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    from kernel_monitor import switchable

    kind, _, load = options.one.partition("-")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    augment = [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip(), v2.RandomRotation(15)] * int(load)
    transform = v2.Compose(
        [
            *([v2.PILToTensor()] if kind == "tensor" else []),
            *augment,
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    dataset = ImageFolder(options.data, transform)
    sampler = RandomSampler(dataset, replacement=True, num_samples=10_000_000)
    loader = switchable(
        DataLoader(
            dataset, batch_size=32, sampler=sampler, num_workers=options.workers, persistent_workers=options.workers > 0
        ),
        name="train",
        seed=0,
    )
    classes = len(dataset.classes)
    model = nn.Sequential(
        nn.AvgPool2d(8),
        nn.Conv2d(3, 32, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
    return loader, model, torch.optim.Adam(model.parameters(), lr=3e-3), nn.functional.cross_entropy


def line(one: dict[str, Any]) -> str:
    """Return a swap in words."""
    before, after = one["before"], one["after"]
    inside, corrected = (
        "in " if one["low"] <= one[name] <= one["high"] else "OUT" for name in ("measured", "corrected")
    )
    return (
        f"{one['name']:10} {one['kind']:13} waits {100 * one['wait']:3.0f} %   said {100 * one['low']:6.1f} to "
        f"{100 * one['high']:6.1f}   measured {100 * one['measured']:6.1f} {inside} "
        f"corrected {100 * one['corrected']:6.1f} {corrected}   "
        f"{before['step_ms']:6.1f} ms ({before['steps']} steps) → {after['step_ms']:6.1f} ms ({after['steps']} steps)"
        f"   pace {one['pace']:.2f}, stolen {100 * one['stolen']:.0f} %   calibration: {one['cpu']:.1f} s of CPU in "
        f"{one['took']:.0f} s, steps {100 * one['slower']:+.1f} %, "
        f"{1e3 * one['calibration']['seconds']:.1f} ms an image, "
        f"{loaded(one):.1f} in the loop"
    )


def loaded(one: dict[str, Any]) -> float:
    """Return DALI's CPU ms per image in the loop, assuming that training uses as much as before."""
    before, after = one["segments"][:2]
    training = (before["cpu_seconds"] - before["workers_cpu_seconds"]) / before["samples"]
    return 1e3 * float(after["cpu_seconds"] / after["samples"] - training)


def show(found: list[dict[str, Any]], whole: dict[str, Any], file: Path | None) -> int:
    """Print the bars."""
    print(
        "\npoints of the step time saved; corrected: without what others took; pace: decoding in the slowest segment "
        f"over the fastest; each loop in a process of its own; load {os.getloadavg()[0]:.1f} at the end"
    )
    inside, corrected = (
        sum(one["low"] <= one[name] <= one["high"] for one in found) for name in ("measured", "corrected")
    )
    widest = max(one["high"] - one["low"] for one in found)
    bound = sum(one["kind"] == "input-bound" for one in found)
    bars = [
        Bar(f"input-bound before, of {len(found)}", bound, len(found)),
        Bar(f"measured gain in the interval, of {len(found)}", inside, min(BAR_IN, len(found))),
        Bar(f"the same without what others took, of {len(found)}", corrected, min(BAR_IN, len(found))),
        Bar("widest interval", widest, BAR_WIDTH, at_most=True),
        Bar("CPU of the calibration", max(one["cpu"] for one in found), BAR_CPU_S, " s", at_most=True),
        Bar(
            "steps longer meanwhile, median",
            statistics.median(one["slower"] for one in found),
            BAR_SLOWER,
            at_most=True,
        ),
        Bar("Diagnose", whole["seconds"], BAR_DIAGNOSE_S, " s", at_most=True),
    ]
    return report(bars, {"swaps": found, "diagnosis": whole}, file)


if __name__ == "__main__":
    sys.exit(main())
