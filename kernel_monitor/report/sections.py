"""The subject of a report, and the data of its sections on the session, on its machine and on its segments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..analysis import allowed_cores
from ..analysis.frames import Frames
from ..analysis.loops import secondary_loaders
from ..analysis.results import Analysis, Change, Segment, Statistic, Verdict
from ..analysis.step_times import quantiles
from ..steps.measured_step import ON_DEVICE
from ..store import Snapshot
from ..store.charts import PROCESS_ROLES, hosts_of
from .formats import amount, clock, is_known, moment, percent, ranges, size


@dataclass(frozen=True, eq=False)
class Subject:
    """A session with its analysis."""

    snapshot: Snapshot  # freed of what must not be sent to anybody (`privacy.clean`)
    analysis: Analysis  # of this snapshot
    where: timezone  # the zone of the times that people read

    @property
    def recorded(self) -> dict[str, Any]:
        """The recording's own facts; empty for a live session."""
        found = self.snapshot.facts.get("recorded")
        return found if isinstance(found, dict) else {}

    @property
    def bin_s(self) -> float | None:
        """The width in s of the bins whose means a recording's rows are; None where they are as measured."""
        return float(self.recorded["bin_s"]) if self.recorded.get("bin_s") else None

    @cached_property
    def segments(self) -> dict[str, Segment]:
        """The segments by their keys."""
        return {segment.key: segment for segment in self.analysis.segments}

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdicts by their segments' keys."""
        return {found.segment: found for found in self.analysis.verdicts if found.segment is not None}

    @cached_property
    def secondary_ids(self) -> frozenset[str]:
        """Ids of the loaders whose loops stand beside the training."""
        return secondary_loaders(self.snapshot.steps, self.analysis.segments)

    @cached_property
    def change(self) -> Change | None:
        """The change that the report is about: the switch that says most, or whatever else divides two segments.

        One of a loop that stands beside no other comes first: a mark divides the evaluation, too.
        """
        if self.analysis.headline is not None:
            return self.analysis.headline
        known = [
            change
            for change in self.analysis.changes
            if change.before in self.segments and change.after in self.segments
        ]
        if not known:
            return None

        def weight(change: Change) -> tuple[bool, bool, float]:
            after = self.segments[change.after]
            return after.began_by == "switch", after.loader not in self.secondary_ids, after.start

        return max(known, key=weight)

    @cached_property
    def pair(self) -> tuple[Segment, ...]:
        """Both sides of `change`; without a change, the segment of the verdict; empty without any segment."""
        if self.change is not None:
            return self.segments[self.change.before], self.segments[self.change.after]
        key = self.analysis.verdict.segment
        if key in self.segments:
            return (self.segments[str(key)],)
        return self.analysis.segments[-1:]

    def clock(self, time: float) -> str:
        """Return a session time as people read it: `19:07:31.4`."""
        return clock(self.snapshot.schema.origin + float(time), self.where)

    def called(self, key: str | None) -> str:
        """Return a segment's name, `train/2 · dali-cpu`, with its mark's words; the key if there is no such segment."""
        segment = self.segments.get(str(key))
        if segment is None:
            return "the session" if key is None else key
        label = f" “{segment.label}”" if segment.label else ""
        return f"{segment.key} · {segment.backend}{label}"


def statistic(segment: Segment, metric: str) -> Statistic | None:
    """Return the spread of one metric; None where it was not measured."""
    return next((found for found in segment.statistics if found.metric == metric), None)


# ---- The data of the sections on the whole session, on its machine, and on how its figures were obtained.

Figure = Callable[[str, str, str], str]

_STATISTICS: dict[str, Callable[[npt.NDArray[np.float64]], Any]] = {
    "mean": np.mean,
    "p50": np.median,
    "p95": lambda values: np.percentile(values, 95),
    "most": np.max,
}


def header(subject: Subject) -> dict[str, Any]:
    """Return when the session began, on what machine, and what its recording says of itself."""
    schema, time = subject.snapshot.schema, subject.snapshot.time
    began = float(time[0]) if len(time) else 0.0
    what = "Recorded" if subject.recorded else "Training"
    return {
        "title": f"{what} session of {moment(schema.origin + began, subject.where)}",
        "cores": f"{len(schema.cpus) or schema.host.get('logical_cpus', '?')} logical cores",
        "gpus": _kinds(subject.snapshot),
        "rank": _rank(subject),
        "rows": len(time),
        "seconds": float(time[-1]) - began if len(time) else 0.0,
        "recorded": subject.recorded,
        "interval": schema.interval,
    }


