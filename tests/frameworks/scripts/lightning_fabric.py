"""A training with Lightning's Fabric: python lightning_fabric.py FOLDER."""

from __future__ import annotations

import sys
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from tests.frameworks.training import BATCH, EPOCHS, Model, numbered, took

fabric = Fabric(accelerator="cpu", devices=1)
fabric.seed_everything(3)
network = Model()
model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), 0.1))
model.mark_forward_method("loss")
train_loader: Any = fabric.setup_dataloaders(DataLoader(numbered(sys.argv[1]), BATCH, shuffle=True))

for _ in range(EPOCHS):
    for images, numbers in train_loader:
        optimizer.zero_grad()
        loss = model.loss(images)
        fabric.backward(loss)
        optimizer.step()
        took(numbers, loss)
