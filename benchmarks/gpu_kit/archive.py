"""Files into one archive that is cut into parts with checksums; `install.py` joins them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .install import SUMS, digest

NAME = "gpu-kit.tar"


class Parts(io.RawIOBase):
    """A stream that is cut into files of at most `limit` bytes: `gpu-kit.tar.000`, `gpu-kit.tar.001` and so on."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        self._limit = limit
        self._left = 0
        self._file: io.BufferedWriter | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        rest = view
        while len(rest):
            if self._left == 0 or self._file is None:
                self._next()
                assert self._file is not None
            piece = rest[: self._left]
            self._file.write(piece)
            self._left -= len(piece)
            rest = rest[len(piece) :]
        return len(view)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def _next(self) -> None:
        if self._file is not None:
            self._file.close()
        self.paths.append(self._folder / f"{NAME}.{len(self.paths):03d}")
        self._file = self.paths[-1].open("wb")
        self._left = self._limit


def pack(members: dict[str, Path], out: Path, limit: int) -> list[Path]:
    """Write files under the names of an archive, into parts of at most `limit` bytes each; returns the parts."""
    with Parts(out, limit) as parts, tarfile.open(fileobj=parts, mode="w|") as archive:
        for name, path in sorted(members.items()):
            archive.add(path, name, recursive=False, filter=anonymous)
    return parts.paths


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the name of who packed it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def write_sums(folder: Path, files: Iterable[Path]) -> None:
    """Write the checksums of files of a folder, as `sha256sum` does."""
    (folder / SUMS).write_text("".join(f"{digest(path)}  {path.name}\n" for path in files), "utf-8")
