"""`TarShards`: a map-style data set of tar shards in WebDataset's layout.

Any sample can be read at any time, so that samplers, switches and resumed epochs work as with files of their own. The
indexes of the shards (`tar_index`) say where its members are.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch.utils.data import Dataset

from ...errors import MonitorError
from ..plan import mark_plain
from .tar_index import ShardIndex, expanded, facts_of, indexes

KEY, URL = "__key__", "__url__"  # the names by which WebDataset gives a sample's name and its shard
_OPEN = 128  # shards that a process keeps open
_SHOWN = 8  # suffixes that a message lists

Decoder = Callable[[bytes], Any]


class TarShards(Dataset[Any]):
    """The samples of tar shards in WebDataset's layout, as a map-style data set.

    The first time that shards are used they are scanned, which takes some 50 µs for each member; their index is kept in
    the user's cache folder. It takes about 50 bytes of memory for each sample.

    What WebDataset would give by `.decode("pil")` it gives: images as RGB images of Pillow, `cls` and `id` as numbers,
    `json`, `txt`, `npy` and `npz` as what they hold, all others as bytes. Nothing is unpickled.

    Args:
        shards: one path or several, with braces (`train-{0000..0012}.tar`) and wildcards (`train-*.tar`). The archives
            are not compressed.
        fields: what a sample has, by suffix: a tuple gives tuples, a dictionary gives dictionaries with its keys. A
            field may name several suffixes, of which the first that a sample has is taken: `("jpg;png", "cls")`.
            `__key__` is the sample's name, `__url__` its shard. None: dictionaries of all that is there.
        transform: is applied to the first field.
        target_transform: is applied to the second field.
        transforms: is applied to all fields together: it is given one argument for each of a tuple's, or the
            dictionary, and returns the sample.
        decoders: functions of bytes, by suffix, in place of the usual ones; None in place of a function keeps the
            bytes. `seg.png` goes before `png`.

    Attributes:
        shards: the absolute paths of the shards, in order.

    Raises:
        MonitorError: there are no such shards, one is no whole tar archive, or samples lack a field.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        fields: Sequence[str] | Mapping[str, str] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[..., Any] | None = None,
        decoders: Mapping[str, Decoder | None] | None = None,
    ) -> None:
        if isinstance(fields, str):
            raise MonitorError(f"TarShards(fields={fields!r}): give a tuple, ({fields!r},), or a dictionary.")
        names = list(fields.values() if isinstance(fields, Mapping) else fields or ())
        self.fields = None if fields is None else [name.split(";") for name in names]
        self.transform = transform
        self.target_transform = target_transform
        self.transforms = transforms
        self.decoders = dict(decoders or {})
        _check(self.fields, transform, target_transform, transforms)
        self._names = list(fields) if isinstance(fields, Mapping) else None
        self.shards = expanded(shards)
        self._index = _Index(indexes(self.shards))
        for number, field in enumerate(self.fields or ()):
            self._index.check(field, names[number])

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        shards = len(self.shards)
        return f"<TarShards: {len(self):,} samples in {shards:,} shard{'' if shards == 1 else 's'}>"

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def read_ahead(self, index: int) -> None:
        """Have the system read a sample in the background, so that the samples of a batch are read at the same time."""
        if hasattr(os, "posix_fadvise") and -len(self) <= index < len(self):
            self._index.read_ahead(index % len(self))

    def __getitem__(self, index: SupportsIndex) -> Any:
        place = operator.index(index)
        place += len(self) if place < 0 else 0
        if not 0 <= place < len(self):
            raise IndexError(f"there is no sample {index}: {self!r}")
        if self.fields is None:
            sample: Any = {KEY: self._index.key(place), URL: self._index.shard(place)}
            sample |= {suffix: self._value(place, suffix, member) for suffix, member in self._index.members(place)}
            return sample if self.transforms is None else self.transforms(sample)
        members = dict(self._index.members(place))
        values = [self._field(place, members, field) for field in self.fields]
        if self.transforms is None:
            if self.transform is not None:
                values[0] = self.transform(values[0])
            if self.target_transform is not None:
                values[1] = self.target_transform(values[1])
        if self._names is None:
            return tuple(values) if self.transforms is None else self.transforms(*values)
        sample = dict(zip(self._names, values, strict=True))
        return sample if self.transforms is None else self.transforms(sample)

    def _field(self, place: int, members: dict[str, int], field: list[str]) -> Any:
        for suffix in field:
            if suffix == KEY:
                return self._index.key(place)
            if suffix == URL:
                return self._index.shard(place)
            if suffix in members:
                return self._value(place, suffix, members[suffix])
        raise LookupError(f"sample {place} has none of {';'.join(field)}")  # found before, when the data set was made

    def _value(self, place: int, suffix: str, member: int) -> Any:
        """Read and decode a member."""
        name = f"{self._index.shard(place)}/{self._index.key(place)}.{suffix}"
        data = self._index.read(place, member, name)
        try:
            if suffix.endswith(".gz") and suffix not in self.decoders:
                suffix, data = suffix.removesuffix(".gz"), gzip.decompress(data)
            for end in _ends(suffix):
                if end in self.decoders:
                    decoder = self.decoders[end]
                    return data if decoder is None else decoder(data)
                if end in IMAGES:
                    with Image.open(_Member(data, name)) as image:
                        return image.convert("RGB")
                if end in DECODERS:
                    return DECODERS[end](data)
        except Exception as error:
            mark_plain(error)  # the member's error, not this package's
            error.add_note(f"in {name}")
            raise
        return data


