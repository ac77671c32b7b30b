from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kernel_monitor.loaders.data.files import FileTable


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, quality=90, exif=b"Exif\x00\x00" + b"x" * 60000)
    return path


def test_size_comes_from_the_header(photo: Path) -> None:
    assert FileTable(1).look(0, str(photo)) == (50, 70, None)


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 2}, {"optimize": True}])
def test_ordinary_kinds_are_good(tmp_path: Path, options: dict[str, Any]) -> None:
    for mode in ("RGB", "L"):
        path = tmp_path / f"{mode}.jpg"
        Image.new(mode, (33, 21), 77 if mode == "L" else (1, 2, 3)).save(path, **options)
        assert FileTable(1).look(0, str(path)) == (21, 33, None)


def test_every_cut_of_a_file_is_refused(photo: Path, tmp_path: Path) -> None:
    whole = photo.read_bytes()
    cut = tmp_path / "cut.jpg"
    for length in [*range(40), *range(40, len(whole) - 1, 997), len(whole) - 2, len(whole) - 1]:
        cut.write_bytes(whole[:length])
        assert FileTable(1).look(0, str(cut)).reason is not None, length


def test_what_is_no_whole_jpeg_has_a_reason(photo: Path, tmp_path: Path) -> None:
    table = FileTable(0)  # grows
    header_damaged = bytearray(photo.read_bytes())
    header_damaged[2] = 0
    cases: dict[str, tuple[bytes, str]] = {
        "text": (b"not an image at all", "not a JPEG"),
        "empty": (b"", "not a JPEG"),
        "markers": (b"\xff\xd8\xff\xd9", "header"),
        "scan without frame": (b"\xff\xd8\xff\xda\x00\x02\xff\xd9", "no frame"),
        "damaged": (bytes(header_damaged), "damaged"),
        "appended": (photo.read_bytes() + b"more", "after its end"),
        "gif": (b"GIF89a" + bytes(100), "not a JPEG"),
    }
    for number, (name, (content, reason)) in enumerate(cases.items()):
        path = tmp_path / name
        path.write_bytes(content)
        assert reason in str(table.look(number, str(path)).reason), name
    Image.new("CMYK", (8, 8)).save(tmp_path / "cmyk.jpg")
    assert "4 components" in str(table.look(20, str(tmp_path / "cmyk.jpg")).reason)
    assert "cannot be read" in str(table.look(21, str(tmp_path / "missing.jpg")).reason)
    os.mkfifo(tmp_path / "pipe.jpg")
    assert table.look(22, str(tmp_path / "pipe.jpg")).reason == "not a regular file"
    (tmp_path / "padded.jpg").write_bytes(photo.read_bytes() + bytes(10))
    assert table.look(23, str(tmp_path / "padded.jpg")).reason is None


def test_a_changed_file_is_looked_at_again(photo: Path) -> None:
    table = FileTable(1)
    assert table.look(0, str(photo)).reason is None
    photo.write_bytes(photo.read_bytes()[:-2])
    assert "truncated" in str(table.look(0, str(photo)).reason)
    Image.new("RGB", (9, 8)).save(photo)
    assert table.look(0, str(photo)) == (8, 9, None)
