"""Images as NumPy arrays: OpenCV, and the transforms of albumentations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from cv2 import cvtColor, imread
from numpy import asarray
from PIL import Image
from torchvision import transforms

from .case import Case, as_list
from .folder import fixed, label_of
from .openers import Photos, tensors
from .reasons import DERIVED, NOT_RGB, ONLY_DECODED, PIXELS, SEVERAL, TURNED, UNKNOWN_OPENER

arrays = transforms.Compose([transforms.ToPILImage(), transforms.Resize((32, 32)), transforms.ToTensor()])


class Cv2(Photos):
    def read(self, path: Path) -> Any:
        image = cv2.imread(str(path))
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


class Cv2ByName(Photos):
    def read(self, path: Path) -> Any:
        return cvtColor(imread(str(path), 1), cv2.COLOR_BGR2RGB)


class Cv2AsRgb(Photos):
    """Since OpenCV 4.11."""

    def read(self, path: Path) -> Any:
        return cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)


class Cv2Bytes(Photos):
    def read(self, path: Path) -> Any:
        buffer = np.fromfile(path, dtype=np.uint8)
        return cv2.cvtColor(cv2.imdecode(buffer, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


class Cv2Bgr(Photos):
    """The conversion was forgotten; the network learns it."""

    def read(self, path: Path) -> Any:
        return cv2.imread(str(path), cv2.IMREAD_COLOR)


class Cv2Twice(Photos):
    """Converted twice, it is BGR again."""

    def read(self, path: Path) -> Any:
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        return cv2.cvtColor(image, cv2.COLOR_RGB2BGR)


class Cv2Reversed(Photos):
    def read(self, path: Path) -> Any:
        image: Any = cv2.imread(str(path))
        return image[:, :, ::-1].copy()


class Cv2Gray(Photos):
    def read(self, path: Path) -> Any:
        return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2GRAY)


class Cv2AsPil(Photos):
    """OpenCV opens, torchvision transforms."""

    def read(self, path: Path) -> Any:
        return Image.fromarray(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB))


class Cv2AsPilBgr(Photos):
    def read(self, path: Path) -> Any:
        image: Any = cv2.imread(str(path))
        return Image.fromarray(image)


class Cv2Resized(Photos):
    """The image is scaled before the transform."""

    def read(self, path: Path) -> Any:
        return cv2.resize(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB), (40, 40))


class Cv2ResizedOrBlack(Photos):
    """What fails is black: a stand-in that OpenCV does not take must not become that."""

    def read(self, path: Path) -> Any:
        try:
            return cv2.resize(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB), (40, 40))
        except Exception:  # noqa: BLE001 - as people write it
            return np.zeros((40, 40, 3), dtype=np.uint8)


class Cv2ByHand(Photos):
    """No transform at all."""

    def __getitem__(self, index: int) -> Any:
        image = cv2.cvtColor(cv2.imread(str(self.paths[index])), cv2.COLOR_BGR2RGB)
        image = cv2.resize(image, (32, 32)).astype(np.float32) / 255.0
        return torch.from_numpy(image).permute(2, 0, 1), label_of(self.paths[index])


class Cv2FromNumpy(Photos):
    """A function of torch, written in C, is given the array."""

    def read(self, path: Path) -> Any:
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        return torch.from_numpy(image).permute(2, 0, 1)


class Cv2Bright(Photos):
    """A label of the pixels."""

    def __getitem__(self, index: int) -> Any:
        image = cv2.cvtColor(cv2.imread(str(self.paths[index])), cv2.COLOR_BGR2RGB)
        bright = float(np.mean(image)) > 127
        return self.transform(image), bright


class Cv2ByKeyword(Photos):
    def read(self, path: Path) -> Any:
        return cv2.cvtColor(cv2.imread(str(path), flags=cv2.IMREAD_COLOR), code=cv2.COLOR_BGR2RGB)


class Cv2Indexed(Photos):
    """By arrays; what goes wrong is a label, too: nothing may be raised that the data set would swallow."""

    def __getitem__(self, index: int) -> Any:
        image: Any = cv2.cvtColor(cv2.imread(str(self.paths[index])), cv2.COLOR_BGR2RGB)
        try:
            corner = int(image[np.arange(4), np.arange(4)].max())
        except ValueError:
            corner = -1
        return self.transform(image), corner


class Cv2Untransformed(Photos):
    """Arrays of different sizes, in a list."""

    def __getitem__(self, index: int) -> Any:
        return cv2.cvtColor(cv2.imread(str(self.paths[index])), cv2.COLOR_BGR2RGB), index


class Cv2Shape(Photos):
    """The size goes into the sample, as for detection."""

    def __getitem__(self, index: int) -> Any:
        image = cv2.cvtColor(cv2.imread(str(self.paths[index])), cv2.COLOR_BGR2RGB)
        height, width, _ = image.shape
        return {"image": self.transform(image), "size": (height, width), "points": image.ndim}


class Cv2ImportedInside(Photos):
    """A local import is not followed."""

    def read(self, path: Path) -> Any:
        import cv2 as opencv

        return opencv.cvtColor(opencv.imread(str(path)), opencv.COLOR_BGR2RGB)


class Turned(Cv2):
    """One of the photos has an EXIF orientation, which OpenCV follows and DALI does not."""

    def __init__(self, folder: Path, transform: Any) -> None:
        super().__init__(folder, transform)
        self.paths.append(folder / "odd" / "turned.jpg")


class TurnedPil(Turned):
    """Pillow does not follow it."""

    def read(self, path: Path) -> Any:
        return asarray(Image.open(path).convert("RGB"))


class ArrayOfPil(Photos):
    def read(self, path: Path) -> Any:
        return asarray(Image.open(path).convert("RGB"), dtype=np.uint8)


class FloatArrayOfPil(Photos):
    def read(self, path: Path) -> Any:
        return np.array(Image.open(path).convert("RGB"), dtype=np.float32) / 255


class Albumentations(Photos):
    """The transform takes and gives names."""

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        image = self.read(path)
        if self.transform is not None:
            image = self.transform(image=image)["image"]
        return image, label_of(path)

    def read(self, path: Path) -> Any:
        return np.array(Image.open(path).convert("RGB"))


class AlbumentationsOfCv2(Albumentations):
    def read(self, path: Path) -> Any:
        return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)


class AlbumentationsOfDictionary(Albumentations):
    """Its result is kept whole for a moment."""

    def __getitem__(self, index: int) -> Any:
        augmented = self.transform(image=self.read(self.paths[index]))
        return {"image": augmented["image"], "file": self.paths[index].name}


class Segmentation(Albumentations):
    """Image and mask together."""

    def __getitem__(self, index: int) -> Any:
        image = self.read(self.paths[index])
        mask = np.zeros(image.shape[:2], dtype=np.uint8)
        both = self.transform(image=image, mask=mask)
        return both["image"], both["mask"]


class InAFunction(Photos):
    """albumentations behind a function, as it is given to ImageFolder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, augment)

    def read(self, path: Path) -> Any:
        return Image.open(path).convert("RGB")


