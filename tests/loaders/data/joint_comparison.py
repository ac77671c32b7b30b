"""Plain torch's samples with the random numbers of a loader's plan, and the comparison of batches with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate

from kernel_monitor.loaders.random_streams import SAMPLE, Streams
from kernel_monitor.loaders.transforms.inject import Injected
from kernel_monitor.loaders.transforms.params import UInt64s, sample_keys, stream_seeds

from .datasets import equal
from .torchvision_joint import JointCase

# ---- The reference: the user's own code, sample by sample.


class Planned:
    """A transform with the plan's numbers for one sample, which leaves the generators as they were."""

    def __init__(self, transform: Any) -> None:
        self.injected = Injected(transform)
        self.streams = Streams(transform)

    def begin(self, key: UInt64s) -> None:
        self.injected.begin(key)

    def __call__(self, image: Any) -> Any:
        with self.streams.apart():
            return self.injected.run(image, 0)


class Reference:
    """The samples of a data set as its own code computes them with the random numbers of a plan.

    Args:
        dataset: the data set; transforms of its parts are replaced by planned ones.
        parts: the data sets that it is put together of, each with its case.
        seed: of the loader.
    """

    def __init__(self, dataset: Any, parts: Sequence[tuple[JointCase, Any]], seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        self._streams = Streams(dataset)
        self._planned: list[Planned | None] = []  # of each sample
        for case, part in parts:
            planned = None
            if case.draws == "transform":
                part.transform = planned = Planned(part.transform)
                if getattr(part, "transforms", None) is not None:
                    part.transforms.transform = part.transform
            self._planned += [planned] * len(part)

    def __len__(self) -> int:
        return len(self._planned)

    def sample(self, index: int, epoch: int = 0, occurrence: int = 0) -> Any:
        """Return a sample; `occurrence` counts how often its index occurred earlier in the epoch."""
        key = sample_keys(self._seed, epoch, [index], [occurrence])
        planned = self._planned[index]
        with self._streams.apart():
            self._streams.seed(stream_seeds(key, SAMPLE)[0])
            if planned is not None:
                planned.begin(key)
            return self._dataset[index]

    def samples(self, epoch: int = 0) -> list[Any]:
        """Return all samples, each once."""
        return [self.sample(index, epoch) for index in range(len(self))]


# ---- The comparison.

ANY = object()


class Comparison:
    """Compares batches, exactly but for the pixels of the images.

    Attributes:
        worst: the largest mean difference of an image, in grey levels.
    """

    def __init__(self, case: JointCase) -> None:
        self.case = case
        places = [(place[0], ANY, *place[1:]) for place in case.images]  # where the batch is of columns
        if case.collate is list:
            places = [(ANY, *place) for place in case.images]
        elif case.collate is default_collate:
            places = list(case.images)
        self.places = places
        self.worst = 0.0
        self.images = 0

    def check(self, one: Any, other: Any, where: tuple[Any, ...] = ()) -> None:
        assert type(one) is type(other), where
        if self._is_image(where) and isinstance(one, torch.Tensor | np.ndarray | Image.Image):
            self._compare(one, other, where)
        elif isinstance(one, dict):
            assert list(one) == list(other), where
            for key in one:
                self.check(one[key], other[key], (*where, key))
        elif isinstance(one, list | tuple):
            assert len(one) == len(other), where
            for number, pair in enumerate(zip(one, other, strict=True)):
                self.check(*pair, (*where, number))
        else:
            assert equal(one, other), (where, one, other)

    def _is_image(self, where: tuple[Any, ...]) -> bool:
        return any(
            len(where) >= len(place) and all(a is ANY or a == b for a, b in zip(place, where, strict=False))
            for place in self.places
        )

    def _compare(self, one: Any, other: Any, where: tuple[Any, ...]) -> None:
        kinds = [image.mode if isinstance(image, Image.Image) else str(image.dtype) for image in (one, other)]
        assert kinds[0] == kinds[1], where
        pixels = [np.asarray(image, dtype=np.float64) for image in (one, other)]
        assert pixels[0].shape == pixels[1].shape, where
        assert pixels[0].size > 0, where
        unit = self.case.scale if "float" in kinds[0] else 1.0
        inner = tuple(range(self.case.collate is default_collate, pixels[0].ndim))  # the images are stacked
        difference = float(np.abs(pixels[0] - pixels[1]).mean(inner).max()) * unit
        self.worst = max(self.worst, difference)
        self.images += 1
        assert difference <= self.case.limit, (where, difference)
