"""Data sets of images with masks, boxes or keypoints as NumPy arrays, with OpenCV and albumentations.

In: an empty folder. Out: `CASES`, as in `torchvision_joint.py`. Their files are those of `own_joint.Pairs`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import torch
from albumentations.pytorch import ToTensorV2
from PIL import Image
from torchvision.transforms import functional

from ..conftest import MEAN, STD
from .corpus import exif
from .own_joint import IMAGE, Pairs, over
from .torchvision_joint import IGNORED, UNIT, JointCase, boxes_of, classes_of, columns, photo, png_mask

# ---- albumentations.


def _read(path: Path) -> Any:
    return cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)


class MaskOfAlbumentations(Pairs):
    def __getitem__(self, index: int) -> Any:
        mask = np.array(Image.open(self.masks[index]))
        augmented = self.transforms(image=_read(self.images[index]), mask=mask)
        return augmented["image"], augmented["mask"].long()


class MasksOfAlbumentations(Pairs):
    """A mask for each class."""

    def __getitem__(self, index: int) -> Any:
        image = np.array(Image.open(self.images[index]).convert("RGB"))
        mask = np.array(Image.open(self.masks[index]))
        augmented = self.transforms(image=image, masks=[(mask == k).astype(np.float32) for k in (1, 5, 20)])
        return {"image": augmented["image"], "masks": torch.stack(list(map(torch.as_tensor, augmented["masks"])))}


class FilesOfMasks(Pairs):
    """Three masks, each in a file of its own: with a palette, and in grey."""

    def write(self, number: int, name: str) -> None:
        super().write(number, name)
        png_mask(self.root / "people" / f"{name}.png", classes_of(number, (0, 1)).astype(np.uint8))
        png_mask(self.root / "things" / f"{name}.png", classes_of(number, (0, 2)).astype(np.uint8))

    def masks_of(self, index: int) -> Any:
        others = [self.root / folder / f"{self.names[index]}.png" for folder in ("people", "things")]
        return [np.array(Image.open(self.masks[index])), *(cv2.imread(str(path), 0) for path in others)]

    def __getitem__(self, index: int) -> Any:
        boxes = boxes_of(index)
        points = [tuple(box[:2]) for box in boxes]
        named = {"bboxes": boxes, "labels": list(range(len(boxes))), "keypoints": points}
        found = self.transforms(image=_read(self.images[index]), masks=self.masks_of(index), **named)
        return (
            found["image"],
            found["masks"],
            [tuple(map(float, each)) for each in (*found["bboxes"], *found["keypoints"])],
        )


class StackOfMasks(FilesOfMasks):
    """One array of all masks, of which one is changed in place."""

    def __getitem__(self, index: int) -> Any:
        stack = np.stack(self.masks_of(index))
        if index % 3 == 0:
            stack[1][4:9] = 1
        found = self.transforms(masks=stack, image=_read(self.images[index]))
        return {"image": found["image"], "masks": found["masks"], "count": len(stack)}


class BoxesOfAlbumentations(Pairs):
    def __getitem__(self, index: int) -> Any:
        boxes = boxes_of(index)
        sample = self.transforms(image=_read(self.images[index]), bboxes=boxes, labels=list(range(len(boxes))))
        target = {"boxes": torch.as_tensor(np.array(sample["bboxes"])), "labels": torch.as_tensor(sample["labels"])}
        return sample["image"], target


class KeypointsOfAlbumentations(Pairs):
    def __getitem__(self, index: int) -> Any:
        points = [tuple(box[:2]) for box in boxes_of(index, 4)]
        sample = self.transforms(image=_read(self.images[index]), keypoints=points)
        return sample["image"], [tuple(map(float, point)) for point in sample["keypoints"]]


def cropped_arrays() -> list[Any]:
    return [albumentations.RandomResizedCrop((40, 56), scale=(0.4, 1.0)), albumentations.HorizontalFlip(p=0.5)]


def padded_arrays() -> list[Any]:
    return [
        albumentations.SmallestMaxSize(48),
        albumentations.PadIfNeeded(64, 64, border_mode=0),
        albumentations.RandomCrop(56, 56),
        albumentations.VerticalFlip(p=0.5),
    ]


def of_arrays(steps: list[Any], **kinds: Any) -> albumentations.Compose:
    return albumentations.Compose([*steps, albumentations.Normalize(MEAN, STD), ToTensorV2()], **kinds)


def warped_arrays() -> list[Any]:
    return [
        albumentations.Resize(56, 64),
        albumentations.Affine(scale=(0.8, 1.2), rotate=(-20, 20), p=0.7),
        albumentations.RandomBrightnessContrast(p=0.5),
        albumentations.HueSaturationValue(p=0.5),
        albumentations.CoarseDropout(p=0.5),
    ]


class MaskOfOpenCV(Pairs):
    """Both files by OpenCV: the mask in grey."""

    flags = cv2.IMREAD_GRAYSCALE

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}.jpg", number)
        png_mask(self.root / "masks" / f"{name}.png", classes_of(number).astype(np.uint8))

    def __getitem__(self, index: int) -> Any:
        mask = cv2.imread(str(self.masks[index]), self.flags)
        augmented = self.transforms(image=_read(self.images[index]), mask=mask)
        return augmented["image"], augmented["mask"]


class Unchanged(MaskOfOpenCV):
    flags = cv2.IMREAD_UNCHANGED


class SixteenBits(MaskOfOpenCV):
    """Numbers of instances, up to 65535."""

    flags = cv2.IMREAD_UNCHANGED

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}.jpg", number)
        png_mask(self.root / "masks" / f"{name}.png", classes_of(number, (0, 255, 256, 33003, 65535)))


class TwoImages(Pairs):
    """Two images by the same draws, as arrays; the second is another photo."""

    def __getitem__(self, index: int) -> Any:
        first = np.asarray(Image.open(self.images[index]).convert("RGB"))
        second = np.asarray(Image.open(self.images[(index + 6) % len(self)]).convert("RGB"))
        out = self.transforms(image=first, second=second)
        return {"image": out["image"], "second": out["second"]}


class Turned(MaskOfAlbumentations):
    """Two photos are stored on their side; OpenCV turns them."""

    def write(self, number: int, name: str) -> None:
        super().write(number, name)
        if number in (3, 7):
            path = self.root / "images" / f"{name}.jpg"
            mask = self.root / "masks" / f"{name}.png"
            if not mask.with_suffix(".turned").exists():
                image = Image.open(path)
                image.transpose(Image.Transpose.ROTATE_90).save(path, quality=95, exif=exif(6))
                mask.with_suffix(".turned").touch()


def any_scale() -> list[Any]:
    return [
        albumentations.RandomScale((-0.4, 0.5), p=1),
        albumentations.PadIfNeeded(72, 72, border_mode=0, fill=(20, 90, 200), fill_mask=IGNORED),
        albumentations.RandomCrop(64, 64),
        albumentations.HorizontalFlip(p=0.5),
        albumentations.VerticalFlip(p=0.5),
        albumentations.RandomBrightnessContrast(p=0.5),
    ]


def filled_first() -> list[Any]:
    """A number fills the first channel alone."""
    return [
        albumentations.LongestMaxSize(56),
        albumentations.PadIfNeeded(72, 72, border_mode=0, position="random", fill=114, fill_mask=7),
        albumentations.CenterCrop(70, 68),
        albumentations.OneOf([albumentations.HorizontalFlip(p=1), albumentations.VerticalFlip(p=1)], p=0.7),
    ]


def safe_boxes() -> list[Any]:
    return [albumentations.RandomSizedBBoxSafeCrop(48, 56, p=1), albumentations.HorizontalFlip(p=0.5)]


# ---- OpenCV alone.


class InPlace(Pairs):
    """A part of the image is erased, in the same memory."""

    def __getitem__(self, index: int) -> Any:
        image: Any = cv2.imread(str(self.images[index]))
        image = cv2.resize(image, (80, 64))
        erased = random.random() < 0.5
        if erased:
            part = image[8:40, 16:48]
            part[:] = 0
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        if random.random() < 0.5:
            image = np.ascontiguousarray(image[:, ::-1])
        return torch.from_numpy(image.transpose(2, 0, 1)).float().div(255), erased


class Arrays(Pairs):
    """Arrays are returned, a part of one among them; PyTorch makes tensors of them."""

    def __getitem__(self, index: int) -> Any:
        image: Any = cv2.imread(str(self.images[index]))
        classes = np.array(Image.open(self.masks[index]))
        size = int(random.uniform(50, 90)), int(random.uniform(50, 90))
        image = cv2.flip(cv2.resize(image, size), 0)
        classes = cv2.flip(cv2.resize(classes, size, interpolation=cv2.INTER_NEAREST), 0)
        top, left = random.randrange(size[1] - 40), random.randrange(size[0] - 40)
        part = slice(top, top + 40), slice(left, left + 40)
        return image[part], classes[part].copy(), np.flip(image[..., ::-1], 1).copy()


class ByTorchvision(Pairs):
    """torchvision's transform of an image that was an array."""

    def __getitem__(self, index: int) -> Any:
        image: Any = cv2.imread(str(self.images[index]))
        image = cv2.resize(image[:, :, ::-1], (70, 62), interpolation=cv2.INTER_LINEAR)
        mask = cv2.resize(np.array(Image.open(self.masks[index])), (70, 62), interpolation=cv2.INTER_NEAREST)
        flipped = random.random() < 0.5
        if flipped:
            image, mask = np.fliplr(image), np.fliplr(mask)
        picture = Image.fromarray(np.ascontiguousarray(image))
        target = Image.fromarray(np.ascontiguousarray(mask))
        return functional.normalize(functional.to_tensor(picture), list(MEAN), list(STD)), np.array(target)


