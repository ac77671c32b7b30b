"""Recorded operations in the forms that DALI computes: the same pixels as Pillow's and torch's own operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image, ImageOps
from torch.nn import functional as nn_functional
from torchvision.transforms import functional

from kernel_monitor.loaders.data import trace_calls
from kernel_monitor.loaders.data.own_traces import Trace
from kernel_monitor.loaders.data.trace import Node
from kernel_monitor.loaders.transforms import recorded
from kernel_monitor.loaders.transforms.recorded import (
    CLASSES,
    COLOUR,
    FLOATS,
    PILLOW,
    PLANES,
    End,
    Output,
    OutputForm,
    Stage,
    StageForm,
    nearest,
    nearest_of_torch,
)

Step = Callable[[Any], Any]
NEAREST, BILINEAR = Image.Resampling.NEAREST, Image.Resampling.BILINEAR
SHAPES = [(5, 7), (16, 16), (33, 20), (1, 9), (64, 3)]  # height, width; pixels
RIGHT, DOWN = Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM


@pytest.fixture(autouse=True)
def followed() -> None:
    """Let openers and functions follow calls, as a data set's examination does."""
    trace_calls.install()


def written(folder: Path, pixels: npt.NDArray[np.uint8], mode: str = "L") -> Path:
    """Write an image without loss, and return its path."""
    path = folder / f"{mode}{'x'.join(map(str, pixels.shape))}.png"
    image = Image.fromarray(pixels, mode)
    if mode == "P":
        image.putpalette([value for k in range(256) for value in (k, 255 - k, k // 2)])
    image.save(path)
    return path


def noise(rng: random.Random, height: int, width: int, *channels: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(rng.randrange(1 << 30)).integers(0, 256, (height, width, *channels), dtype=np.uint8)


def run(path: Path, steps: Sequence[Step]) -> Any:
    image: Any = Image.open(path)
    for step in steps:
        image = step(image)
    return image


def traced(path: Path, steps: Sequence[Step]) -> Trace:
    return Trace.of(lambda: run(path, steps), goes_on=False)


def last(roots: Sequence[Node]) -> Node:
    node = roots[0]
    while node.children:
        (node,) = node.children
    return node


# ---- Stages: the four steps of each are taken by Pillow, and the result is compared with the operations' own.


def by_pillow(image: Any, stages: Sequence[Stage]) -> Any:
    for stage in stages:
        top, left, height, width = stage.part
        image = image.crop((left, top, left + width, top + height))
        if stage.filter is not None:
            kind = getattr(Image.Resampling, stage.filter.upper())
            image = image.resize(stage.size[::-1], kind)
        assert image.size == stage.size[::-1]
        top, left, height, width = stage.window
        filled = tuple(map(int, stage.fill or (0, 0, 0)))
        whole = Image.new("RGB", (width, height), filled)
        whole.paste(image, (-left, -top))
        image = whole
        if stage.fill is None:
            assert stage.visible == stage.window
        for mirrored, way in zip(stage.mirrored, (RIGHT, DOWN), strict=True):
            image = image.transpose(way) if mirrored else image
    return image


def a_crop(rng: random.Random, width: int, height: int) -> Step:
    left, top = rng.randrange(width), rng.randrange(height)
    right, bottom = rng.randint(left + 1, width), rng.randint(top + 1, height)
    return lambda image: image.crop((left, top, right, bottom))


def a_flip(rng: random.Random) -> Step:
    way = rng.choice((RIGHT, DOWN))
    return lambda image: image.transpose(way)


def a_border(rng: random.Random, fill: Any) -> Step:
    border = tuple(rng.randrange(6) for _ in range(4))
    return lambda image: ImageOps.expand(image, border, fill=fill)


def beyond(rng: random.Random, width: int, height: int) -> Step:
    left, top = rng.randint(-4, width - 1), rng.randint(-4, height - 1)
    right, bottom = rng.randint(max(left, 0) + 1, width + 4), rng.randint(max(top, 0) + 1, height + 4)
    return lambda image: image.crop((left, top, right, bottom))


def a_size(rng: random.Random, kind: Image.Resampling) -> Step:
    width, height = rng.randint(1, 40), rng.randint(1, 40)
    return lambda image: image.resize((width, height), kind)


def chain(rng: random.Random, image: Any, step_of: Callable[[Any], Step]) -> list[Step]:
    """Return up to six random steps, each possible on the result of the one before."""
    steps: list[Step] = []
    for _ in range(rng.randint(1, 6)):
        steps.append(step_of(image))
        image = steps[-1](image)
    return steps


@pytest.mark.parametrize("seed", range(60))
def test_stages_give_the_pixels_of_pillows_operations(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = written(tmp_path, noise(rng, *rng.choice(SHAPES), 3), "RGB")
    fills = rng.choice(([0], [7], [(1, 20, 255)], [0, 9]))

    def step_of(image: Any) -> Step:
        kind = rng.choice(("crop", "flip", "border", "beyond", "size"))
        if kind == "crop":
            return a_crop(rng, *image.size)
        if kind == "flip":
            return a_flip(rng)
        if kind == "border":
            return a_border(rng, rng.choice(fills))
        return beyond(rng, *image.size) if kind == "beyond" else a_size(rng, BILINEAR)

    steps = chain(rng, Image.open(path), step_of)
    found = traced(path, steps)
    (end,) = found.ends
    assert end.node is last(found.roots)  # nothing stays with the data set
    made, real = by_pillow(Image.open(path), end.output.stages), run(path, steps)
    assert made.size == real.size == end.output.stages[-1].result[::-1]
    difference = np.abs(np.asarray(made, dtype=int) - np.asarray(real, dtype=int))
    resizes = sum(stage.filter is not None for stage in end.output.stages)
    # A resize of the mirrored image is taken as the mirrored resize: the sums of the weights are rounded apart.
    assert difference.max(initial=0) <= resizes


def test_operations_share_a_stage_as_long_as_it_can_be() -> None:
    stage = Stage.of((40, 60))
    assert (stage.result, stage.visible, stage.filter) == ((40, 60), (0, 0, 40, 60), None)
    cut = stage.windowed((5, 6, 20, 30), None)
    assert cut is not None
    resized = cut.resized((10, 12), "bilinear")
    assert resized is not None
    assert (resized.part, resized.size, resized.window) == ((5, 6, 20, 30), (10, 12), (0, 0, 10, 12))
    again = resized.windowed((1, 2, 8, 9), None)
    assert again is not None
    assert (again.part, again.window, again.result) == ((5, 6, 20, 30), (1, 2, 8, 9), (8, 9))
    assert again.resized((4, 4), "bilinear") is None


def test_a_window_of_a_mirrored_image_lies_at_its_other_end() -> None:
    whole = Stage.of((40, 60))
    across = whole.flipped(False).windowed((3, 5, 10, 20), None)
    over = whole.flipped(True).windowed((3, 5, 10, 20), None)
    assert across is not None
    assert over is not None
    assert (across.window, across.mirrored) == ((3, 60 - 5 - 20, 10, 20), (True, False))
    assert (over.window, over.mirrored) == ((40 - 3 - 10, 5, 10, 20), (False, True))
    assert whole.flipped(True).flipped(False).flipped(True).flipped(False) == whole


def test_what_was_cut_off_does_not_come_back() -> None:
    cut = Stage.of((40, 60)).windowed((10, 10, 20, 20), None)
    assert cut is not None
    assert cut.windowed((-2, 0, 22, 20), (0.0,) * 3) is None  # rows 8 and 9 of the image would be seen
    assert cut.windowed((0, 0, 20, 20), (0.0,) * 3) == cut._replace(fill=None)


def test_a_filled_window_has_one_fill_and_is_resized_in_another_stage() -> None:
    bordered = Stage.of((8, 8)).windowed((-2, -2, 12, 12), (1.0,) * 3)
    assert bordered is not None
    assert (bordered.fill, bordered.visible, bordered.result) == ((1.0,) * 3, (0, 0, 8, 8), (12, 12))
    assert bordered.windowed((-1, -1, 14, 14), (2.0,) * 3) is None
    wider = bordered.windowed((-1, -1, 14, 14), (1.0,) * 3)
    assert wider is not None
    assert wider.window == (-3, -3, 14, 14)
    assert bordered.resized((4, 4), "bilinear") is None
    inner = bordered.windowed((2, 2, 8, 8), None)
    assert inner == Stage.of((8, 8))  # nothing is filled any more


def test_a_window_beside_the_image_is_none_of_a_stage() -> None:
    assert Stage.of((8, 8)).windowed((20, 20, 4, 4), (0.0,) * 3) is None


# ---- Numbers of classes are moved to the pixel.


BEFORE = (1, 2, 3, 5, 13, 31, 64, 96, 97, 120, 130, 200, 241, 255)


@pytest.mark.parametrize("before", BEFORE)
def test_nearest_takes_the_pixels_that_pillow_takes(before: int) -> None:
    line = Image.fromarray(np.arange(before, dtype=np.uint8)[None])
    for length in range(1, 260):
        taken = np.asarray(line.resize((length, 1), NEAREST))[0]
        assert np.array_equal(nearest(np.arange(before), length), taken), length


@pytest.mark.parametrize("before", BEFORE)
def test_nearest_of_torch_takes_the_pixels_that_torch_takes(before: int) -> None:
    line = torch.arange(before, dtype=torch.uint8)[None, None, None]
    for length in range(1, 260):
        taken = nn_functional.interpolate(line, size=(1, length), mode="nearest")[0, 0, 0]
        assert np.array_equal(nearest_of_torch(np.arange(before), length), taken.numpy()), length


def test_the_two_kinds_of_nearest_differ() -> None:
    assert not np.array_equal(nearest(np.arange(10), 5), nearest_of_torch(np.arange(10), 5))


@pytest.mark.parametrize("mode", ["L", "P"])
@pytest.mark.parametrize("seed", range(30))
def test_classes_are_those_of_pillow(tmp_path: Path, seed: int, mode: str) -> None:
    rng = random.Random(seed)
    pixels = noise(rng, *rng.choice(SHAPES))
    path = written(tmp_path, pixels, mode)
    fill = rng.choice((0, 255, 19))

    def step_of(image: Any) -> Step:
        kind = rng.choice(("crop", "flip", "size", "border" if mode == "L" else "crop"))
        if kind == "crop":
            return a_crop(rng, *image.size)
        if kind == "flip":
            return a_flip(rng)
        return a_border(rng, fill) if kind == "border" else a_size(rng, NEAREST)

    steps = chain(rng, Image.open(path), step_of)
    found = traced(path, steps)
    (end,) = found.ends
    assert end.node is last(found.roots)
    assert end.output.pixels == CLASSES
    real = run(path, steps)
    assert real.mode == mode
    assert np.array_equal(end.output.taken(pixels), np.asarray(real))


@pytest.mark.parametrize("seed", range(20))
def test_a_crop_of_classes_beyond_the_image_is_filled_with_zeros(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pixels = noise(rng, 12, 17)
    path = written(tmp_path, pixels)
    steps = [beyond(rng, 17, 12), a_flip(rng), a_size(rng, NEAREST)]
    (end,) = traced(path, steps).ends
    assert np.array_equal(end.output.taken(pixels), np.asarray(run(path, steps)))


@pytest.mark.parametrize("seed", range(30))
def test_classes_are_those_of_torch(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pixels = noise(rng, *rng.choice(SHAPES))
    path = written(tmp_path, pixels)

    def step_of(mask: Any) -> Step:
        height, width = mask.shape[-2:]
        kind = rng.choice(("crop", "flip", "size", "pad"))
        if kind == "crop":
            top, left = rng.randrange(height), rng.randrange(width)
            bottom, right = rng.randint(top + 1, height), rng.randint(left + 1, width)
            return lambda mask: mask[..., top:bottom, left:right]
        if kind == "flip":
            dim = rng.choice((-1, -2))
            return lambda mask: mask.flip(dim)
        if kind == "pad":
            sides = [rng.randrange(5) for _ in range(4)]
            return lambda mask: nn_functional.pad(mask, sides, value=fill)
        size = rng.randint(1, 40), rng.randint(1, 40)
        return lambda mask: nn_functional.interpolate(mask[None] if mask.ndim == 3 else mask, size=size)

    fill = rng.choice((0, 255, 19))
    start = functional.pil_to_tensor(Image.open(path)).unsqueeze(0)
    steps = [functional.pil_to_tensor, lambda mask: mask.unsqueeze(0), *chain(rng, start, step_of)]
    found = traced(path, steps)
    (end,) = found.ends
    assert end.node is last(found.roots)
    assert (end.output.pixels, end.output.result) == (CLASSES, PLANES)
    real = run(path, steps)
    made = end.node.given(torch.from_numpy(end.output.taken(pixels)))
    assert torch.equal(made, real)
    assert made.dtype == real.dtype
    strides = [(a, b) for a, b, length in zip(made.stride(), real.stride(), real.shape, strict=True) if length > 1]
    assert all(a == b for a, b in strides)


def test_classes_filled_with_two_values_stay_with_the_data_set(tmp_path: Path) -> None:
    path = written(tmp_path, noise(random.Random(1), 9, 9))
    steps: list[Step] = [lambda mask: ImageOps.expand(mask, 2, fill=3), lambda mask: ImageOps.expand(mask, 2, fill=4)]
    found = traced(path, steps)
    (end,) = found.ends
    assert end.node is last(found.roots).parent  # the first border is DALI's


def test_a_filter_that_mixes_classes_stays_with_the_data_set(tmp_path: Path) -> None:
    path = written(tmp_path, noise(random.Random(2), 9, 9))
    found = traced(path, [lambda mask: mask.crop((1, 1, 8, 8)), lambda mask: mask.resize((5, 5), BILINEAR)])
    (end,) = found.ends
    assert end.node is last(found.roots).parent


# ---- Values: factor and offset.


def test_factor_and_offset_give_the_values_of_torch(tmp_path: Path) -> None:
    pixels = noise(random.Random(3), 8, 9, 3)
    path = written(tmp_path, pixels, "RGB")
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    steps: list[Step] = [
        functional.to_tensor,
        lambda image: functional.normalize(image, mean, std),
        lambda image: image * 2.0,
        lambda image: image + torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1),
        lambda image: image / 4,
        lambda image: image - 0.5,
    ]
    found = traced(path, steps)
    (end,) = found.ends
    assert end.node is last(found.roots)
    assert end.output.result == FLOATS
    assert not end.output.interleaved
    made = pixels * np.array(end.output.factor) + np.array(end.output.offset)
    real = run(path, steps)
    assert np.abs(made.transpose(2, 0, 1) - real.numpy()).max() < 1e-5


def test_a_fill_is_that_of_the_pixels_before_the_values_were_changed(tmp_path: Path) -> None:
    path = written(tmp_path, noise(random.Random(4), 8, 9, 3), "RGB")

    def padded(value: float) -> list[Step]:
        return [functional.to_tensor, lambda image: nn_functional.pad(image, [1, 1, 1, 1], value=value)]

    (end,) = traced(path, padded(51 / 255)).ends
    assert end.output.stages[-1].fill == (51.0,) * 3
    found = traced(path, padded(0.3))  # between two values of 8 bits
    (end,) = found.ends
    assert end.node is last(found.roots).parent


# ---- Where DALI's work ends.


def trace_of(function: Callable[[], Any]) -> Trace:
    return Trace.of(function, goes_on=False)


def test_an_image_ends_at_the_first_operation_that_dali_does_not_do(tmp_path: Path) -> None:
    path = written(tmp_path, noise(random.Random(5), 20, 20, 3), "RGB")
    found = traced(path, [lambda image: image.resize((9, 9), BILINEAR), ImageOps.invert])
    (end,) = found.ends
    assert end.node is found.roots[0].children[0]
    assert end.output.stages[0].filter == "bilinear"


def test_two_views_of_an_image_have_an_end_each(tmp_path: Path) -> None:
    path = written(tmp_path, noise(random.Random(6), 20, 20, 3), "RGB")

    def sample() -> Any:
        image = Image.open(path)
        return image.resize((9, 9), BILINEAR), image.crop((1, 1, 5, 5))

    found = trace_of(sample)
    assert [end.node for end in found.ends] == found.roots[0].children
    assert [end.output.file for end in found.ends] == [0, 0]


def test_a_view_that_dali_does_not_do_leaves_the_common_image(tmp_path: Path) -> None:
    path = written(tmp_path, noise(random.Random(7), 20, 20, 3), "RGB")

    def sample() -> Any:
        image = Image.open(path).crop((1, 1, 15, 15))
        return image.resize((9, 9), Image.Resampling.HAMMING), image.resize((8, 8), BILINEAR)

    found = trace_of(sample)
    (end,) = found.ends
    assert end.node is found.roots[0].children[0]


def test_files_are_numbered_in_the_order_in_which_they_are_opened(tmp_path: Path) -> None:
    image = written(tmp_path, noise(random.Random(8), 20, 20, 3), "RGB")
    mask = written(tmp_path, noise(random.Random(9), 20, 20))
    found = trace_of(lambda: (Image.open(image).crop((0, 0, 9, 9)), Image.open(mask).crop((0, 0, 9, 9))))
    assert [(end.output.file, end.output.pixels) for end in found.ends] == [(0, COLOUR), (1, CLASSES)]


def test_ends_do_not_go_beyond_a_result(tmp_path: Path) -> None:
    path = written(tmp_path, noise(random.Random(10), 20, 20, 3), "RGB")
    steps: list[Step] = [
        lambda image: image.crop((0, 0, 9, 9)),
        functional.pil_to_tensor,
        lambda image: image.float(),
    ]
    found = traced(path, steps)
    expected = {FLOATS: last(found.roots), PLANES: last(found.roots).parent, PILLOW: found.roots[0].children[0]}
    for result, node in expected.items():
        (end,) = recorded.ends(found.roots, [result])
        assert (end.node, end.output.result) == (node, result)


# ---- What samples have in common.


def form(*stages: StageForm, result: str = PILLOW, file: int = 0, factor: float = 1.0) -> OutputForm:
    return OutputForm(file, COLOUR, stages, result, (factor,) * 3, (0.0,) * 3, True)


def test_the_form_of_a_stage_says_what_it_does() -> None:
    whole = Stage.of((40, 60))
    assert StageForm.of(whole, (40, 60)) == StageForm()
    cut = whole.windowed((1, 1, 10, 10), None)
    assert cut is not None
    assert StageForm.of(cut, (40, 60)) == StageForm(window=True)
    resized = cut.resized((5, 5), "bilinear")
    assert resized is not None
    assert StageForm.of(resized, (40, 60)) == StageForm("bilinear", part=True)
    assert StageForm.of(resized.flipped(False), (40, 60)) == StageForm("bilinear", part=True, across=True)


def test_joined_forms_have_the_freedom_of_both() -> None:
    both = StageForm("bilinear", part=True).joined(StageForm(None, window=True, fill=(0.0,) * 3, over=True))
    assert both == StageForm("bilinear", part=True, window=True, fill=(0.0,) * 3, over=True)
    assert StageForm("bilinear").joined(StageForm("bicubic")) is None
    assert StageForm(fill=(0.0,) * 3).joined(StageForm(fill=(1.0,) * 3)) is None
    assert StageForm(fill=(0.0,) * 3).joined(StageForm()) == StageForm().joined(StageForm(fill=(0.0,) * 3))


def test_outputs_join_with_fewer_stages_but_not_with_other_results() -> None:
    one, two = form(StageForm("bilinear")), form(StageForm("bilinear"), StageForm(across=True))
    assert one.joined(two) == two == two.joined(one)
    assert one.joined(replace(one, interleaved=False)) == one
    assert one.joined(form(StageForm("bilinear"), result=PLANES)) is None
    assert one.joined(form(StageForm("bilinear"), file=1)) is None
    assert one.joined(form(StageForm("bilinear"), factor=2.0)) is None
    assert recorded.joined((one,), (one, one)) is None
    assert recorded.joined((one, two), (two, one)) == (two, two)
    assert recorded.joined((one,), (form(StageForm("bicubic")),)) is None


def test_results_are_lowered_until_samples_are_alike() -> None:
    scaled, other = form(result=FLOATS), form(result=FLOATS, factor=2.0)
    planes, image = form(result=PLANES), form()
    assert recorded.lowered((scaled, image), (scaled, image)) == [FLOATS, PILLOW]
    assert recorded.lowered((scaled,), (other,)) == [PLANES]  # the same result, other values
    assert recorded.lowered((scaled,), (planes,)) == [PLANES]
    assert recorded.lowered((image,), (scaled,)) == [PILLOW]
    assert recorded.lowered((form(StageForm("bilinear")),), (form(StageForm("bicubic")),)) == [PILLOW]
    assert recorded.lowered((image,), (image, image)) is None


def test_outputs_of_one_kind_are_widened_together() -> None:
    seen, not_seen = form(StageForm("bilinear", part=True, over=True)), form(StageForm("bilinear"))
    other = form(StageForm("bicubic"))
    wide, same, apart = recorded.widened((seen, not_seen, other))
    assert wide.stages == same.stages == (StageForm("bilinear", part=True, window=True, across=True, over=True),)
    assert apart.stages == (StageForm("bicubic", window=True, across=True),)
    assert recorded.joined((seen, not_seen, other), (wide, same, apart)) == (wide, same, apart)


def test_a_sample_has_a_widened_form() -> None:
    stages = Stage.of((40, 60)).resized((10, 10), "bilinear")
    assert stages is not None
    output = Output(0, COLOUR, (stages,))
    (wide,) = recorded.widened((OutputForm.of(output, (40, 60)),))
    flipped = output._replace(stages=(stages.flipped(False),))
    assert OutputForm.of(flipped, (40, 60)).joined(wide) == wide


def test_dali_gains_by_a_resize_or_a_cut() -> None:
    assert recorded.gains((form(StageForm()), form(StageForm("bilinear"))))
    assert recorded.gains((form(StageForm(window=True)),))
    assert recorded.gains((form(StageForm(part=True)),))
    assert not recorded.gains((form(StageForm(across=True)), form()))


def test_forms_are_those_of_each_outputs_file(tmp_path: Path) -> None:
    image = written(tmp_path, noise(random.Random(11), 20, 30, 3), "RGB")
    found = trace_of(lambda: (Image.open(image).crop((0, 0, 9, 9)), Image.open(image).crop((0, 0, 30, 20))))
    first, second = recorded.forms_of(found.ends, found.roots)
    assert (first.file, first.stages) == (0, (StageForm(window=True),))
    assert (second.file, second.stages) == (1, (StageForm(),))
    assert isinstance(found.ends[0], End)


# ---- What DALI is fed.


def test_a_sample_without_a_stage_is_fed_one_that_changes_nothing() -> None:
    cut = Stage.of((40, 60)).windowed((4, 6, 20, 30), None)
    assert cut is not None
    both = form(StageForm(window=True), StageForm("bilinear", across=True))
    resized = Stage.of((20, 30)).resized((10, 10), "bilinear")
    assert resized is not None
    long, short = Output(0, COLOUR, (cut, resized.flipped(False))), Output(0, COLOUR, (Stage.of((8, 9)),))
    fed = recorded.arrays(both, 3, [long, short], [(40, 60), (8, 9)])
    assert {name: values.tolist() for name, values in fed.items()} == {
        "part3_0": [[4, 6], [0, 0]],
        "extent3_0": [[20, 30], [8, 9]],
        "size3_1": [[10.0, 10.0], [8.0, 9.0]],
        "across3_1": [1, 0],
    }


def test_a_window_of_a_resized_image_is_resized_alone() -> None:
    stage = Stage.of((40, 60)).resized((20, 20), "bilinear")
    assert stage is not None
    windowed = stage.windowed((5, 10, 10, 5), None)
    assert windowed is not None
    fed = recorded.arrays(form(StageForm("bilinear", window=True)), 0, [Output(0, COLOUR, (windowed,))], [(40, 60)])
    assert fed["size0_0"].tolist() == [[10.0, 5.0]]
    assert fed["from0_0"].tolist() == [[10.0, 30.0]]
    assert fed["to0_0"].tolist() == [[30.0, 45.0]]


def test_a_filled_window_is_fed_from_where_the_image_begins() -> None:
    stage = Stage.of((8, 9)).windowed((-2, 3, 12, 10), (0.0,) * 3)
    assert stage is not None
    forms = form(StageForm(window=True, fill=(0.0,) * 3))
    fed = recorded.arrays(forms, 0, [Output(0, COLOUR, (stage,))], [(8, 9)])
    assert fed["part0_0"].tolist() == [[0, 3]]
    assert fed["extent0_0"].tolist() == [[8, 6]]
    assert fed["start0_0"].tolist() == [[-2, 0]]
    assert fed["shape0_0"].tolist() == [[12, 10]]
