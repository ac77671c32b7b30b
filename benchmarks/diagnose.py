"""Whether what is said before a swap comes true: ten real swaps to DALI at ten augmentation loads.

    python -m benchmarks.diagnose [--seconds 12] [--steps 30] [--swaps pil-1,tensor-2,…] [--json FILE]
    python -m benchmarks.diagnose --costs        (writes kernel_monitor/loaders/transforms/costs.json)

The quickstart's loop on this machine's cores, with N times [horizontal flip, vertical flip, rotation] before the crop,
on PIL images (`pil-N`) and on tensors (`tensor-N`), which cost torchvision very different amounts. Each swap has a
process of its own: the loop runs with torchvision, the verdict and the gain of `dali-cpu` are taken from what was
measured so far, when no other engine has ever run in that process, and only then the loader is switched. The gain is
the share of the step time that is saved; a negative one is a loss, said before as well.

Then *Diagnose* in such a loop, `synthetic` included: how long it takes, and what it says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .common import Bar, images, machine, report, versions

SWAPS = "pil-0,pil-1,pil-2,tensor-1,tensor-2,tensor-3,tensor-4,tensor-6,tensor-8,tensor-12"
DIAGNOSED = "tensor-4"
BAR_IN, BAR_WIDTH, BAR_DIAGNOSE_S = 8, 0.30, 120.0
LEAD = 12
"""Steps before anything is counted: the first wait for the workers to start."""
LONGEST_S = 45.0
TARGET = "dali-cpu"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose", description=__doc__.splitlines()[0])
    parser.add_argument("--swaps", default=SWAPS, help="kinds and loads, with commas")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each engine, at least")
    parser.add_argument("--steps", type=int, default=30, help="of each engine, at least")
    parser.add_argument("--images", type=int, default=512, help="files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", type=Path, help="a folder for the images, which then stay")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--costs", action="store_true", help="measure the table of costs anew")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.costs:
        from .costs import write_costs

        write_costs()
        return 0
    if options.one:
        print(json.dumps(diagnosis(options) if options.whole else swap(options)))
        return 0
    print(f"{machine()}\n{versions()}")
    names = options.swaps.split(",")
    with images(options.images, options.data) as root:
        found = []
        for name in names:
            found.append(in_process(options, name, root))
            print(line(found[-1]), flush=True)
        whole = in_process(options, DIAGNOSED, root, "--whole")
    print(f"\nDiagnose at {DIAGNOSED}, {whole['seconds']:.0f} s: {whole['sentence']}\n{whole['table']}")
    return show(found, whole, options.json)


def in_process(options: argparse.Namespace, name: str, root: Path, *more: str) -> dict[str, Any]:
    """`swap`, or `diagnosis`, in a new process."""
    command = [sys.executable, "-m", "benchmarks.diagnose", "--one", name, f"--data={root}"]
    command += [*more, *(f"--{part}={getattr(options, part)}" for part in ("seconds", "steps", "workers"))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=6 * LONGEST_S)
    if done.returncode:
        raise SystemExit(f"the swap {name} failed")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def swap(options: argparse.Namespace) -> dict[str, Any]:
    """One loop with one swap: what was said before it, and what it brought."""
    from kernel_monitor import monitor
    from kernel_monitor.diagnose import analyse

    loader, model, optimizer, loss_of = loop_of(options)
    monitor.start(record=False)
    monitor.watch(model, optimizer)
    said: Any = None
    counted = began = 0.0
    for number, (pictures, labels) in enumerate(loader):
        loss = loss_of(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == LEAD or (said is not None and not counted and loader.backend == TARGET):
            began, counted = time.monotonic(), 1.0
        elif counted:
            counted += 1
            passed = time.monotonic() - began
            if (passed >= options.seconds and counted > options.steps) or passed >= LONGEST_S:
                if said is not None:
                    break
                time.sleep(1.2)  # until the last second's processor time has been read
                if loader.history:
                    raise SystemExit("another engine has run before the prediction")
                said = analyse(monitor.snapshot())
                loader.switch(TARGET)
                counted = 0.0
    time.sleep(1.2)
    after = analyse(monitor.snapshot())
    monitor.stop()
    loader.release()
    gains = {one.action: one for one in said.verdict.gains}
    if TARGET not in gains:
        raise SystemExit(f"nothing was said of {TARGET}: {said.verdict}")
    change = after.changes[-1]
    parts = {one.key: one for one in after.stretches}
    before, behind = parts[change.before], parts[change.after]
    return {
        "name": options.one,
        "kind": said.verdict.kind,
        "sentence": said.verdict.sentence,
        "wait": said.verdict.shares.get("wait"),
        "loader": [gains["loader"].low, gains["loader"].high],
        "low": gains[TARGET].low,
        "high": gains[TARGET].high,
        "basis": gains[TARGET].basis,
        "measured": change.saved,
        "caveats": list(change.caveats),
        "before": figures(before),
        "after": figures(behind),
    }


def diagnosis(options: argparse.Namespace) -> dict[str, Any]:
    """Diagnose in the running loop, from the request to the engine that was there before."""
    from kernel_monitor import monitor

    loader, model, optimizer, loss_of = loop_of(options)
    monitor.start(record=False)
    monitor.watch(model, optimizer)
    asked = 0.0
    state: dict[str, Any] = {"state": "running"}
    for number, (pictures, labels) in enumerate(loader):
        loss = loss_of(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == LEAD:
            asked = time.monotonic()
            monitor.diagnose(confirmed=True, wait=False)
        elif number > LEAD:
            state = monitor.diagnosing or state
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


def figures(stretch: Any) -> dict[str, Any]:
    """A stretch's step with its spread and counts."""
    step = next((one.values for one in stretch.statistics if one.metric == "step"), None)
    return {
        "backend": stretch.backend,
        "steps": stretch.steps,
        "samples": stretch.samples,
        "seconds": stretch.seconds,
        "step_ms": stretch.step,
        "step_p50_ms": step.p50 if step else None,
        "step_p95_ms": step.p95 if step else None,
        "wait_ms": stretch.wait,
        "cpu_seconds": stretch.cpu_seconds,
    }


