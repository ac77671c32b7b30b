"""What several modules derive their data sets from, as repositories have one class for all of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset

from .folder import fixed, label_of, photos


class Base(Dataset[Any]):
    """The photos of a folder; subclasses make the samples."""

    def __init__(self, folder: Path, transform: Any = None) -> None:
        self.folder = folder
        self.paths = photos(folder)
        self.labels = [label_of(path) for path in self.paths]
        self.transform = fixed() if transform is None else transform

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, index: int) -> Image.Image:
        return Image.open(self.paths[index % len(self.paths)]).convert("RGB")

    def image(self, index: int) -> Any:
        return self.transform(self.load(index))
