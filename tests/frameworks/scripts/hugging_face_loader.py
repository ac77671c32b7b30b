"""A training on a data set of Hugging Face's `datasets`: python hugging_face_loader.py FOLDER MODE [WORKERS]."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, Features, Image, Value, load_dataset
from PIL import Image as Pillow
from torch.utils.data import DataLoader

from tests.frameworks.training import BATCH, EPOCHS, Model, plain_transform, took

FOLDER, MODE = sys.argv[1], sys.argv[2]
WORKERS = int(sys.argv[3]) if len(sys.argv) > 3 else 0

transform = plain_transform()
photos = sorted(Path(FOLDER).glob("*/*.jpg"))
columns: dict[str, Any] = {
    "image": [{"bytes": photo.read_bytes(), "path": None} for photo in photos],
    "number": list(range(len(photos))),
}


def transformed(examples: dict[str, Any]) -> dict[str, Any]:
    """Keep the images beside their pixel values, as the package's own guide does."""
    examples["pixel_values"] = [transform(image.convert("RGB")) for image in examples["image"]]
    return examples


def decoded(examples: dict[str, Any]) -> dict[str, Any]:
    opened = [Pillow.open(io.BytesIO(image["bytes"])).convert("RGB") for image in examples["image"]]
    return {"pixel_values": list(map(transform, opened)), "number": examples["number"]}


def scaled(examples: dict[str, Any]) -> dict[str, Any]:
    """Draw once for a batch."""
    factor = random.uniform(0.9, 1.1)
    values = [transform(image.convert("RGB")) * factor for image in examples["image"]]
    return {"pixel_values": values, "number": examples["number"]}


def collate(examples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.stack([example["pixel_values"] for example in examples])
    return pixels, torch.tensor([example["number"] for example in examples])


dataset = Dataset.from_dict(columns, features=Features({"image": Image(), "number": Value("int64")}))
data: Any
if MODE == "set_transform":
    data = dataset
    data.set_transform(transformed)
elif MODE == "undecoded":
    data = dataset.cast_column("image", Image(decode=False)).with_transform(decoded)
elif MODE == "batches":
    data = dataset.with_transform(scaled)
elif MODE == "iterable":
    data = dataset.to_iterable_dataset().map(transformed, batched=True)
elif MODE == "streaming":
    dataset.to_parquet("photos.parquet")
    stream = load_dataset("parquet", data_files="photos.parquet", split="train", streaming=True)
    data = stream.map(transformed, batched=True, batch_size=4)
else:
    data = dataset.with_transform(transformed)

torch.manual_seed(3)
random.seed(3)
model = Model()
shuffled = MODE not in ("iterable", "streaming")
loader: Any = DataLoader(data, BATCH, shuffle=shuffled, num_workers=WORKERS, collate_fn=collate)
for _ in range(EPOCHS):
    for images, numbers in loader:
        took(numbers, model.loss(images))
