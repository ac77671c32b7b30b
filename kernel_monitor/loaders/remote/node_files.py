"""Whether a node sees the data set's files, and their contents for one that does not.

Runs in the kernel, in the driver process and on the nodes; without torch.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

PROBES = 4  # files of the data set that a node is asked for
PROBED = 1 << 20  # bytes of each that are compared
IRREGULAR = "not a regular file"


class Probe(NamedTuple):
    """A file as the kernel sees it."""

    path: str  # from the root
    size: int  # bytes
    digest: bytes  # of its first `PROBED` bytes


@dataclass(frozen=True)
class Work:
    """One slot for a worker."""

    slot: bytes  # pickled
    rows: bytes | None = None  # what a worker needs that does not see the files, pickled; None: it cannot take the slot
    paths: tuple[str, ...] = ()  # of the files whose contents it then gets


class Sending(NamedTuple):
    """Which nodes get the files' contents with each batch."""

    always: bool  # whether all of them; else those that do not see the files
    refusal: str | None  # why none does, with the remedy; None where that is not so


def probes(paths: Iterable[str]) -> tuple[Probe, ...]:
    """Describe files; those that cannot be read are left out."""
    found = []
    for path in paths:
        try:
            found.append(_probe(path))
        except OSError:
            continue  # the loop meets it, if it gets there
    return tuple(found)


def sees(wanted: Sequence[tuple[str, int, bytes]]) -> bool:
    """Whether this machine has all these files, given as the fields of a `Probe`, with the same content."""
    try:
        return all(_probe(path) == (path, size, digest) for path, size, digest in wanted)
    except OSError:
        return False


def _probe(path: str) -> Probe:
    with open(path, "rb", opener=_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(IRREGULAR)
        return Probe(path, status.st_size, hashlib.blake2b(file.read(PROBED), digest_size=16).digest())


def read_files(paths: Sequence[str]) -> list[Any]:
    """The contents of files, uint8[bytes] each.

    In the place of one that cannot be read: the system's number of the error, None where there is none, and its text.
    """
    return [_content(path) for path in paths]


def _content(path: str) -> Any:
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, IRREGULAR
            return np.frombuffer(file.read(), np.uint8)
    except OSError as error:
        return error.errno, error.strerror or type(error).__name__


def _at_once(path: str, flags: int) -> int:
    """Open a file; if it is a named pipe, without waiting for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
