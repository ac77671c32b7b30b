"""torchvision's data sets of segmentation, detection and classification as people build them, over files made here.

In: an empty folder. Out: `CASES`; each makes its files there, in the published layout, and builds the data set with a
transform of image and target together (`v2`, or classes written by hand) or, for classification, of the image. Begin
with `JointCase`. `own_joint.py` has data sets of people's own, `views.py` several views of one image.

Nothing of torchvision is replaced. Where it compares the files' sums with those of the published ones, the data set is
of a subclass that compares none, as people have it for a mirror.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.datasets import wrap_dataset_for_transforms_v2
from torchvision.transforms import functional, v2

from ..conftest import MEAN, STD, augmented, draw_photo
from .torchvision_layouts import mat, text

SAMPLES = 12
SIZES = (
    (72, 96),
    (110, 64),
    (60, 60),
    (96, 130),
    (64, 120),
    (121, 83),
)  # (height, width) of the photos in turn, pixels
UNIT, STANDARD = 255.0, 255 * 0.226  # grey levels in 1.0 of a float image, without and with `Normalize(MEAN, STD)`
COLOURS = np.random.default_rng(5).integers(0, 256, (256, 4), dtype=np.uint8)  # of classes, RGBA
IGNORED = 255  # the class of a mask that belongs to no class


@dataclass(frozen=True)
class JointCase:
    """One data set with its transform.

    Attributes:
        name: of the case.
        make: writes the files into an empty folder, if they are not there, and builds the data set.
        images: the places of the images in a sample: the keys on the way there; all that is under such a place is
            images. Everything else must be equal bit by bit between engines.
        scale: grey levels in 1.0 of a float image.
        limit: largest mean difference of an image between `dali-cpu` and `torchvision`, grey levels.
        draws: the generators of which stream the transform draws from: of the whole "sample", or of the "transform".
        offered: whether `dali-cpu` may be chosen; None: it may or may not, and decodes as many samples as it can.
        odd: how many samples `dali-cpu` leaves to `torchvision`.
        collate: the loop's collate function: `list`, or `columns`.
        samples: length of the data set.
        needs: a package without which the case cannot be tried.
    """

    name: str
    make: Callable[[Path], Dataset[Any]]
    images: tuple[tuple[Any, ...], ...] = ((0,),)
    scale: float = STANDARD
    limit: float = 1.5
    draws: Literal["sample", "transform"] = "sample"
    offered: bool | None = True
    odd: int = 0
    collate: Callable[[list[Any]], Any] = list
    samples: int = SAMPLES
    needs: str | None = None


def columns(samples: list[Any]) -> Any:
    """Collate as detection is trained: a tuple of all images, a tuple of all targets."""
    return tuple(zip(*samples, strict=True))


# ---- Files.


def size_of(number: int) -> tuple[int, int]:
    """The height and width of photo `number`, pixels."""
    return SIZES[number % len(SIZES)]


def photo(path: Path, number: int) -> Path:
    """A photo in the format of the path's suffix; nothing is written where it is already."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_photo(path, np.random.default_rng(number), *size_of(number))
    return path


