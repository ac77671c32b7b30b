from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from kernel_monitor.errors import BackendUnavailable

from ..conftest import Make, deliver, settle

NORM = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

CHAINS: dict[str, Any] = {
    "train v1": v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(*NORM)]),
    "train v2": v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(48, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(*NORM),
        ]
    ),
    "evaluation v1": v1.Compose([v1.Resize(64), v1.CenterCrop(56), v1.ToTensor(), v1.Normalize(*NORM)]),
    "evaluation v2, padded": v2.Compose([v2.Resize(40), v2.CenterCrop((70, 41)), v2.PILToTensor()]),
    "flip first, bytes": v1.Compose([v1.RandomHorizontalFlip(), v1.RandomResizedCrop(40), v1.PILToTensor()]),
    "center crop first": v1.Compose([v1.CenterCrop(50), v1.ToTensor()]),
    "flip after floats": v1.Compose([v1.Resize((40, 44)), v1.ToTensor(), v1.RandomHorizontalFlip()]),
    "crop of a resize": v1.Compose([v1.Resize(70), v1.RandomResizedCrop(32), v1.ToTensor()]),
    "unscaled floats": v2.Compose([v2.Resize((40, 40)), v2.PILToTensor(), v2.ToDtype(torch.float32)]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_engines_deliver_the_same_pixels(make: Make, name: str) -> None:
    ours = make(transform=CHAINS[name], batch_size=50, num_workers=0)
    torchvision, targets = deliver(ours)
    ours.set_epoch(0)
    ours.switch("dali-cpu")
    settle(ours)
    dali, dali_targets = deliver(ours)
    assert ours.decoded() == {"dali-cpu": 243}
    assert torch.equal(targets, dali_targets)
    assert dali.dtype == torchvision.dtype
    assert dali.shape == torchvision.shape
    # In pixel values 0 to 255: what each chain's scaling makes of one of them
    unit = 255 * 0.226 if "Normalize" in repr(CHAINS[name]) else 255 if float(torchvision.max()) <= 1 else 1
    difference = (dali.double() - torchvision.double()).abs() * unit
    assert difference.mean() <= 0.5
    assert difference.mean(dim=(1, 2, 3)).max() <= 1.5  # a different crop or flip of one image would be tens
    found = ours.parity(16)
    assert found.samples == 16
    assert found.parameters_equal
    assert found.mean <= 0.5
    assert all(step.mean <= 0.5 for step in found.steps)


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
    expected = deliver(inline)[0]
    assert torch.equal(deliver(workers)[0], expected)
    inline.set_epoch(0)
    inline.switch("dali-cpu")
    settle(inline)
    dali = deliver(inline)[0]
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
    expected = deliver(loader)[0]
    loader.set_epoch(0)
    loader.switch("dali-cpu")
    settle(loader)
    images = deliver(loader)[0]
    assert loader.decoded() == {"dali-cpu": 16, "torchvision": 8}
    assert [n % 6 in (1, 4) for n in range(24)] == [decoder == "torchvision" for decoder in loader.decoders()]
    reasons = {(fallback.index % 6, fallback.reason) for fallback in loader.fallbacks()}
    assert reasons == {(1, "an animated PNG"), (4, "a JPEG with 4 components of 8 bits")}
    assert ((images - expected).abs().mean(dim=(1, 2, 3)) * 255 * 0.226).max() < 1.5


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