def loop_of(options: argparse.Namespace) -> tuple[Any, Any, Any, Any]:
    """The quickstart's loader, model and optimizer, with a load of augmentation."""
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
    """A swap in words."""
    before, after = one["before"], one["after"]
    inside = one["low"] <= one["measured"] <= one["high"]
    return (
        f"{one['name']:10} {one['kind']:13} waits {100 * one['wait']:3.0f} %   said {100 * one['low']:6.1f} to "
        f"{100 * one['high']:6.1f}   measured {100 * one['measured']:6.1f} {'in ' if inside else 'OUT'}   "
        f"{before['step_ms']:6.1f} ms ({before['steps']} steps, p95 {before['step_p95_ms']:.0f}) → "
        f"{after['step_ms']:6.1f} ms ({after['steps']} steps, p95 {after['step_p95_ms']:.0f})"
    )


def show(found: list[dict[str, Any]], whole: dict[str, Any], file: Path | None) -> int:
    """Print the bars."""
    print(
        f"\npoints of the step time saved; each swap in a process of its own; load {os.getloadavg()[0]:.1f} at the end"
    )
    inside = sum(one["low"] <= one["measured"] <= one["high"] for one in found)
    widest = max(one["high"] - one["low"] for one in found)
    bound = sum(one["kind"] == "input-bound" for one in found)
    bars = [
        Bar(f"input-bound before, of {len(found)}", bound, len(found)),
        Bar(f"measured gain in the interval, of {len(found)}", inside, min(BAR_IN, len(found))),
        Bar("widest interval", widest, BAR_WIDTH, at_most=True),
        Bar("Diagnose", whole["seconds"], BAR_DIAGNOSE_S, " s", at_most=True),
    ]
    return report(bars, {"swaps": found, "diagnosis": whole}, file)


if __name__ == "__main__":
    sys.exit(main())
