"""Data sets without any image: `torchvision` is then just the name for the user's own workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

from .case import Case, as_list
from .reasons import NO_IMAGE


class Tabular(Dataset[Any]):
    """Rows of numbers and categories."""

    def __init__(self, df: pd.DataFrame, target: str) -> None:
        self.y = torch.tensor(df[target].to_numpy(), dtype=torch.float32)
        self.x = torch.tensor(df[["label", "fold", "x0", "y0"]].to_numpy(), dtype=torch.float32)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, idx: int) -> Any:
        return self.x[idx], self.y[idx]


class Texts(Dataset[Any]):
    """Sentences, each as long as it is; read when they are asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.vocab: dict[str, int] = {}
        for file in files:
            for word in file.read_text().split():
                self.vocab.setdefault(word, len(self.vocab))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, idx: int) -> Any:
        text = self.files[idx].read_text()
        return {"ids": torch.tensor([self.vocab[word] for word in text.split()]), "text": text}


class Windows(Dataset[Any]):
    """Windows of a time series, with a transform of one's own that is no image's."""

    def __init__(self, series: Any, length: int, transform: Any = None) -> None:
        self.series, self.length, self.transform = series, length, transform

    def __len__(self) -> int:
        return len(self.series) - self.length

    def __getitem__(self, idx: int) -> Any:
        window = self.series[idx : idx + self.length]
        if self.transform:
            window = self.transform(window)
        return window, self.series[idx + self.length]


def standardised(window: Any) -> Any:
    return (window - window.mean()) / (window.std() + 1e-6)


CASES = (
    Case("table", lambda folder: Tabular(pd.read_csv(folder / "labels.csv"), "weight"), "grey", NO_IMAGE),
    Case("texts", lambda folder: Texts(sorted((folder / "texts").glob("*.txt"))), "grey", NO_IMAGE, collate=as_list),
    Case(
        "windows of a series",
        lambda _: Windows(np.sin(np.arange(40) / 3).astype(np.float32), 16, standardised),
        "grey",
        NO_IMAGE,
    ),
)
