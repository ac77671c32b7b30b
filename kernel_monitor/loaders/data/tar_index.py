"""Indexes of tar shards: where each member of a shard begins, and which members are a sample.

A shard is scanned once, header by header. Its index is kept in the user's cache folder, with the shard's size and time
of modification, and made again when these have changed. Members are grouped as WebDataset does: a sample is a run of
members whose names are equal up to the first dot.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...cache import prune, read_checked, user_cache, write_checked
from ...errors import MonitorError
from ...own_files import expanded as expanded_path

KEPT = 4 << 30  # bytes of indexes that are kept on disk
_FORMAT = 1
_COLUMNS = (("key_ends", "<u4"), ("counts", "<u4"), ("suffixes", "<u4"), ("offsets", "<i8"), ("sizes", "<i8"))
_OFTEN = 1000  # members after which the progress is shown
_PATIENCE_S = 1.0  # seconds after which it is shown for the first time

_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")  # a sample's name and a member's suffix
_META = re.compile(r"__[^/]*__($|/)")  # members that belong to no sample
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}
"""The first bytes of compressed files, and what unpacks them."""

log = logging.getLogger(__name__)


class ShardIndex(NamedTuple):
    """The members of a shard, in their order; numbers as NumPy arrays."""

    path: str  # absolute
    size: int  # bytes of the shard
    changed: int  # time of its last modification, ns
    names: list[str]  # the suffixes in it, each once
    keys: bytes  # the samples' names, one after the other, encoded as file names are
    key_ends: npt.NDArray[Any]  # for each sample, the end of its name in `keys`
    counts: npt.NDArray[Any]  # for each sample, the number of its members
    suffixes: npt.NDArray[Any]  # for each member, the number of its suffix in `names`
    offsets: npt.NDArray[Any]  # for each member, the first byte of its content in the shard
    sizes: npt.NDArray[Any]  # for each member, the bytes of its content


def indexes(paths: Sequence[str]) -> list[ShardIndex]:
    """Return the indexes of some shards, from the cache where that has them.

    Args:
        paths: absolute paths.

    Raises:
        OSError: a shard cannot be read.
        MonitorError: one is no whole, uncompressed tar archive.
    """
    found: dict[str, ShardIndex] = {}
    for path in paths:
        if path not in found and (known := _known(path)) is not None:
            found[path] = known
    missing = [path for path in dict.fromkeys(paths) if path not in found]
    if missing:
        # In an order that differs between processes: of several ranks that begin together, each scans a share.
        random.Random(os.getpid()).shuffle(missing)  # noqa: S311 - no secret
        found |= _made(missing)
    return [found[path] for path in paths]


def _made(paths: list[str]) -> dict[str, ShardIndex]:
    """Scan shards, or read the index that another process has made by now, and keep the results."""
    found: dict[str, ShardIndex] = {}
    failure: OSError | None = None
    with _progress(sum(os.stat(path).st_size for path in paths)) as advance:  # noqa: PTH116 - see `_facts`
        for path in paths:
            known = _known(path)
            if known is None:
                known = scan(path, advance)
                try:
                    write_checked(_file(path), _packed(known))
                except OSError as error:
                    failure = error
            else:
                advance(known.size)
            found[path] = known
    if failure is None:
        prune(_folder(), size=KEPT)
    else:
        log.warning("The index of the shards is not kept, and made anew each time: %s", failure)
    return found


def _known(path: str) -> ShardIndex | None:
    """Return a shard's index from the cache; None if there is none, or if the shard has changed since."""
    content = read_checked(_file(path))
    return None if content is None else _unpacked(content, path, *_facts(path))


def _folder() -> Path:
    return user_cache("shards")


def _file(path: str) -> Path:
    return _folder() / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.index"


def _facts(path: str) -> tuple[int, int]:
    """Return the size and the time of modification (ns) of a shard."""
    return facts_of(os.stat(path))  # noqa: PTH116 - thousands of shards


