"""The examination of a hand-written data set: how many of its samples are computed, with which seeds, and for how long.

`own_dataset` examines whether samples can be read by dry runs, `own_traces` whether they can be traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SEED = 0x5EED
PROVEN = 16  # samples that are computed both ways, spread over the data set
AGAIN = 2  # samples that are compared if the data set is as it was when it was compared before
PATIENCE_S = 2.0  # seconds after which fewer samples are enough, but never fewer than `AGAIN`
LEAST_READ = 64  # samples of an epoch before the share of those that could not be read is judged
DEVIATING = 0.1  # share of such samples above which a data set is left to the torchvision path
NOT_THE_SAME = "is not the same twice"
DIFFERS = "gives another sample when its image is opened and transformed for it"


def seed_of(key: Any) -> int:
    """Return the seed with which the sample of a key is computed."""
    return SEED + (key % (1 << 32) if type(key) is int else 0)


def spread(values: Sequence[Any], count: int) -> list[Any]:
    """Return at most `count` of the values, evenly spread over all of them."""
    total = len(values)
    return [values[place] for place in sorted({k * total // count for k in range(count)})] if total else []


def unexamined(failure: str) -> str:
    """Return why a data set cannot be examined, as the end of "The data set …"; `failure` is from `text.cause`."""
    return f"cannot be examined ({failure})"
