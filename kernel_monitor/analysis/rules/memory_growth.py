"""Rules on memory that rises: of GPUs from one moment to the next, of the host's processes over the whole session."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..frames import Frames
from ..results import Evidence, Finding, Segment
from ..statistics import finite
from .rule import NO_DELIVERY, Check, Parameter, Rule, Session, SignalMissing, plainly, require

SETTLES = 0.2  # share of the time from the first step to the last: what is allocated before it is no creep
FEWEST = 20  # readings that a line is fitted to
ROLES = {"kernel": "The kernel", "workers": "The workers together (shared pages count in each)"}
ADVICE = {
    "kernel": (
        "Something in the kernel keeps what each step makes: losses summed with their graph (use loss.item()), outputs "
        "kept in lists, figures never closed. A memory-mapped data set grows only until all of it was read."
    ),
    "workers": (
        "Workers that grow copy pages of the data set that they were forked with, because Python counts references in "
        "them: keep file names and labels in NumPy arrays or tensors instead of lists of Python objects."
    ),
}


def memory_increase(session: Session, check: Check, segment: Segment) -> Finding:
    session.require_gpu("memory")
    frames, rows = session.frames, session.rows(segment)
    width = max(1, round(check["window"]))
    require("samples of GPU memory", len(rows), 2 * width)
    found, times = [], 0
    for number, values in zip(frames.gpus, frames.parts("gpu", "memory")[rows].T.astype(np.float64), strict=True):
        known = np.isfinite(values)
        if known.sum() < 2 * width:
            continue
        # A running sum over an hour of float32 values would lose more digits than the rises have.
        mean = np.lib.stride_tricks.sliding_window_view(values[known], width).mean(axis=1)
        rise = mean[width:] - mean[:-width]
        high = rise > check["rise"]
        begun = int(high[0]) + int((high[1:] & ~high[:-1]).sum())
        times += begun
        most = int(rise.argmax())
        when = frames.time[rows][known]
        text = (
            f"GPU {number}: memory rose by {rise[most]:.1f} points from one window of {width} samples to the "
            f"next ({mean[most]:.0f} → {mean[most + width]:.0f} %)" + (f"; {begun} such rises" if begun > 1 else "")
        )
        start, end = float(when[most]), float(when[most + 2 * width - 1])
        found.append(Evidence(text, float(rise[most]), check["rise"], "points", float(high.mean()), start, end))
    if not found:
        require("samples of GPU memory", 0, 2 * width)
    advised = plainly(
        "If memory goes on rising, tensors of earlier steps are kept: sum losses with loss.item() or "
        "loss.detach(), and do not keep outputs in lists. One rise at the first batch of a new size is torch's "
        "cache and harmless.",
        segment,
    )
    shown = [evidence for evidence in found if evidence.share] if times else found
    return check.finding(times > 0, advised, *shown, samples=len(rows), times=times)


def creep(session: Session, check: Check) -> Finding:
    if not session.segments:
        raise SignalMissing(NO_DELIVERY)
    start, end = session.segments[0].start, max(segment.end for segment in session.segments)
    require("seconds of a loop", round(end - start), check["seconds"])
    room = _room(session)
    evidence, rising, critical, samples = [], [], False, 0
    for role, name in ROLES.items():
        rise = _rise(session.frames, role, start + SETTLES * (end - start), end)
        if rise is None:
            continue
        samples = max(samples, rise.samples)
        hours = room / (3600 * rise.slope) if rise.slope > 0 else math.inf
        text = f"{name}: {rise.slope * 3600 / 1e6:+,.0f} MB an hour over {rise.seconds:,.0f} s"
        if math.isfinite(hours):
            words = "would be full" if role == "kernel" else "would be full at most"
            text += f"; {room / 1e9:,.1f} GB are left, which {words} after {hours:,.1f} h"
        text += f" (a straight line explains {100 * rise.explained:.0f} %)"
        evidence.append(Evidence(text, hours, check["hours"], "h", start=start, end=end))
        grown = rise.slope * rise.seconds > check["grown"] * 1e6
        if grown and rise.explained > check["explained"] and hours < check["hours"]:
            rising.append(role)
            critical |= hours < 1
    if not evidence:
        raise SignalMissing("resident memory of the kernel's processes")
    advised = [sentence for role in rising for sentence in plainly(ADVICE[role])]
    severity: Literal["warning", "critical"] = "critical" if critical else "warning"
    return check.finding(bool(rising), advised, *evidence, samples=samples, times=len(rising), severity=severity)


@dataclass(frozen=True)
class Rise:
    """A straight line through resident memory."""

    slope: float  # B/s
    explained: float  # share of the variance
    seconds: float  # of the readings
    samples: int  # readings


def _rise(frames: Frames, role: str, start: float, end: float) -> Rise | None:
    values = frames.series(f"process/{role}/memory")
    rows = np.isfinite(values) & (frames.time > start) & (frames.time <= end) & frames.fresh("process")
    if rows.sum() < FEWEST:
        return None
    time, held = frames.time[rows], values[rows]
    slope, level = np.polyfit(time - time[0], held, 1)
    residual = float(np.var(held - level - slope * (time - time[0])))
    whole = float(np.var(held))
    explained = 1 - residual / whole if whole > 0 else 0.0
    return Rise(float(slope), explained, float(time[-1] - time[0]), len(held))


def _room(session: Session) -> float:
    """B that are left of the host's memory or of the container's limit, whichever is less, at the end."""
    host = session.snapshot.schema.host
    found = []
    for name, total in (
        ("memory/percent", host.get("memory_total")),
        ("container/memory_percent", (host.get("limits") or {}).get("memory")),
    ):
        values = finite(session.frames.series(name))
        if total and len(values):
            found.append(float(total) * (1 - float(values[-1]) / 100))
    if not found:
        raise SignalMissing("host memory: how much there is was not measured")
    return min(found)


RULES = (
    Rule(
        "gpu-memory-increase",
        "GPU memory rises",
        {
            "rise": Parameter(5, "points that the moving average rises from one window to the next"),
            "window": Parameter(10, "samples of each window"),
        },
        "Fires when the mean of GPU memory over a window is so much above that of the window before. Abstains without "
        "a GPU.",
        "SageMaker Debugger's GPUMemoryIncrease (5 points, 10 samples). Mended: what the warm-up steps allocate is no "
        "increase.",
        of_segment=memory_increase,
        replayed=True,
    ),
    Rule(
        "memory-creep",
        "Host memory creeps up",
        {
            "hours": Parameter(12, "h after which memory would be full at this pace"),
            "grown": Parameter(50, "MB that it must have grown in all"),
            "explained": Parameter(0.8, "of the variance: a straight line must explain more than this share"),
            "seconds": Parameter(120, "s of a loop that it takes"),
        },
        "Fits a straight line to the resident memory of kernel and of workers, from a fifth of the way into the first "
        "loop on (what loads at the start is no creep). Fires when at this pace the host's memory, or the container's, "
        "is full within so many hours. The page cache does not count, but files that are mapped into memory do. "
        "Abstains on short sessions.",
        "This project's.",
        of_session=creep,
    ),
)
