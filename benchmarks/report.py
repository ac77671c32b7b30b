"""The cost of a report of a long session on a large machine: bytes, seconds to write, seconds to its first picture.

    python -m benchmarks.report [--minutes 60] [--cores 64] [--gpus 8] [--interval 0.1] [--session FILE] [--keep FOLDER]

The session is recorded by the sampler's own recorder, with a loader's switches, marks and steps in it; writing is the
whole command, `kernel-monitor report`; the file is opened in Chromium with the network off.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernel_monitor.record import writer
from kernel_monitor.record.writer import Recorder
from kernel_monitor.steps.measured_step import WARM_UP, Step

from .replay import Replay

BAR_BYTES, BAR_WRITE_S, BAR_PICTURE_S = 4e6, 3.0, 1.0
LOADER, NAME = "loader-1", "train"
BATCH = 256


DRAWN = """() => ({
  paint: performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000,
  charts: performance.getEntriesByName('charts-drawn')[0].startTime / 1000,
})"""


class Part(NamedTuple):
    """A segment of the session: its share of the time, the engine, and a step's phases in ms."""

    share: float
    backend: str
    wait: float
    copy: float
    forward: float
    backward: float
    optimizer: float
    other: float


PARTS = (
    Part(0.5, "torchvision", 180.0, 6.0, 30.0, 55.0, 8.0, 3.0),
    Part(0.3, "dali-gpu", 4.0, 2.0, 31.0, 56.0, 8.0, 3.0),
    Part(0.2, "torchvision", 140.0, 6.0, 30.0, 55.0, 8.0, 3.0),
)
"""The parts of the session; a step's times are the wait, the phases in the order of PHASES, and the rest."""


def steps(seconds: float, seed: int = 0) -> Iterator[Step]:
    """Yield the loop's steps over so many seconds, each with noise of its own."""
    random = np.random.default_rng(seed)
    now, place = 0.0, 0
    for part in PARTS:
        until = now + part.share * seconds
        begun = place
        while now < until:
            wait, *phases, other = 1e-3 * np.array(part[2:]) * random.lognormal(0.0, 0.08, 6)
            now += float(wait + sum(phases) + other)
            flags = WARM_UP if place - begun < 3 else 0
            whole = float(wait + sum(phases) + other)
            copy, forward, backward, optimizer = (float(one) for one in phases)
            step = Step(now, place // 2000, place % 2000, BATCH, float(wait), whole)
            yield step._replace(copy=copy, forward=forward, backward=backward, optimizer=optimizer, flags=flags)
            place += 1


def state(backend: str, delivered: int) -> dict[str, Any]:
    """Return the loader's state as it is recorded."""
    epoch, batch = divmod(delivered, 2000)
    counts = {"lost": 0, "doubled": 0, "skipped": 0, "replaced": 0, "planned": 2000 * BATCH}
    whole = [
        {"epoch": one, "batches": 2000, "samples": 2000 * BATCH, **counts, "decoded": {"torchvision": 2000 * BATCH}}
        for one in range(epoch)
    ]
    return {
        "id": LOADER, "name": NAME, "backend": backend, "wanted": None, "status": backend, "backends": [],
        "epoch": epoch, "batch": batch, "batches": 2000, "samples": batch * BATCH, **counts, "skips": [],
        "knobs": {"workers": 16, "prefetch": 2, "threads": 8}, "decoded": {backend: batch * BATCH}, "epochs": whole,
    }  # fmt: skip


def record(path: Path, replay: Replay, seconds: float) -> None:
    """Record such a session, faster than real time.

    Raises:
        SystemExit: the recorder failed.
    """
    states: list[dict[str, Any]] = []
    writer.LAST_S = 60.0  # faster than real time, more is left to pack at the end
    recorder = Recorder(path, session=uuid.uuid4().hex, origin=time.time() - seconds, on_state=states.append)
    recorder.start()
    recorder.hello(0.0, replay.hello)
    recorder.command({"do": "facts", "facts": {"python": "3.12.3", "versions": {"torch": "2.15.0"}}})
    told = list(steps(seconds))
    ends = np.array([one.end for one in told])
    for start in np.arange(0.0, seconds, 60.0):
        times, rows = replay.block(round(60.0 / replay.interval))
        for moment, row in zip(times.tolist(), rows, strict=True):
            recorder.frame(moment, 0, row.tobytes())
        low, high = np.searchsorted(ends, [start, start + 60.0])
        recorder.command({"do": "steps", "loader": LOADER, "rows": told[low:high], "dropped": 0})
        recorder.command({"do": "values", "rows": _values(times, told, ends)})
        while recorder._queue:
            time.sleep(0.01)
    at = 0.0
    for k, (part, after) in enumerate(pairwise(PARTS)):
        at += part.share * seconds
        where = {"loader": LOADER, "source": part.backend, "target": after.backend, "epoch": k, "batch": 100}
        asked = {"id": 2 * k + 1, "kind": "switch-asked", "time": at - 1.0, **where}
        done = {"id": 2 * k + 2, "kind": "switch", "time": at, "asked": at - 1.0, "first": at, **where}
        for event in (asked, done):
            recorder.command({"do": "event", "event": event})
    mark = {"id": 9, "kind": "mark", "time": 0.3 * seconds, "label": "augment x12"}
    recorder.command({"do": "event", "event": mark})
    recorder.command({"do": "loaders", "loaders": [state(PARTS[-1].backend, len(told))]})
    recorder.close("the replay ended", goodbye=True)
    recorder.join()
    if states[-1]["state"] != "off":
        raise SystemExit(f"the recording failed: {states[-1]['message']}")


def _values(times: Any, told: list[Step], ends: Any) -> list[tuple[float, dict[str, float]]]:
    """Return the loader's series for these frames."""
    interval = float(np.diff(times).mean())
    edges = np.searchsorted(ends, np.append(times[:1] - interval, times), side="right")
    found = []
    for moment, low, high in zip(times.tolist(), edges[:-1], edges[1:], strict=True):
        chosen = told[low:high]
        values = {f"loader/{LOADER}/images": sum(one.images for one in chosen) / interval}
        for part in ("wait", "step", "copy", "forward", "backward", "optimizer"):
            if chosen:
                values[f"loader/{LOADER}/{part}"] = 1e3 * sum(getattr(one, part) for one in chosen) / len(chosen)
        found.append((moment, values))
    return found


def write(session: Path, target: Path, cache: Path) -> tuple[float, float]:
    """Run `kernel-monitor report`; return its seconds, and the CPU seconds of all its processes.

    Python keeps its compiled modules in `cache`, as usual.
    """
    from resource import RUSAGE_CHILDREN, getrusage

    before, begun = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "kernel_monitor.cli", "report", str(session), "-o", str(target)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, check=True, capture_output=True, env={**env, "PYTHONPYCACHEPREFIX": str(cache)})
    wall, after = time.perf_counter() - begun, getrusage(RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(page: Path) -> dict[str, float]:
    """Open it in Chromium; return the seconds from the navigation to first paint, first picture and all charts."""
    from tests.browser.lab import chromium

    with chromium() as browser:
        tab = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}).new_page()
        tab.goto(page.as_uri(), wait_until="commit")
        tab.wait_for_selector("html[data-ready=true]", timeout=60_000)
        found: dict[str, float] = tab.evaluate(DRAWN)
        return found


