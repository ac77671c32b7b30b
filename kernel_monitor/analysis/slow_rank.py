"""The slowest rank of a job and why, as far as the hardware tells; and patterns that the steps of ranks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..rank import Rank, Row
from ..steps.measured_step import NO_GRADIENTS, PHASES, PROFILED, WARM_UP
from ..store.schema import Schema
from .frames import Floats, Frames, Places
from .step_times import Period, part_with_period, strongest_period

# ---- Why a rank's own compute takes longer, as far as the hardware tells: its GPU's clock, or its host's cores.

SLOWER = 0.93  # of the others' clock; GPUs of one model differ by a few % while none is slowed down
_WORKS = 20.0  # %: a GPU that is used less has a low clock because it has nothing to do
FULL, ROOM = 90.0, 80.0  # %: from here on a host's cores are full, and below it they are not
_FEWEST_READINGS = 3  # readings that it takes
Mask = npt.NDArray[np.bool_]


class _HardwareCause(NamedTuple):
    """The cause that was found, and its figures in words."""

    cause: Literal["clock", "cpu"]
    figures: str


def _hardware_cause(
    frames: Frames, ranks: Sequence[Rank], late: Rank, rows: Mask, lost: float, step: float
) -> _HardwareCause | None:
    """Return the cause in a late rank's hardware, if it is worse than the others' in these rows.

    None where nothing is worse, or nothing is known.

    Args:
        ranks: of one job, `late` among them.
        lost: ms per step by which it is late. A lower clock that would explain less than half of it is not the cause.
        step: ms, of the job.
    """
    others = [rank for rank in ranks if rank.id != late.id]
    return _clock(frames, others, late, rows, lost, step) or _host(frames, others, late, rows)


def _clock(
    frames: Frames, others: Sequence[Rank], late: Rank, rows: Mask, lost: float, step: float
) -> _HardwareCause | None:
    model = _gpu_model(frames.schema, late)
    alike = [rank for rank in others if _gpu_model(frames.schema, rank) == model]
    own = _median(frames.series(f"rank/{late.id}/gpu_clock")[rows])
    theirs = [_median(frames.series(f"rank/{rank.id}/gpu_clock")[rows]) for rank in alike]
    usual = _median(np.array(theirs), fewest=1)
    if not (0 < own < SLOWER * usual) or _median(frames.series(f"rank/{late.id}/gpu")[rows]) < _WORKS:
        return None
    if (usual / own - 1) * step < lost / 2:
        return None
    return _HardwareCause("clock", f"{own:,.0f} MHz, the others' {usual:,.0f}")


def _host(frames: Frames, others: Sequence[Rank], late: Rank, rows: Mask) -> _HardwareCause | None:
    place = _place(frames.schema, late)
    own = _median(_busy(frames, place)[rows])
    places = {_place(frames.schema, rank) for rank in others} - {place, None}
    theirs = [found for other in places if np.isfinite(found := _median(_busy(frames, other)[rows]))]
    if not theirs or not (own >= FULL and max(theirs) < ROOM):
        return None
    return _HardwareCause("cpu", f"{own:.0f} % busy, the others' {max(theirs):.0f} % at most")


def _place(schema: Schema, rank: Rank) -> str | None:
    """Return the node of a rank's host; empty: this machine, None: none that is measured."""
    if not rank.host:
        return ""
    return rank.node or next((node.id for node in schema.nodes if node.name == rank.host), None)


def _gpu_model(schema: Schema, rank: Rank) -> str | None:
    """Return the product's name of a rank's GPU, where it is known."""
    index, place = rank.gpu, _place(schema, rank)
    if place == "":
        return next((gpu.name for gpu in schema.gpus if gpu.index == index), None)
    names: Sequence[str] = next((node.gpus for node in schema.nodes if node.id == place), ())
    return names[index] if index is not None and index < len(names) else None


def _busy(frames: Frames, place: str | None) -> Floats:
    """Return the mean load in % of the cores of a machine (its node's id; empty: this one) in each row."""
    if place == "":
        return frames.cpu
    mean = frames.series(f"node/{place}/busy")
    if np.isfinite(mean).any():
        return mean
    cores = next((node.cores for node in frames.schema.nodes if node.id == place), ())
    each = [frames.series(f"node/{place}/cpu/{core}/busy") for core in cores]
    return np.mean(each, axis=0) if each else mean


def _median(values: Floats, fewest: int = _FEWEST_READINGS) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) >= fewest else float("nan")


# ---- A pattern in the steps of a job's ranks, and which part of whose steps follows it.

