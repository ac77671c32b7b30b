"""One entry of the corpus: a data set and what must become of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from torch.utils.data import Dataset, default_collate

# What users' own code leaves behind or calls is no concern of the tests.
as_written = pytest.mark.filterwarnings(
    "ignore:unclosed database:ResourceWarning",  # a connection that is left to the garbage collector
    "ignore:unclosed file:ResourceWarning",  # a file that is cut off, after `Image.open(path).convert("RGB")`
    "ignore:The image decoding and encoding capabilities of TorchVision:DeprecationWarning",
)

Expect = Literal["offered", "fallback", "grey"]


@dataclass(frozen=True)
class Case:
    """One data set of the corpus.

    Attributes:
        name: of the case, as a user would describe the data set.
        make: builds it over a folder that `write_images` made; it may write files beside the images.
        expect: "offered": DALI delivers every sample; all but the image is equal, the image within the parity of
            docs/transforms.md. "fallback": DALI delivers all but `odd` samples, which the user's `__getitem__`
            delivers. "grey": DALI cannot be chosen.
        reason: regular expression of the reason that is given for the fallback or the grey engine; empty if offered.
        needs: a package without which the case cannot be tried.
        note: what to mind when the case fails.
        collate: the loop's collate function, where torch's own cannot stack the samples.
        samples: length of the data set.
        images: how many images an offered sample opens.
        odd: how many samples fall back, at most a tenth.
        dropped: how many samples the collate function leaves out.
        picklable: whether workers that are not forked can be given it.
        random: whether plain torch gives other samples the second time.
        with_workers: reason for which `dali-cpu` is grey where the loader has workers, if it is offered without.
        unsent: reason for which files cannot be sent to other machines in the place of its own, if DALI has them.
    """

    name: str
    make: Callable[[Path], Dataset[Any]]
    expect: Expect = "offered"
    reason: str = ""
    needs: str | None = None
    note: str = ""
    collate: Callable[[list[Any]], Any] = default_collate
    samples: int = 24
    images: int = 1
    odd: int = 0
    dropped: int = 0
    picklable: bool = True
    random: bool = False
    with_workers: str = ""
    unsent: str = ""


def as_list(samples: list[Any]) -> list[Any]:
    """Collate nothing: for samples that torch cannot stack."""
    return samples


def without_none(samples: list[Any]) -> Any:
    """Collate what could be read."""
    samples = [sample for sample in samples if sample is not None]
    return default_collate(samples)
