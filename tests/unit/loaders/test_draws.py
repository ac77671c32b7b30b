from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import transforms as v1
from torchvision.transforms import RandomResizedCrop

from kernel_monitor.loaders.transforms.geometry import inverse_affine, place
from kernel_monitor.loaders.transforms.params import (
    CROP_DRAWS,
    ERASE_DRAWS,
    center_start,
    crop_box,
    crop_boxes,
    erase_box,
    resized,
    sample_keys,
    stream_seeds,
    uniforms,
)
from kernel_monitor.loaders.transforms.program import arrays
from kernel_monitor.loaders.transforms.translate import translate

RATIO = (3 / 4, 4 / 3)


def test_a_key_depends_on_every_part_and_on_nothing_else() -> None:
    base = sample_keys(1, 2, [3, 4], [0, 0])
    assert sample_keys(1, 2, [4, 3], [0, 0]).tolist() == base.tolist()[::-1]
    others = [
        sample_keys(*args)[0] for args in [(9, 2, [3], [0]), (1, 9, [3], [0]), (1, 2, [9], [0]), (1, 2, [3], [1])]
    ]
    assert len({int(base[0]), *map(int, others)}) == 5
    keys = {
        int(sample_keys(seed, epoch, [index], [count])[0])
        for seed in (0, 1, -1, 2**64 - 2, 2**40)
        for epoch in range(4)
        for index in range(-2, 6)
        for count in range(4)
    }
    assert len(keys) == 5 * 4 * 8 * 4


def test_uniforms_are_uniform_and_independent() -> None:
    keys = sample_keys(7, 0, range(20000), [0] * 20000)
    drawn = np.concatenate([uniforms(keys, 0, 3), uniforms(keys, 1, 3)], axis=1)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for column in drawn.T:
        counts = np.histogram(column, bins=64, range=(0, 1))[0]
        chi_square = ((counts - 312.5) ** 2 / 312.5).sum()
        assert chi_square < 63 + 5 * math.sqrt(2 * 63)
    correlation = np.corrcoef(drawn.T) - np.eye(6)
    assert np.abs(correlation).max() < 5 / math.sqrt(20000)
    lagged = np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]
    assert abs(lagged) < 5 / math.sqrt(20000)


def test_draws_of_operations_do_not_overlap() -> None:
    keys = sample_keys(7, 0, range(50), [0] * 50)
    everything = np.concatenate([uniforms(keys, operation, 40) for operation in range(6)], axis=1)
    assert len(np.unique(everything)) == everything.size
    assert len({stream_seeds(keys, operation)[0] for operation in range(-3, 100)}) == 103


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 2**63))
def test_one_crop_equals_the_batch_of_crops(height: int, width: int, seed: int) -> None:
    draws = uniforms(sample_keys(seed, 0, range(16), [0] * 16), 0, CROP_DRAWS)
    sizes = np.arange(16) * 7
    heights, widths = height + sizes, width + sizes[::-1]
    for scale in ((0.08, 1.0), (0.9, 1.0), (1.0, 1.0)):
        batch = crop_boxes(heights, widths, draws, scale, RATIO)
        each = [
            crop_box(int(h), int(w), row, scale, RATIO)
            for h, w, row in zip(heights, widths, draws.tolist(), strict=True)
        ]
        assert [tuple(box) for box in batch.tolist()] == each
        tops, lefts, tall, wide = batch.T
        assert (tops >= 0).all()
        assert (lefts >= 0).all()
        assert (tall > 0).all()
        assert (wide > 0).all()
        assert (tops + tall <= heights).all()
        assert (lefts + wide <= widths).all()


