"""Data sets of Hugging Face's `datasets`: rows of an Arrow table, with the images' files or their bytes in it."""

from __future__ import annotations

import io
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from ...conftest import augmented
from .case import Case
from .folder import fixed, label_of, photos
from .reasons import BATCHES, MAPPED, NO_IMAGE, NOT_RGB, ONLY_DECODED, PIXELS, SEVERAL

FIXED, AUGMENTED = fixed(), augmented()


def table(folder: Path, *, encoded: bool = True, mode: str | None = None, odd: str | None = None) -> Any:
    """Return the photos, their labels and names; with `odd`, a file of that folder comes last."""
    from datasets import Dataset as Table
    from datasets import Features, Value
    from datasets import Image as Feature

    files = photos(folder)
    files += [] if odd is None else [folder / "odd" / odd]
    columns = {
        "image": [{"bytes": file.read_bytes(), "path": None} if encoded else str(file) for file in files],
        "label": [label_of(file) for file in files],
        "name": [file.name for file in files],
    }
    features = Features({"image": Feature(mode=mode), "label": Value("int64"), "name": Value("string")})
    return Table.from_dict(columns, features=features)


def keep_images(examples: dict[str, Any]) -> dict[str, Any]:
    """Add the pixel values to the columns, as the package's guide does."""
    examples["pixel_values"] = [AUGMENTED(image.convert("RGB")) for image in examples["image"]]
    return examples


def drop_images(examples: dict[str, Any]) -> dict[str, Any]:
    examples["pixel_values"] = [FIXED(image.convert("RGB")) for image in examples["image"]]
    del examples["image"]
    return examples


def as_it_is(examples: dict[str, Any]) -> dict[str, Any]:
    return {"x": [FIXED(image) for image in examples["image"]], "y": examples["label"]}


def decode(examples: dict[str, Any]) -> dict[str, Any]:
    """Decode the bytes, or the file at the path."""
    opened = [Image.open(image["path"] or io.BytesIO(image["bytes"])).convert("RGB") for image in examples["image"]]
    return {"x": list(map(AUGMENTED, opened)), "y": examples["label"]}


def by_argument(transform: Any, examples: dict[str, Any]) -> dict[str, Any]:
    return {"x": [transform(image.convert("RGB")) for image in examples["image"]], "y": examples["label"]}


def _rgb(image: Any) -> Any:
    return FIXED(image.convert("RGB"))


def by_helper(examples: dict[str, Any]) -> dict[str, Any]:
    return {"x": [_rgb(image) for image in examples["image"]], "y": examples["label"]}


def draw_for_rows(examples: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"x": [], "noise": []}
    for image in examples["image"]:
        found["noise"].append(random.random())
        found["x"].append(AUGMENTED(image.convert("RGB")))
    return found


def draw_for_batch(examples: dict[str, Any]) -> dict[str, Any]:
    noise = random.random()
    pixels = [FIXED(image.convert("RGB")) for image in examples["image"]]
    return {"x": pixels, "noise": [noise] * len(pixels)}


def number_in_batch(examples: dict[str, Any]) -> dict[str, Any]:
    pixels = [FIXED(image.convert("RGB")) for image in examples["image"]]
    return {"x": pixels, "place": list(range(len(pixels)))}


def stacked(examples: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.stack([AUGMENTED(image.convert("RGB")) for image in examples["image"]]), "y": examples["label"]}


class Augment:
    """A callable with a transform, and a method that does the same."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, examples: dict[str, Any]) -> dict[str, Any]:
        return {"x": [self.transform(image.convert("RGB")) for image in examples["image"]], "y": examples["label"]}

    def method(self, examples: dict[str, Any]) -> dict[str, Any]:
        return self(examples)


class Wrapped(Dataset[Any]):
    """A data set of torch around a table, with the transform in the one or in the other."""

    def __init__(self, rows: Any, transform: Any = None) -> None:
        self.rows, self.transform = rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        if self.transform is None:
            return row["x"], row["y"]
        return self.transform(row["image"].convert("RGB")), row["label"]


def without_images(examples: list[dict[str, Any]]) -> Any:
    return default_collate([{key: value for key, value in row.items() if key != "image"} for row in examples])


def first_pixels(examples: list[dict[str, Any]]) -> Any:
    return torch.stack([FIXED(row["image"].convert("RGB")) for row in examples])


def _set(folder: Path) -> Any:
    rows = table(folder, encoded=False)
    rows.set_transform(keep_images)
    return rows


def _undecoded(folder: Path, *, encoded: bool) -> Any:
    from datasets import Image as Feature

    return table(folder, encoded=encoded).cast_column("image", Feature(decode=False)).with_transform(decode)


def _mapped(folder: Path) -> Any:
    rows = table(folder).map(lambda row: {"length": len(row["name"])}, load_from_cache_file=False)
    return rows.remove_columns("name").with_transform(drop_images)


def _saved(folder: Path) -> Any:
    """Return rows that are mapped into memory from files."""
    from datasets import load_from_disk

    table(folder).save_to_disk(folder / "arrow")
    return load_from_disk(str(folder / "arrow")).with_transform(drop_images)


def _split(folder: Path) -> Any:
    split = table(folder).train_test_split(0.25, seed=1)
    return split["train"].shuffle(seed=2).with_transform(drop_images)


def _turned(folder: Path) -> Any:
    """Return rows of which one image is to be turned, which `datasets` does; another's orientation says "as it is"."""
    upright = folder / "odd" / "upright.jpg"
    exif = Image.Exif()
    exif[0x0112] = 1
    with Image.open(photos(folder)[0]) as image:
        image.save(upright, exif=exif)
    return table(folder, odd="turned.jpg").with_transform(by_helper)


