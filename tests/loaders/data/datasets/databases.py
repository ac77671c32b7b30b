"""Images in databases: HDF5 and LMDB files, and the shards of MosaicML Streaming and LitData; with their cases."""

from __future__ import annotations

import importlib.util
import io
import pickle
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.io import decode_image
from torchvision.transforms import v2

from ...conftest import augmented
from .case import Case
from .folder import fixed, label_of, photos
from .reasons import NO_IMAGE

h5py: Any = importlib.import_module("h5py") if importlib.util.find_spec("h5py") is not None else None
lmdb: Any = importlib.import_module("lmdb") if importlib.util.find_spec("lmdb") is not None else None
TENSORS = v2.Compose([v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True)])
ARRAYS = v2.Compose([v2.ToImage(), v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True)])


class LazyH5(Dataset[Any]):
    """Encoded images in HDF5; the file is opened at the first sample."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.file: Any = None

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        data: Any = self.file["jpeg"][index]
        return self.transform(Image.open(io.BytesIO(bytes(data))).convert("RGB")), index


class FixedH5(Dataset[Any]):
    """HDF5, open from the start; the encoded images stand in rows of equal length, with their sizes beside them."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.file = h5py.File(path, "r")
        self.images, self.sizes = self.file["images"], self.file["sizes"]
        self.transform = transform

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def __getitem__(self, index: int) -> Any:
        data = self.images[index][: self.sizes[index]]
        return {"x": self.transform(decode_image(torch.from_numpy(data), mode="RGB")), "size": self.sizes[index]}


class H5EachTime(Dataset[Any]):
    """HDF5, opened for each sample, a group for each class and a scalar of opaque bytes for each image."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path, self.transform = path, transform
        with h5py.File(path, "r") as file:
            self.names = [f"{group}/{name}" for group in file for name in file[group]]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        with h5py.File(self.path, "r") as file:
            entry = file[self.names[index]]
            image = Image.open(io.BytesIO(entry[()].tobytes())).convert("RGB")
            return self.transform(image), entry.attrs["label"], self.names[index]


class H5Pixels(Dataset[Any]):
    """HDF5 with the pixels themselves, as they were decoded when it was made."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.file: Any = None

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        return self.transform(Image.fromarray(self.file["pixels"][index])), index


class LazyLmdb(Dataset[Any]):
    """As the LSUN data sets; the environment is opened at the first sample."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.env: Any = None

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if self.env is None:
            self.env = lmdb.open(str(self.path), readonly=True, lock=False, readahead=False)
        with self.env.begin(write=False) as txn:
            data = txn.get(f"{index:04d}".encode())
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), index


class LmdbBuffers(Dataset[Any]):
    """LMDB with one transaction for all samples; the bytes are not copied out of it before they are decoded."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.env: Any = None
        self.txn: Any = None

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if self.txn is None:
            self.env = lmdb.open(str(self.path), readonly=True, lock=False, readahead=False, meminit=False)
            self.txn = self.env.begin(buffers=True)
        data = self.txn.get(f"{index:04d}".encode())
        return self.transform(Image.open(io.BytesIO(data)).convert("RGB")), index


