"""The worker on a node: a process with the user's data set and collate function that answers one slot a call.

Imported in the driver process too, where there is no torch: it is imported where it is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_COMPARED = ("torch", "torchvision", "numpy", "pillow")
"""What the pixels of a batch depend on."""


@dataclass(frozen=True)
class Place:
    """The working directory and the import path that a worker needs."""

    versions: dict[str, str]  # of the kernel, by `versions`
    paths: tuple[str, ...]  # where the kernel looks for modules
    folder: str  # in which it works
    # Files of the data set, each the fields of a `Probe`: a node without this package must understand them.
    probes: tuple[tuple[str, int, bytes], ...] = ()


def versions() -> dict[str, str]:
    """The versions that must be the same on a node; of torch without the part for the GPU's maker."""
    found = {"Python": platform.python_version().rpartition(".")[0]}
    for name in _COMPARED:
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return {**found, "kernel-monitor": _own_version()}


def _own_version() -> str:
    try:
        from kernel_monitor._version import __version__
    except ImportError:
        return "none"
    return __version__


class NodeWorker:
    """A Ray actor. `blob` is the data set as `engine.packed` makes it; `version` counts its states."""

    def __init__(self, blob: bytes, version: int, number: int, many: int, place: Place) -> None:
        self._blob = blob
        self._version = version
        self._number = number
        self._many = many
        self._place = place
        self._keyed: Any = None
        self._collate: Any = None
        self._info: Any = None

    def hello(self) -> dict[str, Any]:
        """Get ready. Returns `differs`, a sentence on why this node cannot be used, or None; and what it has.

        `sees_files`: whether the data set's files are here, under the same paths.
        """
        sys.path.extend(path for path in self._place.paths if path not in sys.path)
        differs = self._differs()
        sees_files = True
        if differs is None:
            sees_files = sees(self._place.probes)
            if self._place.folder and Path(self._place.folder).is_dir():
                os.chdir(self._place.folder)
            import torch

            torch.set_num_threads(1)
            self.load(self._blob, self._version)
        return {
            "differs": differs,
            "pid": os.getpid(),
            "shared_memory": _shared_memory(),
            "sees_files": sees_files,
        }

    def _differs(self) -> str | None:
        here = versions()
        found = [
            f"{name} {here[name]} instead of {there}"
            for name, there in self._place.versions.items()
            if here.get(name) != there
        ]
        return ", ".join(found) or None

    def load(self, blob: bytes, version: int) -> None:
        """Take a state of the data set."""
        import cloudpickle
        from torch.utils.data._utils import worker as torch_worker

        inherited, self._keyed, self._collate, init = cloudpickle.loads(blob)
        self._blob, self._version = b"", version
        inherited.restore()
        # What `get_worker_info()` shows to the user's code, as in a worker of torch's.
        self._info = torch_worker._worker_info = torch_worker.WorkerInfo(
            id=self._number, num_workers=self._many, seed=self._number, dataset=self._keyed
        )
        init(self._number)

    def compute(self, version: int, slot: bytes, rows: bytes | None = None, contents: Any = ()) -> list[Any]:
        """A pickled slot in; what the batch is without its tensors and arrays, and those as uint8[bytes] each, out.

        Where the node does not see the files: pickled `rows` of `data.sent_files.SentRow`, and the files' contents.
        """
        import pickle

        from .packing import pack

        if version != self._version:
            raise RuntimeError(f"the worker has state {self._version} of the data set, not {version}")
        planned = pickle.loads(slot)  # noqa: S301 - written by the kernel
        if rows is not None:
            from kernel_monitor.loaders.data.sent_files import SentFiles

            planned = planned._replace(sent=SentFiles(pickle.loads(rows), contents))  # noqa: S301 - by the kernel
        fetched = self._keyed.__getitems__(planned)
        header, buffers = pack(self._collated(fetched))
        return [header, *buffers]

    def _collated(self, fetched: Any) -> Any:
        """Apply the collate function.

        In a worker, torch's own puts the batch into new shared memory, whose pages cost more than their content. No
        process shares it here, so that function does not see a worker.
        """
        from torch.utils.data import default_collate
        from torch.utils.data._utils import worker as torch_worker

        if self._collate.collate is not default_collate:
            return self._collate(fetched)
        torch_worker._worker_info = None
        try:
            return self._collate(fetched)
        finally:
            torch_worker._worker_info = self._info


def _shared_memory() -> int | None:
    """Bytes of /dev/shm, where Ray keeps batches; None where there is none."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - as Ray has it
    except (AttributeError, OSError):
        return None
    return found.f_frsize * found.f_blocks


# ---- Whether a node sees the data set's files, and their contents for one that does not.

PROBES = 4  # files of the data set that a node is asked for
_PROBED = 1 << 20  # bytes of each that are compared
_IRREGULAR = "not a regular file"


class Probe(NamedTuple):
    """A file as the kernel sees it."""

    path: str  # from the root
    size: int  # bytes
    digest: bytes  # of its first `_PROBED` bytes


@dataclass(frozen=True)
class Work:
    """One slot for a worker."""

    slot: bytes  # pickled
    rows: bytes | None = None  # what a worker needs that does not see the files, pickled; None: it cannot take the slot
    paths: tuple[str, ...] = ()  # of the files whose contents it then gets


class Sending(NamedTuple):
    """The nodes that get the files' contents with each batch."""

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
    """Return whether this machine has all these files, given as the fields of a `Probe`, with the same content."""
    try:
        return all(_probe(path) == (path, size, digest) for path, size, digest in wanted)
    except OSError:
        return False


def _probe(path: str) -> Probe:
    with open(path, "rb", opener=_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(_IRREGULAR)
        return Probe(path, status.st_size, hashlib.blake2b(file.read(_PROBED), digest_size=16).digest())


def read_files(paths: Sequence[str]) -> list[Any]:
    """The contents of files, uint8[bytes] each.

    In the place of one that cannot be read: the system's number of the error, None where there is none, and its text.
    """
    return [_content(path) for path in paths]


def _content(path: str) -> Any:
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, _IRREGULAR
            return np.frombuffer(file.read(), np.uint8)
    except OSError as error:
        return error.errno, error.strerror or type(error).__name__


def _at_once(path: str, flags: int) -> int:
    """Open a file; do not wait for a writer if it is a named pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


# ---- The load of a node, read by a small process of its own.


class Load(NamedTuple):
    """The load of one node."""

    node: str  # Ray's id
    name: str  # of the host
    cores: tuple[int, ...]
    reading: dict[str, float]  # as `sample.node_sampler.NodeSampler.read` gives it


class NodeReader:
    """A Ray actor, which takes no core."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        from kernel_monitor.sample.node_sampler import NodeSampler

        self._sampler = NodeSampler()

    def read(self) -> tuple[str, tuple[int, ...], dict[str, float]]:
        """The host's name, its cores, what has been measured since the last call."""
        import platform

        return platform.node(), self._sampler.cores, self._sampler.read()