class Pipeline(Pairs):
    """After OpenMMLab: steps that change a dictionary of arrays."""

    def __getitem__(self, index: int) -> Any:
        results: dict[str, Any] = {"img_path": str(self.images[index]), "scale": (80, 60)}
        results["img"] = cv2.imread(results["img_path"], cv2.IMREAD_COLOR)
        results["gt_seg"] = np.array(Image.open(self.masks[index]))
        for step in (self.resize, self.crop, self.flip, self.distort, self.pack):
            results = step(results)
        return results

    def resize(self, results: dict[str, Any]) -> dict[str, Any]:
        ratio = np.random.random_sample() * 1.5 + 0.5  # noqa: NPY002
        width, height = (int(side * ratio) for side in results["scale"])
        results["img"] = cv2.resize(results["img"], (width, height), interpolation=cv2.INTER_LINEAR)
        results["gt_seg"] = cv2.resize(results["gt_seg"], (width, height), interpolation=cv2.INTER_NEAREST)
        return {**results, "img_shape": results["img"].shape[:2]}

    def crop(self, results: dict[str, Any]) -> dict[str, Any]:
        height, width = results["img"].shape[:2]
        top = np.random.randint(0, max(height - 48, 0) + 1)  # noqa: NPY002
        left = np.random.randint(0, max(width - 48, 0) + 1)  # noqa: NPY002
        for name in ("img", "gt_seg"):
            results[name] = results[name][top : top + 48, left : left + 48, ...]
        return results

    def flip(self, results: dict[str, Any]) -> dict[str, Any]:
        results["flip"] = bool(np.random.rand() < 0.5)  # noqa: NPY002
        if results["flip"]:
            for name in ("img", "gt_seg"):
                results[name] = np.flip(results[name], axis=1)
        return results

    def distort(self, results: dict[str, Any]) -> dict[str, Any]:
        if np.random.randint(2):  # noqa: NPY002
            beta = np.random.uniform(-32, 32)  # noqa: NPY002
            results["img"] = np.clip(results["img"].astype(np.float32) + beta, 0, 255).astype(np.uint8)
        return results

    def pack(self, results: dict[str, Any]) -> dict[str, Any]:
        height, width = results["img"].shape[:2]
        border = (0, 48 - height, 0, 48 - width)
        image = cv2.copyMakeBorder(results["img"], *border, cv2.BORDER_CONSTANT, value=(0, 0, 0))
        classes = cv2.copyMakeBorder(results["gt_seg"], *border, cv2.BORDER_CONSTANT, value=IGNORED)
        inputs = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return {"inputs": inputs, "gt": torch.from_numpy(classes[None].astype(np.int64)), "flip": results["flip"]}


