"""The numbers that the plan hands out are distributed as those that torchvision would draw itself.

Two samples of 4,000 each, with fixed seeds. The bounds are such that a true match fails less than once in 100,000:
for the two-sample Kolmogorov-Smirnov distance, sqrt(ln(2 / 1e-5) / 2) = 2.47; for a rate, 4.5 standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from kernel_monitor.loaders.transforms.inject import Injected
from kernel_monitor.loaders.transforms.params import sample_keys
from kernel_monitor.loaders.transforms.program import drawn
from kernel_monitor.loaders.transforms.translate import find, translate

COUNT = 4000
HEIGHT, WIDTH = 90, 130
DISTANCE = 2.47 * math.sqrt(2 / COUNT)
DEVIATIONS = 4.5

Numbers = npt.NDArray[np.float64]


def ours(one: Any) -> list[Any]:
    """What the plan draws for 4,000 samples, as DALI is told; None where the transform is not applied."""
    whole = v1.CenterCrop((HEIGHT, WIDTH)), v1.PILToTensor()
    erases = type(one) in (v1.RandomErasing, v2.RandomErasing)  # they take tensors, and DALI does them last
    program = translate(v1.Compose([*whole, one]) if erases else one)
    keys = sample_keys(11, 0, range(COUNT), [0] * COUNT)
    sizes = np.full(COUNT, HEIGHT), np.full(COUNT, WIDTH)
    return [sample.get(len(whole) if erases else 0) for sample in drawn(program, keys, *sizes)]


def columns(values: list[Any]) -> Numbers:
    """float64[n, m] of nested tuples of numbers."""

    def flat(value: Any) -> list[float]:
        if isinstance(value, (tuple, list)):
            return [number for inner in value for number in flat(inner)]
        return [] if value is None else [float(value)]

    return np.array([flat(value) for value in values])


def same_distribution(a: Numbers, b: Numbers) -> None:
    """Assert that the Kolmogorov-Smirnov distance of every column is that of two samples of one distribution."""
    assert a.shape[1] == b.shape[1] > 0
    for left, right in zip(a.T, b.T, strict=True):
        points = np.unique(np.concatenate([left, right]))
        at = [np.searchsorted(np.sort(one), points, side="right") / len(one) for one in (left, right)]
        assert np.abs(at[0] - at[1]).max() < DISTANCE * math.sqrt(COUNT / min(len(left), len(right)))


IMAGE = torch.zeros(3, HEIGHT, WIDTH)
AFFINE = v1.RandomAffine(25, (0.1, 0.3), (0.6, 1.5), (-10, 10, -5, 20))
JITTER = v1.ColorJitter(0.4, (0.5, 0.9), 0.2)
BLUR = v1.GaussianBlur(5, (0.3, 2.5))
ERASING = v1.RandomErasing(1.0, scale=(0.05, 0.4), ratio=(0.2, 2.0))

THEIRS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "crop": (v1.RandomResizedCrop(8), lambda: v1.RandomResizedCrop.get_params(IMAGE, [0.08, 1.0], [3 / 4, 4 / 3])),
    "crop, wide": (
        v1.RandomResizedCrop(8, (0.5, 1.0), (1.5, 3.0)),
        lambda: v1.RandomResizedCrop.get_params(IMAGE, [0.5, 1.0], [1.5, 3.0]),
    ),
    "crop, v2": (
        v2.RandomResizedCrop(8, (0.1, 0.4)),
        lambda: tuple(v2.RandomResizedCrop(8, (0.1, 0.4)).make_params([IMAGE]).values()),
    ),
    "window": (v1.RandomCrop((40, 60)), lambda: v1.RandomCrop.get_params(IMAGE, (40, 60))[:2]),
    "angle": (v1.RandomRotation((-20, 70)), lambda: v1.RandomRotation.get_params([-20, 70])),
    "affine": (
        AFFINE,
        lambda: v1.RandomAffine.get_params(
            AFFINE.degrees, AFFINE.translate, AFFINE.scale, AFFINE.shear, [WIDTH, HEIGHT]
        ),
    ),
    "affine, v2": (
        v2.RandomAffine(0, (0.2, 0.2), shear=7),
        lambda: tuple(v2.RandomAffine(0, (0.2, 0.2), shear=7).make_params([IMAGE]).values()),
    ),
    "jitter": (JITTER, lambda: JITTER.get_params(JITTER.brightness, JITTER.contrast, JITTER.saturation, None)[1:4]),
    "blur": (BLUR, lambda: v1.GaussianBlur.get_params(0.3, 2.5)),
    "erasing": (ERASING, lambda: ERASING.get_params(IMAGE, (0.05, 0.4), (0.2, 2.0), [0.0])[:4]),
}


@pytest.mark.parametrize("name", THEIRS)
def test_parameters_are_distributed_as_torchvision_s(name: str) -> None:
    one, get_params = THEIRS[name]
    torch.manual_seed(5)
    theirs = columns([get_params() for _ in range(COUNT)])
    values = ours(one)
    if name == "jitter":
        values = [value[1:4] for value in values]
    elif name == "window":
        values = [value[:2] for value in values]
    mine = columns(values)
    same_distribution(mine, theirs)
    if mine.shape[1] == 4 and "affine" not in name:  # boxes: areas and ratios, which four margins leave open
        boxes = [np.stack([box[:, 2] * box[:, 3], box[:, 3] / box[:, 2]], axis=1) for box in (mine, theirs)]
        same_distribution(*boxes)


def test_the_bound_notices_a_small_difference() -> None:
    _, get_params = THEIRS["crop"]
    torch.manual_seed(5)
    theirs = columns([get_params() for _ in range(COUNT)])
    with pytest.raises(AssertionError):
        same_distribution(columns(ours(v1.RandomResizedCrop(8, (0.12, 1.0)))), theirs)


def test_the_order_of_jitter_is_uniform() -> None:
    orders = [value[0] for value in ours(JITTER)]
    counts = np.array([orders.count(order) for order in set(orders)])
    assert len(counts) == math.factorial(4)
    expected = COUNT / len(counts)
    # chi-square with 23 degrees of freedom: 68.2 is passed once in 1e6
    assert ((counts - expected) ** 2 / expected).sum() < 68.2


@pytest.mark.parametrize("version", [v1, v2])
@pytest.mark.parametrize(
    ("name", "p"),
    [
        ("RandomHorizontalFlip", 0.5),
        ("RandomHorizontalFlip", 0.1),
        ("RandomVerticalFlip", 0.7),
        ("RandomGrayscale", 0.1),
        ("RandomInvert", 0.4),
        ("RandomErasing", 0.25),
    ],
)
def test_rates(version: Any, name: str, p: float) -> None:
    values = ours(getattr(version, name)(p=p))
    applied = sum(value is not None and value is not False for value in values)
    assert abs(applied - COUNT * p) < DEVIATIONS * math.sqrt(COUNT * p * (1 - p))


def test_rates_of_containers() -> None:
    chain = v1.Compose(
        [
            v1.RandomApply([v1.GaussianBlur(3)], p=0.3),
            v1.RandomChoice([v1.RandomRotation(3), v1.RandomAffine(4), v1.GaussianBlur(5)], p=[1, 2, 5]),
        ]
    )
    keys = sample_keys(11, 0, range(COUNT), [0] * COUNT)
    found = drawn(translate(chain), keys, np.full(COUNT, HEIGHT), np.full(COUNT, WIDTH))
    for operation, p in ((1, 0.3), (3, 1 / 8), (4, 2 / 8), (5, 5 / 8)):
        applied = sum(operation in one for one in found)
        assert abs(applied - COUNT * p) < DEVIATIONS * math.sqrt(COUNT * p * (1 - p))
    assert all(sum(operation in one for operation in (3, 4, 5)) == 1 for one in found)


@pytest.mark.parametrize("version", [v1, v2])
def test_the_user_s_own_transforms_draw_what_dali_is_told(version: Any) -> None:
    """Every random transform that is known, on torchvision, against the same samples' parameters for DALI."""
    chain = [
        version.RandomApply([version.RandomRotation(40), version.RandomAffine(9, (0.1, 0.1), (0.8, 1.2), 5)]),
        version.RandomChoice([version.ColorJitter(0.3, 0.3, 0.3), version.GaussianBlur(3)]),
        version.RandomGrayscale(0.3),
        version.RandomCrop((60, 70), padding=3, pad_if_needed=True),
        version.RandomVerticalFlip(),
        version.RandomResizedCrop(24),
        version.RandomHorizontalFlip(),
        version.PILToTensor(),
        version.RandomErasing(0.7),
    ]
    assert all(find(one) for one in chain[2:])
    n = 40
    keys = sample_keys(2, 1, range(n), [0] * n)
    heights, widths = np.arange(n) + 50, 110 - np.arange(n)
    told = drawn(translate(v1.Compose(chain)), keys, heights, widths)
    injected = Injected(v1.Compose(chain))
    injected.begin(keys)
    for row in reversed(range(n)):
        injected.run(v1.functional.to_pil_image(torch.zeros(3, int(heights[row]), int(widths[row]))), row)
        assert injected.drawn() == told[row]
    assert {operation for one in told for operation in one} == {1, 2, 4, 5, 6, 7, 8, 9, 10, 12}
