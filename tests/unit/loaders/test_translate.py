from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2
from torchvision.transforms._presets import ImageClassification

from kernel_monitor.errors import TransformNotTranslatable
from kernel_monitor.loaders.transforms.chain import flatten, operations
from kernel_monitor.loaders.transforms.colour import Blur
from kernel_monitor.loaders.transforms.geometry import CropCenter, Mirror, RandomBox, RandomWindow, Scale
from kernel_monitor.loaders.transforms.operation import Erase, Gate
from kernel_monitor.loaders.transforms.translate import scaling, translate

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
                nn.Sequential(v2.RandomHorizontalFlip(), v2.ToImage()),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(*HALF),
            ]
        ),
    ],
)
def test_the_usual_chains_of_both_versions_give_the_same_program(chain: Any) -> None:
    program = translate(chain)
    assert program.steps == (
        RandomBox(0, (0.08, 1.0), (3 / 4, 4 / 3)),
        Scale(0, (8, 8)),
        Mirror(1, (Gate(1, 0.0, 0.5),)),
    )
    assert program.size == (8, 8)
    assert program.floating
    assert program.factor == pytest.approx([2 / 255] * 3)
    assert program.offset == pytest.approx([-1] * 3)
    assert program.rest is None
    assert program.reason is None
    assert program.mirrors == program.steps[2:]
    assert scaling(list(flatten(chain))) == pytest.approx([2 / 255] * 3)


def test_evaluation_chains_presets_and_no_transform_at_all() -> None:
    program = translate(v2.Compose([v2.Resize(256, max_size=300), v2.CenterCrop((8, 9)), v2.PILToTensor()]))
    assert program.steps == (Scale(0, (256,), 300), CropCenter(1, (8, 9)))
    assert program.size == (8, 9)
    assert not program.floating
    program = translate(ImageClassification(crop_size=8, resize_size=9, mean=(0.5,) * 3, std=(0.5,) * 3))
    assert program.steps == (Scale(0, (9,)), CropCenter(0, (8, 8)))
    assert program.factor == pytest.approx([2 / 255] * 3)
    assert program.rest is None
    program = translate(None)
    assert (program.steps, program.rest, program.rest_kind) == ((), 0, "pil")


def test_a_crop_inside_the_image_is_left_to_the_decoder_and_a_padded_one_is_not() -> None:
    inside, padded = v1.RandomCrop(8), v1.RandomCrop(8, padding=(1, 2, 3, 4), fill=(9, 8, 7))
    (step,) = translate(v1.Compose([inside, v1.ToTensor()])).steps
    assert step.region
    (step,) = translate(v1.Compose([padded, v1.ToTensor()])).steps
    assert step == RandomWindow(0, (8, 8), (1, 2, 3, 4), False, (9, 8, 7))
    assert not step.region
    (step,) = translate(v2.Compose([v2.RandomCrop(8, padding=[1, 2, 3, 4], fill=(9, 8, 7)), v2.PILToTensor()])).steps
    assert step == RandomWindow(0, (8, 8), (1, 2, 3, 4), False, (9, 8, 7))


def test_chances_are_gates_and_every_transform_has_numbers_of_its_own() -> None:
    flips = [v1.RandomHorizontalFlip(0.25), v1.RandomVerticalFlip()]
    chain = v1.Compose(
        [
            v1.RandomApply([v1.Compose(flips)], p=0.3),
            v1.RandomChoice([v1.GaussianBlur(3), v1.GaussianBlur(5)], p=[3, 1]),
            v1.RandomResizedCrop(8),
            v1.ToTensor(),
        ]
    )
    assert [operations(one) for one in flatten(chain)] == [3, 3, 1, 1]
    steps = translate(chain).steps
    assert steps[:4] == (
        Mirror(1, (Gate(0, 0.0, 0.3), Gate(1, 0.0, 0.25))),
        Mirror(2, (Gate(0, 0.0, 0.3), Gate(2, 0.0, 0.5)), vertical=True),
        Blur(4, (3, 3), 0.1, 2.0, (Gate(3, 0.0, 0.75),)),
        Blur(5, (5, 5), 0.1, 2.0, (Gate(3, 0.75, 1.0),)),
    )
    assert steps[4].operation == 6