def classes_of(number: int, classes: Sequence[int] = (0, 1, 5, 20, IGNORED)) -> Any:
    """The class of each pixel of photo `number`, in patches that have no regular border; uint16[height, width]."""
    height, width = size_of(number)
    rng = np.random.default_rng(1000 + number)
    patches = rng.choice(np.asarray(classes, dtype=np.uint16), (height // 13 + 1, width // 17 + 1))
    pixels = np.kron(patches, np.ones((13, 17), dtype=np.uint16))[:height, :width].copy()
    pixels[rng.random(pixels.shape) < 0.05] = classes[0]
    return pixels


def palette_mask(path: Path, pixels: Any) -> Path:
    """A PNG whose pixels are indices of a palette, as VOC's."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        mask = Image.fromarray(pixels.astype(np.uint8)).convert("P")
        mask.putdata(pixels.astype(np.uint8).ravel().tolist())
        mask.putpalette(np.random.default_rng(3).integers(0, 256, 768).tolist())
        mask.save(path)
    return path


def png_mask(path: Path, pixels: Any) -> Path:
    """A PNG of these pixels: grey, of 16 bits if they are uint16, RGBA if they have four channels."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return path


def boxes_of(number: int, count: int | None = None) -> list[list[int]]:
    """One to three boxes (x0, y0, x1, y1) in photo `number`, pixels."""
    height, width = size_of(number)
    rng = np.random.default_rng(2000 + number)
    found = []
    for _ in range(1 + number % 3 if count is None else count):
        x0, y0 = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
        found.append([x0, y0, int(rng.integers(x0 + 8, width)), int(rng.integers(y0 + 8, height))])
    return found


def names_of(count: int = SAMPLES) -> list[str]:
    return [f"{number:06d}" for number in range(count)]


# ---- Transforms of image and target together, of torchvision's second version.

FLOATS = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}


def cropped_together(size: Any = 48) -> v2.Compose:
    """A crop that is resized, for segmentation."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(size, scale=(0.3, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(FLOATS, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def jittered_together(size: int = 56) -> v2.Compose:
    """A large scale jitter on the PIL image, then a crop of a fixed size."""
    fill: Any = {tv_tensors.Mask: IGNORED, "others": 0}
    return v2.Compose(
        [
            v2.ScaleJitter((size, size), scale_range=(0.5, 2.0), antialias=True),
            v2.RandomCrop(size, pad_if_needed=True, fill=fill),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(FLOATS, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def resized_together() -> v2.Compose:
    """What is evaluated: nothing is drawn."""
    return v2.Compose([v2.Resize((40, 56), antialias=True), v2.ToImage(), v2.ToDtype(FLOATS, scale=True)])


def boxes_cropped() -> v2.Compose:
    """As SSD is trained."""
    return v2.Compose(
        [
            v2.RandomPhotometricDistort(),
            v2.RandomZoomOut(fill={tv_tensors.Image: (123, 117, 104), Image.Image: (123, 117, 104), "others": 0}),
            v2.RandomIoUCrop(),
            v2.RandomHorizontalFlip(p=0.5),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.SanitizeBoundingBoxes(),
            v2.ToPureTensor(),
        ]
    )


def shortest_side() -> v2.Compose:
    """As Faster R-CNN is trained: images of many sizes."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomShortestSize([40, 48, 56, 64], max_size=90, antialias=True),
            v2.RandomHorizontalFlip(0.5),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )


def boxes_jittered(size: int = 56) -> v2.Compose:
    """Boxes, and masks if there are any, with a large scale jitter; boxes that the crop leaves out remain."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.ScaleJitter((size, size), antialias=True),
            v2.RandomCrop(size, pad_if_needed=True),
            v2.RandomVerticalFlip(),
            v2.ClampBoundingBoxes(),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


# ---- Transforms written by hand: each takes an image and a target, and gives both.


class Together:
    """A chain of such transforms."""

    def __init__(self, steps: Sequence[Callable[[Any, Any], Any]]) -> None:
        self.steps = steps

    def __call__(self, image: Any, target: Any) -> Any:
        for step in self.steps:
            image, target = step(image, target)
        return image, target


class ScaledShortSide:
    """Resize both so that the shorter side is a drawn number of pixels."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def __call__(self, image: Any, target: Any) -> Any:
        side = random.randint(self.least, self.most)
        image = functional.resize(image, side, antialias=True)
        return image, functional.resize(target, side, interpolation=v1.InterpolationMode.NEAREST)


