"""Arrays in traces: a chain of NumPy's, OpenCV's and torch's functions gives, in both calls, what it gives plainly."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from kernel_monitor.loaders.data.own_dataset import OwnDataset
from kernel_monitor.loaders.data.own_traces import Trace
from kernel_monitor.loaders.data.structure import equal
from kernel_monitor.loaders.data.trace import Mismatch
from kernel_monitor.loaders.data.trace_calls import TraceCall
from kernel_monitor.loaders.transforms.recorded import nearest_of_16_bits, nearest_of_opencv

from .corpus import picture

STEPS = 6
PROGRAMS = 150


def resized(array: Any, number: int) -> Any:
    return cv2.resize(array, (40 + number, 70 - number), interpolation=number % 2)


def cut(array: Any, number: int) -> Any:
    return array[number : number + 20, 3:-1]


def erased(array: Any, number: int) -> Any:
    array = np.ascontiguousarray(array)
    part = array[number:, 2:9]
    part[...] = number
    return array


def brighter(array: Any, number: int) -> Any:
    array = array.copy()
    array += np.uint8(number)
    return array


def padded(array: Any, number: int) -> Any:
    return cv2.copyMakeBorder(array, number, 1, 2, 0, cv2.BORDER_CONSTANT, value=(number, 50, 7))


OPERATIONS: tuple[Callable[[Any, int], Any], ...] = (
    resized,
    cut,
    erased,
    brighter,
    padded,
    lambda array, _: array[::-1],
    lambda array, _: array[:, ::-1],
    lambda array, _: np.fliplr(array),
    lambda array, number: np.flip(array, number % 2),
    lambda array, number: cv2.flip(np.ascontiguousarray(array), number % 2),
    lambda array, _: array[..., ::-1].copy() if array.ndim == 3 else array,
    lambda array, _: np.ascontiguousarray(array),
    lambda array, _: np.asarray(array),
    lambda array, _: np.array(array, dtype=np.uint8),
    lambda array, _: np.array(Image.fromarray(np.ascontiguousarray(array))),
    lambda array, number: np.clip(array, number, 255 - number),
    lambda array, _: array[: len(array) - 1],
)


class Programs(Dataset[Any]):
    """Each sample is what a drawn program makes of a file: a list of all its arrays, or the last one in some form."""

    def __init__(self, root: Path, mode: str) -> None:
        self.path = root / "picture.png"
        image = picture("RGB" if mode == "RGB" else "L", 60, 80)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
        image.save(self.path)
        self.classes = mode != "RGB"
        self.flags = {"RGB": cv2.IMREAD_COLOR, "L": cv2.IMREAD_GRAYSCALE, "I;16": cv2.IMREAD_UNCHANGED}[mode]

    def __len__(self) -> int:
        return PROGRAMS

    def __getitem__(self, index: int) -> Any:
        random.seed(index)
        array: Any = cv2.imread(str(self.path), self.flags) if index % 2 else np.array(Image.open(self.path))
        found = [array]
        for _ in range(random.randrange(STEPS)):
            array = random.choice(OPERATIONS)(found[-1], random.randrange(1, 9))
            found.append(array)
        kind = random.randrange(4)
        if kind == 0:
            return [each.copy() for each in found], [each.shape for each in found]
        if kind == 1 or self.classes:
            return array, index
        planes = np.ascontiguousarray(array.transpose(2, 0, 1))
        if index % 3 == 0:
            array = erased(array, 4)
        if kind == 2:
            return planes, array.shape, len(array)
        if index % 5 == 0:
            shared = torch.from_numpy(planes)
            planes[:, 3] = 11
            return shared, array
        return torch.from_numpy(planes).float().div(255), torch.tensor(np.ascontiguousarray(array))


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
def test_programs_give_the_same_in_both_calls(tmp_path: Path, mode: str, goes_on: bool) -> None:
    same_in_both_calls(Programs(tmp_path, mode), goes_on=goes_on)


def same_in_both_calls(dataset: Any, *, goes_on: bool, least: float = 0.1) -> None:
    own = OwnDataset(dataset)
    view = own._view.dataset
    ended = filled = different = 0
    for index in range(PROGRAMS):
        plain = dataset[index]
        compute = functools.partial(view.__getitem__, index)
        found = Trace.of(compute, goes_on=goes_on)
        ended += bool(found.ends)
        pixels = {end.node: end.node.given(end.node.real()) for end in found.ends}
        try:
            assert equal(found.replayed(compute, pixels), plain), index
        except Mismatch:  # a tensor and an array share their memory
            different += 1
            continue
        if found.held is not None:
            filled += 1
            pixels = {end.node: end.node.given(end.node.real()) for end in found.ends}
            assert equal(found.filled(pixels), plain), index
    assert ended > (0.1 if goes_on else 0.9) * PROGRAMS
    assert filled > least * PROGRAMS
    assert different < 0.1 * PROGRAMS


class Stacks(Dataset[Any]):
    """Each sample is what a drawn program makes of a stack of arrays, which it may change in place."""

    def __init__(self, root: Path, mode: str) -> None:
        self.paths = [root / f"{number}.png" for number in range(3)]
        for number, path in enumerate(self.paths):
            values = np.random.default_rng(number).integers(0, 65536 if mode == "I;16" else 256, (50, 60))
            Image.fromarray(values.astype(np.uint16 if mode == "I;16" else np.uint8)).save(path)

    def __len__(self) -> int:
        return PROGRAMS

    def __getitem__(self, index: int) -> Any:
        random.seed(index)
        arrays = [np.array(Image.open(path)) for path in self.paths]
        if random.random() < 0.2:
            arrays[1] = arrays[1] * 1
        stack: Any = np.stack(arrays)
        found: list[Any] = [stack.shape, stack.ndim, len(stack), str(stack.dtype)]
        for _ in range(random.randrange(STEPS)):
            k = random.randrange(8)
            part: Any = stack[random.randrange(-3, 3)]
            if k == 0:
                part[3:7] = index
            elif k == 1:
                stack[:, 2] += 1
            elif k == 2:
                stack = np.stack([cv2.resize(each, (40, 30), interpolation=cv2.INTER_NEAREST) for each in stack])
            elif k == 3:
                stack = np.ascontiguousarray(stack)[:, ::-1]
            elif k == 4:
                found.append(part)
            elif k == 5:
                found.append(part[::-1].copy())
            elif k == 6:
                found.append(torch.from_numpy(np.ascontiguousarray(part)))
            else:
                arrays[0][4] = 9
        kind = random.randrange(3)
        return found, arrays, list(stack) if kind == 0 else stack if kind == 1 else torch.from_numpy(stack.copy())


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("mode", ["L", "I;16"])
def test_stacks_give_the_same_in_both_calls(tmp_path: Path, mode: str, goes_on: bool) -> None:
    same_in_both_calls(Stacks(tmp_path, mode), goes_on=goes_on, least=0.03)


def test_nearest_neighbours_are_those_of_opencv() -> None:
    rng = np.random.default_rng(3)
    for number, (height, width, to_height, to_width) in enumerate(rng.integers(1, 700, (60, 4)).tolist()):
        dtype: Any = (np.uint8, np.uint16)[number % 2]
        image = rng.integers(0, np.iinfo(dtype).max, (height, width), dtype=dtype, endpoint=True)
        rows, columns = nearest_of_opencv((height, width), (to_height, to_width))
        expected = cv2.resize(image, (to_width, to_height), interpolation=cv2.INTER_NEAREST)
        assert np.array_equal(image[rows][:, columns], expected), (height, width, to_height, to_width)


def test_nearest_neighbours_of_16_bits_are_those_of_pillow() -> None:
    rng = np.random.default_rng(4)
    for height, width, to_height, to_width in rng.integers(1, 1500, (200, 4)).tolist():
        down, across = (Image.fromarray(np.arange(length, dtype=np.uint16)[:, None]) for length in (height, width))
        for image, length in ((down, to_height), (across, to_width)):
            expected = np.asarray(image.resize((1, length), Image.Resampling.NEAREST)).ravel()
            assert np.array_equal(nearest_of_16_bits(np.arange(image.height), length), expected), (image.height, length)


class Refused(Dataset[Any]):
    """Each sample is a part of an image, by an index that NumPy refuses."""

    keys = (np.s_[:4, :, :, :], np.s_[..., :, ...], np.s_[0, 0, 0, 0])

    def __init__(self, root: Path) -> None:
        self.path = root / "picture.png"
        picture("RGB", 60, 80).save(self.path)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> Any:
        return np.array(Image.open(self.path))[self.keys[index]]


@pytest.mark.parametrize("index", range(len(Refused.keys)))
def test_an_index_that_numpy_refuses_is_refused(tmp_path: Path, index: int) -> None:
    own = OwnDataset(Refused(tmp_path))
    call = TraceCall(goes_on=True)
    with pytest.raises(IndexError), call:
        own._view.dataset[index]
    assert call.gave_array