def test_what_is_erased_is_scaled_like_the_pixels_around_it() -> None:
    chain = [v1.Resize((8, 8)), v1.ToTensor(), v1.RandomErasing(value=0.75), v1.Normalize(*HALF)]
    (erase,) = translate(v1.Compose(chain)).tail
    assert type(erase) is Erase
    assert erase.fill == pytest.approx([0.5] * 3)


class Mine(v1.RandomHorizontalFlip):
    pass


CROP, FLIP, TENSOR = v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor()
BICUBIC, NEAREST = v1.InterpolationMode.BICUBIC, v1.InterpolationMode.NEAREST


@pytest.mark.parametrize(
    ("chain", "rest", "kind", "said"),
    [
        ([CROP, v1.AutoAugment(), TENSOR], 1, "pil", r"AutoAugment \(transform 2 of 3\): it is not among"),
        ([v2.ToImage(), CROP, v2.RandAugment()], 2, "image", r"RandAugment \(transform 3 of 3\)"),
        ([CROP, v1.PILToTensor(), abs, CROP], 2, "tensor", r"abs \(transform 3 of 4\)"),
        ([Mine(), CROP, TENSOR], 0, "pil", r"Mine \(transform 1 of 3\)"),
        ([CROP, TENSOR, v1.ColorJitter(0.4)], 1, "pil", r"ColorJitter \(transform 3 of 3\).*before ToTensor"),
        ([CROP, v1.ColorJitter(hue=0.1), TENSOR], 1, "pil", "hue"),
        ([CROP, TENSOR, v1.RandomResizedCrop(8, interpolation=BICUBIC)], 1, "pil", "bicubic, on floats"),
        ([v1.Resize((8, 8), interpolation=NEAREST), TENSOR], 0, "pil", "nearest"),
        ([v1.PILToTensor(), v1.Resize((8, 8), antialias=False)], 1, "tensor", "antialias=True"),
        ([CROP, TENSOR, v1.Normalize(*HALF), v1.CenterCrop(4)], 1, "pil", "after Normalize"),
        ([CROP, TENSOR, v1.RandomErasing(), v1.RandomHorizontalFlip()], 1, "pil", "after RandomErasing"),
        ([CROP, v1.PILToTensor(), v1.RandomErasing(value=0.5)], 2, "tensor", "8-bit"),
        ([CROP, v1.PILToTensor(), v1.RandomErasing(), v1.AutoAugment()], 2, "tensor", "AutoAugment"),
        ([CROP, v1.PILToTensor(), v1.Normalize(*HALF)], 2, "tensor", r"Normalize \(transform 3 of 3\)"),
        ([CROP, v2.PILToTensor(), v2.ToDtype(torch.float16)], 2, "tensor", "float16"),
        ([CROP, TENSOR, v1.ToTensor()], 1, "pil", r"ToTensor \(transform 3 of 3\)"),
        ([v1.Resize(8), TENSOR], 1, "pil", "same size"),
        ([CROP], 1, "pil", "tensor"),
        ([CROP, v1.RandomApply([v1.RandomCrop(4)]), CROP, TENSOR], 1, "pil", "by chance and changes the size"),
        ([CROP, v1.RandomApply([v1.ToTensor()], p=1.0)], 1, "pil", "by chance and changes the type"),
        ([CROP, v1.RandomOrder([v1.GaussianBlur(3)]), TENSOR], 1, "pil", "order"),
        ([v1.Pad(2, padding_mode="reflect"), CROP, TENSOR], 0, "pil", "reflect"),
        ([v1.Pad(-2), CROP, TENSOR], 0, "pil", "negative"),
        ([CROP, TENSOR, v1.Pad(2, fill=1)], 1, "pil", "fills floating-point"),
        ([CROP, v1.RandomRotation(3, fill=(1, 2, 3)), TENSOR], 1, "pil", "for each channel"),
        ([CROP, v1.RandomRotation(3, expand=True), TENSOR], 1, "pil", "expands"),
        ([CROP, v1.Grayscale(1), TENSOR], 1, "pil", "one channel"),
        ([TENSOR, *[v1.GaussianBlur(3)] * 3, CROP], 0, "pil", r"GaussianBlur \(transform 4 of 5\).*too many"),
    ],
)
def test_what_dali_cannot_do_is_left_to_torchvision_and_named(
    chain: list[Any], rest: int, kind: str, said: str
) -> None:
    program = translate(v1.Compose(chain))
    assert (program.rest, program.rest_kind) == (rest, kind)
    assert re.search(said, str(program.reason))
    assert not program.floating
    assert not program.tail
    assert all(step.operation < rest for step in program.steps)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (v2.MixUp(num_classes=3), r"MixUp \(transform 2 of 2\): .*collate"),
        (v2.CutMix(num_classes=3), r"CutMix \(transform 2 of 2\): .*collate"),
        (StandardTransform(None, None), "its target"),
    ],
)
def test_what_takes_more_than_an_image_is_refused(one: Any, said: str) -> None:
    with pytest.raises(TransformNotTranslatable, match=said):
        translate(v1.Compose([abs, one]))