class MirroredPair:
    """Flip both, or neither."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Any, target: Any) -> Any:
        if random.random() < self.p:
            image, target = functional.hflip(image), functional.hflip(target)
        return image, target


class CroppedPair:
    """Crop both at a place drawn by torch; smaller images are padded below and to the right before."""

    def __init__(self, size: int) -> None:
        self.size = size

    def _padded(self, image: Any, fill: int) -> Any:
        width, height = image.size
        short = [max(0, self.size - width), max(0, self.size - height)]
        return functional.pad(image, [0, 0, *short], fill=fill) if any(short) else image

    def __call__(self, image: Any, target: Any) -> Any:
        image, target = self._padded(image, 0), self._padded(target, IGNORED)
        place = v1.RandomCrop.get_params(image, (self.size, self.size))
        return functional.crop(image, *place), functional.crop(target, *place)


class PairOfTensors:
    """An image of 8 bits and a mask of class numbers."""

    def __call__(self, image: Any, target: Any) -> Any:
        return functional.pil_to_tensor(image), torch.as_tensor(np.array(target), dtype=torch.int64)


class StandardisedImage:
    """Floats with a mean of 0 and a deviation of 1; the target stays."""

    def __call__(self, image: Any, target: Any) -> Any:
        return functional.normalize(
            functional.convert_image_dtype(image, torch.float), mean=list(MEAN), std=list(STD)
        ), target


class FloatImage:
    """A PIL image becomes floats in [0, 1]; the target stays."""

    def __call__(self, image: Any, target: Any) -> Any:
        return functional.to_tensor(image), target


class MirroredBoxes:
    """Flip an image and the boxes of its target, XYXY, by torch's generator."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any, target: Any) -> Any:
        if torch.rand(1) < self.p:
            image = functional.hflip(image)
            _, _, width = functional.get_dimensions(image)
            boxes = target["boxes"].clone()
            boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
            target = {**target, "boxes": boxes}
        return image, target


class CroppedAll:
    """Crop an image and each of its masks alike, and make tensors of them."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any, targets: Any) -> Any:
        place = v1.RandomCrop.get_params(image, (self.size, self.size))
        cropped = [functional.crop(target, *place) for target in targets]
        return functional.to_tensor(functional.crop(image, *place)), [torch.as_tensor(np.array(one)) for one in cropped]


class VocBoxes:
    """The boxes and names of a VOC annotation as tensors."""

    def __call__(self, image: Any, target: Any) -> Any:
        objects = target["annotation"]["object"]
        corners = [[float(one["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax")] for one in objects]
        return image, {"boxes": torch.tensor(corners), "names": [one["name"] for one in objects]}


class NearestFirst:
    """Only what is near, of a list of objects as KITTI gives it."""

    def __call__(self, image: Any, target: Any) -> Any:
        return image, sorted((one["location"][2], one["type"], one["bbox"]) for one in target)


def by_hand(size: int = 48) -> Together:
    """Segmentation as torchvision's reference scripts do it."""
    return Together(
        [ScaledShortSide(40, 96), MirroredPair(0.5), CroppedPair(size), PairOfTensors(), StandardisedImage()]
    )


# ---- Segmentation and detection.


def _voc(root: Path) -> Path:
    base = root / "VOCdevkit" / "VOC2012"
    for number, name in enumerate(names_of()):
        photo(base / "JPEGImages" / f"{name}.jpg", number)
        palette_mask(base / "SegmentationClass" / f"{name}.png", classes_of(number))
        height, width = size_of(number)
        sides = ("xmin", "ymin", "xmax", "ymax")
        objects = [
            f"<object><name>{('dog', 'cat', 'person')[k % 3]}</name><difficult>0</difficult><bndbox>"
            + "".join(f"<{side}>{value}</{side}>" for side, value in zip(sides, box, strict=True))
            + "</bndbox></object>"
            for k, box in enumerate(boxes_of(number))
        ]
        shape = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        annotation = f"<annotation><filename>{name}.jpg</filename>{shape}{''.join(objects)}</annotation>"
        text(base / "Annotations" / f"{name}.xml", annotation)
    for kind in ("Segmentation", "Main"):
        text(base / "ImageSets" / kind / "train.txt", *names_of())
    return root


def voc_masks(transforms: Any, *, wrapped: bool) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        dataset = datasets.VOCSegmentation(_voc(root), transforms=transforms)
        return wrap_dataset_for_transforms_v2(dataset) if wrapped else dataset

    return make


def voc_separately(root: Path) -> Any:
    """A transform for the image and one for the mask, which draw nothing."""
    mask = v1.Compose([v1.Resize((40, 40), interpolation=v1.InterpolationMode.NEAREST), v1.PILToTensor()])
    image = v1.Compose([v1.Resize((40, 40)), v1.ToTensor()])
    return datasets.VOCSegmentation(_voc(root), transform=image, target_transform=mask)


def voc_boxes(transforms: Any, *, wrapped: bool) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        dataset = datasets.VOCDetection(_voc(root), transforms=transforms)
        return wrap_dataset_for_transforms_v2(dataset) if wrapped else dataset

    return make


