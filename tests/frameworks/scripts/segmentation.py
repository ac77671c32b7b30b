"""A training as torchvision's references/segmentation/train.py does it: python segmentation.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler
from torchvision import tv_tensors
from torchvision.datasets import VOCSegmentation
from torchvision.transforms import v2

from tests.frameworks.training import BATCH, EPOCHS, PHOTOS, SIZE, Model, took

FOLDER = sys.argv[1]


def voc() -> str:
    """Return the folder of a small data set in the layout of Pascal VOC; the masks are the samples' numbers."""
    root = Path("voc")
    base = root / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (base / name).mkdir(parents=True)
    photos = sorted(Path(FOLDER).glob("*/*.jpg"))
    for number, photo in enumerate(photos):
        (base / "JPEGImages" / f"{photo.stem}.jpg").write_bytes(photo.read_bytes())
        with Image.open(photo) as image:
            Image.new("L", image.size, number).save(base / "SegmentationClass" / f"{photo.stem}.png")
    listed = "\n".join(photo.stem for photo in photos)
    (base / "ImageSets" / "Segmentation" / "train.txt").write_text(listed)
    return str(root)


class SegmentationPresetTrain:
    """references/segmentation/presets.py."""

    def __init__(self) -> None:
        self.transforms = v2.Compose(
            [
                v2.PILToTensor(),
                v2.RandomResize(min_size=SIZE, max_size=2 * SIZE),
                v2.RandomHorizontalFlip(0.5),
                v2.RandomCrop(SIZE, pad_if_needed=True),
                v2.ToDtype({tv_tensors.Image: torch.float, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            ]
        )

    def __call__(self, img: Any, target: Any) -> Any:
        return self.transforms(tv_tensors.Image(v2.functional.pil_to_tensor(img)), tv_tensors.Mask(target))


def cat_list(images: Any, fill_value: int = 0) -> Any:
    max_size = tuple(max(s) for s in zip(*[img.shape for img in images], strict=True))
    batched_imgs = images[0].new(len(images), *max_size).fill_(fill_value)
    for img, pad_img in zip(images, batched_imgs, strict=True):
        pad_img[..., : img.shape[-2], : img.shape[-1]].copy_(img)
    return batched_imgs


def collate_fn(batch: Any) -> Any:
    images, targets = list(zip(*batch, strict=True))
    return cat_list(images, fill_value=0), cat_list(targets, fill_value=255)


torch.manual_seed(3)
dataset = VOCSegmentation(voc(), image_set="train", transforms=SegmentationPresetTrain())
data_loader = DataLoader(
    dataset, batch_size=BATCH, sampler=RandomSampler(dataset), num_workers=0, collate_fn=collate_fn, drop_last=True
)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(EPOCHS):
    for image, target in data_loader:
        loss = model.loss(image)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took([int(mask[mask < PHOTOS].max()) for mask in target], loss)
