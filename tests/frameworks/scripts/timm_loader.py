"""A training with timm's create_dataset and create_loader: python timm_loader.py FOLDER MODE."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from timm.data import FastCollateMixup, Mixup, create_dataset, create_loader

from tests.frameworks.training import BATCH, EPOCHS, PHOTOS, SIZE, Model, took

FOLDER, MODE = sys.argv[1:3]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"no_aug": True, "use_prefetcher": False},
    "prefetcher": {"no_aug": True},
    "augmented": {"use_prefetcher": False, "color_jitter": 0.0, "auto_augment": "rand-m9-mstd0.5", "re_prob": 0.5},
    "mixed": {"auto_augment": "original-mstd0.5", "re_prob": 0.5},
    "workers": {"color_jitter": 0.0, "num_workers": 2},
    "repeated": {"no_aug": True, "distributed": True, "num_aug_repeats": 3},
    "multi-epochs": {"no_aug": True, "use_multi_epochs_loader": True},
}

torch.manual_seed(3)
if MODE == "repeated":
    torch.distributed.init_process_group("gloo", f"file://{Path('group').absolute()}", rank=0, world_size=1)
options = {"num_workers": 0, **OPTIONS[MODE]}
if MODE == "workers":
    options["collate_fn"] = FastCollateMixup(0.8, 1.0, prob=0.0, num_classes=PHOTOS)
data = create_dataset("", root=FOLDER, split="train", is_training=True)
data.reader.samples = [(path, number) for number, (path, _) in enumerate(data.reader.samples)]
loader = create_loader(
    data, (3, SIZE, SIZE), BATCH, is_training=True, device=torch.device("cpu"), interpolation="bilinear", **options
)
mixup = Mixup(0.8, 1.0, num_classes=PHOTOS) if MODE == "mixed" else None

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(EPOCHS):
    if MODE == "repeated":
        loader.sampler.set_epoch(epoch)
    for images, targets in loader:
        numbers = targets.argmax(dim=1) if MODE == "workers" else targets
        loss = model.loss(images if mixup is None else mixup(images, targets)[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took(numbers, loss)
