"""Why a rank's own compute takes longer, as far as the hardware tells: its GPU's clock, or its host's cores.

A slow link is in neither: all ranks wait for it in the collective, each as long as the others, so that the times of
none point at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..ranks.rank import Rank
from ..store.schema import Schema
from .frames import Floats, Frames

SLOWER = 0.93  # of the others' clock; GPUs of one model differ by a few % while none is slowed down
WORKS = 20.0  # %: a GPU that is used less has a low clock because it has nothing to do
FULL, ROOM = 90.0, 80.0  # %: from here on a host's cores are full, and below it they are not
FEWEST = 3  # readings that it takes
Mask = npt.NDArray[np.bool_]


class HardwareCause(NamedTuple):
    """What was found, and its figures in words."""

    cause: Literal["clock", "cpu"]
    figures: str


def hardware_cause(
    frames: Frames, ranks: Sequence[Rank], late: Rank, rows: Mask, lost: float, step: float
) -> HardwareCause | None:
    """What of a late rank's hardware is worse than the others' in these rows; None where nothing is, or is not known.

    Args:
        ranks: of one job, `late` among them.
        lost: ms per step by which it is late. A lower clock that would explain less than half of it is not the cause.
        step: ms, of the job.
    """
    others = [rank for rank in ranks if rank.id != late.id]
    return _clock(frames, others, late, rows, lost, step) or _host(frames, others, late, rows)


def _clock(
    frames: Frames, others: Sequence[Rank], late: Rank, rows: Mask, lost: float, step: float
) -> HardwareCause | None:
    model = _gpu_model(frames.schema, late)
    alike = [rank for rank in others if _gpu_model(frames.schema, rank) == model]
    own = _median(frames.series(f"rank/{late.id}/gpu_clock")[rows])
    theirs = [_median(frames.series(f"rank/{rank.id}/gpu_clock")[rows]) for rank in alike]
    usual = _median(np.array(theirs), fewest=1)
    if not (0 < own < SLOWER * usual) or _median(frames.series(f"rank/{late.id}/gpu")[rows]) < WORKS:
        return None
    if (usual / own - 1) * step < lost / 2:
        return None
    return HardwareCause("clock", f"{own:,.0f} MHz, the others' {usual:,.0f}")


def _host(frames: Frames, others: Sequence[Rank], late: Rank, rows: Mask) -> HardwareCause | None:
    place = _place(frames.schema, late)
    own = _median(_busy(frames, place)[rows])
    places = {_place(frames.schema, rank) for rank in others} - {place, None}
    theirs = [found for other in places if np.isfinite(found := _median(_busy(frames, other)[rows]))]
    if not theirs or not (own >= FULL and max(theirs) < ROOM):
        return None
    return HardwareCause("cpu", f"{own:.0f} % busy, the others' {max(theirs):.0f} % at most")


def _place(schema: Schema, rank: Rank) -> str | None:
    """The node of a rank's host; empty: this machine, None: none that is measured."""
    if not rank.host:
        return ""
    return rank.node or next((node.id for node in schema.nodes if node.name == rank.host), None)


def _gpu_model(schema: Schema, rank: Rank) -> str | None:
    """The product's name of a rank's GPU, where it is known."""
    index, place = rank.gpu, _place(schema, rank)
    if place == "":
        return next((gpu.name for gpu in schema.gpus if gpu.index == index), None)
    names: Sequence[str] = next((node.gpus for node in schema.nodes if node.id == place), ())
    return names[index] if index is not None and index < len(names) else None


def _busy(frames: Frames, place: str | None) -> Floats:
    """%, mean of the cores of a machine (its node's id; empty: this one) in each row."""
    if place == "":
        return frames.cpu
    mean = frames.series(f"node/{place}/busy")
    if np.isfinite(mean).any():
        return mean
    cores = next((node.cores for node in frames.schema.nodes if node.id == place), ())
    each = [frames.series(f"node/{place}/cpu/{core}/busy") for core in cores]
    return np.mean(each, axis=0) if each else mean


def _median(values: Floats, fewest: int = FEWEST) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) >= fewest else float("nan")