class Shaded(albumentations.ImageOnlyTransform):
    """A transform of one's own, which draws."""

    def apply(self, img: Any, **_params: Any) -> Any:
        return (img * self.py_random.uniform(0.5, 1.0)).astype(np.uint8)


def composed(*first: Any, **options: Any) -> Any:
    """A Compose that ends as most do."""
    rest = (albumentations.Resize(32, 32), albumentations.HorizontalFlip(p=1.0), albumentations.Normalize())
    return albumentations.Compose([*first, *rest, ToTensorV2()], **options)


IN_A_FUNCTION = composed()


def resized(image: Any) -> Any:
    """A function of OpenCV's on a float array."""
    return cv2.resize(image, (32, 32))


def augment(image: Any) -> Any:
    """A chain of albumentations for a PIL image."""
    return IN_A_FUNCTION(image=np.array(image))["image"]


def trained() -> Any:
    """What people train with."""
    return albumentations.Compose(
        [
            albumentations.RandomResizedCrop((32, 32), scale=(0.5, 1.0)),
            albumentations.HorizontalFlip(p=0.5),
            albumentations.VerticalFlip(p=0.2),
            albumentations.RandomBrightnessContrast(p=0.8),
            albumentations.Normalize(),
            ToTensorV2(),
        ],
        seed=5,
    )


def evaluated() -> Any:
    """What people evaluate with."""
    return albumentations.Compose(
        [
            albumentations.SmallestMaxSize(40),
            albumentations.CenterCrop(32, 32),
            albumentations.Normalize(),
            ToTensorV2(),
        ],
        seed=5,
    )


def chance() -> Any:
    """Transforms that are applied together, or not at all."""
    return albumentations.Compose([albumentations.Resize(50, 50), albumentations.CenterCrop(40, 40)], p=0.5)


def noisy() -> Any:
    """With a choice that DALI does not know."""
    choice = albumentations.OneOf([albumentations.GaussNoise(p=1.0), albumentations.Blur(p=1.0)], p=0.7)
    return composed(albumentations.RandomCrop(48, 40), choice, Shaded(p=0.5), seed=5)


