"""A training loop with accelerate: python accelerate_loop.py FOLDER [MODE]."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.frameworks.training import BATCH, EPOCHS, Model, numbered, took

FOLDER, MODE = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "plain"
SKIPPED = 3  # batches of the second epoch, as after a checkpoint

accelerator = Accelerator(cpu=True)
torch.manual_seed(3)
network = Model()
optimizer = torch.optim.SGD(network.parameters(), 0.1)
workers = 2 if MODE == "workers" else 0
train_loader = DataLoader(numbered(FOLDER), BATCH, shuffle=True, num_workers=workers)
val_loader = DataLoader(numbered(FOLDER), 7)
model, optimizer, train_loader, val_loader = accelerator.prepare(network, optimizer, train_loader, val_loader)

for epoch in range(EPOCHS):
    batches = accelerator.skip_first_batches(train_loader, SKIPPED) if MODE == "skip" and epoch == 1 else train_loader
    for images, numbers in batches:
        optimizer.zero_grad()
        loss = network.loss(images)
        accelerator.backward(loss)
        optimizer.step()
        took(numbers, loss)
    for images, numbers in val_loader:
        with torch.no_grad():
            predicted, gathered = accelerator.gather_for_metrics((model(images), numbers))
        assert len(predicted) == len(gathered)
        took(gathered, kind="validation")