def coco(transforms: Any, keys: Any = None, *, wrapped: bool = True) -> Callable[[Path], Any]:
    """Every fourth image has no annotation."""

    def make(root: Path) -> Any:
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for number, name in enumerate(names_of()):
            height, width = size_of(number)
            images.append({"id": number, "file_name": photo(root / "train" / f"{name}.jpg", number).name})
            images[-1] |= {"height": height, "width": width}
            for x0, y0, x1, y1 in boxes_of(number) if number % 4 else ():
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": 1 + len(annotations) % 3,
                        "bbox": [x0, y0, x1 - x0, y1 - y0],
                        "area": (x1 - x0) * (y1 - y0),
                        "iscrowd": 0,
                        "segmentation": [[x0, y0, x1, y0, x1, y1, (x0 + x1) // 2, y1]],
                    }
                )
        categories = [{"id": number, "name": f"kind {number}"} for number in (1, 2, 3)]
        text(root / "train.json", json.dumps({"images": images, "annotations": annotations, "categories": categories}))
        dataset = datasets.CocoDetection(root / "train", str(root / "train.json"), transforms=transforms)
        return wrap_dataset_for_transforms_v2(dataset, keys) if wrapped else dataset

    return make


def cityscapes(kinds: Any, transforms: Any, *, wrapped: bool = True) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        for number in range(SAMPLES):
            city, name = ("aachen", "bonn")[number % 2], f"{number:06d}_000019"
            photo(root / "leftImg8bit" / "train" / city / f"{city}_{name}_leftImg8bit.png", number)
            base, classes = root / "gtFine" / "train" / city, classes_of(number, (0, 7, 11, 26, 33))
            png_mask(base / f"{city}_{name}_gtFine_labelIds.png", classes.astype(np.uint8))
            things = np.where(classes >= 26, classes * 1000 + number % 2, classes)
            png_mask(base / f"{city}_{name}_gtFine_instanceIds.png", things.astype(np.uint16))
            png_mask(base / f"{city}_{name}_gtFine_color.png", COLOURS[classes])  # RGBA
            height, width = size_of(number)
            polygons = {"imgHeight": height, "imgWidth": width, "objects": boxes_of(number)}
            text(base / f"{city}_{name}_gtFine_polygons.json", json.dumps(polygons))
        dataset = datasets.Cityscapes(root, target_type=kinds, transforms=transforms)
        return wrap_dataset_for_transforms_v2(dataset) if wrapped else dataset

    return make


def pets(kinds: Any, transforms: Any, *, wrapped: bool = True, **options: Any) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        base = root / "oxford-iiit-pet"
        names = [f"{('Abyssinian', 'beagle')[number % 2]}_{number}" for number in range(SAMPLES)]
        text(
            base / "annotations" / "trainval.txt",
            *(f"{name} {1 + k % 2} {1 + k % 2} 1" for k, name in enumerate(names)),
        )
        for number, name in enumerate(names):
            photo(base / "images" / f"{name}.jpg", number)
            png_mask(base / "annotations" / "trimaps" / f"{name}.png", classes_of(number, (1, 2, 3)).astype(np.uint8))
        dataset = datasets.OxfordIIITPet(root, target_types=kinds, transforms=transforms, **options)
        return wrap_dataset_for_transforms_v2(dataset) if wrapped else dataset

    return make


def kitti(transforms: Any, *, wrapped: bool = True) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        base = root / "Kitti" / "raw" / "training"
        for number, name in enumerate(names_of()):
            photo(base / "image_2" / f"{name}.png", number)
            lines = []
            for k, (x0, y0, x1, y1) in enumerate(boxes_of(number)):
                box = f"{x0}.25 {y0}.50 {x1}.00 {y1}.75"
                lines.append(
                    f"{('Car', 'Pedestrian', 'Van')[k % 3]} 0.00 0 -1.57 {box} 1.5 1.6 3.2 -2.7 1.7 {9 - k}.7 -1.6"
                )
            text(base / "label_2" / f"{name}.txt", *lines)
        dataset = datasets.Kitti(root, transforms=transforms)
        return wrap_dataset_for_transforms_v2(dataset) if wrapped else dataset

    return make


