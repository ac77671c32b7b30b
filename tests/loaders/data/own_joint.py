"""Data sets of images with masks, boxes or keypoints as people write them by hand.

In: an empty folder. Out: `CASES`, as in `torchvision_joint.py`, which has the files and the transforms. Each class has
another way to keep image and target together: one object for both, the same numbers given to two functions, numbers
drawn in `__getitem__` itself. `array_joint.py` has those of arrays.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.io import read_image
from torchvision.ops import masks_to_boxes
from torchvision.transforms import functional, v2

from ..conftest import MEAN, STD
from .corpus import exif
from .torchvision_joint import (
    IGNORED,
    ONLY_DECODED,
    SAMPLES,
    UNIT,
    JointCase,
    MirroredBoxes,
    Together,
    boxes_of,
    by_hand,
    classes_of,
    columns,
    cropped_together,
    names_of,
    palette_mask,
    photo,
    png_mask,
    size_of,
)

NEAREST = v1.InterpolationMode.NEAREST
WAYS = (v1.InterpolationMode.BILINEAR, NEAREST)
TRAIN_IDS = np.full(256, IGNORED, dtype=np.uint8)  # of Cityscapes: number of a class in the files -> in training
TRAIN_IDS[[7, 8, 11, 26, 33]] = [0, 1, 2, 13, 18]


class Pairs(Dataset[Any]):
    """Images, and a file beside each; subclasses read both and transform them."""

    suffix = ".jpg"

    def __init__(self, root: Path, transforms: Any = None) -> None:
        self.root = root
        self.transforms = transforms
        self.names = names_of()
        for number, name in enumerate(self.names):
            self.write(number, name)
        self.images = [root / "images" / f"{name}{self.suffix}" for name in self.names]
        self.masks = [root / "masks" / f"{name}.png" for name in self.names]

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}{self.suffix}", number)
        palette_mask(self.root / "masks" / f"{name}.png", classes_of(number))

    def __len__(self) -> int:
        return len(self.images)

    def pair(self, index: int) -> tuple[Any, Any]:
        return Image.open(self.images[index]).convert("RGB"), Image.open(self.masks[index])


# ---- Detection.


class PennFudan(Pairs):
    """After the tutorial: pedestrians from the values of the mask, boxes from the pedestrians."""

    suffix = ".png"

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}.png", number)
        people = np.zeros(size_of(number), dtype=np.uint8)
        for value, (x0, y0, x1, y1) in enumerate(boxes_of(number), 1):
            people[y0:y1, x0:x1] = value
        png_mask(self.root / "masks" / f"{name}.png", people)

    def __getitem__(self, idx: int) -> Any:
        img = read_image(str(self.images[idx]))
        mask = read_image(str(self.masks[idx]))
        obj_ids = torch.unique(mask)[1:]
        masks = (mask == obj_ids[:, None, None]).to(dtype=torch.uint8)
        boxes = masks_to_boxes(masks)
        area = (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 2] - boxes[:, 0])
        img = tv_tensors.Image(img)
        target: dict[str, Any] = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=functional.get_dimensions(img)[1:]),
            "masks": tv_tensors.Mask(masks),
            "labels": torch.ones((len(obj_ids),), dtype=torch.int64),
            "image_id": idx,
            "area": area,
            "iscrowd": torch.zeros((len(obj_ids),), dtype=torch.int64),
        }
        if self.transforms is not None:
            img, target = self.transforms(img, target)
        return img, target


def of_the_tutorial() -> v2.Compose:
    return v2.Compose([v2.RandomHorizontalFlip(0.5), v2.ToDtype(torch.float, scale=True), v2.ToPureTensor()])


def resized_tutorial() -> v2.Compose:
    return v2.Compose([v2.RandomShortestSize([40, 56], antialias=True), *of_the_tutorial().transforms])


class Detection(Pairs):
    """Boxes in memory; images stay of their own sizes, within limits for the shorter and the longer side."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB")
        boxes = torch.tensor(boxes_of(index), dtype=torch.float32)
        width, height = image.size
        side = int(torch.randint(40, 72, (1,)))
        image = functional.resize(image, [side], max_size=100, antialias=True)
        boxes = boxes * torch.tensor([image.width / width, image.height / height] * 2)
        if torch.rand(()) < 0.5:
            image = functional.hflip(image)
            boxes[:, [0, 2]] = image.width - boxes[:, [2, 0]]
        keep = (boxes[:, 2] - boxes[:, 0]) > 4
        target = {"boxes": boxes[keep], "labels": torch.arange(len(boxes))[keep], "size": image.size}
        return functional.normalize(functional.to_tensor(image), list(MEAN), list(STD)), target


