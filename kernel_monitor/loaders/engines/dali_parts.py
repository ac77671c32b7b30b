"""Batches of a ConcatDataset whose parts have different transforms: each transform has a DALI pipeline of its own.

The pipelines of a batch run at the same time. Their images are put together in the order of the rows: into one tensor
if they are alike, else one by one, for the user's collate function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..data.file_check import Facts
from ..data.file_source import Located
from ..data.keyed_dataset import KeyedDataset
from ..plan import Slot
from ..transforms.inject import Injected, as_kind
from .dali_batch import Batches, Images, Issued, formed, unpacked
from .dali_graph import Parts, Translated

_NEW = Facts(0, 0, "the parts of the data set have other transforms than before")


class PartBatches(Batches):
    """Feeds several pipelines, and makes deliveries of what they give; see the module's docstring."""

    def __init__(
        self, name: str, keyed: KeyedDataset, wrapped: DataLoader[Any], work: Parts, device: int | None
    ) -> None:
        super().__init__(name, keyed, wrapped, work, device)
        self._parts = work

    def look(self, slot: Slot, located: list[Located] | None = None) -> Issued:
        issued = super().look(slot, located)
        numbers = self.keyed.source.chain_numbers()
        chains = {row: numbers.get(id(issued.located[row].part), -1) for row in issued.good}
        known = range(len(self._parts.numbers))
        for row in [row for row in issued.good if chains[row] not in known]:
            issued.facts[row] = _NEW
            issued.good.remove(row)
        issued.chains = [chains[row] for row in issued.good]
        return issued

    def unpack(self, outputs: Sequence[Any]) -> Images:
        (output,) = outputs
        found = [
            (rows.tolist(), unpacked(made, self._parts.works[number].rest, self.device))
            for number, rows, made in output
        ]
        if len(found) == 1:
            return self._noted(found[0][1])
        tensors = [images for _, images in found if isinstance(images, torch.Tensor)]
        count = sum(len(rows) for rows, _ in found)
        if len(tensors) == len(found) and len({(images.shape[1:], images.dtype) for images in tensors}) == 1:
            whole = tensors[0].new_empty((count, *tensors[0].shape[1:]))
            for (rows, _), together in zip(found, tensors, strict=True):
                whole[rows] = together
            return self._noted(whole)
        single: dict[int, torch.Tensor] = {}
        for rows, images in found:
            single |= dict(zip(rows, images, strict=True))
        return self._noted([single[row] for row in range(count)])

    def work_of(self, chain: int) -> Translated:
        """Return the work of a chain of transforms, by its number in `FileSource.chains`."""
        return self._parts.works[self._parts.numbers[chain]]

    def _noted(self, images: Images) -> Images:
        self._form = (images.shape[1:], images.dtype) if isinstance(images, torch.Tensor) else None
        return images

    def _batch(self, issued: Issued, images: Images | None, samples: dict[int, Any], kept: list[int]) -> Any:
        if isinstance(images, torch.Tensor):
            likes = [self._example(issued, row, chain) for chain, row in self._first_rows(issued).items()]
            if len({images.dtype if like is None else like.dtype for like in likes}) > 1:
                images = list(images)
        return super()._batch(issued, images, samples, kept)

    @staticmethod
    def _first_rows(issued: Issued) -> dict[int, int]:
        """Return a row of each transform, by the transform's number."""
        return dict(zip(issued.chains, issued.good, strict=True))

    def _like(self, issued: Issued) -> torch.Tensor | None:
        return self._example(issued, issued.good[0], issued.chains[0]) if issued.good else None

    def _made(self, images: Images, issued: Issued) -> dict[int, Any]:
        return self._finished(list(images), issued)

    def _finished(self, images: list[torch.Tensor], issued: Issued) -> dict[int, Any]:
        injected: dict[int, Injected | None] = {}
        made: dict[int, Any] = {}
        for row, chain, image in zip(issued.good, issued.chains, images, strict=True):
            work = self.work_of(chain)
            if work.rest is None:
                made[row] = formed(image, self._example(issued, row, chain))
                continue
            if chain not in injected:
                injected[chain] = self.keyed.injected(issued.slot, chain)
            transform, whole = injected[chain], as_kind(work.rest_kind, image)
            made[row] = whole if transform is None else transform.run(whole, row, start=work.rest)
        return made
