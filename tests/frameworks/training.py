"""Numbered photographs, a small model and the record of steps, which the training scripts share.

Nothing here knows of the monitor. The test's harness sets `on_step`, which may wait, as if the step took longer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

PHOTOS = 48
BATCH = 4
STEPS = PHOTOS // BATCH  # of an epoch
EPOCHS = 3
SIZE = 24


class Step(NamedTuple):
    """A step that a script has computed."""

    samples: list[int]  # the numbers of the samples
    loss: float
    kind: str  # the purpose of the step: `train`, `validation`, …


steps: list[Step] = []
on_step: Callable[[Step], object] | None = None


def took(samples: Any, loss: Any = 0.0, kind: str = "train") -> None:
    """Record a step: its samples' numbers (a tensor or a list) and its loss."""
    numbers = torch.as_tensor(samples).reshape(-1).tolist()
    step = Step([int(number) for number in numbers], float(torch.as_tensor(loss).detach()), kind)
    steps.append(step)
    if on_step is not None:
        on_step(step)


def plain_transform() -> transforms.Compose:
    """Return transforms without random numbers."""
    return transforms.Compose([transforms.Resize((SIZE, SIZE)), transforms.ToTensor()])


def random_transform() -> transforms.Compose:
    """Return transforms with a random crop and flip."""
    return transforms.Compose(
        [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )


def numbered(folder: str | Path, transform: Any = None) -> ImageFolder:
    """Return the photographs as an ImageFolder whose targets are the samples' numbers."""
    data = ImageFolder(str(folder), transform or plain_transform())
    data.samples = [(path, number) for number, (path, _) in enumerate(data.samples)]
    data.imgs, data.targets = data.samples, list(range(len(data.samples)))
    return data


class Model(torch.nn.Module):
    """Learns the contrast of an image from its colour: the loss falls within some steps, and differs between images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        torch.nn.init.zeros_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        predicted: torch.Tensor = self.layer(images.mean(dim=(2, 3)))
        return predicted[:, 0]

    def loss(self, images: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = ((self(images) - 8 * images.std(dim=(1, 2, 3)) - 1) ** 2).mean()
        return loss