class Keypoints(Pairs):
    """A skeleton for each image, as torchvision's own type."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB")
        points = torch.tensor(boxes_of(index, 4), dtype=torch.float32).reshape(-1, 2)
        skeleton = tv_tensors.KeyPoints(points, canvas_size=(image.height, image.width))
        return self.transforms({"image": image, "points": skeleton, "visible": points[:, 0] > 20})


class MirroredKeypoints(Pairs):
    """Left and right change places where the image is flipped."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB").resize((64, 48))
        points = np.array(boxes_of(index, 4), dtype=np.float32).reshape(-1, 2)
        if np.random.rand() < 0.5:  # noqa: NPY002 - as people write
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            points = points[::-1].copy()
            points[:, 0] = 63 - points[:, 0]
        return functional.to_tensor(image), torch.from_numpy(points)


# ---- Segmentation, with Pillow and torchvision.


class Joint(Pairs):
    """One object transforms both."""

    def __getitem__(self, index: int) -> Any:
        return self.transforms(*self.pair(index))


class WithTypes(Pairs):
    """An image and a mask as torchvision's own types, in a dictionary."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        sample = {"image": tv_tensors.Image(image), "mask": tv_tensors.Mask(mask), "name": self.names[index]}
        return self.transforms(sample)


class MaskAsArray(Pairs):
    """The pixels of the mask are asked for before anything is drawn."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        return self.transforms(image, tv_tensors.Mask(np.array(mask)))


class TrainIds(Pairs):
    """The classes of the files are looked up in a table; two functions get the same numbers."""

    suffix = ".png"

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}.png", number)
        png_mask(self.root / "masks" / f"{name}.png", classes_of(number, (0, 7, 8, 11, 26, 33)).astype(np.uint8))

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        place = v1.RandomResizedCrop.get_params(image, scale=[0.4, 1.0], ratio=[0.75, 1.33])
        image = functional.resized_crop(image, *place, size=[40, 56], antialias=True)
        mask = functional.resized_crop(mask, *place, size=[40, 56], interpolation=NEAREST)
        labels = torch.from_numpy(TRAIN_IDS[np.array(mask)]).long()
        return functional.normalize(functional.to_tensor(image), list(MEAN), list(STD)), labels


class CoinForBoth(Pairs):
    """Python's generator flips both."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        image, mask = functional.resize(image, [48, 48]), functional.resize(mask, [48, 48], NEAREST)
        if random.random() < 0.5:
            image, mask = functional.hflip(image), functional.hflip(mask)
        if random.random() < 0.5:
            image, mask = functional.vflip(image), functional.vflip(mask)
        return functional.to_tensor(image), functional.pil_to_tensor(mask).squeeze(0).long()


class CropForBoth(Pairs):
    """torch's generator crops both."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        top, left, height, width = v1.RandomCrop.get_params(image, output_size=(56, 56))
        image, mask = functional.crop(image, top, left, height, width), functional.crop(mask, top, left, height, width)
        return functional.to_tensor(image), torch.as_tensor(np.array(mask, dtype=np.int64))


