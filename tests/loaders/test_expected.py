"""What a loader tells of other engines' cost before any of them has run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor.demo import demo_data
from kernel_monitor.loaders import switchable
from kernel_monitor.loaders.transforms.costs import tables

END = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_data(tmp_path_factory.mktemp("expected"), images=8, classes=2)


def expected(root: Path, *chain: object) -> dict[str, dict[str, float]]:
    loader = switchable(DataLoader(ImageFolder(root, v2.Compose([*chain, *END])), batch_size=4))
    assert loader.state()["expected"] == {}
    assert sum(len(batch[1]) for batch in loader) == 8
    assert loader.history == []
    found = loader.state()["expected"]
    loader.release()
    return found


def test_rotations_of_tensors_are_cheaper_with_dali_and_those_of_pil_images_are_not(root: Path) -> None:
    turn, crop = v2.RandomRotation(15), v2.RandomResizedCrop(64)
    plain = expected(root, crop)["dali-cpu"]
    pil = expected(root, turn, turn, crop)["dali-cpu"]
    tensor = expected(root, v2.PILToTensor(), turn, turn, crop)["dali-cpu"]
    assert tensor.keys() == plain.keys() == pil.keys() == tables().keys()
    assert all(tensor[maker] < plain[maker] < pil[maker] for maker in tables())


def test_what_the_table_does_not_know_is_not_told(root: Path) -> None:
    assert expected(root, v2.RandomPosterize(3, p=1.0), v2.CenterCrop(64)) == {}


def test_a_file_that_cannot_be_read_is_left_to_the_loop(root: Path) -> None:
    files = ImageFolder(root, v2.Compose([v2.CenterCrop(64), *END]))
    files.samples[0] = (str(root / "gone.jpg"), 0)
    loader = switchable(DataLoader(files, batch_size=4), on_error="skip")
    assert sum(len(batch[1]) for batch in loader) == 7
    assert "dali-cpu" in loader.state()["expected"]
    loader.release()
