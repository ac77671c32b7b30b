from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kernel_monitor.loaders.data import file_check
from kernel_monitor.loaders.data.file_check import Facts, FileTable, check_bytes
from tests.loaders.data.corpus import cases


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, quality=90, exif=b"Exif\x00\x00" + b"x" * 60000)
    return path


def test_size_comes_from_the_header(photo: Path) -> None:
    assert FileTable(1).check(0, str(photo)) == (50, 70, None, False)


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 2}, {"optimize": True}])
def test_ordinary_kinds_are_good(tmp_path: Path, options: dict[str, Any]) -> None:
    for mode in ("RGB", "L"):
        path = tmp_path / f"{mode}.jpg"
        Image.new(mode, (33, 21), 77 if mode == "L" else (1, 2, 3)).save(path, **options)
        assert FileTable(1).check(0, str(path)) == (21, 33, None, False)


def test_every_cut_of_a_file_is_refused(photo: Path, tmp_path: Path) -> None:
    whole = photo.read_bytes()
    cut = tmp_path / "cut.jpg"
    for length in [*range(40), *range(40, len(whole) - 1, 997), len(whole) - 2, len(whole) - 1]:
        cut.write_bytes(whole[:length])
        assert FileTable(1).check(0, str(cut)).reason is not None, length


def test_what_is_no_whole_jpeg_has_a_reason(photo: Path, tmp_path: Path) -> None:
    table = FileTable(0)  # grows
    header_damaged = bytearray(photo.read_bytes())
    header_damaged[2] = 0
    cases: dict[str, tuple[bytes, str]] = {
        "text": (b"not an image at all", "neither a JPEG"),
        "empty": (b"", "neither a JPEG"),
        "markers": (b"\xff\xd8\xff\xd9", "cut off"),
        "scan without frame": (b"\xff\xd8\xff\xda\x00\x02\xff\xd9", "no frame"),
        "damaged": (bytes(header_damaged), "damaged"),
        "gif": (b"GIF89a" + bytes(100), "neither a JPEG"),
    }
    for number, (name, (content, reason)) in enumerate(cases.items()):
        path = tmp_path / name
        path.write_bytes(content)
        assert reason in str(table.check(number, str(path)).reason), name
    Image.new("CMYK", (8, 8)).save(tmp_path / "cmyk.jpg")
    assert "4 components" in str(table.check(20, str(tmp_path / "cmyk.jpg")).reason)
    assert "cannot be read" in str(table.check(21, str(tmp_path / "missing.jpg")).reason)
    os.mkfifo(tmp_path / "pipe.jpg")
    assert table.check(22, str(tmp_path / "pipe.jpg")).reason == "not a regular file"
    (tmp_path / "padded.jpg").write_bytes(photo.read_bytes() + bytes(10))
    assert table.check(23, str(tmp_path / "padded.jpg")).reason is None


def test_the_corpus_is_told_apart_by_file_and_by_bytes(tmp_path: Path) -> None:
    table = FileTable(0)
    for number, case in enumerate(cases()):
        path = tmp_path / case.name
        case.write(path)
        facts = table.check(number, str(path))
        assert (facts.reason is None) == case.dali, case.name
        if case.readable:
            with Image.open(path) as image:
                assert facts[:2] == ((image.height, image.width) if case.dali else (0, 0)), case.name
        if path.is_file() and not path.is_symlink():
            assert check_bytes(path.read_bytes()) == facts, case.name


def test_every_cut_of_every_kind_is_refused(tmp_path: Path) -> None:
    for case in cases():
        if case.dali and " behind" not in case.name and "20000" not in case.name:
            case.write(tmp_path / "one")
            whole = (tmp_path / "one").read_bytes()
            for length in {*range(0, len(whole), max(1, len(whole) // 50)), len(whole) - 2, len(whole) - 1}:
                assert check_bytes(whole[:length]).reason is not None, (case.name, length)


def test_a_large_file_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    path = tmp_path / "large.png"
    Image.fromarray(pixels).save(path)
    assert path.stat().st_size > file_check.HEAD
    assert FileTable(1).check(0, str(path)) == (400, 400, None, False)
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 1
    path.write_bytes(damaged)
    assert "checksum" in str(FileTable(1).check(0, str(path)).reason)
    monkeypatch.setattr(file_check, "LONGEST", 1000)
    assert "64 MB" in str(FileTable(1).check(0, str(path)).reason)


def test_what_takes_a_files_place_with_its_size_and_time_is_looked_at(photo: Path) -> None:
    table = FileTable(1)
    assert table.check(0, str(photo)).reason is None
    status, content = photo.stat(), photo.read_bytes()
    other = photo.with_name("other")
    other.write_bytes(content[:4] + bytes(len(content) - 4))
    other.rename(photo)
    os.utime(photo, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert photo.stat().st_size == status.st_size
    assert table.check(0, str(photo)).reason is not None


def test_a_known_file_is_not_opened(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = FileTable(1)
    facts = table.check(0, str(photo))
    monkeypatch.setattr(file_check, "_check_file", lambda path: pytest.fail(f"opened {path}"))
    assert table.check(0, str(photo)) == facts


def test_an_error_of_the_storage_is_not_remembered(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = FileTable(1)

    def fail(path: str) -> Facts:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(file_check, "_check_file", fail)
        assert table.check(0, str(photo)).reason == "cannot be read: Input/output error"
    assert table.check(0, str(photo)).reason is None


def test_slow_storage_is_looked_at_by_several_threads(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, walk = set(), file_check._check_file
    together = threading.Barrier(4)  # nobody gets on unless four are there at once

    def slow(path: str) -> Facts:
        name = threading.current_thread().name
        if name.startswith("kernel-monitor-files"):
            names.add(name)
            together.wait(30)
        else:
            time.sleep(2 * file_check.PATIENCE)
        return walk(path)

    monkeypatch.setattr(file_check, "_check_file", slow)
    table = FileTable(0)
    batch = [(number, str(photo)) for number in range(9)]
    expected = [Facts(50, 70, None)] * 9
    assert table.check_all(batch) == expected
    assert len(names) >= 4
    table.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("kernel-monitor-files")]
    monkeypatch.setattr(file_check, "PATIENCE", 30.0)
    assert table.check_all(batch) == expected
    assert not [one for one in threading.enumerate() if one.name.startswith("kernel-monitor-files")]
    assert table.check_all([]) == []


def test_a_changed_file_is_looked_at_again(photo: Path) -> None:
    table = FileTable(1)
    assert table.check(0, str(photo)).reason is None
    photo.write_bytes(photo.read_bytes()[:-2])
    assert "cut off" in str(table.check(0, str(photo)).reason)
    Image.new("RGB", (9, 8)).save(photo)
    assert table.check(0, str(photo)) == (8, 9, None, False)
