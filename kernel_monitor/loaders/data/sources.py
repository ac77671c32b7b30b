"""Where a data set keeps its files: from an index to a path and a target.

Data sets are recognised by their exact `__getitem__`: one that a subclass replaced may do something else.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Subset
from torchvision import datasets, get_image_backend
from torchvision.datasets.folder import default_loader, pil_loader

from ...errors import NotSwitchable

_SAMPLES: dict[Any, str] = {datasets.DatasetFolder.__getitem__: "samples", datasets.Imagenette.__getitem__: "_samples"}


class Located(NamedTuple):
    """One sample's file.

    Attributes:
        number: index in the data set that lists the files.
        path: as that data set gives it.
        target: as that data set gives it, before any target transform.
    """

    number: int
    path: str
    target: Any


class FileSource:
    """The files behind a data set, seen live: what the user changes in it is seen at the next look."""

    def __init__(self, dataset: Any, base: Any, attribute: str) -> None:
        self.dataset = dataset
        self.base = base
        self._attribute = attribute
        self._folder = os.getcwd()  # noqa: PTH109 - a string, joined once per sample

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def files(self) -> int:
        """Number of files that the base data set lists."""
        return len(getattr(self.base, self._attribute))

    @property
    def transform(self) -> Any:
        return self.base.transform

    @property
    def loader(self) -> Callable[[str], Any]:
        """The function that opens an image."""
        loader: Callable[[str], Any] = self.base.loader
        return loader

    @property
    def opens_plainly(self) -> bool:
        """Whether files are opened by torchvision's own function with Pillow."""
        return self.loader in (default_loader, pil_loader) and get_image_backend() == "PIL"

    def locate(self, index: int) -> Located:
        """Return the file of a sample.

        Raises:
            IndexError: the data set has no such index.
        """
        view = self.dataset
        while type(view) is Subset:
            index = operator.index(view.indices[index])
            view = view.dataset
        samples = getattr(self.base, self._attribute)
        path, target = samples[index]
        return Located(index if index >= 0 else index + len(samples), os.fspath(path), target)

    def absolute(self, path: str) -> str:
        """The path from the root, taken from the folder in which the loader was wrapped."""
        return os.path.join(self._folder, path)  # noqa: PTH118 - once per sample


def find_source(dataset: Dataset[Any]) -> FileSource:
    """Return where a data set keeps its image files.

    Raises:
        NotSwitchable: the data set is none of those that are understood.
    """
    base: Any = dataset
    while type(base) is Subset:
        base = base.dataset
    attribute = _SAMPLES.get(getattr(type(base), "__getitem__", None))
    if attribute is None or hasattr(base, "__getitems__"):
        raise NotSwitchable(
            f"switchable() cannot tell which file each sample of {type(base).__name__} comes from. It understands "
            "torchvision's ImageFolder, DatasetFolder and Imagenette, and Subset of these; build the DataLoader on "
            "one of them (a subclass is fine as long as it keeps their __getitem__)."
        )
    return FileSource(dataset, base, attribute)
