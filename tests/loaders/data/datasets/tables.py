"""Data sets over a table, as Kaggle's notebooks and PyTorch's tutorials write them."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.io import decode_image

from ...conftest import augmented
from .case import Case, as_list
from .folder import CLASSES, fixed
from .reasons import SEVERAL


class CustomImageDataset(Dataset[Any]):
    """The one of PyTorch's tutorial on data sets, which decodes to a tensor."""

    def __init__(
        self, annotations_file: Path, img_dir: Path, transform: Any = None, target_transform: Any = None
    ) -> None:
        self.img_labels = pd.read_csv(annotations_file)[["file", "label"]]
        self.img_dir = img_dir
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self) -> int:
        return len(self.img_labels)

    def __getitem__(self, idx: int) -> Any:
        img_path = os.path.join(self.img_dir, str(self.img_labels.iloc[idx, 0]))  # noqa: PTH118
        image = decode_image(img_path)
        label: Any = self.img_labels.iloc[idx, 1]
        if self.transform:
            image = self.transform(image)
        if self.target_transform:
            label = self.target_transform(label)
        return image, label


class TrainDataset(Dataset[Any]):
    """Of a competition: folds, a list of columns as targets, a test split without labels."""

    def __init__(self, df: pd.DataFrame, root: str, transform: Any = None, mode: str = "train") -> None:
        self.df = df.reset_index(drop=True)
        self.file_names = df["file"].values
        self.root = root
        self.transform = transform
        self.mode = mode

    def __len__(self) -> int:
        return len(self.df)

    def __getitem__(self, idx: int) -> Any:
        image = Image.open(f"{self.root}/{self.file_names[idx]}").convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        if self.mode == "test":
            return image, self.df.loc[idx, "image_id"]
        target = torch.zeros(len(CLASSES))
        target[self.df["label"][idx]] = 1.0
        return image, target


class WithMetadata(Dataset[Any]):
    """Image and patient: what is not known is None."""

    meta_features = ("weight", "age")

    def __init__(self, csv: str, root: Path, transforms: Any) -> None:
        self.frame = pd.read_csv(csv).set_index("image_id")
        self.root = root
        self.transforms = transforms

    def __len__(self) -> int:
        return self.frame.shape[0]

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index]
        img = self.transforms(Image.open(self.root / row["file"]).convert("RGB"))
        age = None if pd.isna(row.age) else int(row.age)
        meta = np.array([row[c] for c in self.meta_features], dtype=np.float32)
        return {"image": img, "age": age, "meta": meta, "id": row.name, "row": row.to_dict()}


class Regression(Dataset[Any]):
    """itertuples, kept as a list of named tuples."""

    def __init__(self, df: pd.DataFrame, folder: Path, tfms: Any) -> None:
        self.rows = list(df.itertuples(index=False, name="Row"))
        self.folder = folder
        self.tfms = tfms

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        r: Any = self.rows[i]
        x = self.tfms(Image.open(self.folder / r.file).convert("RGB"))
        return x, np.float32(r.weight), np.array([r.x0, r.y0, r.x1, r.y1])


class GroupedByPatient(Dataset[Any]):
    """One sample a group: the first file, and how many there are."""

    def __init__(self, df: pd.DataFrame, root: Path, transform: Any) -> None:
        self.groups = df.groupby("fold")
        self.keys = list(self.groups.groups)
        self.root, self.transform = root, transform

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        group = self.groups.get_group(self.keys[index])
        first = group.sort_values("file").iloc[0]
        image = self.transform(Image.open(self.root / first.file).convert("RGB"))
        return image, len(group), group["weight"].mean()


class Rescale:
    """A transform of the whole sample."""

    def __init__(self, output_size: int) -> None:
        self.output_size = output_size

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        image, landmarks = sample["image"], sample["landmarks"]
        h, w = image.shape[:2]
        new = Image.fromarray(image).resize((self.output_size, self.output_size))
        scale = np.array([self.output_size / w, self.output_size / h])
        return {"image": np.asarray(new), "landmarks": landmarks * scale}