def sbd(mode: str, transforms: Any) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        for number, name in enumerate(names_of()):
            photo(root / "img" / f"{name}.jpg", number)
            classes = classes_of(number, (0, 3, 9, 20)).astype(np.uint8)
            edges = np.empty((20, 1), dtype=object)
            for kind in range(20):
                edges[kind, 0] = import_module("scipy.sparse").csc_matrix((classes == kind + 1).astype(np.uint8))
            truth = np.zeros((1, 1), dtype=[("Segmentation", "O"), ("Boundaries", "O")])
            truth["Segmentation"][0, 0], truth["Boundaries"][0, 0] = classes, edges
            mat(root / "cls" / f"{name}.mat", GTcls=truth)
        text(root / "train.txt", *names_of())
        return datasets.SBDataset(root, mode=mode, transforms=transforms)

    return make


def wider_face(transforms: Any) -> Callable[[Path], Any]:
    """Its class takes no joint transform: that is set on the wrapped data set."""

    def make(root: Path) -> Any:
        base = root / "widerface"
        for name in ("WIDER_train", "WIDER_val", "WIDER_test", "wider_face_split"):
            (base / name).mkdir(parents=True, exist_ok=True)
        lines = []
        for number in range(SAMPLES):
            name = f"{number % 2}--Parade/{number}.jpg"
            photo(base / "WIDER_train" / "images" / name, number)
            boxes = boxes_of(number)
            rows = [f"{x0} {y0} {x1 - x0} {y1 - y0} {k} 0 0 0 {k % 2} 0" for k, (x0, y0, x1, y1) in enumerate(boxes)]
            lines += [name, str(len(boxes)), *rows]
        text(base / "wider_face_split" / "wider_face_train_bbx_gt.txt", *lines)
        dataset = wrap_dataset_for_transforms_v2(datasets.WIDERFace(str(root)), target_keys={"bbox"})
        dataset.transforms = transforms
        return dataset

    return make


class CelebA(datasets.CelebA):
    file_list = ()  # a mirror's files


def celeba(kind: str, transform: Any, *, wrapped: bool = True) -> Callable[[Path], Any]:
    def make(root: Path) -> Any:
        base = root / "celeba"
        files = [
            photo(base / "img_align_celeba" / f"{name}.jpg", number).name for number, name in enumerate(names_of())
        ]
        text(base / "list_eval_partition.txt", *(f"{file} 0" for file in files))
        text(base / "identity_CelebA.txt", *(f"{file} {number + 70}" for number, file in enumerate(files)))
        boxes = [boxes_of(number, 1)[0] for number in range(SAMPLES)]
        values: dict[str, list[list[int]]] = {
            "list_bbox": [[x0, y0, x1 - x0, y1 - y0] for x0, y0, x1, y1 in boxes],
            "list_landmarks_align": [[number + column for column in range(10)] for number in range(SAMPLES)],
            "list_attr": [[(number + column) % 2 * 2 - 1 for column in range(3)] for number in range(SAMPLES)],
        }
        for name, rows in values.items():
            header = " ".join(f"c{column}" for column in range(len(rows[0])))
            lines = [" ".join([file, *map(str, row)]) for file, row in zip(files, rows, strict=True)]
            text(base / f"{name}_celeba.txt", str(SAMPLES), header, *lines)
        if not wrapped:
            return CelebA(root, target_type=kind, transform=transform)
        dataset = wrap_dataset_for_transforms_v2(CelebA(root, target_type=kind))
        dataset.transforms = transform
        return dataset

    return make


# ---- Classification: what has an image and a label.


def _tree(base: Path, folders: Sequence[str], name: str = "{:04d}.jpg", count: int = SAMPLES) -> list[str]:
    """Photos by turns in folders; returns their paths below `base`."""
    paths = [f"{folders[number % len(folders)]}/{name.format(number)}" for number in range(count)]
    for number, path in enumerate(paths):
        photo(base / path, number)
    return paths


def of_tree(kind: Any, under: str, folders: Sequence[str], **fixed: Any) -> Callable[..., Any]:
    """A data set that needs nothing but its images."""
    name = fixed.pop("name", "{:04d}.jpg")

    def make(root: Path, transform: Any) -> Any:
        _tree(root / under, folders, name)
        return kind(root, transform=transform, **fixed)

    return make


