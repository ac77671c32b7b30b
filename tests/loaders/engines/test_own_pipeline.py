"""`dali=`: a pipeline of the user's own gets the plan's files, indices and numbers, and its errors are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from kernel_monitor.errors import MonitorError
from kernel_monitor.loaders import DaliSample, SwitchableLoader, switchable
from kernel_monitor.loaders.transforms.params import sample_keys, uniforms

from ..conftest import augmented, deliver, on_both, switch_to

PLAIN = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])
SEED = 5

Pipeline = Callable[[DaliSample], Any]
Wrap = Callable[..., SwitchableLoader]


@pytest.fixture
def wrap(folder: Path) -> Wrap:
    def wrap(pipeline: Pipeline, *, root: Path = folder, transform: Any = PLAIN, **options: Any) -> SwitchableLoader:
        data = ImageFolder(str(root), transform)
        settings: dict[str, Any] = {"batch_size": 8, "num_workers": 0, **options}
        return switchable(DataLoader(data, **settings), dali=pipeline, seed=SEED)

    return wrap


def resized(sample: DaliSample) -> Any:
    from nvidia.dali import fn, types

    image = fn.decoders.image(sample.encoded, device=sample.device, output_type=types.RGB, adjust_orientation=False)
    image = fn.resize(image, size=[24, 24], antialias=True, subpixel_scale=False)
    return fn.crop_mirror_normalize(image, output_layout="CHW", mean=[0.0] * 3, std=[255.0] * 3)


def on_dali(loader: SwitchableLoader) -> SwitchableLoader:
    switched: SwitchableLoader = switch_to(loader, "dali-cpu")
    return switched


def test_its_result_takes_the_place_of_the_transforms(wrap: Wrap) -> None:
    loader = wrap(resized)
    (expected, targets), (images, same) = on_both(loader)
    assert loader.decoded() == {"dali-cpu": 243}
    assert torch.equal(targets, same)
    assert images.shape == expected.shape
    assert images.dtype == expected.dtype
    assert float((images - expected).abs().mean()) * 255 <= 0.5


def test_a_transform_that_dali_does_not_know_needs_no_translation_then(wrap: Wrap) -> None:
    loader = wrap(resized, transform=v1.Compose([v1.ToTensor(), v1.Lambda(lambda image: image[:, :24, :24])]))
    assert loader.backends["dali-cpu"].available
    assert deliver(on_dali(loader))[0].shape == (243, 3, 24, 24)


def facts(sample: DaliSample) -> Any:
    """Every number that a sample has, in place of an image."""
    from nvidia.dali import fn, types

    floats = [fn.cast(number, dtype=types.FLOAT) for number in (sample.index, sample.height, sample.width)]
    read = fn.cast(sample.encoded.shape(), dtype=types.FLOAT)
    numbers = [fn.reshape(number, shape=[1]) for number in floats]
    return fn.cat(*numbers, read, sample.uniform(3), sample.uniform(2, operation=7), axis=0)


def test_it_is_given_the_plan(wrap: Wrap, folder: Path) -> None:
    def transform(image: Any) -> torch.Tensor:
        raise AssertionError("no sample of this test takes the data set's own way")

    loader = on_dali(wrap(facts, transform=transform, shuffle=True))
    for epoch in (0, 1):
        rows = deliver(loader)[0]
        plan = loader.plan()
        assert rows[:, 0].tolist() == plan
        paths = [Path(loader.dataset.samples[index][0]) for index in plan]
        assert rows[:, 1:3].tolist() == [[float(n) for n in pil_loader(str(path)).size[::-1]] for path in paths]
        assert rows[:, 3].tolist() == [path.stat().st_size for path in paths]
        keys = sample_keys(SEED, epoch, plan, [0] * len(plan))
        expected = np.concatenate([uniforms(keys, 0, 3), uniforms(keys, 7, 2)], axis=1)
        assert np.abs(rows[:, 4:].numpy() - expected).max() < 2**-23
        assert float(rows[:, 4:].max()) < 1
    assert loader.decoded() == {"dali-cpu": 243}


def test_what_it_does_not_use_is_not_fed(wrap: Wrap) -> None:
    def careless(sample: DaliSample) -> Any:
        sample.uniform(4)
        return resized(sample)

    assert deliver(on_dali(wrap(careless)))[0].shape == (243, 3, 24, 24)


def failing(_sample: DaliSample) -> Any:
    raise ZeroDivisionError("my own bug")


def returning_nothing(sample: DaliSample) -> None:
    resized(sample)


def without_files(sample: DaliSample) -> Any:
    return sample.uniform(3)


def misspelt(sample: DaliSample) -> Any:
    from nvidia.dali import fn

    return fn.decoders.image(sample.encoded, colour="red")  # type: ignore[call-overload]


def cropped_too_far(sample: DaliSample) -> Any:
    from nvidia.dali import fn

    return fn.crop(fn.decoders.image(sample.encoded), crop=[1000, 1000])


def uneven(sample: DaliSample) -> Any:
    from nvidia.dali import fn

    return fn.decoders.image(sample.encoded)


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        (failing, "ZeroDivisionError: my own bug"),
        (returning_nothing, "it returned NoneType, and must return one DataNode"),
        (without_files, "its result does not depend on sample.encoded"),
        (misspelt, 'Argument "colour" is not defined for operator'),
        (cropped_too_far, "fn.crop: Slice can't be placed out of bounds"),
        (uneven, "its results have different sizes"),
        (lambda sample: sample.uniform(0), "n is at least 1"),
    ],
)
def test_its_errors_are_told_and_torchvision_goes_on(wrap: Wrap, pipeline: Pipeline, said: str) -> None:
    loader = on_dali(wrap(pipeline))
    status = loader.state()["status"]
    assert status.startswith("dali-cpu failed: ")
    assert said in status
    assert status.endswith("; torchvision goes on")
    assert deliver(loader)[0].shape == (243, 3, 24, 24)
    assert loader.decoded() == {"torchvision": 243}


def test_sizes_that_differ_later_on_hand_over_to_torchvision(wrap: Wrap) -> None:
    def late(sample: DaliSample) -> Any:
        from nvidia.dali import fn, types

        image = fn.decoders.image(sample.encoded)
        side = fn.cast(sample.index > 20, dtype=types.FLOAT) * 2 + 24
        return fn.transpose(fn.resize(image, resize_x=side, resize_y=24), perm=[2, 0, 1])

    loader = on_dali(wrap(late))
    assert len(deliver(loader)[1]) == 243
    state = loader.state()
    assert state["decoded"] == {"dali-cpu": 16, "torchvision": 227, "ray": 0}
    assert (state["lost"], state["doubled"]) == (0, 0)
    assert "different sizes" in loader.switch_state.status


def test_a_file_that_dali_is_not_given_must_come_out_alike(wrap: Wrap, tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(8):
        image = Image.effect_noise((60, 50), 40).convert("CMYK" if number == 3 else "RGB")
        image.save(tmp_path / "class" / f"{number}.jpg", quality=95)
    loader = on_dali(wrap(resized, root=tmp_path, batch_size=4))
    assert deliver(loader)[0].shape == (8, 3, 24, 24)
    assert loader.decoded() == {"dali-cpu": 7, "torchvision": 1}
    other = on_dali(wrap(resized, root=tmp_path, batch_size=4, transform=augmented(20)))
    with pytest.raises(MonitorError, match=r"3\.jpg.*float32\[3, 20, 20\].*float32\[3, 24, 24\]; make them alike"):
        next(iter(other))
