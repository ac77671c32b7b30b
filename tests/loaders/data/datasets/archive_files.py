"""The archives that the data sets of `archives.py` read, and these as cases."""

from __future__ import annotations

import base64
import json
import shelve
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.transforms import v2

from ...conftest import augmented
from . import archives
from .case import Case
from .folder import fixed, label_of, photos
from .reasons import IN_MEMORY, NO_IMAGE

SIDE = 48  # pixels, of the arrays
ARRAYS = v2.Compose([v2.ToImage(), v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True)])


def write_zip(folder: Path) -> Path:
    path = folder / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for photo in photos(folder):
            archive.write(photo, f"{photo.parent.name}/{photo.name}")
    return path


def write_pack(folder: Path) -> tuple[Path, Path]:
    places, data = [], b""
    for photo in photos(folder):
        content = photo.read_bytes()
        places.append((len(data), len(content), label_of(photo)))
        data += content
    pack, index = folder / "photos.bin", folder / "photos.json"
    pack.write_bytes(data)
    index.write_text(json.dumps(places))
    return pack, index


def write_database(folder: Path) -> str:
    path = folder / "photos.sqlite3"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, jpeg BLOB, label INTEGER)")
    rows = [(photo.read_bytes(), label_of(photo)) for photo in photos(folder)]
    connection.executemany("INSERT INTO images (jpeg, label) VALUES (?, ?)", rows)
    connection.commit()
    connection.close()
    return str(path)


def write_shelf(folder: Path) -> str:
    path = str(folder / "photos.shelf")
    with shelve.open(path, flag="n") as shelf:  # noqa: S301
        for photo in photos(folder):
            shelf[photo.stem] = {"jpeg": photo.read_bytes(), "label": label_of(photo), "source": "camera"}
    return path


def write_lines(folder: Path) -> Path:
    path = folder / "photos.jsonl"
    records = [
        {"id": photo.stem, "image": base64.b64encode(photo.read_bytes()).decode(), "score": label_of(photo) / 4}
        for photo in photos(folder)
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def pixels(folder: Path) -> Any:
    """uint8[24, SIDE, SIDE, 3]"""
    images = []
    for photo in photos(folder):
        with Image.open(photo) as image:
            images.append(np.asarray(image.convert("RGB").resize((SIDE, SIDE))))
    return np.stack(images)


def _arrays(folder: Path) -> Dataset[Any]:
    return archives.ArraysInRam(pixels(folder), [label_of(photo) for photo in photos(folder)], fixed())


def _memmap(folder: Path) -> Dataset[Any]:
    path = folder / "photos.npy"
    np.save(path, pixels(folder))
    return archives.ArraysInRam(np.load(path, mmap_mode="r"), list(range(24)), fixed())


def _slices(folder: Path) -> Dataset[Any]:
    root = folder / "slices"
    root.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    for number in range(24):
        np.save(root / f"patient_{number:03d}.npy", rng.integers(-1000, 1000, (40, 40)).astype(np.int16))
    return archives.Slices(root, transforms.ToTensor())


def _npz(folder: Path) -> Path:
    path = folder / "photos.npz"
    contents: dict[str, Any] = {"labels": [label_of(photo) for photo in photos(folder)]}
    for number, photo in enumerate(photos(folder)):
        contents[f"{number:04d}"] = np.frombuffer(photo.read_bytes(), dtype=np.uint8)
    np.savez(path, **contents)
    return path


def _in_memory(folder: Path) -> list[str]:
    """Return the addresses of the photos in fsspec's file system in memory."""
    files = fsspec.filesystem("memory")
    for photo in photos(folder):
        files.pipe_file(f"/photos/{photo.name}", photo.read_bytes())
    return [f"memory://photos/{photo.name}" for photo in photos(folder)]


HANDLE = (
    "The handle must not stay in the user's data set: workers that are forked later would share its place in the file. "
    "An attribute that only the first sample sets is no side effect."
)

CASES = (
    Case("zip, opened at the first sample", lambda folder: archives.LazyZip(write_zip(folder), fixed()), note=HANDLE),
    Case("zip, opened for each sample", lambda folder: archives.ZipEachTime(str(write_zip(folder)), fixed())),
    Case("zip, open from the start", lambda folder: archives.OpenZip(write_zip(folder), fixed()), picklable=False),
    Case("one file of all images", lambda folder: archives.Packed(*write_pack(folder), augmented()), random=True),
    Case(
        "SQLite, opened at the first sample",
        lambda folder: archives.LazyDatabase(write_database(folder), fixed()),
        note=f"{HANDLE} Another thread than the one that opened the connection gets an error from it.",
    ),
    Case("shelve", lambda folder: archives.Shelf(write_shelf(folder), fixed())),
    Case("bytes in RAM", lambda folder: archives.BytesInRam(photos(folder), augmented()), random=True),
    Case("one tensor of all bytes", lambda folder: archives.TensorsOfBytes(photos(folder))),
    Case("base64 in JSON lines", lambda folder: archives.Base64Lines(write_lines(folder), fixed())),
    Case("arrays in RAM", _arrays, "grey", IN_MEMORY),
    Case("memory-mapped array", _memmap, "grey", IN_MEMORY),
    Case("16-bit slices as .npy", _slices, "grey", NO_IMAGE),
    Case(".npz, opened for each sample", lambda folder: archives.NpzEachTime(_npz(folder), augmented()), random=True),
    Case("fsspec, memory://", lambda folder: archives.Remote(_in_memory(folder), augmented()), random=True),
    Case("fsspec, file://", lambda folder: archives.Remote([file.as_uri() for file in photos(folder)], fixed())),
    Case(
        "a file system of fsspec",
        lambda folder: archives.RemoteByFilesystem("memory", _in_memory(folder), fixed()),
    ),
)
