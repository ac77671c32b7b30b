"""The images that the scripts train on, in the forms that their data sets read."""

from __future__ import annotations

import json
from pathlib import Path

import lmdb
import numpy as np
from PIL import Image

COUNT = 26  # so that the last batch of four is not full


def make_files(root: Path) -> Path:
    """JPEGs that can be told apart by their colours: a folder of each, all in one file, and an LMDB environment."""
    rng = np.random.default_rng(0)
    files: list[bytes] = []
    for number in range(COUNT):
        folder = root / "images" / f"{number:02d}"
        folder.mkdir(parents=True)
        height, width = rng.integers(60, 100, 2)
        colour = np.array([20 + 8 * number, 230 - 8 * number, (97 * number) % 230])
        pixels = (colour + rng.normal(0, 6, (height, width, 3))).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg", quality=90)
        files.append((folder / f"{number:02d}.jpg").read_bytes())
    (root / "archive").write_bytes(b"".join(files))
    sizes = [len(data) for data in files]
    (root / "places.json").write_text(json.dumps([(sum(sizes[:k]), size) for k, size in enumerate(sizes)]))
    with lmdb.open(str(root / "lmdb"), map_size=1 << 24) as environment, environment.begin(write=True) as transaction:
        for number, data in enumerate(files):
            transaction.put(b"%d" % number, data)
    return root