class SameSeed(Pairs):
    """The generator is put back, so that a second transform draws the same."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        crop = {"size": 40, "scale": (0.4, 1.0)}
        self.image_transform = v1.Compose([v1.RandomResizedCrop(**crop), v1.RandomHorizontalFlip(), v1.ToTensor()])
        self.mask_transform = v1.Compose(
            [v1.RandomResizedCrop(**crop, interpolation=NEAREST), v1.RandomHorizontalFlip(), v1.PILToTensor()]
        )

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        seed = int(torch.randint(2**31, (1,)))
        torch.manual_seed(seed)
        image = self.image_transform(image)
        torch.manual_seed(seed)
        return image, self.mask_transform(mask)


class SixteenBits(Pairs):
    """Instances in masks of 16 bits, as panoptic data sets have them."""

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}.jpg", number)
        png_mask(self.root / "masks" / f"{name}.png", classes_of(number, (0, 7000, 11001, 26002, 33003)))

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        instances = torch.from_numpy(np.array(mask).astype(np.int32))
        return self.transforms(image, tv_tensors.Mask(instances[None]))


class OtherSize(Pairs):
    """Masks of a quarter of their image's size."""

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}.jpg", number)
        palette_mask(self.root / "masks" / f"{name}.png", classes_of(number)[::4, ::4])

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        mask = mask.resize(image.size, Image.Resampling.NEAREST)
        return self.transforms(image, tv_tensors.Mask(mask))


class Heatmaps(Pairs):
    """The second image is one of light, not of classes."""

    def write(self, number: int, name: str) -> None:
        photo(self.root / "images" / f"{name}.jpg", number)
        heights, widths = size_of(number)
        down, across = np.mgrid[0:heights, 0:widths]
        png_mask(self.root / "masks" / f"{name}.png", (down + across + number).astype(np.uint8))

    def __getitem__(self, index: int) -> Any:
        image, depth = self.pair(index)
        side = random.choice([32, 40, 48])
        image, depth = functional.resize(image, [side, side]), functional.resize(depth, [side, side])
        return {"image": functional.to_tensor(image), "depth": functional.to_tensor(depth), "side": side}


class Stereo(Pairs):
    """Two photos, cropped alike."""

    def __getitem__(self, index: int) -> Any:
        left, right = (Image.open(self.images[k]).convert("RGB") for k in (index, (index + 6) % len(self)))
        return self.transforms(left, right)


# ---- Files that are not what most are.


class Odd(Pairs):
    """A CMYK image, a grey one with transparency and one that is to be turned are among them."""

    def write(self, number: int, name: str) -> None:
        path = self.root / "images" / f"{name}.jpg"
        if path.exists():
            return
        super().write(number, name)
        image = Image.open(path).convert("RGB")
        if number == 2:
            image.convert("CMYK").save(path)
        elif number == 5:
            grey = image.convert("LA")
            grey.putalpha(128)
            grey.save(path, "PNG")
        elif number == 7:
            image.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif(6))

    def __getitem__(self, index: int) -> Any:
        image, mask = ImageOps.exif_transpose(Image.open(self.images[index])), Image.open(self.masks[index])
        image = image.convert("RGB")
        return self.transforms(image, tv_tensors.Mask(mask))


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


FAULTS: dict[str, Callable[[Path, Path], object]] = {
    "image cut off": lambda image, mask: _cut(image),
    "image missing": lambda image, mask: image.unlink(),
    "image is a text": lambda image, mask: image.write_text("<html>404</html>"),
    "mask cut off": lambda image, mask: _cut(mask),
    "mask missing": lambda image, mask: mask.unlink(),
    "mask of another size": lambda image, mask: Image.new("P", (30, 20)).save(mask),
}


class Faulty(Pairs):
    """Sample 4 has a fault."""

    fault: str

    def write(self, number: int, name: str) -> None:
        image, mask = self.root / "images" / f"{name}.jpg", self.root / "masks" / f"{name}.png"
        if not (self.root / "images" / f"{SAMPLES - 1:06d}.jpg").exists():
            super().write(number, name)
            if number == 4:
                FAULTS[self.fault](image, mask)

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        return self.transforms(image, tv_tensors.Mask(mask))


class NextOne(Faulty):
    """Instead of a file that cannot be read there is another one."""

    fault = "image cut off"

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return self[index + 1]


# ---- Where what is done depends on pixels, or on Pillow's own methods.