def facts(subject: Subject) -> dict[str, Any]:
    """Return the machine and the software, and what watching them cost."""
    known = subject.snapshot.facts
    versions = {"python": known["python"]} if known.get("python") else {}
    return {
        **header(subject),
        "known": known,
        "host": subject.snapshot.schema.host,
        "software": {**versions, **known.get("versions", {})},
        "figure": _figure(subject.snapshot),
    }


def _kinds(snapshot: Snapshot) -> str:
    """Return the GPUs by product, `8 × NVIDIA H100 (80.0 GB)`; empty without a GPU."""
    gpus = snapshot.schema.gpus
    kinds = Counter(f"{gpu.name} ({size(gpu.memory_total)})" if gpu.memory_total else gpu.name for gpu in gpus)
    return ", ".join(f"{times} × {kind}" if times > 1 else kind for kind, times in kinds.items())


def _rank(subject: Subject) -> str:
    """Return the rank, `rank 0 of 8`, where there are several; else an empty text."""
    rank, ranks = (subject.snapshot.facts.get(name) for name in ("rank", "world_size"))
    return f"rank {rank} of {ranks}" if rank is not None and ranks else ""


def limits(subject: Subject) -> dict[str, Any] | None:
    """Return the limits under which the process ran, and how much of them it used; None if it had the whole machine."""
    schema = subject.snapshot.schema
    found = schema.host.get("limits") or {}
    allowed = sorted(allowed_cores(schema))
    is_narrowed = len(allowed) < len(schema.cpus)
    throttled = len(_values(subject.snapshot, "container/throttled")) > 0
    if not (is_narrowed or throttled or found.get("cpu_quota") is not None or found.get("memory") is not None):
        return None
    return {
        "cores": f"{len(allowed)} of {len(schema.cpus)} ({ranges(allowed)})" if is_narrowed else None,
        "throttled": throttled,
        "found": found,
        "total": schema.host.get("memory_total"),
        "figure": _figure(subject.snapshot),
    }


def processes(subject: Subject) -> dict[str, Any] | None:
    """Return the roles of the kernel and its children that have figures of CPU, memory and I/O; None without any."""
    snapshot = subject.snapshot
    roles = [
        (role, words)
        for role, words in PROCESS_ROLES
        if any(len(_values(snapshot, f"process/{role}/{part}")) for part in ("cpu", "memory"))
    ]
    return {"roles": roles, "figure": _figure(snapshot)} if roles else None


def nodes(subject: Subject) -> dict[str, Any] | None:
    """Return the other machines that worked for the loaders or ran ranks; None where there was none."""
    snapshot = subject.snapshot
    rows = [
        (node, *_busy(snapshot, [f"node/{node.id}/cpu/{core}/busy" for core in node.cores]))
        for node in snapshot.schema.nodes
    ]
    hosts = hosts_of(snapshot.schema)
    delivered = any(node.id not in hosts for node in snapshot.schema.nodes)
    return {"rows": rows, "figure": _figure(snapshot), "hosts": hosts, "delivered": delivered} if rows else None


def _busy(snapshot: Snapshot, names: Sequence[str]) -> list[str]:
    """Return the mean over time, and its p95, of the mean of these series."""
    columns = [snapshot.schema.columns[name] for name in names if name in snapshot.schema.columns]
    table = snapshot.values[:, columns].astype(np.float64)
    means = table[np.isfinite(table).all(axis=1)].mean(axis=1) if columns else np.empty(0)
    return [amount(float(_STATISTICS[which](means)), "%") if len(means) else "-" for which in ("mean", "p95")]


def gpus(subject: Subject) -> dict[str, Any] | None:
    """Return every metric of every GPU, and those that are missing with NVML's words; None without a GPU."""
    snapshot = subject.snapshot
    schema = snapshot.schema
    figure = _figure(snapshot)
    single = len(schema.gpus) == 1
    rows: dict[str, list[str]] = {}
    for series in schema.series:
        kind, _, part = (*series.name.split("/", 2), "", "")[:3]
        if kind != "gpu" or part.startswith("mig/") or part in rows:
            continue
        names = [f"gpu/{gpu.index}/{part}" for gpu in schema.gpus]
        if any(len(_values(snapshot, name)) for name in names):
            several = "mean" if part == "throttled" else "most" if series.unit == "1" else "p50"
            which = ("p50", "p95", "most") if single else (several,)
            rows[part] = [figure(name, series.unit, statistic) for name in names for statistic in which]
    if not rows:
        return None
    absent: dict[tuple[str, str], list[str]] = {}
    for part, why in {pair: None for gpu in schema.gpus for pair in gpu.reasons.items()}:
        indices = sorted(gpu.index for gpu in schema.gpus if gpu.reasons.get(part) == why)
        is_every = 1 < len(indices) == len(schema.gpus)
        absent.setdefault((why, "every GPU" if is_every else f"GPU {ranges(indices)}"), []).append(part)
    head = ["p50", "p95", "most"] if single else [f"GPU {gpu.index}" for gpu in schema.gpus]
    return {"single": single, "head": head, "found": rows, "absent": absent}


