"""A training with MONAI's data sets and DataLoader: python monai_loader.py FOLDER MODE."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from monai.data import CacheDataset, DataLoader, Dataset
from monai.transforms import Compose, LoadImaged, RandFlipd, Resized, ScaleIntensityd

from tests.frameworks.training import BATCH, EPOCHS, SIZE, Model, took

FOLDER, MODE = sys.argv[1:3]
files = [{"image": str(path), "number": number} for number, path in enumerate(sorted(Path(FOLDER).glob("*/*.jpg")))]
transforms = Compose(
    [
        LoadImaged("image", ensure_channel_first=True),
        Resized("image", (SIZE, SIZE)),
        ScaleIntensityd("image"),
        RandFlipd("image", prob=0.5),
    ]
)
torch.manual_seed(3)
data = CacheDataset(files, transforms, progress=False) if MODE == "cached" else Dataset(files, transforms)
train_loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2 if MODE == "workers" else 0)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(EPOCHS):
    for batch in train_loader:
        loss = model.loss(batch["image"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took(batch["number"], loss)
