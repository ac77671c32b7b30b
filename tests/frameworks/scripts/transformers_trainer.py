"""A training of an image model with Transformers' Trainer: python transformers_trainer.py FOLDER [table].

With `table` its data set is one of Hugging Face's `datasets`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from tests.frameworks.training import BATCH, EPOCHS, Model, plain_transform, took

FOLDER = sys.argv[1]


class Photos(Dataset[Any]):
    def __init__(self) -> None:
        self.files = sorted(Path(FOLDER).glob("*/*.jpg"))
        self.transform = plain_transform()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": self.transform(Image.open(self.files[index]).convert("RGB")), "labels": index}


def table() -> Any:
    from datasets import Dataset as Table
    from datasets import Features, Value
    from datasets import Image as ImageColumn

    transform = plain_transform()

    def transformed(examples: dict[str, Any]) -> dict[str, Any]:
        pixels = [transform(image.convert("RGB")) for image in examples["image"]]
        return {"pixel_values": pixels, "labels": examples["number"]}

    files = [str(file) for file in sorted(Path(FOLDER).glob("*/*.jpg"))]
    features = Features({"image": ImageColumn(), "number": Value("int64")})
    rows = Table.from_dict({"image": files, "number": list(range(len(files)))}, features=features)
    return rows.with_transform(transformed)


class Brightness(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = self.model.loss(pixel_values)
        took(labels, loss, kind="train" if self.training else "validation")
        return {"loss": loss, "logits": self.model(pixel_values)}


arguments = TrainingArguments(
    output_dir=".",
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    logging_strategy="no",
    save_strategy="no",
    eval_strategy="epoch",
    num_train_epochs=EPOCHS,
    per_device_train_batch_size=BATCH,
    per_device_eval_batch_size=BATCH,
    learning_rate=0.05,
    lr_scheduler_type="constant",
    remove_unused_columns=False,
    seed=3,
)
made = table if sys.argv[2:] == ["table"] else Photos
Trainer(Brightness(), arguments, train_dataset=made(), eval_dataset=made()).train()
