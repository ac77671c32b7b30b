"""What is asked of the image between the opener and the transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageOps
from torch.utils.data import Dataset
from torchvision import transforms, tv_tensors
from torchvision.transforms import v2

from .case import Case
from .folder import fixed, photos
from .reasons import CMYK, DERIVED, NOT_RGB, ONLY_DECODED, OTHER_MODE, PIXELS, SEVERAL, either


class Base(Dataset[Any]):
    """What the data sets of this module share: subclasses prepare the image."""

    def __init__(self, paths: Sequence[Path], transform: Any = None) -> None:
        self.paths = list(paths)
        self.transform = fixed() if transform is None else transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = self.prepare(Image.open(self.paths[index]))
        return self.transform(image), self.paths[index].stem

    def prepare(self, image: Any) -> Any:
        return image


class Converted(Base):
    """Through one or more modes."""

    def __init__(self, paths: Sequence[Path], transform: Any, *modes: str) -> None:
        super().__init__(paths, transform)
        self.modes = modes

    def prepare(self, image: Any) -> Any:
        for mode in self.modes:
            image = image.convert(mode)
        return image


class ConvertedIfNeeded(Base):
    def prepare(self, image: Any) -> Any:
        if image.mode != "RGB":
            image = image.convert("RGB")
        return image


class WithItsSize(Base):
    """The size of the file's image is a part of the sample, as for COCO."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        w, h = image.size
        target = {"orig_size": np.array([h, w]), "wide": image.width > image.height, "area": float(w * h)}
        return self.transform(image), target


class WithItsHeader(Base):
    """What the file tells without being decoded."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as im:
            meta = {"format": im.format, "density": im.info.get("jfif_density"), "mode": im.mode}
            meta["orientation"] = im.getexif().get(0x0112, 1)
            meta["name"] = str(im.filename)
            return self.transform(im.convert("RGB")), meta


class ByItsShape(Base):
    """Wide and tall images have different transforms."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__(paths)
        pad = transforms.Compose([transforms.Resize(24), transforms.CenterCrop(32), transforms.ToTensor()])
        self.tall = pad

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        tf = self.transform if image.width >= image.height else self.tall
        return tf(image), index


class AsArray(Base):
    """numpy in between, and back again in the transform."""

    def prepare(self, image: Any) -> Any:
        return np.array(image.convert("RGB"))


class WithItsBrightness(Base):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        brightness = np.asarray(image).mean() / 255
        return {"image": self.transform(image), "brightness": brightness, "corner": image.getpixel((0, 0))}


class Thumbnail(Base):
    """In place, and by a smaller decode of the JPEG."""

    def prepare(self, image: Any) -> Any:
        image.thumbnail((48, 48))
        return image.convert("RGB")


class Resized(Base):
    def prepare(self, image: Any) -> Any:
        return image.convert("RGB").resize((40, 40), Image.Resampling.LANCZOS)


class Upright(Base):
    """By the camera's orientation."""

    def prepare(self, image: Any) -> Any:
        return ImageOps.exif_transpose(image).convert("RGB")


class Square(Base):
    """Padded by hand."""

    def prepare(self, image: Any) -> Any:
        side = max(image.size)
        canvas = Image.new("RGB", (side, side), (128, 128, 128))
        canvas.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        return canvas


class OnWhite(Base):
    """Sprites with an alpha channel."""

    def prepare(self, image: Any) -> Any:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, image).convert("RGB")


class Faces(Base):
    """Only a box of each image, from a table."""

    def __init__(self, folder: Path) -> None:
        super().__init__(photos(folder))
        self.boxes = pd.read_csv(folder / "labels.csv")[["x0", "y0", "x1", "y1"]].to_numpy()

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB").crop(tuple(self.boxes[index].tolist()))
        return self.transform(image), self.boxes[index]


class AsTvTensor(Base):
    """Wrapped, as version 2 of torchvision's transforms would have it."""

    def prepare(self, image: Any) -> Any:
        return tv_tensors.Image(image.convert("RGB"))


class XRays(Base):
    """16 bits, scaled to eight."""

    def prepare(self, image: Any) -> Any:
        wide = np.array(image).astype(np.float32)
        scaled = (wide - wide.min()) / max(1.0, float(np.ptp(wide))) * 255
        return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")