class Brightness(Pairs):
    """The label is how bright the crop is; it decides on a flip, too."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB")
        image = functional.crop(image, *v1.RandomCrop.get_params(image, (48, 48)))
        mean = float(np.asarray(image).mean())
        if mean > 120:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return functional.to_tensor(image), {"mean": mean, "darkest": image.getextrema()}


class OneClassAtMost(Pairs):
    """A crop is drawn again until no class has three tenths of it, ten times at most."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        classes = np.asarray(mask)
        place = (0, 0, 40, 40)
        for _ in range(10):
            place = v1.RandomCrop.get_params(image, (40, 40))
            top, left, height, width = place
            counts = np.unique(classes[top : top + height, left : left + width], return_counts=True)[1]
            if counts.max() < 0.3 * counts.sum():
                break
        image, mask = functional.crop(image, *place), functional.crop(mask, *place)
        return functional.to_tensor(image), torch.as_tensor(np.array(mask)).long()


class Standardised(Pairs):
    """Each image by its own mean and deviation."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        image, mask = image.resize((48, 40)), mask.resize((48, 40), Image.Resampling.NEAREST)
        pixels = np.asarray(image, dtype=np.float32)
        pixels = (pixels - pixels.mean()) / (pixels.std() + 1e-6)
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), torch.from_numpy(np.array(mask, dtype=np.int64))


class CutMixed(Pairs):
    """Classes of another sample are pasted over this one."""

    def __getitem__(self, index: int) -> Any:
        (image, mask), (other, others) = self.pair(index), self.pair(random.randrange(len(self)))
        size = (56, 56)
        arrays = [np.array(functional.resize(one, size)) for one in (image, other)]
        classes = [np.array(functional.resize(one, size, NEAREST)) for one in (mask, others)]
        pasted = np.isin(classes[1], [1, 5])
        pixels = np.where(pasted[..., None], arrays[1], arrays[0])
        return functional.to_tensor(pixels), torch.from_numpy(np.where(pasted, classes[1], classes[0])).long()


class CutOutByHand(Pairs):
    """A hole in the tensor, and nothing to learn there."""

    def __getitem__(self, index: int) -> Any:
        image, mask = (functional.resize(one, [48, 48], how) for one, how in zip(self.pair(index), WAYS, strict=True))
        image, classes = functional.to_tensor(image), torch.as_tensor(np.array(mask)).long()
        top, left = torch.randint(0, 32, (2,)).tolist()
        image[:, top : top + 16, left : left + 16] = 0.5
        classes[top : top + 16, left : left + 16] = IGNORED
        return image, classes


class Drawn(Pairs):
    """A frame is drawn into the image itself."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        ImageDraw.Draw(image).rectangle(boxes_of(index)[0], outline=(255, 0, 0), width=2)
        image.putpixel((3, 3), (0, 255, 0))
        return functional.to_tensor(ImageOps.fit(image, (40, 40))), np.array(ImageOps.mirror(mask))


class MethodsOfPillow(Pairs):
    """Everything by Pillow's own methods: a crop beyond the border, a turn by a quarter, thumbnails."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        left, top = random.randint(-10, 20), random.randint(-10, 20)
        image, mask = (one.crop((left, top, left + 60, top + 50)) for one in (image, mask))
        if random.random() < 0.5:
            image, mask = (one.transpose(Image.Transpose.ROTATE_90) for one in (image, mask))
        thumbnail = image.copy()
        thumbnail.thumbnail((32, 32))
        image = image.resize((48, 48), Image.Resampling.BILINEAR)
        mask = mask.resize((48, 48), Image.Resampling.NEAREST)
        return {"image": np.asarray(image), "small": thumbnail, "mask": np.asarray(mask), "colours": mask.getpalette()}


class MaskInGrey(Pairs):
    """The palette is looked up: the mask is of light, and becomes one of two classes."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        image, mask = functional.hflip(image), functional.hflip(mask.convert("L"))
        foreground = mask.point(lambda value: 255 * (value > 100)).convert("1")
        return functional.to_tensor(functional.resize(image, [32, 32])), {
            "grey": functional.pil_to_tensor(mask),
            "foreground": np.asarray(foreground.resize((32, 32), 0)),
            "count": int(np.count_nonzero(np.asarray(mask))),
        }


