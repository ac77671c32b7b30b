"""The demo set through both engines: the same pixels, and nearly every file decoded by DALI."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor import switchable
from kernel_monitor.demo import demo_data

IMAGES = 192
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CHAINS = {
    "train": [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()],
    "eval": [v2.Resize(256, antialias=True), v2.CenterCrop(224)],
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_data(tmp_path_factory.mktemp("demo"), images=IMAGES, progress=False)


@pytest.mark.parametrize("chain", CHAINS)
def test_pixels_and_decoders(demo: Path, chain: str) -> None:
    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    data = ImageFolder(str(demo), v2.Compose([*CHAINS[chain], *tail]))
    loader = switchable(DataLoader(data, batch_size=32, shuffle=True, num_workers=0))
    parity = loader.parity(64)
    assert parity.samples == 64
    assert parity.mean <= 0.5
    assert parity.parameters_equal
    loader.switch("dali-cpu")
    until = time.monotonic() + 60
    while "ready" not in loader.state()["status"]:
        assert time.monotonic() < until, loader.state()["status"]
        time.sleep(0.02)
    seen = [label for _, labels in loader for label in labels.tolist()]
    assert len(seen) == IMAGES
    by_dali = loader.decoded(0).get("dali-cpu", 0)
    assert by_dali >= 0.99 * IMAGES, loader.fallbacks(0)
    print(f"{chain}: mean {parity.mean:.3f} of 255, greatest {parity.greatest:.0f}; {by_dali} of {IMAGES} by DALI")
