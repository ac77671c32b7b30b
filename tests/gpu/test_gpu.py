"""What only a machine with an NVIDIA GPU can show: NVML's rows, and DALI decoding on the GPU."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor import switchable
from kernel_monitor.demo import demo_data
from kernel_monitor.loaders import SwitchableLoader
from kernel_monitor.sample.client import SamplerClient

IMAGES = 256
# DALI's own tests allow a mean of 1 of 255 between the CPU and the mixed JPEG decoder with fancy upsampling.
DECODER_BOUND = 1.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_data(tmp_path_factory.mktemp("demo"), images=IMAGES, progress=False)


def wrapped(root: Path) -> SwitchableLoader:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    data = ImageFolder(str(root), transform)
    return switchable(DataLoader(data, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True))


def test_every_gpu_has_its_rows() -> None:
    hellos: list[dict[str, Any]] = []
    frames: list[list[float]] = []
    client = SamplerClient(
        0.1, hellos.append, lambda _stamp, _missed, values: frames.append(list(values)), print, print
    )
    client.start()
    try:
        until = time.monotonic() + 30
        while len(frames) < 30 and time.monotonic() < until:
            torch.ones(2048, 2048, device="cuda") @ torch.ones(2048, 2048, device="cuda")
            torch.cuda.synchronize()
    finally:
        client.stop()
    hello = hellos[-1]
    assert hello["gpu_reason"] is None
    names = [series["name"] for series in hello["series"]]
    for gpu in hello["gpus"]:
        used = frames[-1][names.index(f"gpu/{gpu['index']}/memory_used")]
        assert math.isfinite(used)
        assert 0 < used <= gpu["memory_total"]


def test_batches_come_on_the_gpu_each_sample_once(demo: Path) -> None:
    loader = wrapped(demo)
    try:
        loader.switch("dali")
        devices: set[str] = set()
        for _ in range(3):
            for images, _labels in loader:
                devices.add(images.device.type)
            time.sleep(0.2)
        assert loader.backend == "dali-gpu"
        assert "cuda" in devices
        for counts in loader.epochs():
            assert counts["samples"] == IMAGES
            assert counts["lost"] == counts["doubled"] == 0
        assert loader.decoded()["dali-gpu"] >= 0.99 * IMAGES
    finally:
        loader.release()


def test_the_pixels_are_those_of_torchvision(demo: Path) -> None:
    loader = wrapped(demo)
    try:
        parity = loader.parity(64)
        assert parity.backends == ("torchvision", "dali-gpu")
        assert parity.parameters_equal
        assert parity.mean <= DECODER_BOUND
    finally:
        loader.release()
