"""A batch whose files travel with it, for a worker on a machine that does not see them.

Where the data set is, its own code says which file each sample has, and everything else of it. The worker opens the
content as the data set would open the file, transforms it and puts the batch together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .own_dataset import Reading


class SentRow(NamedTuple):
    """One sample of a batch, without the content of its file."""

    path: str | None  # from the root, of the file whose content is to come along; None for none
    name: str  # of the file, for messages
    data: bytes | None  # the content, where the data set itself gives that
    piece: Any  # the sample without its image: `fetched.Pair`, or `Reading`
    whole: Any = None  # where only the data set's own code computes it: a `Fetched` with this sample

    @classmethod
    def of(cls, path: str | None, name: str, data: bytes | None, piece: Any) -> SentRow:
        """Return a sample that can be pickled: what a dry run left in the image's place cannot."""
        if isinstance(piece, Reading):
            piece = Reading(piece.opened, piece.filled(torch.empty(0)), piece.places, None)
        return cls(path, name, data, piece)


class SentFiles:
    """In the worker: the files of a batch.

    Args:
        rows: of the whole batch.
        contents: of the files of those rows that have a `path`, in their order; as `remote.node_files.read_files`.
    """

    def __init__(self, rows: Sequence[SentRow], contents: Sequence[Any]) -> None:
        self.rows = rows
        given = iter(contents)
        self._contents = [next(given) if row.path is not None else row.data for row in rows]

    def content(self, row: int) -> bytes:
        """Return the content of a row's file; an `OSError` where it could not be read, as if it were read here."""
        content: Any = self._contents[row]
        sent = self.rows[row]
        if not isinstance(content, tuple):
            return bytes(content)
        number, text = content
        raise OSError(f"{text}: {sent.name}") if number is None else OSError(number, text, sent.path)