def main() -> int:
    """Measure and print; the exit status is 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of session time")
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=0.1, help="seconds between frames")
    parser.add_argument("--session", type=Path, help="a session that there is already")
    parser.add_argument("--keep", type=Path, help="the folder for session and report; a temporary one if not given")
    parser.add_argument("--runs", type=int, default=5, help="how often it is written and opened; medians count")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = options.keep or Path(folder)
        session, page = options.session or place / "hour.kmsession", place / "hour.html"
        if not session.exists():
            record(session, Replay(options.cores, options.gpus, options.interval), 60 * options.minutes)
            gc.collect()
        cache = Path(folder, "cache")
        compiling = write(session, page, cache)
        written = [write(session, page, cache) for _ in range(options.runs)]
        shown = [show(page) for _ in range(options.runs)]
        size = page.stat().st_size
    walls = [wall for wall, _ in written]
    print(f"written the first time, when Python compiles what it imports, in {compiling[0]:.2f} s")
    print(f"written in {_spread(walls)} s, {_spread([cpu for _, cpu in written])} s of CPU")
    print(f"opened: first words and pictures after {_spread([one['paint'] for one in shown])} s,", end=" ")
    print(f"every chart after {_spread([one['charts'] for one in shown])} s")
    bars = [
        ("size", float(size), BAR_BYTES, "B"),
        ("writing", float(np.median(walls)), BAR_WRITE_S, "s"),
        ("first picture", float(np.median([one["paint"] for one in shown])), BAR_PICTURE_S, "s"),
    ]
    for name, value, bar, unit in bars:
        print(f"{'met   ' if value <= bar else 'MISSED'}  {name}: {value:.3g} {unit} (at most {bar:g})")
    return 0 if all(value <= bar for _, value, bar, _ in bars) else 1


def _spread(values: list[float]) -> str:
    return f"{np.median(values):.2f} ({min(values):.2f} to {max(values):.2f}, {len(values)} runs)"


if __name__ == "__main__":
    sys.exit(main())
