"""Data sets of photos that many tests wrap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as v1

FIXED = v1.Compose([v1.Resize((16, 16)), v1.ToTensor()])


class Photos(Dataset[Any]):
    """Written by hand: an image file for each sample, whose target is its index."""

    def __init__(self, paths: Sequence[Path], transform: Any = FIXED) -> None:
        self.paths = list(paths)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


class Located(Photos):
    """It says which file each sample is."""

    def __init__(self, paths: Sequence[Path], transform: Any = FIXED, target_transform: Any = None) -> None:
        super().__init__(paths, transform)
        self.target_transform = target_transform

    def image_file(self, index: int) -> tuple[Path, int]:
        return self.paths[index], index

    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image, target if self.target_transform is None else self.target_transform(target)
