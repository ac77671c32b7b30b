"""Data sets of Hugging Face's `datasets` package: rows of an Arrow table, whose images Pillow decodes.

Their `__getitems__` queries a batch's rows at once and gives them to the function of `with_transform` together. Where
that function treats each row by itself, the batch is the list of its rows, each from `__getitem__`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from ..attributes import attributes
from ..random_streams import Streams
from .structure import equal

MAPPED = "has its rows in files that are mapped into memory"
BATCHES = "gives other rows one by one than in a batch"
_ROWS = 4  # of a batch that is compared
_SEED = 0xBA7C4

log = logging.getLogger(__name__)


def is_hugging_face(kind: type) -> bool:
    """Return whether a class is the `Dataset` of `datasets`, or one that reads its rows by the same code."""
    known: Any = getattr(sys.modules.get("datasets.arrow_dataset"), "Dataset", None)
    return (
        isinstance(known, type)
        and issubclass(kind, known)
        and all(getattr(kind, name) is getattr(known, name) for name in ("__getitem__", "__getitems__"))
    )


def batch_function(dataset: Any) -> Any:
    """Return the function of `with_transform` or `set_transform`; None if there is none."""
    options = attributes(dataset).get("_format_kwargs")
    return options.get("transform") if isinstance(options, dict) else None


def is_mapped(dataset: Any) -> bool:
    """Return whether a data set, or one in its attributes, has rows in files that are mapped into memory.

    It is sent to other processes without these rows: they map the files, too.
    """
    return any(
        is_hugging_face(type(value)) and bool(value.cache_files) for value in (dataset, *attributes(dataset).values())
    )


def batches_are_rows(dataset: Any, keys: Sequence[Any]) -> bool:
    """Return whether batches of a data set are equal to their rows, one after the other, and draw the same numbers.

    The user's own code computes both, in batches of `_ROWS` of the keys. What draws once for a batch leaves the random
    generators in another state after the rows than after the batch.

    Args:
        dataset: a copy of the user's data set.
        keys: of the rows.
    """
    streams = Streams(dataset)
    for start in range(0, len(keys), _ROWS):
        batch = list(keys[start : start + _ROWS])
        try:
            streams.seed(_SEED + start)
            together, after = dataset.__getitems__(batch), streams.states()
            streams.seed(_SEED + start)
            if not equal(together, [dataset[key] for key in batch]) or not equal(after, streams.states()):
                return False
        except Exception:
            log.debug("batches cannot be compared with their rows", exc_info=True)
            return False
    return True