CASES = (
    Case(
        "Hugging Face, with_transform, images kept",
        lambda folder: table(folder).with_transform(keep_images),
        needs="datasets",
        collate=without_images,
        random=True,
        note="The images that stay in the sample are decoded where somebody looks at them.",
    ),
    Case("Hugging Face, set_transform, paths", _set, needs="datasets", collate=without_images, random=True),
    Case(
        "Hugging Face, image in RGB mode",
        lambda folder: table(folder, mode="RGB").with_transform(as_it_is),
        needs="datasets",
    ),
    Case("Hugging Face, bytes", lambda f: _undecoded(f, encoded=True), needs="datasets", random=True),
    Case("Hugging Face, undecoded paths", lambda f: _undecoded(f, encoded=False), needs="datasets", random=True),
    Case(
        "Hugging Face, a function that calls another",
        lambda folder: table(folder).with_transform(by_helper),
        needs="datasets",
    ),
    Case(
        "Hugging Face, a callable",
        lambda folder: table(folder).with_transform(Augment(augmented())),
        needs="datasets",
        random=True,
    ),
    Case(
        "Hugging Face, a partial function",
        lambda folder: table(folder).with_transform(partial(by_argument, augmented())),
        needs="datasets",
        random=True,
    ),
    Case(
        "Hugging Face, a method", lambda folder: table(folder).with_transform(Augment(fixed()).method), needs="datasets"
    ),
    Case(
        "Hugging Face, draws for each row",
        lambda folder: table(folder).with_transform(draw_for_rows),
        needs="datasets",
        random=True,
    ),
    Case(
        "Hugging Face, stacked in the function",
        lambda folder: table(folder).with_transform(stacked),
        needs="datasets",
        random=True,
        unsent=SEVERAL,
        note="The images are found by a trace: the function does more with them than transform them.",
    ),
    Case("Hugging Face, map and remove_columns", _mapped, needs="datasets"),
    Case("Hugging Face, from disk", _saved, needs="datasets", unsent=MAPPED),
    Case("Hugging Face, train_test_split and shuffle", _split, needs="datasets", samples=18),
    Case(
        "Hugging Face, one column transformed",
        lambda f: table(f).with_transform(drop_images, columns=["image"], output_all_columns=True),
        needs="datasets",
    ),
    Case(
        "Hugging Face in a Subset",
        lambda folder: Subset(table(folder).with_transform(drop_images), [3, 4, 3, 9]),
        needs="datasets",
        samples=4,
    ),
    Case(
        "Hugging Face in a ConcatDataset",
        lambda folder: ConcatDataset([table(folder).with_transform(by_helper)] * 2),
        needs="datasets",
        samples=48,
    ),
    Case("Hugging Face in a Dataset of torch", lambda folder: Wrapped(table(folder), fixed()), needs="datasets"),
    Case(
        "Hugging Face with a transform in a Dataset of torch",
        lambda folder: Wrapped(table(folder).with_transform(by_helper)),
        needs="datasets",
    ),
    Case(
        "Hugging Face, a turned image",
        _turned,
        "fallback",
        PIXELS,
        needs="datasets",
        samples=25,
        odd=1,
        note="`datasets` itself turns images by their EXIF orientation.",
    ),
    Case(
        "Hugging Face, draws for a batch",
        lambda folder: table(folder).with_transform(draw_for_batch),
        "grey",
        BATCHES,
        needs="datasets",
        random=True,
    ),
    Case(
        "Hugging Face, numbers rows in a batch",
        lambda folder: table(folder).with_transform(number_in_batch),
        "grey",
        BATCHES,
        needs="datasets",
    ),
    Case(
        "Hugging Face, tensors by set_format",
        lambda folder: table(folder).with_format("torch"),
        "grey",
        ONLY_DECODED,
        unsent=PIXELS,
        needs="datasets",
        collate=list,
    ),
    Case(
        "Hugging Face, transformed by the collate function",
        table,
        "grey",
        ONLY_DECODED,
        unsent=NOT_RGB,
        needs="datasets",
        collate=first_pixels,
    ),
    Case(
        "Hugging Face, no images",
        lambda folder: table(folder).remove_columns("image"),
        "grey",
        NO_IMAGE,
        needs="datasets",
    ),
)
