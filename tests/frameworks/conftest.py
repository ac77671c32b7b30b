from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ..loaders.conftest import draw_photo
from .script_runs import Trainings
from .training import PHOTOS


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of small JPEGs of mixed sizes, in two classes."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(7)
    for number in range(PHOTOS):
        folder = root / ("cats" if number < PHOTOS // 2 else "dogs")
        folder.mkdir(exist_ok=True)
        draw_photo(folder / f"{number:04d}.jpg", rng, int(rng.integers(32, 56)), int(rng.integers(32, 56)))
    return root


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """Return a runner of scripts, in forks of a process that has imported Lightning, accelerate and Transformers."""
    runs = Trainings(
        tmp_path_factory.mktemp("trainings"), "lightning.pytorch", "lightning.fabric", "accelerate", "transformers"
    )
    yield runs
    runs.close()


@pytest.fixture(scope="session")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """Return a runner of scripts, in forks of a process that has imported timm, MONAI, fastai, Ultralytics and more."""
    modules = (
        "timm.data",
        "monai.data",
        "monai.transforms",
        "fastai.vision.data",
        "torchdata.stateful_dataloader",
        "webdataset",
        "ultralytics.models.yolo",
    )
    runs = Trainings(tmp_path_factory.mktemp("vision"), *modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("YOLO_OFFLINE", "1")
        patch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("ultralytics")))
        yield runs
        runs.close()
