"""The images that the data sets read, and the tables and texts beside them.

photos/{cat,dog,owl}/00.jpg …   24 RGB JPEGs of 60 to 110 pixels a side, numbered through
masks/00.png …                  a grey mask of each
texts/00.txt …                  a sentence about each
labels.csv                      a row for each: see `write_images`
captions.json                   {"cat/00.jpg": [three sentences], …}
odd/                            gray.jpg, cmyk.jpg, turned.jpg (EXIF orientation 6), cut.jpg (its second half is
                                missing), text.jpg (no image)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from torchvision import transforms

from ...conftest import MEAN, STD, draw_photo

CLASSES = ("cat", "dog", "owl")
PHOTOS = 24


def write_images(folder: Path) -> Path:
    """Write everything; returns the folder."""
    rng = np.random.default_rng(13)
    rows = []
    for part in (*(f"photos/{name}" for name in CLASSES), "masks", "texts", "odd"):
        (folder / part).mkdir(parents=True)
    for number in range(PHOTOS):
        label = number % len(CLASSES)
        file = f"{CLASSES[label]}/{number:02d}.jpg"
        height, width = (int(side) for side in rng.integers(60, 111, 2))
        draw_photo(folder / "photos" / file, rng, height, width)
        mask = np.zeros((height, width), dtype=np.uint8)
        mask[height // 4 : height // 2, width // 4 : width // 2] = 255
        Image.fromarray(mask).save(folder / "masks" / f"{number:02d}.png")
        (folder / "texts" / f"{number:02d}.txt").write_text(f"a photo of a {CLASSES[label]}, number {number}\n")
        rows.append(
            {
                "file": file,
                "image_id": f"{number:02d}",
                "name": CLASSES[label],
                "label": label,
                "x0": width // 4,  # x0 to y1: a box, pixels
                "y0": height // 4,
                "x1": width // 2,
                "y1": height // 2,
                "weight": round(float(rng.uniform(1, 9)), 3),
                "age": None if number % 5 == 0 else number,  # NaN in the table
                "fold": number % 4,
            }
        )
    pd.DataFrame(rows).to_csv(folder / "labels.csv", index=False)
    captions = {
        row["file"]: [f"{row['name']} {row['image_id']} {word}" for word in ("here", "there", "")] for row in rows
    }
    (folder / "captions.json").write_text(json.dumps(captions))
    _odd(folder / "odd", rng)
    return folder


def _odd(folder: Path, rng: np.random.Generator) -> None:
    draw_photo(folder / "whole.jpg", rng, 80, 100)
    whole = folder / "whole.jpg"
    with Image.open(whole) as image:
        image.convert("L").save(folder / "gray.jpg")
        image.convert("CMYK").save(folder / "cmyk.jpg")
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned to the right
        image.save(folder / "turned.jpg", exif=exif)
    data = whole.read_bytes()
    (folder / "cut.jpg").write_bytes(data[: len(data) // 2])
    (folder / "text.jpg").write_text("<html>404</html>")
    whole.unlink()


def photos(folder: Path) -> list[Path]:
    """The 24 photos by their numbers."""
    return sorted(folder.glob("photos/*/*.jpg"), key=lambda path: path.name)


def label_of(path: Path) -> int:
    """The class of a photo, by its folder; one more for odd images."""
    return CLASSES.index(path.parent.name) if path.parent.name in CLASSES else len(CLASSES)


def fixed(size: int = 32) -> transforms.Compose:
    """A transform that draws nothing."""
    return transforms.Compose(
        [transforms.Resize((size, size)), transforms.ToTensor(), transforms.Normalize(list(MEAN), list(STD))]
    )