class Preset:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        """Every way to say it that compiles to the same."""
        return self.transforms(img)


class Module(nn.Module):
    def __init__(self, transforms: Any) -> None:
        super().__init__()
        self.transforms = transforms

    def forward(self, image: Any) -> Any:
        return self.transforms(image)


class Louder(Preset):
    def __call__(self, img: Any) -> Any:
        return 1 - self.transforms(img)


class Twice(Preset):
    def __call__(self, img: Any) -> Any:
        return self.transforms(self.transforms(img))


class Strict(Preset):
    def __call__(self, img: Any) -> Any:
        assert img is not None
        return self.transforms(img)


class Other(Preset):
    def __call__(self, img: Any) -> Any:
        return self.transforms.transforms[0](img)


class Fresh(Preset):
    """Another chain at each call."""

    made: ClassVar[list[Any]] = []

    @property
    def fresh(self) -> Any:
        self.made.append(v1.RandomResizedCrop(8))
        return self.made[-1]

    def __call__(self, img: Any) -> Any:
        return self.fresh(img)


class Mangled(Preset):
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class Gone(Preset):
    def __init__(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return v1.ToTensor()


class Inherits(Preset):
    """Nothing of its own."""


@pytest.mark.parametrize("kind", [Preset, Module, Inherits])
def test_an_object_that_merely_holds_a_chain_is_opened_and_seen_live(kind: Any) -> None:
    preset = kind(kind(v1.Compose([CROP, TENSOR])))
    assert list(flatten(v1.Compose([preset]))) == [CROP, TENSOR]
    assert translate(preset).rest is None
    preset.transforms = kind(FLIP)
    assert list(flatten(preset)) == [FLIP]


def test_what_holds_nothing_that_can_be_called_fails_as_without_us() -> None:
    preset = Preset(None)
    assert list(flatten(preset)) == [preset]


def hooked(one: Any, register: str) -> Any:
    getattr(one, register)(lambda *_: None)
    return one


def overridden(one: Any) -> Any:
    one.forward = abs
    return one


@pytest.mark.parametrize(
    "one",
    [
        *(kind(v1.Compose([CROP, TENSOR])) for kind in (Louder, Twice, Strict, Other, Fresh, Mangled)),
        Gone(),
        *(hooked(Module(CROP), f"register_{name}hook") for name in ("forward_", "forward_pre_", "full_backward_")),
        overridden(Module(CROP)),
        hooked(nn.Sequential(CROP), "register_forward_hook"),
        hooked(v2.Compose([CROP]), "register_forward_hook"),
        hooked(v1.RandomHorizontalFlip(), "register_forward_hook"),
        hooked(v1.RandomApply([CROP]), "register_forward_hook"),
        overridden(v1.RandomHorizontalFlip()),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_does_anything_beside_is_not_opened(one: Any) -> None:
    assert list(flatten(one)) == [one]
    assert operations(one) == 1
    program = translate(v1.Compose([one, TENSOR]))
    assert program.rest == 0
    assert re.search("not among|hooks", str(program.reason))
    assert not Fresh.made


def test_a_hook_on_every_module_leaves_all_modules_alone() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert translate(v1.Compose([v1.RandomHorizontalFlip(), TENSOR])).rest == 0
    finally:
        handle.remove()
