"""Images that are not files: in archives and databases, in memory, as arrays. The cases are in `archive_files.py`."""

from __future__ import annotations

import base64
import io
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
from torchvision.io import decode_image
from torchvision.transforms import v2

from .folder import label_of


class LazyZip(Dataset[Any]):
    """The handle is opened at the first sample, in each worker for itself."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path = path
        self.transform = transform
        self._zip: zipfile.ZipFile | None = None
        with zipfile.ZipFile(path) as archive:
            self.names = [name for name in archive.namelist() if name.endswith(".jpg")]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        if self._zip is None:
            self._zip = zipfile.ZipFile(self.path)
        name = self.names[index]
        image = Image.open(io.BytesIO(self._zip.read(name))).convert("RGB")
        return self.transform(image), name


class ZipEachTime(Dataset[Any]):
    """The archive is opened for each sample, and the image is read from a stream inside it."""

    def __init__(self, path: str, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.infos = zipfile.ZipFile(path).infolist()

    def __len__(self) -> int:
        return len(self.infos)

    def __getitem__(self, i: int) -> Any:
        with zipfile.ZipFile(self.path) as z, z.open(self.infos[i]) as f:
            img = Image.open(f).convert("RGB")
        return {"img": self.transform(img), "crc": self.infos[i].CRC}


class OpenZip(Dataset[Any]):
    """The archive is open from the start."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.archive = zipfile.ZipFile(path)
        self.names = sorted(self.archive.namelist())
        self.transform = transform

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Any:
        with self.archive.open(self.names[i]) as stream:
            return self.transform(Image.open(stream).convert("RGB")), i


class Packed(Dataset[Any]):
    """One file of all images, one after the other, and their places in an index."""

    def __init__(self, pack: Path, index: Path, transform: Any) -> None:
        self.pack = pack
        self.places: list[tuple[int, int, int]] = [tuple(place) for place in json.loads(index.read_text())]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        offset, size, label = self.places[index]
        with self.pack.open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), label


class LazyDatabase(Dataset[Any]):
    """Blobs in SQLite; the connection belongs to the thread that opens it."""

    def __init__(self, path: str, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.connection: sqlite3.Connection | None = None
        other = sqlite3.connect(path)
        self.ids = [row[0] for row in other.execute("SELECT id FROM images ORDER BY id")]
        other.close()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
        query = "SELECT jpeg, label FROM images WHERE id = ?"
        blob, label = self.connection.execute(query, (self.ids[index],)).fetchone()
        return self.transform(Image.open(io.BytesIO(blob)).convert("RGB")), label


class Shelf(Dataset[Any]):
    """A shelf of dictionaries, opened for each sample."""

    def __init__(self, path: str, transform: Any) -> None:
        self.path, self.transform = path, transform
        with shelve.open(path, flag="r") as shelf:  # noqa: S301
            self.keys = sorted(shelf)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        with shelve.open(self.path, flag="r") as shelf:  # noqa: S301
            record = shelf[self.keys[index]]
        image = Image.open(io.BytesIO(record["jpeg"])).convert("RGB")
        return {**record, "jpeg": self.transform(image)}


class BytesInRam(Dataset[Any]):
    """Every file is read at the start and decoded when it is asked for."""

    def __init__(self, paths: list[Path], transform: Any) -> None:
        self.blobs = [path.read_bytes() for path in paths]
        self.targets = torch.tensor([label_of(path) for path in paths])
        self.transform = transform

    def __len__(self) -> int:
        return len(self.blobs)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(io.BytesIO(self.blobs[index])).convert("RGB")), self.targets[index]


class TensorsOfBytes(Dataset[Any]):
    """One long tensor of bytes, which workers share, and where each image begins in it."""

    def __init__(self, paths: list[Path]) -> None:
        parts = [torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8) for path in paths]
        self.data = torch.cat(parts)
        self.ends = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
        self.tf = v2.Compose([v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True)])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> Any:
        data = self.data[self.ends[index] : self.ends[index + 1]]
        return self.tf(decode_image(data, mode="RGB")), len(data)


class Base64Lines(Dataset[Any]):
    """JSON lines with the image in base64, as exports of annotation tools have."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.lines = path.read_text().splitlines()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Any:
        record = json.loads(self.lines[index])
        record["image"] = self.transform(Image.open(io.BytesIO(base64.b64decode(record["image"]))).convert("RGB"))
        return record


class ArraysInRam(Dataset[Any]):
    """As CIFAR10: all pixels in one array."""

    def __init__(self, data: Any, targets: list[int], transform: Any) -> None:
        self.data, self.targets, self.transform = data, targets, transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        img, target = self.data[index], self.targets[index]
        img = Image.fromarray(img)
        if self.transform is not None:
            img = self.transform(img)
        return img, target


class Slices(Dataset[Any]):
    """Slices of a medical volume, a .npy file each: 16 bits, windowed here."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.slices = sorted(root.glob("*.npy"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, index: int) -> Any:
        volume = np.load(self.slices[index]).astype(np.float32)
        windowed = np.clip((volume + 160) / 400, 0, 1)
        return {"image": self.transform(windowed), "patient": self.slices[index].stem}


class NpzEachTime(Dataset[Any]):
    """Encoded images and their labels in an .npz archive, which is opened for each sample."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path, self.transform = path, transform
        with np.load(path) as archive:
            self.labels = archive["labels"]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        with np.load(self.path) as archive:
            data = archive[f"{index:04d}"]
        return self.transform(Image.open(io.BytesIO(data.tobytes())).convert("RGB")), self.labels[index]


class Remote(Dataset[Any]):
    """Addresses that fsspec opens."""

    def __init__(self, urls: list[str], transform: Any) -> None:
        self.urls, self.transform = urls, transform

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, index: int) -> Any:
        with fsspec.open(self.urls[index]) as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), self.urls[index]


class RemoteByFilesystem(Dataset[Any]):
    """A file system of fsspec, which is asked for the bytes."""

    def __init__(self, protocol: str, paths: list[str], transform: Any) -> None:
        self.files = fsspec.filesystem(protocol)
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        data = self.files.cat_file(self.paths[index])
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), index
