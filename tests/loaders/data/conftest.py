from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .datasets import write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The images of the hand-written data sets, for those that write nothing beside them."""
    folder = write_images(tmp_path_factory.mktemp("datasets"))
    before = written(folder)
    yield folder
    assert written(folder) == before


def written(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of the last change of each file."""
    return {path: ((of := path.stat()).st_size, of.st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def root(images: Path, tmp_path: Path) -> Path:
    """A folder of the test's own with the same files, as hard links: more can be added, none may be written to."""
    return shutil.copytree(images, tmp_path / "images", copy_function=os.link)