def method(subject: Subject) -> dict[str, Any]:
    """Return how the figures were obtained: how often was sampled, and by which clock the steps were timed."""
    steps = subject.snapshot.steps
    rows = steps.rows
    timed = np.isfinite(rows["forward"]) | np.isfinite(rows["copy"]) | np.isfinite(rows["backward"])
    return {
        "recorded": subject.recorded,
        "bin_s": subject.bin_s,
        "interval": subject.snapshot.schema.interval,
        "steps": len(steps),
        "dropped": steps.dropped,
        "timed": int(timed.sum()),
        "on_device": int(np.count_nonzero(rows["flags"][timed] & ON_DEVICE)),
    }


def _figure(snapshot: Snapshot) -> Figure:
    """Return a function that formats a statistic of a series with its unit; `-` where there is no value."""

    def figure(series: str, unit: str, statistic: str) -> str:
        values = _values(snapshot, series)
        return amount(float(_STATISTICS[statistic](values)), unit) if len(values) else "-"

    return figure


def _values(snapshot: Snapshot, name: str) -> npt.NDArray[np.float64]:
    column = snapshot.schema.columns.get(name)
    values = np.empty(0) if column is None else snapshot.values[:, column].astype(np.float64)
    present: npt.NDArray[np.float64] = values[np.isfinite(values)]
    return present


# ---- The data of the sections on segments: where a step's time went, and the spread of each metric.