class Letterbox(Pairs):
    """After YOLO: the longer side is fixed, grey bars fill the square; boxes are shares of it."""

    def __getitem__(self, index: int) -> Any:
        image: Any = cv2.imread(str(self.images[index]))
        (height, width), boxes = image.shape[:2], np.array(boxes_of(index), dtype=np.float32)
        ratio = 64 / max(height, width)
        size = (round(width * ratio), round(height * ratio))
        image = cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)
        across, down = (64 - size[0]) / 2, (64 - size[1]) / 2
        top, left = round(down - 0.1), round(across - 0.1)
        border = (top, 64 - size[1] - top, left, 64 - size[0] - left)
        image = cv2.copyMakeBorder(image, *border, cv2.BORDER_CONSTANT, value=(114, 114, 114))
        boxes = boxes * ratio + np.array([left, top, left, top], dtype=np.float32)
        if random.random() < 0.5:
            image = np.fliplr(image)
            boxes[:, [0, 2]] = 64 - boxes[:, [2, 0]]
        image = image[:, :, ::-1].transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(image)), torch.from_numpy(boxes / 64)


def scaled_arrays() -> list[Any]:
    return [
        albumentations.RandomScale((-0.3, 0.4), p=1),
        albumentations.PadIfNeeded(72, 72, border_mode=0, fill_mask=IGNORED),
        albumentations.RandomCrop(56, 56),
        albumentations.HorizontalFlip(p=0.5),
    ]