def _check(fields: list[list[str]] | None, *given: Any) -> None:
    transform, target_transform, transforms = given
    if transforms is not None and (transform is not None or target_transform is not None):
        raise MonitorError("TarShards() takes transforms=, or transform= and target_transform=, and not both.")
    needed = 2 if target_transform is not None else 1 if transform is not None else 0
    if fields is not None and not fields:
        raise MonitorError("TarShards(fields=()) gives nothing; name the fields, or leave fields= out for all.")
    if needed > len(fields or ()):
        raise MonitorError(
            "TarShards() applies transform= to the first of the fields and target_transform= to the second: "
            'name them, as in fields=("jpg;png", "cls").'
        )


def _ends(suffix: str) -> list[str]:
    """Return a suffix and its shorter ends: `left.seg.png`, `seg.png`, `png`."""
    parts = suffix.split(".")
    return [".".join(parts[number:]) for number in range(len(parts))]


# ---- The members of all shards.


class _Index:
    """The indexes of all shards in one, by sample."""

    def __init__(self, shards: list[ShardIndex]) -> None:
        self._shards = [(shard.path, shard.size, shard.changed) for shard in shards]
        self.names = list(dict.fromkeys(name for shard in shards for name in shard.names))
        numbers = {name: number for number, name in enumerate(self.names)}
        samples = [len(shard.counts) for shard in shards]
        self._first = _starts(samples)  # int64[shards + 1], of each shard its first sample
        self._members = _starts(_joined([shard.counts for shard in shards]))  # int64[samples + 1]
        self._offsets = _joined([shard.offsets for shard in shards])
        self._sizes = _small(_joined([shard.sizes for shard in shards]))
        self._suffixes = _small(
            _joined([np.array([numbers[name] for name in shard.names], np.int64)[shard.suffixes] for shard in shards])
        )
        self._keys = b"".join(shard.keys for shard in shards)
        lengths = [np.diff(shard.key_ends, prepend=0) for shard in shards]
        self._key_starts = _small(_starts(_joined(lengths)))  # [samples + 1]

    def __len__(self) -> int:
        return len(self._members) - 1

    def key(self, place: int) -> str:
        """Return a sample's name."""
        first, end = self._key_starts[place : place + 2].tolist()
        return os.fsdecode(self._keys[first:end])

    def shard(self, place: int) -> str:
        """Return the path of a sample's shard."""
        return self._shard(place)[0]

    def _shard(self, place: int) -> tuple[str, int, int]:
        return self._shards[int(np.searchsorted(self._first, place, side="right")) - 1]

    def members(self, place: int) -> list[tuple[str, int]]:
        """Return the suffix and the number of each member of a sample."""
        first, end = self._members[place : place + 2].tolist()
        return [(self.names[suffix], first + k) for k, suffix in enumerate(self._suffixes[first:end].tolist())]

    def read(self, place: int, member: int, name: str) -> bytes:
        """Return the content of a member; `name` is its name in messages."""
        return _read(*self._shard(place), int(self._offsets[member]), int(self._sizes[member]), name)

    def read_ahead(self, place: int) -> None:
        """Have the system read a sample's members, which lie one behind the other."""
        first, end = self._members[place : place + 2].tolist()
        start, last = int(self._offsets[first]), int(self._offsets[end - 1])
        opened = _opened(*self._shard(place))
        os.posix_fadvise(opened.number, start, last + int(self._sizes[end - 1]) - start, os.POSIX_FADV_WILLNEED)

    def check(self, field: list[str], shown: str) -> None:
        """Raise a MonitorError if samples have none of a field's suffixes."""
        if KEY in field or URL in field or not len(self):
            return
        wanted = [number for number, name in enumerate(self.names) if name in field]
        lacking = ~np.logical_or.reduceat(np.isin(self._suffixes, wanted), self._members[:-1])
        count = int(lacking.sum())
        if not count:
            return
        place = int(lacking.argmax())
        has = [name for name, _ in self.members(place)]
        raise MonitorError(
            f"{count:,} of {len(self):,} samples have no member {shown}; the first is {self.key(place)} in "
            f"{self.shard(place)}, which has {', '.join(has[:_SHOWN])}. A sample's name ends at its first dot. "
            "Without fields= a sample is a dictionary of what it has."
        )


