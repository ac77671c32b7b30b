"""A training with Lightning's Trainer: python lightning_trainer.py FOLDER [MODE]."""

from __future__ import annotations

import sys
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

from tests.frameworks.training import BATCH, EPOCHS, Model, numbered, random_transform, took

FOLDER, MODE = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "plain"


class Photos(pl.LightningDataModule):
    def setup(self, stage: str) -> None:
        self.train, self.val = numbered(FOLDER, random_transform() if MODE == "workers" else None), numbered(FOLDER)

    def train_dataloader(self) -> Any:
        loader = DataLoader(self.train, BATCH, shuffle=True, num_workers=2 if MODE == "workers" else 0)
        if MODE == "combined":
            return CombinedLoader({"images": loader, "more": DataLoader(self.train, BATCH, shuffle=True)}, "min_size")
        return loader

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, BATCH)


class Brightness(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if MODE == "combined":
            took(batch["more"][1], kind="more")
            batch = batch["images"]
        images, numbers = batch
        loss = self.model.loss(images)
        took(numbers, loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, numbers = batch
        took(numbers, self.model.loss(images), kind="check" if self.trainer.sanity_checking else "validation")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


OPTIONS: dict[str, dict[str, Any]] = {
    "overfit": {"overfit_batches": 6},
    "limits": {"limit_train_batches": 8, "val_check_interval": 4, "reload_dataloaders_every_n_epochs": 1},
    "ranks": {"devices": 2, "strategy": "ddp"},
}

pl.seed_everything(3)
trainer = pl.Trainer(
    accelerator="cpu",
    max_epochs=EPOCHS,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    **{"devices": 1, **OPTIONS.get(MODE, {})},
)
trainer.fit(Brightness(), datamodule=Photos())
