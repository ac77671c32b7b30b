"""The switches of a session, and both sides of one (`compare`), each as what was measured in it (`measure`).

The kernel's reader thread runs this once a second while training goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..store import Rows, StepTable
from .frames import Floats, Frames
from .statistics import finite

LONGEST_S = 60.0  # at most this much time on each side is compared
SHORTEST_S = 2.0  # less than this on one side is not compared
FEWEST_STEPS = 3  # rows with a finished step that each side must have
REPLAYS = "synthetic"  # the engine that replays batches: its figures are of the loop alone, not of loading
IN_FLIGHT = 4  # batches that an engine has ready when it takes over, which do not show its speed

Event = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """A part of a session, counted only while the loader was delivering.

    Every array has the values of the rows that have one (no NaN), in % unless another unit is named.
    """

    start: float  # start, end: session s
    end: float
    seconds: float  # how long the loader was delivering in it
    samples: float  # how many it delivered in those seconds
    cpu: Floats  # cpu, iowait: mean of the logical cores that this process may use
    iowait: Floats
    gpu: Floats  # gpu, gpu_memory: mean of the GPUs in use; empty without one
    gpu_memory: Floats
    memory: Floats  # of the host, in use
    wait: Floats  # wait, step: ms, the mean of the steps that ended in the row
    step: Floats
    mean_wait: float  # mean_wait, mean_step: ms, rows weighted by what they delivered; NaN without a step
    mean_step: float

    @property
    def rate(self) -> float:
        """Samples per second really delivered; NaN when no time was counted."""
        return self.samples / self.seconds if self.seconds > 0 else float("nan")


@dataclass(frozen=True)
class Comparison:
    """What one switch changed."""

    switch: Event  # its event
    before: Measured  # before, after: the two sides
    after: Measured
    reason: str | None  # why they cannot be compared (yet); None when they can


def switches(events: Sequence[Event]) -> list[Event]:
    """The switches that took place, in the order of their first batches."""
    return sorted((event for event in events if event["kind"] == "switch"), key=first)


def asked(event: Any) -> float:
    """When the switch was asked for: from then on the incoming engine's start disturbs the outgoing one."""
    return float(event["asked"] if "asked" in event else event["time"])


def first(event: Any) -> float:
    """When a change took place: of a switch, when the incoming engine's first batch was delivered."""
    return float(event["time"] if event.get("first") is None else event["first"])


def compare(table: Rows, events: Sequence[Event], which: int = -1, steps: StepTable | None = None) -> Comparison | None:
    """Compare both sides of a switch, `switches(events)[which]`; None when there is no switch.

    Before: from the switch before it (at most the last minute) to the request. After: from the end of the change-over
    to the next request (at most a minute). The change-over is the time from the request to the first batch and the
    batches that the incoming engine had made in advance. A snapshot brings its own `steps`.
    """
    done = switches(events)
    if not done:
        return None
    switch = done[which]
    loader = str(switch["loader"])
    place = done.index(switch)
    begin, ready = asked(switch), first(switch)
    previous = settled(table, done[place - 1]) if place > 0 else 0.0
    # The machine is shared: another loader's request ends the side as well.
    requests = [float(event["time"]) for event in events if event["kind"] == "switch-asked"]
    requests += [asked(event) for event in done[place + 1 :]]
    start = settled(table, switch)
    until = min([moment for moment in requests if moment > ready], default=float("inf"))
    before = measure(table, loader, max(previous, begin - LONGEST_S), begin, steps)
    after = measure(table, loader, start, min(start + LONGEST_S, until), steps)
    return Comparison(switch, before, after, _reason(before, after, open_end=until == float("inf")))


def measure(table: Rows, loader: str | None, start: float, end: float, steps: StepTable | None = None) -> Measured:
    """Aggregate the rows in `(start, end]` (session s) in which `loader` (its id; None: at any time) was delivering.

    The rows of steps that do not count (`counted_steps`) are left out; a snapshot brings its own `steps`.
    """
    frames = Frames(table, steps, start, end)
    rows = np.arange(len(frames.time)) if loader is None else frames.of(loader)
    delivered = frames.samples(loader)[rows]

    def present(values: Floats) -> Floats:
        return finite(values[rows])

    wait, step = (frames.series(f"loader/{loader}/{name}") for name in ("wait", "step"))
    return Measured(
        start=start,
        end=end,
        seconds=float(frames.window[rows].sum()),
        samples=float(delivered.sum()),
        cpu=present(frames.cpu),
        iowait=present(frames.mean("cpu", "iowait")),
        gpu=present(frames.mean("gpu", "utilisation")),
        gpu_memory=present(frames.mean("gpu", "memory")),
        memory=present(frames.series("memory/percent")),
        wait=present(wait),
        step=present(step),
        mean_wait=weighted_mean(wait[rows], delivered),
        mean_step=weighted_mean(step[rows], delivered),
    )


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Of the finite values; unweighted where the weights are 0, NaN without a value."""
    present = np.isfinite(values)
    if not present.any():
        return float("nan")
    return float(np.average(values[present], weights=weights[present] if weights[present].sum() > 0 else None))


def settled(table: Rows, switch: Event) -> float:
    """When the batches that the incoming engine had made in advance were used up, session s."""
    begin = first(switch)
    column = table.schema.columns.get(f"loader/{switch['loader']}/step")
    low, high = np.searchsorted(table.time, [begin, begin + 10.0], side="right")
    steps = table.values[low:high, column] if column is not None else np.empty(0, dtype=np.float32)
    steps = steps[np.isfinite(steps)]
    step_s = float(np.median(steps)) / 1e3 if len(steps) else 0.25
    return begin + min(IN_FLIGHT * step_s, 5.0)


def _reason(before: Measured, after: Measured, *, open_end: bool) -> str | None:
    for side, words in ((before, "before"), (after, "after")):
        if side.seconds < SHORTEST_S or len(side.wait) < FEWEST_STEPS:
            if side is after and open_end:
                return "measuring…"
            amount = f"{side.samples:,.0f} samples in {side.seconds:.1f} s"
            return f"too little was measured {words} the switch to compare ({amount})"
    return None