def _joined(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate([np.empty(0, np.int64), *columns]).astype(np.int64, copy=False)


def _starts(lengths: Any) -> npt.NDArray[np.int64]:
    """Return where each of some rows begins, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])


def _small(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return numbers of 0 or more in the smallest type that has room for them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


class _Descriptor:
    """A shard that is open in this process; closed when nobody uses it any more."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        number = getattr(self, "number", None)
        if number is not None:
            _close(number)


@functools.lru_cache(maxsize=_OPEN)
def _opened(path: str, size: int, changed: int) -> _Descriptor:
    """Open a shard, unless it is open; one that is no longer as it was indexed is refused."""
    opened = _Descriptor(path)
    if facts_of(os.fstat(opened.number)) != (size, changed):
        raise MonitorError(f"{path} has changed since the data set was made; make the data set again.")
    return opened


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_opened.cache_clear)  # a process reads ahead for itself


def _read(path: str, size: int, changed: int, offset: int, length: int, name: str) -> bytes:
    """Return a piece of a shard; an OSError if the shard is shorter by now."""
    opened = _opened(path, size, changed)
    data = _at(opened.number, length, offset)
    while len(data) < length:  # a read gives 2 GiB at most
        more = _at(opened.number, length - len(data), offset + len(data))
        if not more:
            raise OSError(f"{path} ends before the end of {name}")
        data += more
    return data


def _at(descriptor: int, length: int, offset: int) -> bytes:
    """Read at a place, without moving the position that threads share."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    with _seeking:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


_seeking = threading.Lock()  # on Windows, which has no `pread`


# ---- The decoding of members.


class _Member(io.BytesIO):
    """The content of a member, with its name for messages."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name

    def __repr__(self) -> str:
        return repr(self.name)


def _array(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _arrays(data: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return dict(found)


IMAGES = frozenset(
    ("bmp", "gif", "jp2", "jpe", "jpeg", "jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff", "webp")
)
"""The suffixes of images."""

DECODERS: Mapping[str, Decoder] = MappingProxyType(
    {
        **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), int),
        **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
        **dict.fromkeys(("json", "jsn"), json.loads),
        "npy": _array,
        "npz": _arrays,
    }
)
"""Decoders of other members, by suffix; those of WebDataset that run no code of the shard's."""