BOXES = albumentations.BboxParams(format="pascal_voc", label_fields=["labels"])
POINTS = albumentations.KeypointParams(format="xy", remove_invisible=False)

CASES = (
    JointCase("albumentations, mask", over(MaskOfAlbumentations, lambda: of_arrays(cropped_arrays()))),
    JointCase("albumentations, masks", over(MasksOfAlbumentations, lambda: of_arrays(padded_arrays())), IMAGE),
    JointCase(
        "albumentations, masks in files",
        over(
            FilesOfMasks,
            lambda: of_arrays(
                padded_arrays(),
                bbox_params=BOXES,
                keypoint_params=POINTS,
            ),
        ),
    ),
    JointCase(
        "albumentations, masks as they are",
        over(
            FilesOfMasks,
            lambda: albumentations.Compose(
                cropped_arrays(),
                bbox_params=BOXES,
                keypoint_params=POINTS,
            ),
        ),
    ),
    JointCase("albumentations, a stack of masks", over(StackOfMasks, lambda: of_arrays(scaled_arrays())), IMAGE),
    JointCase(
        "albumentations, masks warped",
        over(StackOfMasks, lambda: of_arrays(warped_arrays())),
        IMAGE,
        limit=3,
        offered=None,
    ),
    JointCase("albumentations, 16 bits", over(SixteenBits, lambda: of_arrays(scaled_arrays()))),
    JointCase(
        "albumentations, boxes",
        over(BoxesOfAlbumentations, lambda: of_arrays(padded_arrays(), bbox_params=BOXES)),
        collate=columns,
    ),
    JointCase(
        "albumentations, keypoints",
        over(KeypointsOfAlbumentations, lambda: of_arrays(cropped_arrays(), keypoint_params=POINTS)),
    ),
    JointCase(
        "albumentations, safe boxes",
        over(BoxesOfAlbumentations, lambda: of_arrays(safe_boxes(), bbox_params=BOXES)),
        collate=columns,
    ),
    JointCase("albumentations, any scale", over(MaskOfOpenCV, lambda: of_arrays(any_scale()))),
    JointCase("albumentations, filled", over(Unchanged, lambda: of_arrays(filled_first()))),
    JointCase(
        "albumentations, two images",
        over(TwoImages, lambda: of_arrays(filled_first()[:3], additional_targets={"second": "image"})),
        (("image",), ("second",)),
    ),
    JointCase("albumentations, bytes", over(MaskOfOpenCV, lambda: albumentations.Compose(cropped_arrays()))),
    JointCase("albumentations, turned", over(Turned, lambda: of_arrays(cropped_arrays())), odd=2),
    JointCase("letterbox", over(Letterbox)),
    JointCase("arrays in place", over(InPlace), scale=UNIT),
    JointCase("arrays of OpenCV", over(Arrays), ((0,), (2,))),
    JointCase("arrays to torchvision", over(ByTorchvision)),
)
# What DALI may leave to torchvision, and may not change.
DELICATE = (
    JointCase("pipeline of arrays", over(Pipeline), (("inputs",),), offered=None),
    JointCase(
        "albumentations, warped", over(MaskOfAlbumentations, lambda: of_arrays(warped_arrays())), limit=3, offered=None
    ),
)