class LmdbRecords(Dataset[Any]):
    """LMDB of pickled records, as many repositories have it; decoded by OpenCV."""

    def __init__(self, path: Path, transform: Any) -> None:
        self.path, self.transform = path, transform
        self.env: Any = None

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if self.env is None:
            self.env = lmdb.open(str(self.path), readonly=True, lock=False, readahead=False, meminit=False)
        with self.env.begin(write=False) as txn:
            record = pickle.loads(txn.get(f"{index:04d}".encode()))  # noqa: S301 - written by the test
        image = cv2.cvtColor(cv2.imdecode(np.frombuffer(record["jpeg"], np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        return self.transform(image), record["label"]


class Streamed(Dataset[Any]):
    """A data set of MosaicML Streaming or of LitData, whose shards lie here, by index."""

    def __init__(self, streaming: Any, transform: Any) -> None:
        self.streaming, self.transform = streaming, transform

    def __len__(self) -> int:
        return len(self.streaming)

    def __getitem__(self, index: int) -> Any:
        sample = self.streaming[index]
        image = sample["image"]  # decoded already, but for bytes
        if isinstance(image, bytes):
            image = Image.open(io.BytesIO(image)).convert("RGB")
        return self.transform(image), sample["label"]


def _hdf5(folder: Path) -> Path:
    """Return a file with the photos as bytes, as rows, as groups and as pixels."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "photos.h5"  # that of another case may be open
    files = photos(folder)
    contents = [np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in files]
    with h5py.File(path, "w") as file:
        blobs = file.create_dataset("jpeg", (len(files),), dtype=h5py.vlen_dtype(np.uint8))
        sizes = [len(content) for content in contents]
        rows = file.create_dataset("images", (len(files), max(sizes)), dtype=np.uint8)
        file["sizes"] = sizes
        pixels = file.create_dataset("pixels", (len(files), 40, 40, 3), dtype=np.uint8)
        for number, content in enumerate(contents):
            blobs[number] = content
            rows[number, : len(content)] = content
            with Image.open(files[number]) as image:
                pixels[number] = np.asarray(image.convert("RGB").resize((40, 40)))
    return path


def _groups(folder: Path) -> Path:
    path = Path(tempfile.mkdtemp(dir=folder)) / "groups.h5"
    with h5py.File(path, "w") as file:
        for photo in photos(folder):
            entry = file.create_dataset(f"{photo.parent.name}/{photo.stem}", data=np.void(photo.read_bytes()))
            entry.attrs["label"] = label_of(photo)
    return path


def _lmdb(folder: Path, *, records: bool = False) -> Path:
    path = Path(tempfile.mkdtemp(dir=folder))  # an environment can be open once in a process
    with lmdb.open(str(path)) as env, env.begin(write=True) as txn:
        for number, photo in enumerate(photos(folder)):
            content = photo.read_bytes()
            value = pickle.dumps({"jpeg": content, "label": label_of(photo)}) if records else content
            txn.put(f"{number:04d}".encode(), value)
    return path


def _mosaic(folder: Path, kind: str) -> Dataset[Any]:
    from streaming import MDSWriter, StreamingDataset

    path = tempfile.mkdtemp(dir=folder)
    with MDSWriter(out=path, columns={"image": kind, "label": "int"}, exist_ok=True) as writer:
        for photo in photos(folder):
            with Image.open(photo) as image:
                writer.write({"image": photo.read_bytes() if kind == "bytes" else image, "label": label_of(photo)})
    return Streamed(StreamingDataset(local=path, batch_size=4), augmented())


def _litdata(folder: Path, *, encoded: bool) -> Dataset[Any]:
    from litdata import StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    path = tempfile.mkdtemp(dir=folder)
    writer = BinaryWriter(path, chunk_bytes="64MB")
    for number, photo in enumerate(photos(folder)):
        with Image.open(photo) as image:
            writer.add_item(number, {"image": photo.read_bytes() if encoded else image, "label": label_of(photo)})
    writer.done()
    writer.merge()
    tensors = v2.Compose([v2.RandomResizedCrop(24, antialias=True), v2.ToDtype(torch.float32, scale=True)])
    return Streamed(StreamingDataset(path), augmented() if encoded else tensors)


HANDLE = (
    "The handle must not stay in the user's data set: workers that are forked later would share its place in the file. "
    "An attribute that only the first sample sets is no side effect."
)

CASES = (
    Case("HDF5, opened at the first sample", lambda f: LazyH5(_hdf5(f), fixed()), needs="h5py", note=HANDLE),
    Case("HDF5, open from the start", lambda f: FixedH5(_hdf5(f), TENSORS), needs="h5py", picklable=False),
    Case("HDF5, opened for each sample", lambda f: H5EachTime(_groups(f), fixed()), needs="h5py"),
    Case("HDF5 of pixels", lambda f: H5Pixels(_hdf5(f), fixed()), "grey", NO_IMAGE, needs="h5py"),
    Case("LMDB, opened at the first sample", lambda f: LazyLmdb(_lmdb(f), fixed()), needs="lmdb", note=HANDLE),
    Case("LMDB, buffers of one transaction", lambda f: LmdbBuffers(_lmdb(f), augmented()), needs="lmdb", random=True),
    Case("LMDB of pickled records", lambda f: LmdbRecords(_lmdb(f, records=True), ARRAYS), needs="lmdb"),
    Case("MosaicML Streaming", lambda f: _mosaic(f, "jpeg"), needs="streaming", random=True),
    Case("MosaicML Streaming, bytes", lambda f: _mosaic(f, "bytes"), needs="streaming", random=True),
    Case("LitData", lambda f: _litdata(f, encoded=False), needs="litdata", random=True),
    Case("LitData, bytes", lambda f: _litdata(f, encoded=True), needs="litdata", random=True),
)
