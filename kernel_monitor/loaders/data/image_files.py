"""The protocol by which a user's own data set gives its image files."""

from __future__ import annotations

import os
from typing import Any, Protocol


class ImageFiles(Protocol):
    """A data set that gives the image file and the target of an index.

    `switchable` opens, decodes and transforms the image itself, on whichever engine is in use, so it calls
    `image_file` in place of `__getitem__`. The image is opened as RGB by Pillow, as torchvision's ImageFolder does.
    There is nothing to inherit; a data set also has a `__getitem__` of its own if it is to be used by itself:

        class Birds(torch.utils.data.Dataset):
            def __init__(self, table, transform=None):
                self.table = table
                self.transform = transform

            def __len__(self):
                return len(self.table)

            def image_file(self, index):
                row = self.table[index]
                return row.path, row.species

            def __getitem__(self, index):
                path, target = self.image_file(index)
                image = Image.open(path).convert("RGB")
                return self.transform(image) if self.transform else image, target

    A `target_transform`, where the data set has that attribute and it is not None, is applied to the target.

    Attributes:
        transform: applied to the image; None for none.
    """

    transform: Any

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def image_file(self, index: int) -> tuple[str | os.PathLike[str] | bytes, Any]:
        """Return where sample `index` is and its target.

        It is called in worker processes and in the loop's own, more than once for the same sample, and has to give
        the same each time.

        Returns:
            The image file's path, or its content (encoded: JPEG, PNG…) as bytes; and the target.
        """
        ...
