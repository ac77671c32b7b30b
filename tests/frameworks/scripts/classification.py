"""A training as torchvision's references/classification/train.py does it: python classification.py FOLDER MODE."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate
from torchvision.transforms import autoaugment, v2
from torchvision.transforms.functional import InterpolationMode

from tests.frameworks.training import BATCH, EPOCHS, PHOTOS, SIZE, Model, numbered, took

FOLDER, MODE = sys.argv[1:3]


class RASampler(torch.utils.data.Sampler[int]):
    """references/classification/sampler.py, for one process."""

    def __init__(self, dataset: Any, seed: int = 0, repetitions: int = 3) -> None:
        self.dataset, self.seed, self.repetitions, self.epoch = dataset, seed, repetitions, 0
        self.num_selected_samples = math.floor(len(dataset) // BATCH * BATCH)

    def __iter__(self) -> Iterator[int]:
        g = torch.Generator()
        g.manual_seed(self.seed + self.epoch)
        indices = torch.randperm(len(self.dataset), generator=g).tolist()
        indices = [ele for ele in indices for _ in range(self.repetitions)]
        return iter(indices[: self.num_selected_samples])

    def __len__(self) -> int:
        return self.num_selected_samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class ClassificationPresetTrain:
    """references/classification/presets.py."""

    def __init__(self) -> None:
        self.transforms = v2.Compose(
            [
                v2.PILToTensor(),
                v2.RandomResizedCrop(SIZE, interpolation=InterpolationMode.BILINEAR, antialias=True),
                v2.RandomHorizontalFlip(0.5),
                autoaugment.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR),
                v2.ToDtype(torch.float, scale=True),
                v2.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
                v2.RandomErasing(0.1),
                v2.ToPureTensor(),
            ]
        )

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


torch.manual_seed(3)
dataset = numbered(FOLDER, ClassificationPresetTrain() if MODE == "mixed" else None)
dataset_test = numbered(FOLDER)
train_sampler: Any = RASampler(dataset) if MODE == "repeated" else RandomSampler(dataset)
test_sampler = SequentialSampler(dataset_test)
collate_fn: Any = default_collate
if MODE == "mixed":
    mixup_or_cutmix = v2.RandomChoice([v2.MixUp(num_classes=PHOTOS), v2.CutMix(num_classes=PHOTOS)])

    def collate_fn(batch: Any) -> Any:
        return [*mixup_or_cutmix(*default_collate(batch)), torch.tensor([number for _, number in batch])]


data_loader = DataLoader(dataset, batch_size=BATCH, sampler=train_sampler, pin_memory=False, collate_fn=collate_fn)
data_loader_test = DataLoader(dataset_test, batch_size=BATCH, sampler=test_sampler, pin_memory=False)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def train_one_epoch() -> None:
    for batch in data_loader:
        loss = model.loss(batch[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took(batch[-1], loss)


def evaluate() -> None:
    with torch.inference_mode():
        for image, target in data_loader_test:
            took(target, model.loss(image), kind="validation")


for epoch in range(EPOCHS):
    if MODE == "repeated":
        train_sampler.set_epoch(epoch)
    train_one_epoch()
    evaluate()