def facts_of(found: os.stat_result) -> tuple[int, int]:
    """Return the size and the time of modification (ns) by which a shard is known to be the same."""
    return found.st_size, found.st_mtime_ns


# ---- The file of an index: a line of JSON, the samples' names, and the columns.


def _packed(index: ShardIndex) -> bytes:
    head = {
        "format": _FORMAT,
        "path": index.path,
        "size": index.size,
        "changed": index.changed,
        "names": index.names,
        "keys": len(index.keys),
        "samples": len(index.counts),
        "members": len(index.offsets),
    }
    columns = [getattr(index, name).astype(dtype).tobytes() for name, dtype in _COLUMNS]
    return b"".join([json.dumps(head).encode(), b"\n", index.keys, *columns])


def _unpacked(content: bytes, path: str, size: int, changed: int) -> ShardIndex | None:
    line, _, rest = content.partition(b"\n")
    head = json.loads(line)
    expected = {"format": _FORMAT, "path": path, "size": size, "changed": changed}
    if any(head.get(name) != value for name, value in expected.items()):
        return None
    at = head["keys"]
    columns = []
    for number, (_, dtype) in enumerate(_COLUMNS):
        count = head["samples"] if number < 2 else head["members"]
        columns.append(np.frombuffer(rest, dtype, count, at))
        at += columns[-1].nbytes
    return ShardIndex(path, size, changed, head["names"], rest[: head["keys"]], *columns)


# ---- The scan of a shard.


def scan(path: str, advance: Callable[[int], object] = lambda _: None) -> ShardIndex:
    """Read the headers of a shard's members and return its index.

    Args:
        path: absolute.
        advance: called now and then with the number of bytes that were passed.

    Raises:
        OSError: the file cannot be read.
        MonitorError: it is no whole, uncompressed tar archive, or is being written.
    """
    rows = _Rows(path)
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - see `_facts`
        raise MonitorError(f"{path} is no regular file, and a shard is read at any place in it.")
    with open(path, "rb") as file:  # noqa: PTH123 - see `_facts`
        before = os.fstat(file.fileno())
        _check_uncompressed(path, file.read(8))
        file.seek(0)
        try:
            for member in _members(path, file, advance):
                rows.add(member)
        except tarfile.TarError as error:
            raise _damaged(path, str(error)) from error
        if facts_of(os.fstat(file.fileno())) != facts_of(before):
            raise MonitorError(f"{path} was written to while it was read; make the data set again when it is complete.")
    return rows.index(*facts_of(before))


