"""Rules on what the ranks of a job bring: how evenly they share the work, and how much each adds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...errors import SessionError
from ...ranks.rank import Rank
from ..frames import Floats, Frames
from ..results import Advice, Evidence, Finding
from ..scaling import jobs_of, scaling
from ..statistics import distance, histogram
from .rule import Check, Parameter, Rule, Session, SignalMissing, plainly, require, span

CHANCE = 1.25  # times the distance that two samples of one distribution have on average


def shares(session: Session, check: Check) -> Finding:
    frames = session.frames
    jobs: dict[int, list[Rank]] = defaultdict(list)
    for rank in session.snapshot.schema.ranks:
        jobs[rank.job].append(rank)
    if max(map(len, jobs.values()), default=0) < 2:
        raise SignalMissing(f"two ranks of a job: {len(session.snapshot.schema.ranks)} joined")
    judged, evidence = 0, []
    advised: list[Advice] = []
    for job, ranks in jobs.items():
        for found, advice in (_samples(frames, job, ranks, check), _gpus(frames, job, ranks, check)):
            judged += found is not None
            if found is not None and found.value > found.threshold:
                evidence.append(found)
                advised += plainly(advice)
    require("jobs with enough steps or readings of GPUs", judged, 1)
    return check.finding(bool(evidence), advised, *evidence, samples=judged, times=max(1, len(evidence)))


def _samples(frames: Frames, job: int, ranks: Sequence[Rank], check: Check) -> tuple[Evidence | None, str]:
    """Samples of each rank while all of them delivered or waited."""
    advice = (
        "Give every rank as many samples: a DistributedSampler pads or drops what does not divide, and a batch of the "
        "same size on each rank makes their steps equally long."
    )
    known = [rank for rank in ranks if np.isfinite(frames.series(f"rank/{rank.id}/images")).any()]
    if len(known) < 2:
        return None, advice
    rates = np.stack([frames.series(f"rank/{rank.id}/images") for rank in known])
    steps = np.stack([frames.series(f"rank/{rank.id}/step") for rank in known])
    rows = np.isfinite(rates).all(axis=0)
    window = np.where(rows, frames.window, 0.0)
    many = np.nansum(window / np.maximum(1e-3 * steps, 1e-6), axis=1)  # steps of each rank, about
    if many.max() < check["least"]:
        return None, advice
    counts = (np.nan_to_num(rates) * window).sum(axis=1)
    most, mean = int(np.argmax(counts)), float(counts.mean())
    if mean <= 0:
        return None, advice
    least = int(np.argmin(counts))
    text = (
        f"Job {job}: about {counts[most]:,.0f} samples on rank {known[most].number}, {counts[least]:,.0f} on rank "
        f"{known[least].number}, {mean:,.0f} on the mean of {len(known)} ranks, while all of them ran"
    )
    value, threshold = 100 * (counts[most] / mean - 1), 100 * check["samples"]
    return Evidence(text, value, threshold, "% above the mean", **span(frames.time[rows])), advice


def _gpus(frames: Frames, job: int, ranks: Sequence[Rank], check: Check) -> tuple[Evidence | None, str]:
    """How far the utilisation of one rank's GPU lies from that of the others'."""
    advice = (
        "Compare what the ranks compute: unequal batches, or parts of a model of unequal size, keep some GPUs busier "
        "than others."
    )
    series: dict[int, Floats] = {rank.number: frames.series(f"rank/{rank.id}/gpu") for rank in ranks}
    series = {number: values for number, values in series.items() if np.isfinite(values).any()}
    if len(series) < 2:
        return None, advice
    rows: npt.NDArray[np.bool_] = np.logical_and.reduce([np.isfinite(values) for values in series.values()])
    seconds = float(frames.window[rows].sum())
    if seconds < check["seconds"]:
        return None, advice
    found = {number: _apart(series, number, rows, seconds) for number in series}
    most = max(found, key=lambda number: found[number])
    text = (
        f"Job {job}: the utilisation of rank {most}'s GPU lies {found[most]:.2f} from that of the other "
        f"{len(series) - 1}, beyond chance (histograms; 0: equal, 1: nothing in common)"
    )
    return Evidence(text, found[most], check["distance"], "", **span(frames.time[rows])), advice


def _apart(series: Mapping[int, Floats], number: int, rows: npt.NDArray[np.bool_], seconds: float) -> float:
    """The distance of one rank's histogram to that of all others together, less what chance makes of it."""
    own = np.array(histogram(series[number][rows]))
    others = np.array(histogram(np.concatenate([values[rows] for key, values in series.items() if key != number])))
    # A GPU's neighbouring readings are alike: one a second counts. Two shares of n readings each with the probability p
    # lie sqrt(2 / pi) * sqrt(p (1 - p) (1 / n + 1 / m)) apart on average.
    pooled = (own + others) / 2
    spread = 1 / seconds + 1 / (seconds * (len(series) - 1))
    chance = 0.5 * float(np.sqrt(2 / np.pi * pooled * (1 - pooled) * spread).sum())
    return max(0.0, distance(tuple(own), tuple(others)) - CHANCE * chance)


def efficiency(session: Session, check: Check) -> Finding:
    jobs = [job for job, ranks in jobs_of(session.snapshot).items() if len(ranks) > 1]
    if not jobs:
        raise SignalMissing("steps of a job of several ranks: none joined")
    found, missing = [], ""
    for job in jobs:
        try:
            found.append(scaling(session.snapshot, job))
        except SessionError as error:
            missing = str(error)
    if not found:
        raise SignalMissing(missing)
    low = [each for each in found if each.efficiency < check["efficiency"]]
    evidence = [
        Evidence(each.sentence.removesuffix("."), 100 * each.efficiency, 100 * check["efficiency"], "%")
        for each in low or found
    ]
    advised = plainly(
        "Each further rank brings less than the first: look at what all of them share (storage, cores, the network of "
        "the gradients) and at larger batches on each, which average less often."
    )
    return check.finding(bool(low), advised, *evidence, samples=len(found), times=len(low) or 1)


RULES = (
    Rule(
        "rank-shares",
        "The ranks share the work unevenly",
        {
            "samples": Parameter(0.1, "of the mean: by more than this the rank with most samples has more"),
            "distance": Parameter(0.2, "of one rank's GPU utilisation to the others' (histograms), 0 to 1"),
            "least": Parameter(50, "steps that a rank must have taken"),
            "seconds": Parameter(20, "s of readings of the GPUs that it takes"),
        },
        "Compares the samples of the ranks that joined this session, from their loaders' counters, over the time in "
        "which all ran; and the utilisation histogram (50 bins of 2 %) of each rank's GPU with that of all others "
        "together: half the sum of the absolute differences, less 1.25 times what chance makes of one "
        "reading a second. Abstains without two ranks of a job, or where neither is known.",
        "This project's; the distance is that of `load-balancing`, SageMaker Debugger's LoadBalancing (0.2).",
        of_session=shares,
    ),
    Rule(
        "scaling-efficiency",
        "More ranks bring less than they should",
        {
            "efficiency": Parameter(
                0.8, "images/s of a job over its ranks times those of one rank alone: below it is low"
            )
        },
        "Compares each job of several ranks with one rank alone in the same session (a job of one rank, such as "
        "*Run alone* makes), over the time in which all of its ranks stepped, less 2 s. Abstains without one.",
        "This project's.",
        of_session=efficiency,
    ),
)