FEWEST_STEPS = 48  # steps that it takes
EFFECT, EXPLAINED = 0.2, 0.5  # as of the rule `step-period`
BACKWARD = "backward"
_STEP, _PARTS = 5, {"wait": 4, **{part: 6 + place for place, part in enumerate(PHASES)}}
_PART_WORDS = {
    "wait": "wait for data",
    "copy": "copy",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class JobPeriod:
    """A pattern of the steps of a job."""

    job: int  # its number
    period: Period  # of the step times, in ms
    count: int  # steps that were looked at
    part: str | None  # of the steps, that follows it: `wait` or a phase; None: not known
    rank: int | None = None  # the one whose part it is; None: all ranks' alike

    @property
    def sentence(self) -> str:
        """A sentence with the pattern's length, its times and its part."""
        text = f"The steps of job {self.job} follow a pattern of {self.period.steps}: {self.period.words} "
        text += f"({self.count} steps)"
        if self.part is None:
            return text + "."
        whose = "the" if self.rank is None else f"rank {self.rank}'s"
        return f"{text}; it is {whose} {_PART_WORDS[self.part]} that follows it."


def job_period(job: int, steps: Mapping[Rank, Sequence[Row]]) -> JobPeriod | None:
    """Return the pattern of 2 to 8 steps of a job; None where there is none, or too few steps are known.

    Ranks that average their gradients take steps of the same length, so those of the first one are searched. All of
    them wait in the backward pass for whoever is late: another part is named before it, with its rank if the others'
    does not follow the pattern.

    Args:
        steps: of each rank, one after the other. Warm-up, profiled steps and evaluations do not count.
    """
    tables = {rank: _counted(rows) for rank, rows in sorted(steps.items(), key=lambda entry: entry[0].number)}
    tables = {rank: rows for rank, rows in tables.items() if len(rows) >= FEWEST_STEPS}
    first = next(iter(tables.values()), None)
    if first is None:
        return None
    found = strongest_period(1e3 * first[:, _STEP], *_places(first))
    if found is None or found.effect <= EFFECT or found.explained <= EXPLAINED:
        return None
    own = {rank.number: _follows(found, rows) for rank, rows in tables.items()}
    named = {number: part for number, part in own.items() if part not in (None, BACKWARD)}
    if len(named) == 1 < len(own):
        ((number, part),) = named.items()
        return JobPeriod(job, found, len(first), part, number)
    parts = {part for part in (named or own).values() if part is not None}
    return JobPeriod(job, found, len(first), parts.pop() if len(parts) == 1 else None)


def _counted(rows: Sequence[Row]) -> Floats:
    """Return the rows that count, with their number among all of the loop in place of the flags."""
    loop = [row for row in rows if not row[-1] & NO_GRADIENTS]
    kept = [(*row[:-1], number) for number, row in enumerate(loop) if not row[-1] & (WARM_UP | PROFILED)]
    return np.array(kept, dtype=np.float64)


def _follows(period: Period, rows: Floats) -> str | None:
    parts = {part: 1e3 * rows[:, place] for part, place in _PARTS.items()}
    return part_with_period(period, parts, *_places(rows))


def _places(rows: Floats) -> tuple[Places, Places]:
    """Return the batches' numbers, and those of the steps among all."""
    return rows[:, 2].astype(np.intp), rows[:, -1].astype(np.intp)


# ---- The slowest rank of a job, and why: its wait for data, its GPU's clock, its host's cores, or else its own
# compute.

Cause = Literal["data", "clock", "cpu", "compute"]
BINS = 6  # into which a window is cut; all but one must agree
_FEWEST_BINS = 5  # bins with values that it takes
_LEAST_MS = 0.5  # a rank that loses less per step is not named
_SURE = 6.0  # standard errors that the loss must exceed: the windows of a session are judged thousands of times
TOGETHER = 0.08  # of a step: ranks whose steps differ by less wait for each other
WINDOW_S = 3.0  # that the live page looks at

OWN = ("copy", "forward", "optimizer")  # phases that are a rank's own in any case
CAUSE_WORDS: dict[Cause, str] = {
    "data": "it waits for its data",
    "clock": "its GPU's clock is lower",
    "cpu": "its host's cores are busy",
    "compute": "its own compute takes longer",
}


@dataclass(frozen=True)
class SlowRank:
    """A rank that is slower than the others, which wait for it where they average gradients."""

    rank: Rank
    cause: Cause
    lost: float  # ms per step that it takes longer than the median of the others
    step: float  # ms, the job's median step
    ranks: int  # with values
    figures: str = ""  # of the cause, in words

    @property
    def why(self) -> str:
        """The cause, for people."""
        return CAUSE_WORDS[self.cause] + (f" ({self.figures})" if self.figures else "")

    @property
    def sentence(self) -> str:
        """A sentence with the rank, the cause and the loss."""
        job = f" of job {self.rank.job}" if self.rank.job > 1 else ""
        host = f" ({self.rank.host})" if self.rank.host else ""
        others = "the other" if self.ranks == 2 else f"the {self.ranks - 1} others"
        return (
            f"Rank {self.rank.number}{job}{host} is the slowest: {self.why}, {self.lost:,.1f} ms longer than "
            f"{others} in a step of {self.step:,.1f} ms."
        )


def slow_rank(frames: Frames, ranks: Sequence[Rank], start: float, end: float, share: float = 0.05) -> SlowRank | None:
    """Return the slow rank of a job in `(start, end]` (session s); None where no rank, or none for sure, is slower.

    Args:
        ranks: of one job.
        share: of the step; a rank that loses less is not named.
    """
    known = [rank for rank in ranks if f"rank/{rank.id}/step" in frames.schema.columns]
    rows = (frames.time > start) & (frames.time <= end)
    bins = np.clip(((frames.time[rows] - start) / max(end - start, 1e-9) * BINS).astype(int), 0, BINS - 1)

    def table(part: str) -> Floats:
        """Return the times of a part, float64[rank, bin], in ms; NaN: not known."""
        return _binned(np.array([frames.series(f"rank/{rank.id}/{part}")[rows] for rank in known]), bins)

    step = table("step") if known else np.empty((0, BINS))
    present = np.isfinite(step).sum(axis=1) >= _FEWEST_BINS
    known = [rank for rank, there in zip(known, present, strict=True) if there]
    if len(known) < 2:
        return None
    step = step[present]
    wait = table("wait")
    parts = [table(part) for part in OWN]
    typical = float(np.nanmedian(step))
    middle = np.nanmedian(step, axis=1)
    phased = np.isfinite(table("forward")).any(axis=1).all()
    if middle.max() - middle.min() > max(TOGETHER * typical, 1.0):
        own = step
    elif phased:
        own = np.nan_to_num(wait) + sum(np.nan_to_num(part) for part in parts) + 0.0 * step
    else:
        own = wait
    lateness = own - _others(own)
    late = int(np.argmax(np.nan_to_num(np.nanmean(lateness, axis=1), nan=-np.inf)))
    if not _is_significant(lateness[late], max(_LEAST_MS, share * typical)):
        return None
    lost = float(np.nanmean(lateness[late]))
    waits = float(np.nanmean(wait[late] - _others(wait)[late])) if np.isfinite(wait[late]).any() else 0.0
    if waits > lost / 2:
        return SlowRank(known[late], "data", lost, typical, len(known))
    found = _hardware_cause(frames, known, known[late], rows, lost, typical)
    if found is None:
        return SlowRank(known[late], "compute", lost, typical, len(known))
    return SlowRank(known[late], found.cause, lost, typical, len(known), found.figures)


def _binned(values: Floats, bins: npt.NDArray[np.int_]) -> Floats:
    """Return the means [rank, bin] of values [rank, row]."""
    known = np.isfinite(values)
    inside = (bins[:, None] == np.arange(BINS)).astype(float)
    count, total = known @ inside, np.where(known, values, 0.0) @ inside
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _others(own: Floats) -> Floats:
    """Return, for each rank and bin, the median of the other ranks."""
    found = np.full_like(own, np.nan)
    # Sorted once for all ranks: a live page looks at 64 of them twice a second.
    for k, column in enumerate(own.T):
        order = np.argsort(column)  # NaN last
        known = int(np.isfinite(column).sum())
        place = np.empty(len(column), dtype=int)
        place[order] = np.arange(len(column))
        others = np.where(place < known, known - 1, known)
        low, high = (others - 1) // 2, others // 2
        sides = [column[order[np.minimum(side + (side >= place), len(column) - 1)]] for side in (low, high)]
        found[:, k] = np.where(others > 0, (sides[0] + sides[1]) / 2, np.nan)
    return found


def _is_significant(lateness: Floats, least: float) -> bool:
    """Return whether a rank was later than the others by `least` (ms) in the mean, nearly always, and beyond chance."""
    known = lateness[np.isfinite(lateness)]
    if len(known) < _FEWEST_BINS or known.mean() <= least:
        return False
    error = known.std(ddof=1) / np.sqrt(len(known))
    return bool((known > least / 2).sum() >= len(known) - 1 and known.mean() > _SURE * error)