CASES = (
    Case(
        "cv2.imread and cvtColor",
        lambda folder: Cv2(folder, arrays),
        note="ToPILImage as the first transform is nothing to an image that DALI decodes.",
    ),
    Case("cv2 functions by name", lambda folder: Cv2ByName(folder, arrays)),
    Case("cv2.imread as RGB", lambda folder: Cv2AsRgb(folder, arrays)),
    Case("cv2.imdecode", lambda folder: Cv2Bytes(folder, arrays)),
    Case("cv2.imread as BGR", lambda folder: Cv2Bgr(folder, arrays), "grey", ONLY_DECODED, unsent=NOT_RGB),
    Case("cv2.cvtColor twice", lambda folder: Cv2Twice(folder, arrays), "grey", ONLY_DECODED, unsent=NOT_RGB),
    Case("cv2.imread, reversed", lambda folder: Cv2Reversed(folder, arrays)),
    Case("cv2, gray", lambda folder: Cv2Gray(folder, arrays), "grey", ONLY_DECODED, unsent=NOT_RGB),
    Case("cv2 and Image.fromarray", lambda folder: Cv2AsPil(folder, fixed())),
    Case("cv2 and Image.fromarray as BGR", lambda folder: Cv2AsPilBgr(folder, fixed()), "offered", "", unsent=SEVERAL),
    Case("cv2.resize first", lambda folder: Cv2Resized(folder, arrays), "offered", "", unsent=SEVERAL),
    Case("cv2.resize, or black", lambda folder: Cv2ResizedOrBlack(folder, arrays), "offered", "", unsent=SEVERAL),
    Case("cv2 by hand", lambda folder: Cv2ByHand(folder, None), "offered", "", unsent=SEVERAL),
    Case("cv2 and torch.from_numpy", lambda folder: Cv2FromNumpy(folder, tensors), "grey", ONLY_DECODED, unsent=PIXELS),
    Case("cv2 and np.mean", lambda folder: Cv2Bright(folder, arrays), "grey", ONLY_DECODED, unsent=PIXELS),
    Case("cv2 by keyword", lambda folder: Cv2ByKeyword(folder, arrays)),
    Case("cv2, indexed by arrays", lambda folder: Cv2Indexed(folder, arrays), "grey", DERIVED, unsent=PIXELS),
    Case("cv2 without a transform", lambda folder: Cv2Untransformed(folder, None), collate=as_list),
    Case("cv2, the size beside it", lambda folder: Cv2Shape(folder, arrays)),
    Case("cv2, imported inside", lambda folder: Cv2ImportedInside(folder, arrays), "grey", UNKNOWN_OPENER),
    Case("cv2, a photo that is turned", lambda folder: Turned(folder, arrays), "fallback", TURNED, samples=25, odd=1),
    Case("np.asarray, a photo that is turned", lambda folder: TurnedPil(folder, arrays), samples=25),
    Case("np.asarray of a PIL image", lambda folder: ArrayOfPil(folder, arrays)),
    Case(
        "a float array of a PIL image",
        lambda folder: FloatArrayOfPil(folder, resized),
        "grey",
        ONLY_DECODED,
        unsent=PIXELS,
    ),
    Case(
        "albumentations after PIL",
        lambda folder: Albumentations(folder, composed()),
        note="np.array(image) is allowed where it is only handed to albumentations.",
    ),
    Case("albumentations after cv2", lambda folder: AlbumentationsOfCv2(folder, composed())),
    Case("albumentations, its dictionary", lambda folder: AlbumentationsOfDictionary(folder, composed())),
    Case("albumentations to train", lambda folder: AlbumentationsOfCv2(folder, trained()), random=True),
    Case("albumentations to evaluate", lambda folder: Albumentations(folder, evaluated())),
    Case("albumentations with OneOf", lambda folder: AlbumentationsOfCv2(folder, noisy()), random=True),
    Case(
        "albumentations by chance",
        lambda folder: AlbumentationsOfCv2(folder, albumentations.Compose([chance(), *composed().transforms], seed=5)),
        random=True,
        unsent=SEVERAL,
        collate=as_list,
        note="A Compose that is applied by chance is opaque: DALI decodes.",
    ),
    Case("albumentations with a mask", lambda folder: Segmentation(folder, composed()), "offered", "", unsent=SEVERAL),
    Case(
        "albumentations that can be replayed",
        lambda folder: Albumentations(folder, albumentations.ReplayCompose(composed().transforms)),
        "offered",
        "",
        unsent=SEVERAL,
    ),
    Case("albumentations in a function", InAFunction),
)