def _over(kind: Callable[..., Any], *rest: Any) -> Callable[[Path], Any]:
    return lambda folder: kind(photos(folder), *rest)


def _with_odd(kind: Callable[..., Any], name: str, *rest: Any) -> Callable[[Path], Any]:
    return lambda folder: kind([*photos(folder), folder / "odd" / name], *rest)


def _pngs(kind: Callable[..., Any]) -> Callable[[Path], Any]:
    """Over PNGs with an alpha channel."""

    def make(folder: Path) -> Any:
        root = folder / "sprites"
        root.mkdir(exist_ok=True)
        for path in photos(folder):
            with Image.open(path) as image:
                sprite = image.convert("RGBA")
            sprite.putalpha(image.convert("L"))
            sprite.save(root / f"{path.stem}.png")
        return kind(sorted(root.glob("*.png")))

    return make


def _xrays(folder: Path) -> Any:
    root = folder / "xrays"
    root.mkdir(exist_ok=True)
    for path in photos(folder):
        with Image.open(path) as image:
            Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200).save(root / f"{path.stem}.png")
    return XRays(sorted(root.glob("*.png")))


ONE = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
THREE = transforms.Compose([transforms.Grayscale(3), transforms.Resize((32, 32)), transforms.ToTensor()])
FROM_ARRAY = transforms.Compose([transforms.ToPILImage(), transforms.Resize((32, 32)), transforms.ToTensor()])

CASES = (
    Case("convert('L')", _over(Converted, ONE, "L"), "grey", ONLY_DECODED, unsent=NOT_RGB),
    Case("convert('L'), then convert('RGB')", _over(Converted, None, "L", "RGB"), "grey", ONLY_DECODED, unsent=NOT_RGB),
    Case("convert('RGBA')", _over(Converted, ONE, "RGBA"), "grey", ONLY_DECODED, unsent=NOT_RGB),
    Case("convert('YCbCr')", _over(Converted, ONE, "YCbCr"), "grey", ONLY_DECODED, unsent=NOT_RGB),
    Case("no convert, all files RGB", _over(Base)),
    Case("no convert, one file grey", _with_odd(Base, "gray.jpg", THREE), "fallback", NOT_RGB, samples=25, odd=1),
    Case(
        "convert('RGB'), one file CMYK",
        _with_odd(Converted, "cmyk.jpg", None, "RGB"),
        "fallback",
        CMYK,
        samples=25,
        odd=1,
    ),
    Case("convert if the mode is another", _with_odd(ConvertedIfNeeded, "gray.jpg"), samples=25),
    Case("size of the image in the sample", _over(WithItsSize)),
    Case(
        "header of the file in the sample",
        _over(WithItsHeader),
        note="Nothing of it needs a pixel: format, info, getexif() and filename are known once the file is open.",
    ),
    Case("transform by the image's shape", _over(ByItsShape), unsent=SEVERAL),
    Case("array in between", _over(AsArray, FROM_ARRAY)),
    Case("brightness in the sample", _over(WithItsBrightness), "grey", DERIVED, unsent=PIXELS),
    Case("thumbnail", _over(Thumbnail), "grey", ONLY_DECODED, unsent=PIXELS),
    Case("resize before the transform", _over(Resized), unsent=SEVERAL),
    Case(
        "exif_transpose",
        _over(Upright),
        note="Where there is nothing to turn no pixel is read; an image that is turned falls back.",
    ),
    Case("padded to a square by hand", _over(Square), "grey", ONLY_DECODED, unsent=PIXELS),
    Case("PNG with alpha as RGB", _pngs(ConvertedIfNeeded)),
    Case("PNG with alpha on white", _pngs(OnWhite), "grey", OTHER_MODE, unsent=either(PIXELS, NOT_RGB)),
    Case("box of each image", Faces, unsent=SEVERAL),
    Case("tv_tensors.Image of it", _over(AsTvTensor, v2.Compose([v2.Resize((32, 32))])), unsent=SEVERAL),
    Case("16-bit PNGs, scaled by hand", _xrays, "grey", ONLY_DECODED, unsent=either(PIXELS, NOT_RGB)),
)