class SampleToTensor:
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        image = sample["image"].transpose((2, 0, 1)).copy()
        return {"image": torch.from_numpy(image), "landmarks": torch.from_numpy(sample["landmarks"])}


class FaceLandmarksDataset(Dataset[Any]):
    """The one of PyTorch's tutorial on transforms of one's own."""

    def __init__(self, csv_file: str, root_dir: str, transform: Any = None) -> None:
        self.landmarks_frame = pd.read_csv(csv_file)
        self.root_dir = root_dir
        self.transform = transform

    def __len__(self) -> int:
        return len(self.landmarks_frame)

    def __getitem__(self, idx: Any) -> Any:
        if torch.is_tensor(idx):
            idx = idx.tolist()
        img_name = os.path.join(self.root_dir, str(self.landmarks_frame.iloc[idx, 0]))  # noqa: PTH118
        image = np.asarray(Image.open(img_name))
        landmarks = np.array([self.landmarks_frame.iloc[idx, 4:8]], dtype=float).reshape(-1, 2)
        sample = {"image": image, "landmarks": landmarks}
        if self.transform:
            sample = self.transform(sample)
        return sample


class FromDatabase(Dataset[Any]):
    """The labels are in SQL, and are asked for with each sample."""

    def __init__(self, database: Path, root: Path, transform: Any) -> None:
        self.database, self.root, self.transform = database, root, transform

    def _query(self, sql: str, *values: Any) -> Any:
        connection = sqlite3.connect(self.database)
        try:
            return connection.execute(sql, values).fetchone()
        finally:
            connection.close()

    def __len__(self) -> int:
        return int(self._query("SELECT count(*) FROM labels")[0])

    def __getitem__(self, index: int) -> Any:
        file, label, weight = self._query("SELECT file, label, weight FROM labels WHERE rowid = ?", index + 1)
        return self.transform(Image.open(self.root / file).convert("RGB")), label, weight


def _database(folder: Path) -> Path:
    path = folder / "labels.sqlite3"
    connection = sqlite3.connect(path)
    pd.read_csv(folder / "labels.csv").to_sql("labels", connection, index=False, if_exists="replace")
    connection.close()
    return path


def _table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "labels.csv", dtype={"image_id": str})


def _tutorial(folder: Path) -> Dataset[Any]:
    tf = transforms.Compose([transforms.Resize((32, 32), antialias=True), transforms.ConvertImageDtype(torch.float32)])
    return CustomImageDataset(folder / "labels.csv", folder / "photos", tf, target_transform=str)


def _fold(folder: Path) -> Dataset[Any]:
    table = _table(folder)
    return TrainDataset(table[table.fold != 0], str(folder / "photos"), augmented())


def _regression(folder: Path) -> Dataset[Any]:
    return Regression(_table(folder).query("weight > 0"), folder / "photos", fixed())


def _landmarks(folder: Path) -> Dataset[Any]:
    chain = transforms.Compose([Rescale(32), SampleToTensor()])
    return FaceLandmarksDataset(str(folder / "labels.csv"), str(folder / "photos"), chain)


CASES = (
    Case("CustomImageDataset of the tutorial", _tutorial),
    Case("folds of a competition", _fold, samples=18, random=True),
    Case(
        "test split of a competition",
        lambda folder: TrainDataset(_table(folder), str(folder / "photos"), fixed(), mode="test"),
    ),
    Case(
        "image and metadata with None",
        lambda folder: WithMetadata(str(folder / "labels.csv"), folder / "photos", fixed()),
        note="NaN in the rest of the sample must count as equal to NaN.",
        collate=as_list,
    ),
    Case("itertuples", _regression, picklable=False, note="pandas' named tuples cannot be pickled."),
    Case(
        "groupby",
        lambda folder: GroupedByPatient(_table(folder), folder / "photos", fixed()),
        samples=4,
        note="Fewer samples than are tried before an engine is offered; pandas keeps the groups in itself.",
    ),
    Case("FaceLandmarksDataset of the tutorial", _landmarks, "offered", "", unsent=SEVERAL),
    Case("labels from SQLite", lambda folder: FromDatabase(_database(folder), folder / "photos", fixed())),
)
