"""A training with torchdata's StatefulDataLoader, saved and resumed: python stateful_loader.py FOLDER WORKERS."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.frameworks.training import BATCH, Model, numbered, took

FOLDER, WORKERS = sys.argv[1], int(sys.argv[2])
AT = 5  # batches after which the state is saved

torch.manual_seed(3)
model = Model()


def made() -> Any:
    generator = torch.Generator().manual_seed(3)
    return StatefulDataLoader(
        numbered(FOLDER),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=WORKERS > 0,
        generator=generator,
    )


train_loader = made()
state: dict[str, Any] = {}
for epoch in range(2):
    for number, (images, numbers) in enumerate(train_loader):
        took(numbers, model.loss(images))
        if (epoch, number + 1) == (0, AT):
            state = train_loader.state_dict()

resumed_loader = made()
resumed_loader.load_state_dict(state)
for images, numbers in resumed_loader:
    took(numbers, model.loss(images), kind="resumed")