PARTS = {
    "wait": "data wait",
    "copy": "copy to device",
    "compute": "compute",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
"""The parts of a step in the order in which they are drawn; each has a colour of its name in `page.css`."""
LETTER, NARROW = 6.4, 640
"""Pixels of a letter, and of the narrowest bar whose parts are named in it (narrower screens leave the names out)."""
_MOST_SHARES = 3  # bars whose shares stand with the colours; those of more are in a table
HIGH, LEFT, RIGHT, BASE = 14.0, 44.0, 636.0, 168.0  # edges of the histogram's frame, in its own units
_TENTHS = 10
_MOST_FOLDED = 24
"""Segments whose percentiles are shown at most, the newest; the table of segments has the figures of all."""
QUANTILES = ("min", "p50", "p90", "p95", "p99", "max")
Sides = list[tuple[str, "Sequence[Statistic]"]]


def stack(shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the pieces of a bar, left to right: `part`, `text`, `start` and `width` in %, `has_room` for its text."""
    pieces, at = [], 0.0
    for part, name in PARTS.items():
        share = shares.get(part, 0.0)
        if share > 0:
            text = f"{name} {percent(share)}"
            has_room = NARROW * share > LETTER * len(text) + 16
            pieces.append({"part": part, "text": text, "start": at, "width": 100 * share, "has_room": has_room})
            at += 100 * share
    return pieces


def legend(bars: Sequence[Mapping[str, float]]) -> list[tuple[str, str, str]]:
    """Return each part in some bar, its name, and its shares in the bars one after the other, unless they are many."""
    found = []
    for part, name in PARTS.items():
        shares = [shares.get(part, 0.0) for shares in bars]
        if any(share > 0 for share in shares):
            figures = " → ".join(percent(share) for share in shares) if len(shares) <= _MOST_SHARES else ""
            found.append((part, name, figures))
    return found


def table(subject: Subject) -> dict[str, Any] | None:
    """Return each segment with what it delivered, and each change between two of them."""
    return {} if subject.analysis.segments else None


def phases(subject: Subject) -> dict[str, Any] | None:
    shown = [segment for segment in subject.analysis.segments if segment.phases and segment.step > 0]
    if not shown:
        return None
    times = [{"wait": segment.wait, **segment.phases} for segment in shown]
    known = [{part: value for part, value in parts.items() if is_known(value)} for parts in times]
    shares = [{part: value / (sum(parts.values()) or 1.0) for part, value in parts.items()} for parts in known]
    return {
        "shown": [(segment, *rest) for segment, *rest in zip(shown, times, map(stack, shares), strict=True)],
        "names": {part: name for part, name in PARTS.items() if any(part in parts for parts in times)},
        "legend": legend(shares),
    }


def histograms(subject: Subject) -> dict[str, Any] | None:
    """Return how busy the GPUs were in each segment: both sides of the change over each other, and a table of all."""
    shown = [segment for segment in subject.analysis.segments if segment.gpu_histogram]
    if not shown:
        return None
    drawn = [segment for segment in subject.pair if segment.gpu_histogram] or shown[-1:]

    def samples(segment: Segment) -> int:
        found = statistic(segment, "gpu")
        return found.values.count if found else 0

    def mode(segment: Segment) -> str:
        tenths = _tenths(segment)
        k = tenths.index(max(tenths))
        return f"{10 * k} to {10 * k + 10} % ({percent(tenths[k])} of the samples)"

    top = max(max(segment.gpu_histogram) for segment in drawn) or 1.0
    distance = subject.change.histogram_distance if subject.change is not None and len(drawn) == 2 else math.nan
    return {
        "distance": distance,
        "sides": [
            {
                "name": subject.called(segment.key),
                "mode": mode(segment),
                "samples": samples(segment),
                "outline": outline(segment.gpu_histogram, top),
            }
            for segment in drawn
        ],
        "top": top,
        "rows": [(subject.called(segment.key), samples(segment), _tenths(segment)) for segment in shown],
    }


def outline(shares: Sequence[float], top: float) -> str:
    """Return a histogram whose highest bin may be `top`, as an SVG path from the left to the right of the frame."""
    wide = (RIGHT - LEFT) / max(len(shares), 1)
    high = (BASE - HIGH) / top
    return "".join(f"V{BASE - share * high:.1f}H{LEFT + (k + 1) * wide:.1f}" for k, share in enumerate(shares))


def _tenths(segment: Segment) -> list[float]:
    each = max(len(segment.gpu_histogram) // _TENTHS, 1)
    return [sum(segment.gpu_histogram[k * each : (k + 1) * each]) for k in range(_TENTHS)]


def percentiles(subject: Subject) -> dict[str, Any] | None:
    """Return how every metric spread: both sides of the change beneath each other, every other segment folded."""
    schema = subject.snapshot.schema
    pair = [segment for segment in subject.pair if segment.statistics]
    rest = [segment for segment in subject.analysis.segments if segment.statistics and segment not in pair]
    sides: Sides = [(subject.called(segment.key), segment.statistics) for segment in pair]
    label = "Percentiles of " + " and ".join(segment.key for segment in pair)
    if not pair and not rest:
        whole = _of_session(subject)
        if not whole:
            return None
        sides, label = [("session", whole)], "Percentiles of the session"
    return {
        "sides": sides,
        "label": label,
        "folded": rest[-_MOST_FOLDED:],
        "segments": bool(pair or rest),
        "metrics": _by_metric,
        "quantiles": QUANTILES,
        "bin_s": subject.bin_s,
        "allowed": len(allowed_cores(schema)),
        "cores": len(schema.cpus),
    }


def _by_metric(sides: Sides) -> list[list[tuple[str, Statistic]]]:
    """Return, for each metric in the order of the first side, the sides that have it."""
    metrics = dict.fromkeys(found.metric for _, statistics in sides for found in statistics)
    return [
        [(name, found) for name, statistics in sides for found in statistics if found.metric == metric]
        for metric in metrics
    ]


def _of_session(subject: Subject) -> list[Statistic]:
    """Return the statistics of the machine over the session, where no loader delivered anything."""
    snapshot = subject.snapshot
    if not len(snapshot.time):
        return []
    frames = Frames(snapshot)
    return [
        Statistic(metric, label, "%", quantiles(values))
        for metric, label, values in (
            ("cpu", "CPU busy, mean of the cores", frames.cpu),
            ("iowait", "CPU waiting for I/O, mean of the cores", frames.mean("cpu", "iowait")),
            ("gpu", "GPU utilisation", frames.mean("gpu", "utilisation")),
            ("gpu_memory", "GPU memory", frames.mean("gpu", "memory")),
            ("memory", "Host memory", frames.series("memory/percent")),
        )
        if bool(np.isfinite(values).any())
    ]