def imagenet(root: Path, transform: Any) -> Any:
    _tree(root / "val", ("n01440764", "n02102040"), "{:04d}.JPEG")
    torch.save(({"n01440764": ("tench",), "n02102040": ("springer",)}, []), root / "meta.bin")
    return datasets.ImageNet(root, split="val", transform=transform)


def stanford_cars(root: Path, transform: Any) -> Any:
    base = root / "stanford_cars"
    files = [path.partition("/")[2] for path in _tree(base, ("cars_train",), "{:05d}.jpg")]
    rows = [(file, 1 + number % 3) for number, file in enumerate(files)]
    mat(base / "devkit" / "cars_train_annos.mat", annotations=np.array(rows, dtype=[("fname", "O"), ("class", "O")]))
    mat(base / "devkit" / "cars_meta.mat", class_names=np.array(["Audi", "BMW", "Fiat"], dtype=object))
    return datasets.StanfordCars(root, transform=transform)


def food101(root: Path, transform: Any) -> Any:
    base = root / "food-101"
    paths = [path.removesuffix(".jpg") for path in _tree(base / "images", ("sushi", "baklava"))]
    content = {kind: [path for path in paths if path.startswith(kind)] for kind in ("sushi", "baklava")}
    text(base / "meta" / "train.json", json.dumps(content))
    return datasets.Food101(root, transform=transform)


def dtd(root: Path, transform: Any) -> Any:
    paths = _tree(root / "dtd" / "dtd" / "images", ("woven", "banded"))
    text(root / "dtd" / "dtd" / "labels" / "train1.txt", *paths)
    return datasets.DTD(root, transform=transform)


def fgvc_aircraft(root: Path, transform: Any) -> Any:
    base = root / "fgvc-aircraft-2013b" / "data"
    names = [Path(path).stem for path in _tree(base, ("images",))]
    text(base / "families.txt", "A300", "Boeing 737")
    lines = [f"{name} {('A300', 'Boeing 737')[number % 2]}" for number, name in enumerate(names)]
    text(base / "images_family_trainval.txt", *lines)
    return datasets.FGVCAircraft(root, annotation_level="family", transform=transform)


def sun397(root: Path, transform: Any) -> Any:
    text(root / "SUN397" / "ClassName.txt", "/a/abbey", "/b/bar/indoor")
    _tree(root / "SUN397", ("a/abbey", "b/bar/indoor"), "sun_{:04d}.jpg")
    return datasets.SUN397(root, transform=transform)


class Places365(datasets.Places365):
    def _check_integrity(self, file: str, md5: str, download: bool) -> bool:
        return Path(file).is_file()  # a mirror's lists


def places365(root: Path, transform: Any) -> Any:
    paths = _tree(root / "data_256_standard", ("a/airfield", "b/bar"))
    text(root / "categories_places365.txt", "/a/airfield 0", "/b/bar 1")
    text(root / "places365_train_standard.txt", *(f"/{path} {number % 2}" for number, path in enumerate(paths)))
    return Places365(root, small=True, transform=transform)


class Flowers102(datasets.Flowers102):
    def _check_integrity(self) -> bool:
        return True  # a mirror's files


def flowers102(root: Path, transform: Any) -> Any:
    base = root / "flowers-102"
    for number in range(SAMPLES):
        photo(base / "jpg" / f"image_{number + 1:05d}.jpg", number)
    mat(base / "setid.mat", trnid=np.arange(1, SAMPLES + 1)[None], valid=np.array([[2]]), tstid=np.array([[2]]))
    mat(base / "imagelabels.mat", labels=1 + np.arange(SAMPLES)[None])
    return Flowers102(root, transform=transform)


class LFWPeople(datasets.LFWPeople):
    def _check_integrity(self) -> bool:
        return True  # a mirror's files


def lfw(root: Path, transform: Any) -> Any:
    base = root / "lfw-py"
    text(base / "lfw-names.txt", f"Ada_L\t{SAMPLES // 2}", f"Alan_T\t{SAMPLES // 2}")
    text(base / "people.txt", "1", "2", f"Ada_L\t{SAMPLES // 2}", f"Alan_T\t{SAMPLES // 2}")
    for number in range(SAMPLES):
        name = ("Ada_L", "Alan_T")[number % 2]
        photo(base / "lfw_funneled" / name / f"{name}_{number // 2 + 1:04d}.jpg", number)
    return LFWPeople(root, split="10fold", image_set="funneled", transform=transform)