class Untransformed(Pairs):
    """Pillow's images as they are, for a collate function that makes the batch."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        return image, mask


def turned_together() -> v2.Compose:
    """What moves each pixel of image and mask by a drawn map."""
    fill: Any = {tv_tensors.Mask: IGNORED, "others": 0}
    return v2.Compose(
        [
            v2.Resize((56, 64), antialias=True),
            v2.RandomChoice(
                [
                    v2.RandomRotation(20, fill=fill),
                    v2.RandomAffine(10, translate=(0.1, 0.1), scale=(0.8, 1.2), shear=5, fill=fill),
                    v2.RandomPerspective(0.3, p=1.0, fill=fill),
                    v2.ElasticTransform(20.0, fill=fill),
                ]
            ),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )


# ---- As repositories do it that many start from.


class OneOf:
    """One of two transforms, by Python's generator."""

    def __init__(self, first: Any, second: Any, p: float = 0.5) -> None:
        self.first, self.second, self.p = first, second, p

    def __call__(self, image: Any, target: Any) -> Any:
        return (self.first if random.random() < self.p else self.second)(image, target)


class ResizedBoxes:
    """A shorter side from a list, within a longest one; boxes, areas and masks follow."""

    def __init__(self, sides: list[int], longest: int) -> None:
        self.sides, self.longest = sides, longest

    def __call__(self, image: Any, target: Any) -> Any:
        before, side = image.size, random.choice(self.sides)
        if max(before) / min(before) * side > self.longest:
            side = round(self.longest * min(before) / max(before))
        height, width = (side * before[1] // min(before), side * before[0] // min(before))
        image = functional.resize(image, [height, width])
        ratios = [after / old for after, old in zip(image.size, before, strict=True)]
        masks = torch.nn.functional.interpolate(target["masks"][:, None].float(), [height, width], mode="nearest")
        return image, {
            **target,
            "boxes": target["boxes"] * torch.as_tensor([*ratios, *ratios]),
            "area": target["area"] * (ratios[0] * ratios[1]),
            "size": torch.tensor([height, width]),
            "masks": masks[:, 0] > 0.5,
        }


class CroppedBoxes:
    """A crop of drawn sides; boxes that it leaves nothing of go, with their labels."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def __call__(self, image: Any, target: Any) -> Any:
        width = random.randint(self.least, min(image.width, self.most))
        height = random.randint(self.least, min(image.height, self.most))
        top, left, height, width = v1.RandomCrop.get_params(image, (height, width))
        boxes = target["boxes"] - torch.as_tensor([left, top, left, top])
        boxes = torch.min(boxes.reshape(-1, 2, 2), torch.as_tensor([width, height], dtype=torch.float32)).clamp(min=0)
        keep = torch.all(boxes[:, 1, :] > boxes[:, 0, :], dim=1)
        masks = target["masks"][:, top : top + height, left : left + width]
        target = {**target, "boxes": boxes.reshape(-1, 4), "masks": masks, "size": torch.tensor([height, width])}
        target["area"] = (boxes[:, 1, :] - boxes[:, 0, :]).prod(dim=1)
        found = {name: target[name][keep] for name in ("boxes", "area", "labels", "masks")}
        return functional.crop(image, top, left, height, width), {**target, **found}


class CentredBoxes:
    """Floats; boxes by centre and size, as shares of the image's."""

    def __call__(self, image: Any, target: Any) -> Any:
        image = functional.normalize(functional.to_tensor(image), mean=list(MEAN), std=list(STD))
        (x0, y0, x1, y1), (height, width) = target["boxes"].unbind(-1), image.shape[-2:]
        boxes = torch.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], dim=-1)
        return image, {**target, "boxes": boxes / torch.tensor([width, height, width, height], dtype=torch.float32)}