def _members(path: str, file: Any, advance: Callable[[int], object]) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive that are files, checking that it ends where an archive ends."""
    passed = 0
    with tarfile.open(fileobj=file, mode="r:") as archive:
        number = 0
        while (member := archive.next()) is not None:
            number += 1
            if number % _OFTEN == 0:
                archive.members = []  # type: ignore[attr-defined]
                advance(archive.offset - passed)
                passed = archive.offset
            if member.isreg():
                yield member
        end = archive.offset
    # The module takes a header that is no header for the end of the archive.
    file.seek(end)
    block = file.read(tarfile.BLOCKSIZE)
    if any(block):
        raise _damaged(path, f"byte {end:,} begins no member")
    if not block:
        log.warning("%s has no end mark; it may have been cut short after sample %s.", path, number)
    file.seek(0, os.SEEK_END)
    advance(file.tell() - passed)


def _check_uncompressed(path: str, start: bytes) -> None:
    for magic, command in _COMPRESSED.items():
        if start.startswith(magic):
            raise MonitorError(
                f"{path} is compressed, so that no sample can be read without all before it. Unpack it ({command}); "
                "its images are compressed already."
            )


def _damaged(path: str, reason: str) -> MonitorError:
    return MonitorError(f"{path} is no whole tar archive ({reason}); copy it again, or leave it out.")


class _Rows:
    """The rows of an index, collected member by member."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers: dict[str, int] = {}  # of the suffixes
        self._keys: list[bytes] = []
        self._counts: list[int] = []
        self._suffixes: list[int] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._key: str | None = None  # the name of the sample under way
        self._seen: set[str] = set()  # the suffixes that it has

    def add(self, member: tarfile.TarInfo) -> None:
        found = None if _META.match(member.name) else _NAME.match(member.name)
        if found is None:
            return
        if member.issparse():
            raise MonitorError(f"{self._path} stores {member.name} as a sparse file; pack it without tar's --sparse.")
        key, suffix = found[1], found[2].lower()
        if key != self._key:
            self._key, self._seen = key, set()
            self._keys.append(os.fsencode(key))
            self._counts.append(0)
        if suffix in self._seen:
            raise MonitorError(f"{self._path} has two members {member.name} in one sample.")
        self._seen.add(suffix)
        self._counts[-1] += 1
        self._suffixes.append(self._numbers.setdefault(suffix, len(self._numbers)))
        self._offsets.append(member.offset_data)
        self._sizes.append(member.size)

    def index(self, size: int, changed: int) -> ShardIndex:
        ends = np.cumsum([len(key) for key in self._keys], dtype=np.int64)
        columns = (ends, self._counts, self._suffixes, self._offsets, self._sizes)
        arrays = [np.array(column, dtype) for column, (_, dtype) in zip(columns, _COLUMNS, strict=True)]
        return ShardIndex(self._path, size, changed, list(self._numbers), b"".join(self._keys), *arrays)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    """Give a function that counts bytes; show tqdm's bar if that takes long, or without tqdm a line in the log."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        log.info("Scanning shards of %s bytes; their index is kept.", f"{total:,}")
        yield lambda _: None
        return
    shown: Any = tqdm(
        total=total, desc="index of shards", unit="B", unit_scale=True, delay=_PATIENCE_S, disable=None
    )  # no bar in a log file
    with shown:
        yield shown.update


# ---- Patterns of shards.


def expanded(shards: Any) -> list[str]:
    """Return the absolute paths of shards, in the order of their patterns.

    Args:
        shards: a path, or several; with braces (`train-{0000..0012}.tar`) and wildcards (`train-*.tar`, sorted).

    Raises:
        MonitorError: there are none, or one is no file of this machine.
    """
    patterns: Iterable[Any] = [shards] if isinstance(shards, str | os.PathLike) else shards
    found = [path for pattern in patterns for path in _expanded(os.fspath(pattern))]
    if not found:
        raise MonitorError("TarShards() was given no shards.")
    missing = [path for path in found if not os.path.exists(path)]  # noqa: PTH110 - see `_facts`
    if missing:
        raise MonitorError(f"{len(missing)} of {len(found)} shards are missing; the first is {missing[0]}.")
    return found


def _expanded(pattern: str) -> list[str]:
    pattern = pattern.removeprefix("file:")
    if pattern.startswith("pipe:") or re.match(r"[a-z][a-z0-9+.-]+://", pattern):
        raise MonitorError(f"TarShards reads files, and {pattern} is none: copy or mount the shards.")
    pattern = os.path.normpath(expanded_path(pattern))
    if os.path.exists(pattern):  # noqa: PTH110 - also a name with brackets in it
        return [pattern]
    found: list[str] = []
    for path in _with_braces(pattern):
        if not re.search(r"[*?[]", path):
            found.append(path)
            continue
        import glob

        matches = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - of strings
        if not matches:
            raise MonitorError(f"No shard matches {path}.")
        found += matches
    return found


def _with_braces(pattern: str) -> list[str]:
    if "{" not in pattern:
        return [pattern]
    try:
        from braceexpand import braceexpand
    except ImportError as error:
        raise MonitorError(f"{pattern} has braces: pip install braceexpand, or give a list of paths.") from error
    try:
        return list(braceexpand(pattern, escape=os.sep != "\\"))
    except ValueError as error:
        raise MonitorError(f"The braces in {pattern} cannot be read: {error}.") from error
