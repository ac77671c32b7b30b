"""Crops and flips are the same on every engine and for any number of workers; the demo set through both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor import switchable
from kernel_monitor.demo import demo_data
from kernel_monitor.errors import BackendUnavailable

from ..conftest import MEAN, STD, Make, deliver, on_both, wait_for, worst


def test_parity_notices_a_different_crop(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_monitor.loaders.transforms import geometry, params

    real = params.crop_boxes
    monkeypatch.setattr(geometry, "crop_boxes", lambda *args: np.maximum(real(*args) - [2, 0, 0, 0], 0))
    found = make(num_workers=0).parity(16)
    assert not found.parameters_equal
    assert found.mean > 1


def test_augmentation_is_the_same_for_any_number_of_workers_and_differs_between_epochs(make: Make) -> None:
    torch.manual_seed(0)
    inline = make(num_workers=0)
    first, second = deliver(inline)[0], deliver(inline)[0]
    assert not torch.equal(first, second)
    workers = make(num_workers=2, batch_size=7)
    assert torch.equal(deliver(workers)[0], first)
    assert torch.equal(deliver(workers)[0], second)
    other = make(num_workers=0, seed=6)
    assert not torch.equal(deliver(other)[0], first)


def test_a_transform_that_is_not_recognised_is_reproducible_on_every_engine(make: Make) -> None:
    chain = v1.Compose([v1.Resize((48, 48)), v1.AutoAugment(), v1.RandomPerspective(), v1.ToTensor()])
    inline, workers = make(transform=chain, num_workers=0), make(transform=chain, num_workers=2, batch_size=5)
    (expected, _), (dali, _) = on_both(inline)
    assert torch.equal(deliver(workers)[0], expected)
    assert inline.decoded() == {"dali-cpu": 243}
    assert ((dali - expected).abs().mean(dim=(1, 2, 3)) * 255).median() <= 0.5
    assert ((dali - expected).abs() * 255).mean() <= 0.5


def test_a_transform_of_whole_batches_keeps_dali_away(make: Make) -> None:
    chain = v2.Compose([v2.Resize((24, 24)), v2.ToImage(), v2.MixUp(num_classes=3)])
    loader = make(transform=chain, num_workers=0)
    backend = loader.backends["dali-cpu"]
    assert not backend.available
    assert "MixUp (transform 3 of 3)" in str(backend.reason)
    with pytest.raises(BackendUnavailable, match=r"MixUp \(transform 3 of 3\).*Usable here: torchvision"):
        loader.switch("dali")
    assert loader.backend == "torchvision"
    assert loader.state()["wanted"] is None


def test_files_that_dali_is_not_given_keep_their_place(tmp_path: Path, make: Make) -> None:
    rng = np.random.default_rng(2)
    folder = tmp_path / "class"
    folder.mkdir()
    for number in range(24):
        pixels = Image.fromarray(rng.integers(0, 256, (60, 50, 3), dtype=np.uint8))
        if number % 6 == 1:
            pixels.save(folder / f"{number:02d}.png", save_all=True, append_images=[pixels.rotate(90)])
        elif number % 6 == 4:
            pixels.convert("CMYK").save(folder / f"{number:02d}.jpg", quality=95)
        else:
            pixels.save(folder / f"{number:02d}.jpg", quality=95)
    loader = make(root=tmp_path, batch_size=4, num_workers=0)
    (expected, _), (images, _) = on_both(loader)
    assert loader.decoded() == {"dali-cpu": 16, "torchvision": 8}
    assert [n % 6 in (1, 4) for n in range(24)] == [decoder == "torchvision" for decoder in loader.decoders()]
    reasons = {(fallback.index % 6, fallback.reason) for fallback in loader.fallbacks()}
    assert reasons == {(1, "an animated PNG"), (4, "a JPEG with 4 components of 8 bits")}
    assert worst(images, expected) < 1.5


def test_paths_stay_right_after_a_change_of_folder(
    folder: Path, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder.parent)
    loader = make(root=Path(folder.name), num_workers=0)
    monkeypatch.chdir(tmp_path)
    assert len(deliver(loader)[1]) == 243
    loader.switch("dali-cpu")
    assert len(deliver(loader)[1]) == 243
    assert loader.decoded()["dali-cpu"] > 0


IMAGES = 100
CHAINS = {
    "train": [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()],
    "eval": [v2.Resize(256, antialias=True), v2.CenterCrop(224)],
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_data(tmp_path_factory.mktemp("demo"), images=IMAGES, progress=False)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_demo_set_through_both_engines(demo: Path, chain: str) -> None:
    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    data = ImageFolder(str(demo), v2.Compose([*CHAINS[chain], *tail]))
    loader = switchable(DataLoader(data, batch_size=32, shuffle=True, num_workers=0))
    parity = loader.parity(64)
    assert parity.samples == 64
    assert parity.mean <= 0.5
    assert parity.parameters_equal
    first, *lines = str(parity).splitlines()
    assert first.startswith("dali-cpu and torchvision on 64 samples: images differ by ")
    assert first.endswith(" Crops, flips and the like are equal.")
    assert [line.split()[0] for line in lines] == [step.name.split()[0] for step in parity.steps]
    loader.switch("dali-cpu")
    wait_for(lambda: "ready" in loader.state()["status"])
    seen = [label for _, labels in loader for label in labels.tolist()]
    assert len(seen) == IMAGES
    by_dali = loader.decoded(0).get("dali-cpu", 0)
    assert by_dali >= 0.99 * IMAGES, loader.fallbacks(0)
    print(f"{chain}: mean {parity.mean:.3f} of 255, greatest {parity.greatest:.0f}; {by_dali} of {IMAGES} by DALI")
