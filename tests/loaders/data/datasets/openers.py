"""Ways to open and decode an image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from PIL import Image
from PIL.Image import open as open_image
from torch.utils.data import Dataset
from torchcodec import decoders as torchcodec_decoders
from torchvision.datasets.folder import default_loader
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file, read_image
from torchvision.transforms import v2

from .case import Case
from .folder import fixed, label_of, photos
from .reasons import NOT_RGB, SEVERAL

tensors = v2.Compose([v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True)])


class Photos(Dataset[Any]):
    """What the data sets of this module share: subclasses open the image."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.paths = photos(folder)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(self.paths[index])), label_of(self.paths[index]), str(self.paths[index])

    def read(self, path: Path) -> Any:
        raise NotImplementedError


class ReadImage(Photos):
    def read(self, path: Path) -> Any:
        return read_image(str(path), mode=ImageReadMode.RGB)


class ReadImageAsStored(Photos):
    def read(self, path: Path) -> Any:
        return read_image(str(path))


class ReadGray(Photos):
    def read(self, path: Path) -> Any:
        return read_image(str(path), ImageReadMode.GRAY)


class DecodeBytes(Photos):
    """The bytes are read by Python, or come from an object store."""

    def read(self, path: Path) -> Any:
        with path.open("rb") as file:
            raw = file.read()
        return decode_image(torch.frombuffer(bytearray(raw), dtype=torch.uint8), mode="RGB")


class DecodeJpeg(Photos):
    def read(self, path: Path) -> Any:
        data = read_file(str(path))
        return decode_jpeg(data, mode=ImageReadMode.RGB)


class DecodeFromFile(Photos):
    """numpy reads the bytes."""

    def read(self, path: Path) -> Any:
        return decode_image(torch.from_numpy(np.fromfile(path, dtype=np.uint8)), ImageReadMode.RGB)


class FileObject(Photos):
    def read(self, path: Path) -> Any:
        with open(path, "rb") as f:  # noqa: PTH123
            image: Any = Image.open(f)
            image = image.convert("RGB")
        return image  # noqa: RET504 - as people write it


class BytesOfFile(Photos):
    def read(self, path: Path) -> Any:
        stream = io.BytesIO(path.read_bytes())
        return PIL.Image.open(stream).convert("RGB")


class ImportedByName(Photos):
    """`from PIL.Image import open as …`: a name of this module's own."""

    def read(self, path: Path) -> Any:
        return open_image(path).convert("RGB")


class DefaultLoader(Photos):
    """With a loader that is given, as torchvision's own data sets have."""

    def __init__(self, folder: Path, transform: Any, loader: Any = default_loader) -> None:
        super().__init__(folder, transform)
        self.loader = loader

    def read(self, path: Path) -> Any:
        return self.loader(path)


class ScaledByHand(Photos):
    """A tensor that is divided before the transform."""

    def read(self, path: Path) -> Any:
        return read_image(str(path)).float() / 255.0


class InsideWith(Photos):
    """Everything within the `with`, the transform too."""

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        with Image.open(path) as img:
            img = img.convert("RGB")  # type: ignore[assignment]  # noqa: PLW2901
            if self.transform:
                img = self.transform(img)  # noqa: PLW2901
        return img, path.stem


class VerifiedFirst(Photos):
    """`verify` makes an image unusable, so people open it again."""

    def read(self, path: Path) -> Any:
        Image.open(path).verify()
        return Image.open(path).convert("RGB")


class TorchCodec(Photos):
    """What torchvision's decoders are to be replaced by."""

    def read(self, path: Path) -> Any:
        return torchcodec_decoders.decode_image(path)


class TorchCodecImportedInside(Photos):
    """The name is looked up at each sample."""

    def read(self, path: Path) -> Any:
        from torchcodec.decoders import decode_image as decode

        return decode(path.read_bytes(), mode="RGB")


CASES = (
    Case(
        "read_image as RGB",
        lambda folder: ReadImage(folder, tensors),
        note="The transform begins with a tensor, not with a PIL image: Resize is the one of tensors.",
    ),
    Case("read_image as stored", lambda folder: ReadImageAsStored(folder, tensors)),
    Case("read_image in grey", lambda folder: ReadGray(folder, tensors), "grey", NOT_RGB),
    Case("decode_image of bytes", lambda folder: DecodeBytes(folder, tensors)),
    Case("read_file and decode_jpeg", lambda folder: DecodeJpeg(folder, tensors)),
    Case("torchcodec", lambda folder: TorchCodec(folder, tensors)),
    Case("torchcodec, imported inside", lambda folder: TorchCodecImportedInside(folder, tensors)),
    Case("np.fromfile and decode_image", lambda folder: DecodeFromFile(folder, tensors)),
    Case(
        "open(path, 'rb')",
        lambda folder: FileObject(folder, fixed()),
        note="The file is closed before the transform is called.",
    ),
    Case("BytesIO", lambda folder: BytesOfFile(folder, fixed())),
    Case(
        "from PIL.Image import open",
        lambda folder: ImportedByName(folder, fixed()),
        note="The opener was bound to another name before it could be replaced in PIL.Image.",
    ),
    Case(
        "torchvision's default_loader",
        lambda folder: DefaultLoader(folder, fixed()),
        note="It asks torchvision for its image backend.",
    ),
    Case("divided by 255 before the transform", lambda folder: ScaledByHand(folder, tensors), unsent=SEVERAL),
    Case("all within the with", lambda folder: InsideWith(folder, fixed())),
    Case("verify, then open again", lambda folder: VerifiedFirst(folder, fixed()), images=2, unsent=SEVERAL),
)
