"""Whether a swap took the training's own cores: 200 sessions drawn at random, and a real training on this machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_monitor.analysis.results import Finding
from kernel_monitor.store import Snapshot

from ..unit.rules_asked import findings
from ..unit.sessions import Run, build, switch

SEED = 20_261_125
SESSIONS, RIGHT = 200, 195
Floats = npt.NDArray[np.float64]


def lengths(rng: np.random.Generator, mean: float, spread: float, count: int) -> Floats:
    """Steps that vary, neighbours alike, and now and then a long one (a garbage collection, a log)."""
    noise = rng.normal(0, 1, count)
    slow = np.convolve(rng.normal(0, 1, count + 9), np.ones(10) / math.sqrt(10), mode="valid")
    steps = mean * np.exp(spread * (0.9 * noise + 0.4 * slow))
    return np.where(rng.uniform(size=count) < 0.01, 2.0 * steps, steps)


def session(rng: np.random.Generator, *, contended: bool) -> Snapshot:
    """A training before and after a swap to dali-cpu; where it is not contended, other things change instead."""
    cores = int(rng.choice([2, 4, 8, 16]))
    mean, spread = float(rng.uniform(0.03, 0.25)), float(rng.uniform(0.01, 0.12))
    seconds = float(rng.uniform(30, 90))
    longer = float(rng.uniform(1.12, 1.6)) if contended else float(rng.uniform(0.9, 1.03))
    confusion = "none" if contended else str(rng.choice(["none", "none", "steal", "others", "drift", "size"]))
    count = int(seconds / mean)
    before, after = lengths(rng, mean, spread, count), lengths(rng, mean * longer, spread, count)
    steal, kernel = 0.0, (100.0, 100.0 * min(cores, rng.uniform(1.5, 4)))
    if confusion == "steal":
        steal = float(rng.uniform(15, 25))
        after /= 1 - steal / 100  # of cores that are wanted all the time
    elif confusion == "others":
        kernel = (100.0, 105.0)
        after *= rng.uniform(1.1, 1.4)
    elif confusion == "drift":
        before[count // 2 :] *= 1.25
        after *= 1.25
    images = (32, 64) if confusion == "size" else (32, 32)
    after *= 2 if confusion == "size" else 1
    waits = rng.uniform(0, 1.5, 2) * mean
    end = float(before.sum() + waits[0] * count)
    first = end + 0.3
    busy = (60.0, 60.0 + 30.0 * min(1.0, 3 / cores)) if confusion != "steal" else (100.0, 100.0)
    sides = ((0.0, before, waits[0], images[0], 3), (first, after, waits[1], images[1], 0))
    runs = [_run(*side, count) for side in sides]
    series = {f"cpu/{core}/steal": lambda time: np.where(time > first, steal, 0.0) for core in range(cores)}
    return build(
        float(first + after.sum() + waits[1] * count + 1),
        cpus=cores,
        busy=lambda time: np.where(time > first, busy[1], busy[0]),
        kernel=lambda time: np.where(time > first, kernel[1], kernel[0]),
        workers=None,
        series=series,
        runs=runs,
        states=[{"backend": "dali-cpu", "knobs": {"workers": 2, "prefetch": 2, "threads": 4}}],
        events=[switch(first, "torchvision", "dali-cpu", asked=end)],
    )


def _run(start: float, own: Floats, wait: float, images: int, warm_up: int, count: int) -> Run:
    steps = (own + wait).tolist()
    return Run(start, 1e6, steps.__getitem__, wait, images, steps=count, warm_up=warm_up)


def test_of_200_sessions_at_least_195_are_judged_right() -> None:
    """Half of them contended by 12 to 60 %; of the others none may be."""
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    wrong: list[tuple[int, bool, Any]] = []
    states: dict[tuple[bool, str], int] = {}
    for number in range(SESSIONS):
        contended = number % 2 == 0
        found: Finding = findings("host-contention", session(rng, contended=contended))[-1]
        states[contended, found.state] = states.get((contended, found.state), 0) + 1
        if (found.state == "fired") is not contended:
            wrong.append((number, contended, found.missing or found.evidence[0].text))
    print(states, *wrong, sep="\n")
    assert len(wrong) <= SESSIONS - RIGHT
    assert not [one for one in wrong if not one[1]], "a false alarm"