def caltech101(kind: Any) -> Callable[..., Any]:
    def make(root: Path, transform: Any) -> Any:
        base = root / "caltech101"
        photo(base / "101_ObjectCategories" / "BACKGROUND_Google" / "image_0001.jpg", 0)
        for number in range(SAMPLES):
            name, place = ("ant", "bass")[number % 2], number // 2 + 1
            photo(base / "101_ObjectCategories" / name / f"image_{place:04d}.jpg", number)
            contour = np.array(boxes_of(number, 2), dtype=np.float64).T
            mat(base / "Annotations" / name / f"annotation_{place:04d}.mat", obj_contour=contour)
        return datasets.Caltech101(root, target_type=kind, transform=transform)

    return make


def caltech256(root: Path, transform: Any) -> Any:
    for number in range(SAMPLES):
        kind, place = number % 2 + 1, number // 2 + 1
        folder = root / "caltech256" / "256_ObjectCategories" / ("001.ak47", "002.flag")[kind - 1]
        photo(folder / f"{kind:03d}_{place:04d}.jpg", number)
    return datasets.Caltech256(str(root), transform=transform)


OTHER_MODES = {3: "L", 7: "CMYK"}  # of photos by their number, where they are not RGB


def as_stored(
    modes: dict[int, str], kind: str = "JPEG", transform: Callable[[], Any] | None = None
) -> Callable[[Path], Any]:
    """Caltech256 with some photos stored in other modes; all are of this format, whatever their name says."""

    def build(root: Path) -> Any:
        dataset = caltech256(root, any_mode() if transform is None else transform())
        for number, path in enumerate(sorted((root / "caltech256").glob("*/*/*.jpg"))):
            with Image.open(path) as image:
                mode = modes.get(number, "RGB")
                if (image.mode, image.format) != (mode, kind):
                    image.convert(mode).save(path, kind)
        return dataset

    return build


def any_mode() -> v1.Compose:
    """It makes RGB of each image in its own way: what is first is done in the mode of the file."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(32),
            v1.RandomHorizontalFlip(),
            v1.Grayscale(3),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )


def converted_first() -> v1.Compose:
    """As many do it with these data sets."""
    return v1.Compose([v1.Lambda(lambda image: image.convert("RGB")), augmented()])


def for_training() -> v2.Compose:
    """What classification is trained with, of the second version."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def single(build: Callable[[Path, Any], Any], transform: Callable[[], Any] = augmented) -> Callable[[Path], Any]:
    return lambda root: build(root, transform())


CLASSIFICATION: dict[str, Callable[[Path], Any]] = {
    "Imagenette": single(
        of_tree(
            datasets.Imagenette, "imagenette2-160/train", ("n01440764", "n02102040"), name="{:04d}.JPEG", size="160px"
        )
    ),
    "ImageNet": single(imagenet),
    "Country211": single(of_tree(datasets.Country211, "country211/valid", ("AT", "ZW"), split="valid"), for_training),
    "EuroSAT": single(of_tree(datasets.EuroSAT, "eurosat/2750", ("Forest", "River"))),
    "GTSRB": single(
        of_tree(datasets.GTSRB, "gtsrb/GTSRB/Training", ("00000", "00007"), name="{:05d}.ppm"), for_training
    ),
    "StanfordCars": single(stanford_cars),
    "Food101": single(food101, for_training),
    "DTD": single(dtd),
    "FGVCAircraft": single(fgvc_aircraft, for_training),
    "SUN397": single(sun397),
    "Places365": single(places365),
    "Flowers102": single(flowers102, for_training),
    "LFWPeople": single(lfw),
    "OxfordIIITPet, category": pets("category", None, wrapped=False, transform=augmented()),
    "Caltech101": single(caltech101("category")),
    "Caltech101, contour": single(caltech101(["category", "annotation"]), for_training),
    "Caltech256": single(caltech256),
    "CelebA, attributes": celeba("attr", augmented(), wrapped=False),
}

ONLY_DECODED = None  # may be left to torchvision: there is nothing for DALI to do but to decode

