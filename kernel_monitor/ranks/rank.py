"""What a rank is, and the series that it has. Imports nothing, so that the recorder can use it."""

from __future__ import annotations

from dataclasses import dataclass

STEP_PARTS = (
    ("step", "ms"),
    ("wait", "ms"),
    ("wait_percent", "%"),
    ("copy", "ms"),
    ("forward", "ms"),
    ("backward", "ms"),
    ("optimizer", "ms"),
    ("other", "ms"),
    ("images", "images/s"),
)
"""The series of a rank that sends its steps, beside `cpu`: the part of the name after `rank/<id>/`, and the unit."""


@dataclass(frozen=True)
class Rank:
    """One process of a job."""

    id: str  # the `<id>` of `rank/<id>/…`: the job's number and the rank's, as `1-0`
    job: int  # from 1, in the order in which jobs came
    number: int  # in its job, from 0
    world: int | None = None  # how many ranks the job has; None: not known
    host: str = ""  # of another machine the name that live pages show; empty: this one
    steps: bool = True  # whether it sends its steps; else only its CPU is known
    alive: bool = True
    reason: str | None = None  # why it is not alive, in words


def rank_series(rank: str, *, steps: bool) -> list[tuple[str, str]]:
    """The series of a rank (its id), in order: names and units."""
    return [(f"rank/{rank}/{part}", unit) for part, unit in (("cpu", "%"), *(STEP_PARTS if steps else ()))]
