"""A batch that is sent with its files' contents, for a worker on a machine that cannot read the files.

On the data set's machine, its own code locates each sample's file and gives the rest of the sample. The worker opens
the content as the data set would open the file, transforms the image and collates the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .own_dataset import Reading


class SentRow(NamedTuple):
    """A sample of a batch, without the content of its file."""

    path: str | None  # absolute path of the file whose content is to be sent; None: no file is sent
    name: str  # the file's name in messages
    data: bytes | None  # the content, if the data set itself gives it
    piece: Any  # the sample without its image: `keyed_dataset.Pair`, or `Reading`
    whole: Any = None  # a `Fetched` with the finished sample, if only the data set's own code can compute it

    @classmethod
    def of(cls, path: str | None, name: str, data: bytes | None, piece: Any) -> SentRow:
        """Return a row that can be pickled, without a dry run's stand-in for the image."""
        if isinstance(piece, Reading):
            piece = Reading(piece.opened, piece.filled(torch.empty(0)), piece.places, None)
        return cls(path, name, data, piece)


class SentFiles:
    """The files of a batch in the worker.

    Args:
        rows: the rows of the whole batch.
        contents: contents, or errors, of the files of those rows that have a `path`, in their order.
    """

    def __init__(self, rows: Sequence[SentRow], contents: Sequence[Any]) -> None:
        self.rows = rows
        sent = iter(contents)
        self._contents = [next(sent) if row.path is not None else row.data for row in rows]

    def content(self, row: int) -> bytes:
        """Return the content of a row's file. Raises the `OSError` that reading it raised on the other machine."""
        content: Any = self._contents[row]
        sent = self.rows[row]
        if not isinstance(content, tuple):
            return bytes(content)
        number, text = content
        raise OSError(f"{text}: {sent.name}") if number is None else OSError(number, text, sent.path)