CASES = (
    JointCase("VOCSegmentation", voc_masks(cropped_together(), wrapped=True)),
    JointCase("VOCSegmentation, scale jitter", voc_masks(jittered_together(), wrapped=True)),
    JointCase("VOCSegmentation, evaluation", voc_masks(resized_together(), wrapped=True), scale=UNIT),
    JointCase("VOCSegmentation, by hand", voc_masks(by_hand(), wrapped=False)),
    JointCase("VOCSegmentation, separately", voc_separately, scale=UNIT),
    # Photometric distortion comes first, whose hue DALI turns in another colour space: it would only decode, which
    # takes it as long as Pillow.
    JointCase(
        "VOCDetection",
        voc_boxes(boxes_cropped(), wrapped=True),
        scale=UNIT,
        offered=ONLY_DECODED,
        collate=columns,
    ),
    JointCase("VOCDetection, shortest side", voc_boxes(shortest_side(), wrapped=True), scale=UNIT, collate=columns),
    JointCase(
        "VOCDetection, by hand",
        voc_boxes(Together([VocBoxes(), MirroredBoxes(), FloatImage()]), wrapped=False),
        scale=UNIT,
        offered=ONLY_DECODED,
        collate=columns,
    ),
    JointCase(
        "CocoDetection",
        coco(boxes_jittered(), ("boxes", "labels", "masks", "image_id")),
        collate=columns,
        needs="pycocotools",
    ),
    JointCase("CocoDetection, shortest side", coco(shortest_side()), scale=UNIT, collate=columns, needs="pycocotools"),
    JointCase("Cityscapes, semantic", cityscapes("semantic", cropped_together((32, 64)))),
    JointCase("Cityscapes, scale jitter", cityscapes("semantic", jittered_together())),
    # With masks of 16 bits torchvision's own wrapper fails where Pillow opens them as I;16.
    JointCase("Cityscapes, instance", cityscapes("instance", by_hand(), wrapped=False)),
    JointCase(
        "Cityscapes, all", cityscapes(["semantic", "instance", "color"], CroppedAll(48), wrapped=False), scale=UNIT
    ),
    JointCase("Cityscapes, by hand", cityscapes("semantic", by_hand(), wrapped=False)),
    JointCase(
        "Cityscapes, polygons",
        cityscapes("polygon", Together([FloatImage()]), wrapped=False),
        scale=UNIT,
        offered=ONLY_DECODED,
        collate=columns,
    ),
    JointCase("OxfordIIITPet, segmentation", pets("segmentation", cropped_together())),
    JointCase("OxfordIIITPet, both", pets(["category", "segmentation"], jittered_together())),
    JointCase("OxfordIIITPet, by hand", pets("segmentation", by_hand(), wrapped=False)),
    JointCase("Kitti", kitti(shortest_side()), scale=UNIT, collate=columns),
    JointCase(
        "Kitti, by hand",
        kitti(Together([NearestFirst(), FloatImage()]), wrapped=False),
        scale=UNIT,
        offered=ONLY_DECODED,
        collate=columns,
    ),
    JointCase("SBDataset", sbd("segmentation", by_hand())),
    JointCase("SBDataset, boundaries", sbd("boundaries", Together([FloatImage()])), scale=UNIT, offered=ONLY_DECODED),
    JointCase("WIDERFace", wider_face(shortest_side()), scale=UNIT, collate=columns),
    JointCase("CelebA, boxes", celeba("bbox", boxes_jittered())),
    JointCase("Caltech256, some in grey", as_stored(OTHER_MODES), draws="transform", odd=2),
    JointCase(
        "Caltech256, some with a palette",
        as_stored({2: "P", 5: "1", 8: "LA", 11: "RGBA"}, "PNG"),
        draws="transform",
        odd=4,
    ),
    JointCase("Caltech256, of PNG", as_stored({}, "PNG"), draws="transform"),
    JointCase(
        "Caltech256, all in grey", as_stored(dict.fromkeys(range(SAMPLES), "L")), draws="transform", offered=False
    ),
    JointCase(
        "Caltech256, made RGB first",
        as_stored(OTHER_MODES, transform=converted_first),
        draws="transform",
        odd=1,  # that of CMYK
    ),
    *(
        JointCase(
            name,
            make,
            draws="transform",
            odd=SAMPLES if name == "GTSRB" else 0,  # its files are PPM
        )
        for name, make in CLASSIFICATION.items()
    ),
)