class OfQueries(Pairs):
    """After DETR: transforms of its own for image, boxes and masks."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.images[index]).convert("RGB")
        boxes = torch.as_tensor(boxes_of(index), dtype=torch.float32)
        masks = torch.zeros((len(boxes), image.height, image.width), dtype=torch.uint8)
        for mask, (x0, y0, x1, y1) in zip(masks, boxes_of(index), strict=True):
            mask[y0:y1, x0:x1] = 1
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        target = {"image_id": torch.tensor([index]), "boxes": boxes, "labels": torch.arange(len(boxes)), "area": area}
        return self.transforms(
            image, target | {"masks": masks, "orig_size": torch.as_tensor([image.height, image.width])}
        )


def of_queries() -> Together:
    sides = [40, 48, 56, 64]
    cropped = Together([ResizedBoxes([40, 50, 60], 120), CroppedBoxes(32, 48), ResizedBoxes(sides, 90)])
    return Together([MirroredBoxes(), OneOf(ResizedBoxes(sides, 90), cropped), CentredBoxes()])


class Scaled(Pairs):
    """After a well-known U-Net: everything by a factor, class numbers from the values that the masks have."""

    def __init__(self, root: Path, scale: float = 0.5) -> None:
        super().__init__(root)
        self.scale, self.values = scale, [0, 1, 5, 20, IGNORED]

    def preprocess(self, image: Any, *, is_mask: bool) -> Any:
        width, height = (int(self.scale * side) for side in image.size)
        image = image.resize(
            (width, height), resample=Image.Resampling.NEAREST if is_mask else Image.Resampling.BICUBIC
        )
        pixels = np.asarray(image)
        if is_mask:
            mask = np.zeros((height, width), dtype=np.int64)
            for number, value in enumerate(self.values):
                mask[pixels == value] = number
            return mask
        pixels = pixels.transpose((2, 0, 1))
        return pixels / 255.0 if (pixels > 1).any() else pixels

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        assert image.size == mask.size
        return {
            "image": torch.as_tensor(self.preprocess(image, is_mask=False).copy()).float().contiguous(),
            "mask": torch.as_tensor(self.preprocess(mask, is_mask=True).copy()).long().contiguous(),
        }


class Depth(SixteenBits):
    """A depth in millimetres, in 16 bits."""

    def __getitem__(self, index: int) -> Any:
        image, depth = self.pair(index)
        image, depth = functional.resize(image, [48, 64]), functional.resize(depth, [48, 64], NEAREST)
        if torch.rand(1).item() > 0.5:
            image, depth = functional.hflip(image), functional.hflip(depth)
        metres = torch.from_numpy(np.array(depth, dtype=np.float32))[None] / 1000.0
        return {"image": functional.to_tensor(image), "depth": metres, "valid": metres > 0}


class MixedDepth(Depth):
    """One of the files has 8 bits."""

    def write(self, number: int, name: str) -> None:
        path = self.root / "masks" / f"{name}.png"
        if number == 5:
            png_mask(path, classes_of(number).astype(np.uint8))
        super().write(number, name)


class DepthOfTiff(Depth):
    """One of the files is a TIFF, whatever its name says."""

    def write(self, number: int, name: str) -> None:
        path = self.root / "masks" / f"{name}.png"
        if number == 7 and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(classes_of(number, (0, 7000, 33003))).save(path, "TIFF")
        super().write(number, name)


class Instances(SixteenBits):
    """Numbers of instances in 16 bits, scaled, cut out and filled up by Pillow alone."""

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pair(index)
        factor = random.uniform(0.4, 1.8)
        size = max(1, int(image.width * factor)), max(1, int(image.height * factor))
        image, mask = image.resize(size, Image.Resampling.BILINEAR), mask.resize(size, Image.Resampling.NEAREST)
        short = [max(0, 64 - side) for side in size]
        if any(short):
            image = ImageOps.expand(image, (0, 0, *short), fill=0)
            mask = ImageOps.expand(mask, (0, 0, *short), fill=65535)
        left, top = random.randint(0, image.width - 64), random.randint(0, image.height - 64)
        box = (left, top, left + 64, top + 64)
        image, mask = image.crop(box), mask.crop(box)
        if random.random() < 0.5:
            image, mask = ImageOps.mirror(image), ImageOps.mirror(mask)
        if random.random() < 0.5:
            image, mask = ImageOps.flip(image), ImageOps.flip(mask)
        return functional.to_tensor(image), mask if index % 2 else functional.pil_to_tensor(mask)


# ---- All of them.


def over(kind: Callable[..., Any], transforms: Callable[[], Any] | None = None) -> Callable[[Path], Any]:
    return lambda root: kind(root) if transforms is None else kind(root, transforms())


def cropped_pil() -> v2.Compose:
    """On the PIL image; a mask stays of its own type."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(44, scale=(0.3, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )


def jittered_after() -> v2.Compose:
    """Colours are changed on the tensor, after the crop."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(40, scale=(0.3, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ColorJitter(0.3, 0.3, 0.3),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )


def both_stereo() -> v2.Compose:
    return v2.Compose([v2.Resize((48, 64)), v2.RandomCrop(40), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


BOTH = ((0,), (1,))
IMAGE = (("image",),)

CASES = (
    JointCase(
        "detection as in the tutorial",
        over(PennFudan, of_the_tutorial),
        scale=UNIT,
        offered=ONLY_DECODED,
        collate=columns,
    ),
    JointCase("detection as in the tutorial, resized", over(PennFudan, resized_tutorial), scale=UNIT, collate=columns),
    JointCase("detection of variable sizes", over(Detection), collate=columns),
    JointCase("keypoints of a type", over(Keypoints, cropped_pil), IMAGE, UNIT),
    JointCase("keypoints flipped by hand", over(MirroredKeypoints), scale=UNIT),
    JointCase("image and mask by hand", over(Joint, by_hand)),
    JointCase("image and mask of types", over(WithTypes, cropped_together), IMAGE),
    JointCase("mask as an array", over(MaskAsArray, cropped_pil), scale=UNIT),
    JointCase("colours changed on the tensor", over(MaskAsArray, jittered_after), scale=UNIT),
    JointCase("train ids looked up", over(TrainIds)),
    JointCase("coin for both", over(CoinForBoth), scale=UNIT),
    JointCase("crop for both", over(CropForBoth), scale=UNIT),
    JointCase("same seed for both", over(SameSeed), scale=UNIT),
    JointCase("masks of 16 bits", over(SixteenBits, cropped_pil), scale=UNIT),
    JointCase("masks of another size", over(OtherSize, cropped_together)),
    JointCase("heat maps", over(Heatmaps), (("image",), ("depth",)), UNIT),
    JointCase("stereo", over(Stereo, both_stereo), BOTH, UNIT),
    JointCase("odd files", over(Odd, cropped_together), offered=None),
    JointCase("next one where a file is cut off", over(NextOne, cropped_together), odd=1),
    JointCase("queries", over(OfQueries, of_queries), collate=columns),
    JointCase("scaled by a factor", over(Scaled), IMAGE, UNIT),
    JointCase("depth of 16 bits", over(Depth), IMAGE, UNIT),
    JointCase("depth, of 8 bits in a file", over(MixedDepth), IMAGE, UNIT, odd=1),
    JointCase("depth, of TIFF in a file", over(DepthOfTiff), IMAGE, UNIT, odd=1),
    JointCase("instances of 16 bits", over(Instances), scale=UNIT),
)
# What DALI may leave to torchvision, and may not change.
DELICATE = (
    JointCase("brightness as a label", over(Brightness), scale=UNIT, offered=None),
    JointCase("no class too large", over(OneClassAtMost), scale=UNIT, offered=None),
    JointCase("each by its own mean", over(Standardised), scale=50, offered=None),
    JointCase("pasted classes", over(CutMixed), scale=UNIT, limit=3, offered=None),
    JointCase("holes by hand", over(CutOutByHand), scale=UNIT, offered=None),
    JointCase("drawn into the image", over(Drawn), scale=UNIT, offered=None),
    JointCase("methods of Pillow", over(MethodsOfPillow), (("image",), ("small",)), offered=None),
    JointCase("mask in grey", over(MaskInGrey), scale=UNIT, offered=None),
    JointCase("Pillow's images", over(Untransformed), offered=None),
    JointCase("turned together", over(WithTypes, turned_together), IMAGE, UNIT, offered=None),
)
# An error, on every engine.
FAULTY = {
    fault: JointCase(fault, over(type("Faulty", (Faulty,), {"fault": fault}), cropped_together)) for fault in FAULTS
}
