from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .datasets import write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of the hand-written data sets, for those that write nothing beside them."""
    return write_images(tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def root(images: Path, tmp_path: Path) -> Path:
    """A copy of the test's own."""
    return shutil.copytree(images, tmp_path / "images")
