from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from kernel_monitor.errors import TransformNotTranslatable
from kernel_monitor.loaders.transforms.program import CropCenter, CropResize, Mirror, Scale
from kernel_monitor.loaders.transforms.translate import translate

HALF = ([0.5] * 3, [0.5] * 3)


@pytest.mark.parametrize(
    "chain",
    [
        v1.Compose([v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(*HALF)]),
        v1.Compose(
            [
                v1.Compose([v1.RandomResizedCrop(8), v1.RandomHorizontalFlip()]),
                v1.PILToTensor(),
                v1.ConvertImageDtype(torch.float32),
                v1.Normalize(*HALF),
            ]
        ),
        v2.Compose(
            [
                v2.RandomResizedCrop(8),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(*HALF),
            ]
        ),
    ],
)
def test_the_usual_chains_of_both_versions_give_the_same_program(chain: Any) -> None:
    program = translate(chain)
    assert program.steps == (CropResize(0, (8, 8), (0.08, 1.0), (3 / 4, 4 / 3)), Mirror(1, 0.5))
    assert program.size == (8, 8)
    assert program.floating
    assert program.factor == pytest.approx([2 / 255] * 3)
    assert program.offset == pytest.approx([-1] * 3)


def test_evaluation_chain_and_bytes() -> None:
    program = translate(v2.Compose([v2.Resize(256, max_size=300), v2.CenterCrop((8, 9)), v2.PILToTensor()]))
    assert program.steps == (Scale((256,), 300), CropCenter((8, 9)))
    assert program.size == (8, 9)
    assert not program.floating


class Mine(v1.RandomHorizontalFlip):
    pass


TAIL = [v1.RandomResizedCrop(8), v1.ToTensor()]


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ([v1.ColorJitter(0.5), *TAIL], r"ColorJitter \(transform 1 of 3\)"),
        ([v1.RandomResizedCrop(8), v2.GaussianBlur(3), v1.ToTensor()], r"GaussianBlur \(transform 2 of 3\)"),
        ([Mine(), *TAIL], r"Mine \(transform 1 of 3\)"),
        ([abs, *TAIL], r"abs \(transform 1 of 3\)"),
        ([v1.RandomResizedCrop(8, interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor()], "bicubic"),
        ([v2.Resize((8, 8), interpolation=v1.InterpolationMode.NEAREST), v2.PILToTensor()], "nearest"),
        ([v1.ToTensor(), v1.Resize((8, 8), antialias=False)], "antialias"),
        ([v1.ToTensor(), v1.Normalize(*HALF), v1.CenterCrop(8)], r"CenterCrop \(transform 3 of 3\).*Normalize last"),
        ([v1.RandomResizedCrop(8), v1.PILToTensor(), v1.Normalize(*HALF)], r"Normalize \(transform 3 of 3\)"),
        ([v1.RandomResizedCrop(8), v2.PILToTensor(), v2.ToDtype(torch.float16)], "float16"),
        ([v1.Resize(8), v1.ToTensor()], "same size"),
        ([v1.RandomResizedCrop(8)], "tensor"),
        ([v1.RandomResizedCrop(8), v1.ToTensor(), v1.ToTensor()], r"ToTensor \(transform 3 of 3\)"),
    ],
)
def test_what_is_not_translated_is_named_with_its_position(chain: list[Any], said: str) -> None:
    with pytest.raises(TransformNotTranslatable, match=said):
        translate(v1.Compose(chain))


def test_no_transform_at_all() -> None:
    with pytest.raises(TransformNotTranslatable, match="tensor"):
        translate(None)
