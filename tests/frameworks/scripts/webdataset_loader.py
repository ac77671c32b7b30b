"""A training with webdataset's WebLoader: python webdataset_loader.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import webdataset

from tests.frameworks.training import BATCH, EPOCHS, SIZE, Model, took

FOLDER = sys.argv[1]
with webdataset.TarWriter("photos.tar") as shard:
    for number, photo in enumerate(sorted(Path(FOLDER).glob("*/*.jpg"))):
        shard.write({"__key__": f"{number:04d}", "jpg": photo.read_bytes(), "cls": number})

model = Model()
data = webdataset.WebDataset("photos.tar", shardshuffle=False).decode("torchrgb").to_tuple("jpg", "cls")
data = data.map_tuple(
    lambda image: torch.nn.functional.interpolate(image[None], (SIZE, SIZE))[0], lambda number: number
)
loader = webdataset.WebLoader(data.batched(BATCH), batch_size=None, num_workers=1)
for _ in range(EPOCHS):
    for images, numbers in loader:
        took(numbers, model.loss(images))