@pytest.mark.parametrize(("height", "width"), [(100, 100), (375, 500), (60, 400)])
def test_crops_are_distributed_as_torchvisions(height: int, width: int) -> None:
    count = 4000
    draws = uniforms(sample_keys(3, 0, range(count), [0] * count), 0, CROP_DRAWS)
    ours = crop_boxes(np.full(count, height), np.full(count, width), draws, (0.08, 1.0), RATIO)
    torch.manual_seed(0)
    image = torch.zeros(3, height, width)
    theirs = np.array([RandomResizedCrop.get_params(image, [0.08, 1.0], list(RATIO)) for _ in range(count)])
    for column in range(4):  # two-sample Kolmogorov-Smirnov distance, at a level of about 1 in 10,000
        points = np.unique(np.concatenate([ours[:, column], theirs[:, column]]))
        a = np.searchsorted(np.sort(ours[:, column]), points, side="right") / count
        b = np.searchsorted(np.sort(theirs[:, column]), points, side="right") / count
        assert np.abs(a - b).max() < 2.2 * math.sqrt(2 / count)


def test_crops_that_never_fit_are_torchvisions_central_ones() -> None:
    box = crop_box(1000, 10, [0.5] * CROP_DRAWS, (1.0, 1.0), RATIO)
    assert box == tuple(RandomResizedCrop.get_params(torch.zeros(3, 1000, 10), [1.0, 1.0], list(RATIO)))


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 700), st.none() | st.integers(701, 2000))
def test_resize_and_center_crop_as_torchvision(height: int, width: int, size: int, limit: int | None) -> None:
    from torchvision.transforms.functional import _compute_resized_output_size

    expected = _compute_resized_output_size((height, width), [size], limit)
    assert list(resized(height, width, (size,), limit)) == expected
    assert resized(height, width, (3, 4), None) == (3, 4)
    if size <= height:
        assert center_start(height, size) == round((height - size) / 2.0)
    else:
        assert center_start(height, size) == -((size - height) // 2)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**63))
def test_erased_boxes_lie_inside(height: int, width: int, seed: int) -> None:
    draws = uniforms(sample_keys(seed, 0, range(8), [0] * 8), 0, ERASE_DRAWS).tolist()
    for row in draws:
        top, left, tall, wide = erase_box(height, width, row, (0.02, 0.9), (0.3, 3.3))
        assert 0 <= top <= top + tall <= height
        assert 0 <= left <= left + wide <= width
        assert (tall < height and wide < width) or (tall, wide) == (0, 0)


@given(
    st.floats(-180, 180),
    st.tuples(st.integers(-50, 50), st.integers(-50, 50)),
    st.floats(0.2, 3),
    st.tuples(st.floats(-40, 40), st.floats(-40, 40)),
)
def test_affine_maps_as_torchvision(
    angle: float, move: tuple[int, int], scale: float, shear: tuple[float, float]
) -> None:
    from torchvision.transforms.functional import _get_inverse_affine_matrix

    theirs = _get_inverse_affine_matrix([31.0, 20.5], angle, list(move), scale, list(shear))
    arguments = ((31.0, 20.5), angle, move, scale, shear)
    (ours,) = inverse_affine(*(np.array([argument]) for argument in arguments)).tolist()
    assert ours == pytest.approx(theirs, abs=1e-9, rel=1e-9)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 8), st.booleans(), st.floats(0, 0.999999))
def test_a_random_window_lies_inside_the_padded_image(
    height: int, width: int, padding: int, needed: bool, number: float
) -> None:
    sides = (padding, padding, padding, padding)
    fits = needed or (height + 2 * padding >= 40 and width + 2 * padding >= 30)
    if not fits:
        with pytest.raises(ValueError, match="larger than input image"):
            place(height, width, (number, number), (40, 30), sides, needed)
        return
    top, left, (before, above, after, below) = place(height, width, (number, number), (40, 30), sides, needed)
    assert 0 <= top <= height + above + below - 40
    assert 0 <= left <= width + before + after - 30


def test_parameters_of_crop_and_flip_cost_little() -> None:
    program = translate(v1.Compose([RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor()]))
    heights, widths = np.full(32, 375), np.full(32, 500)

    def batch(number: int) -> float:
        start = time.thread_time()  # not the clock: other processes may have the core
        arrays(program, sample_keys(3, number, range(32), [0] * 32), heights, widths)
        return time.thread_time() - start

    # 5 us a sample is what is promised on an idle machine
    assert min(batch(number) for number in range(200)) / 32 < 3 * 5e-6
