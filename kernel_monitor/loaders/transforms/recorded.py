"""Recorded operations, brought into the few forms that DALI computes; and the form that a data set's samples share.

DALI's pipeline is fixed, while operations differ from sample to sample. So the operations on an image are brought into
stages: take a part, resize it, take a window of the result (filled where it reaches beyond), mirror. A sample in which
one of them is missing gets parameters that change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .geometry import FILTERS
from .operation import Fed, Graph, float32, int32

if TYPE_CHECKING:
    from ..data.trace import Node

Size = tuple[int, int]  # height, width; pixels
Box = tuple[int, int, int, int]  # top, left, height, width; pixels

_FILTERS = {**FILTERS, "linear": "INTERP_LINEAR"}  # without antialiasing: OpenCV's

COLOUR, CLASSES, CLASSES_16 = "colour", "classes", "classes of 16 bits"
"""Images in RGB, and images whose values are numbers of classes or of palette entries, which must stay as they are."""

MOVED = (CLASSES, CLASSES_16)
"""Kinds of images whose pixels are only moved."""

PILLOW, PLANES, FLOATS = "pillow", "planes", "floats"
"""Results: an image of Pillow; a tensor of bytes; a tensor of floating-point numbers."""
_LEVELS = (PILLOW, PLANES, FLOATS)


# ---- The operations on one image.


class Stage(NamedTuple):
    """A part of an image is taken, resized, cut or filled up to a window, and mirrored."""

    part: Box
    size: Size  # of the part after the resize
    window: Box  # in the resized part
    filter: str | None = None  # of the resize; None: there is none
    fill: tuple[float, ...] | None = None  # what the window is filled with; None: it lies inside
    mirrored: tuple[bool, bool] = (False, False)  # left to right, upside down

    @classmethod
    def of(cls, size: Size) -> Stage:
        """Return the stage that changes nothing of an image of this size."""
        whole = (0, 0, *size)
        return cls(whole, size, whole)

    @property
    def result(self) -> Size:
        """The size of the result."""
        return self.window[2:]

    @property
    def visible(self) -> Box:
        """The part of the resized image that is in the window."""
        top, left, height, width = self.window
        bottom, right = min(top + height, self.size[0]), min(left + width, self.size[1])
        top, left = max(top, 0), max(left, 0)
        return top, left, bottom - top, right - left

    def windowed(self, box: Box, fill: tuple[float, ...] | None) -> Stage | None:
        """Return the stage with a window of its result; None if that takes another stage."""
        (top, left, height, width), (own_height, own_width) = box, self.result
        if self.mirrored[0]:
            left = own_width - left - width
        if self.mirrored[1]:
            top = own_height - top - height
        if None not in (fill, self.fill) and fill != self.fill:
            return None
        inside = top >= 0 and left >= 0 and top + height <= own_height and left + width <= own_width
        if not inside and self.visible != (0, 0, *self.size):
            return None  # what was cut off would come back
        window = (self.window[0] + top, self.window[1] + left, height, width)
        made = self._replace(window=window, fill=self.fill if fill is None else fill)
        if min(made.visible[2:]) <= 0:
            return None
        return made if made.visible != window else made._replace(fill=None)

    def resized(self, size: Size, name: str) -> Stage | None:
        """Return the stage with its result resized; None if that takes another stage."""
        if self.filter is not None or self.fill is not None:
            return None
        part = (self.part[0] + self.window[0], self.part[1] + self.window[1], *self.result)
        return self._replace(part=part, size=size, window=(0, 0, *size), filter=name)

    def flipped(self, vertical: bool) -> Stage:
        """Return the stage with its result mirrored."""
        across, over = self.mirrored
        return self._replace(mirrored=(across, not over) if vertical else (not across, over))


class Output(NamedTuple):
    """An image that DALI computes for a sample: a file, and what is done to its pixels.

    Attributes:
        file: the number of the file among those that the sample opens.
        pixels: `COLOUR`, `CLASSES` or `CLASSES_16`.
        stages: the geometric operations; of `MOVED` they are `indices` alone.
        result: `PILLOW`, `PLANES` or `FLOATS`.
        factor: of `FLOATS`: the result is a pixel's value (0 to 255) * factor + offset, per channel.
        offset: see `factor`.
        interleaved: whether the channels of a tensor lie beside each other.
        indices: of `MOVED`: for each row and column of the result that of the file, -1 for filled ones.
        fill: of `MOVED`: the value of what is filled.
        bgr: whether blue is the first channel.
    """

    file: int
    pixels: str
    stages: tuple[Stage, ...]
    result: str = PILLOW
    factor: tuple[float, ...] = (1.0, 1.0, 1.0)
    offset: tuple[float, ...] = (0.0, 0.0, 0.0)
    interleaved: bool = True
    indices: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
    fill: int = 0
    bgr: bool = False

    def after(self, node: Node) -> Output | None:
        """Return the output with the operation of a node; None if DALI cannot do it."""
        kind, values, _ = node.operation  # type: ignore[misc]
        if self.pixels in MOVED:
            return self._classes(kind, values)
        if kind[0] == "planes" and node.form[0][0] != 3:
            return None
        name = kind[0]
        if name == "convert":
            return self if kind[1] == "RGB" else None
        if name in ("window", "resize", "mirror"):
            made = self._moved(kind, values)
        elif name == "planes" and self.result == PILLOW:
            made = self._replace(result=PLANES)
        elif name == "floats" and self.result == PILLOW:
            made = self._scaled("mul", (1 / 255,) * 3)._replace(result=FLOATS)
        elif name == "planes" and self.result == FLOATS:
            made = self
        elif name == "pillow" and self.result in (PILLOW, PLANES):
            made = self._replace(result=PILLOW)
        elif name == "array":
            made = self
        elif name == "reverse":
            made = self._reversed()
        elif name == "scale" and self.result == PILLOW:
            made = self._scaled("sub", values[:3])._scaled("mul", values[3:])._replace(result=FLOATS)
        elif name == "cast":
            made = self._cast(kind[1])
        elif name == "round":
            made = self if self.plain else None
        elif name == "clone":
            made = self
        elif name == "normalize" and self.result == FLOATS:
            made = self._scaled("sub", values[:3])._scaled("div", values[3:])
        elif name in ("add", "sub", "mul", "div") and self.result == FLOATS:
            made = self._scaled(name, values)
        else:
            return None
        if made is not None and not isinstance(node.form, str):
            made = made._replace(interleaved=node.form[1][0] == 1)
        return made

    @property
    def plain(self) -> bool:
        """Whether values are those of pixels, 0 to 255."""
        return set(self.factor) == {1.0} and set(self.offset) == {0.0}

    def _reversed(self) -> Output:
        """Return the output with its channels in reverse order."""
        stages = tuple(s if s.fill is None else s._replace(fill=s.fill[::-1]) for s in self.stages)
        factor, offset = self.factor[::-1], self.offset[::-1]
        return self._replace(stages=stages, factor=factor, offset=offset, bgr=not self.bgr)

    def _cast(self, dtype: str) -> Output | None:
        if dtype == "torch.float32":
            return self._replace(result=FLOATS)
        return self._replace(result=PLANES) if self.plain else None

    def _scaled(self, name: str, values: tuple[float, ...]) -> Output:
        factor, offset = _scaled(self.factor, self.offset, name, values)
        return self._replace(factor=factor, offset=offset)

    def _moved(self, kind: tuple[Any, ...], values: tuple[Any, ...]) -> Output | None:
        last = self.stages[-1]
        if kind[0] == "mirror":
            return self._replace(stages=(*self.stages[:-1], last.flipped(kind[1])))
        if kind[0] == "resize":
            if kind[1] not in _FILTERS or (kind[1] != "bilinear" and self.result == FLOATS):
                return None
            change = methodcaller("resized", values, kind[1])
        else:
            fill = None if kind[1] is None else self._filled(kind[1])
            if kind[1] is not None and fill is None:
                return None
            change = methodcaller("windowed", values, fill)
        made = change(last)
        if made is not None:
            return self._replace(stages=(*self.stages[:-1], made))
        another = change(Stage.of(last.result))
        return None if another is None else self._replace(stages=(*self.stages, another))

    def _filled(self, fill: Any) -> tuple[float, ...] | None:
        """Return the values of pixels that become a fill; None if there are none in 8 bits."""
        listed = list(fill) if isinstance(fill, (tuple, list)) else [fill] * 3
        if len(listed) != 3:
            return None
        values = (np.array(listed, dtype=np.float64) - self.offset) / self.factor
        whole = np.rint(values)
        if np.abs(values - whole).max() > 1e-3 or whole.min() < 0 or whole.max() > 255:
            return None
        return tuple(whole.tolist())

    def _classes(self, kind: tuple[Any, ...], values: tuple[Any, ...]) -> Output | None:
        """Follow an operation on numbers of classes, which are only moved: as Pillow does it, to the pixel."""
        rows, columns = self.indices  # type: ignore[misc]
        fill = self.fill
        if kind[0] == "mirror":
            rows, columns = (rows[::-1], columns) if kind[1] else (rows, columns[::-1])
        elif kind == ("resize", "nearest"):
            resized = nearest if self.pixels == CLASSES else nearest_of_16_bits
            rows, columns = resized(rows, values[0]), resized(columns, values[1])
        elif kind == ("resize", "nearest of torch"):
            rows, columns = nearest_of_torch(rows, values[0]), nearest_of_torch(columns, values[1])
        elif kind == ("resize", "nearest of OpenCV"):
            down, across = nearest_of_opencv((len(rows), len(columns)), values)
            rows, columns = rows[down], columns[across]
        elif kind[0] == "planes":
            return self._replace(result=PLANES)
        elif kind[0] in ("clone", "array", "pillow"):
            return self
        elif kind[0] == "window":
            top, left, height, width = values
            rows, columns = _span(rows, top, height), _span(columns, left, width)
            if kind[1] is not None:
                most = 255 if self.pixels == CLASSES else 65535
                if int(kind[1]) != kind[1] or not 0 <= kind[1] <= most:
                    return None
                if self._has_filled and self.fill != kind[1]:
                    return None
                fill = int(kind[1])
        else:
            return None
        return self._replace(indices=(rows, columns), fill=fill)

    def moves(self, file: Any, image: Any) -> bool:
        """Return whether numbers of classes of an opened file become those of an image; true of images in colour."""
        if self.pixels == COLOUR:
            return True
        return np.array_equal(
            self.taken(np.asarray(file)), np.asarray(image).reshape([len(one) for one in self.indices or ()])
        )

    @property
    def _has_filled(self) -> bool:
        rows, columns = self.indices  # type: ignore[misc]
        return bool((rows < 0).any() or (columns < 0).any())

    def taken(self, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the result of the numbers of classes in a file, [height, width]."""
        rows, columns = self.indices  # type: ignore[misc]
        result = image.take(rows, 0, mode="wrap").take(columns, 1, mode="wrap")
        if self._has_filled:
            result[rows < 0] = self.fill
            result[:, columns < 0] = self.fill
        return result


@lru_cache(maxsize=1024)  # called for each sample
def _scaled(
    factor: tuple[float, ...], offset: tuple[float, ...], name: str, values: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the factor and the offset, for each channel, after one more operation with a number for each."""
    if name in ("mul", "div"):
        by = values if name == "mul" else tuple(1 / value for value in values)
        pairs = [(f * n, o * n) for f, o, n in zip(factor, offset, by, strict=True)]
    else:
        sign = 1 if name == "add" else -1
        pairs = [(f, o + sign * n) for f, o, n in zip(factor, offset, values, strict=True)]
    return tuple(f for f, _ in pairs), tuple(o for _, o in pairs)


def nearest(indices: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the indices after a resize to `length` by nearest neighbour.

    Source: Pillow's `ImagingScaleAffine`, which adds the step in double precision, pixel by pixel.
    """
    step = len(indices) / length
    positions = np.full(length, step)
    positions[0] = step * 0.5
    return indices[np.minimum(np.add.accumulate(positions).astype(np.int64), len(indices) - 1)]


def nearest_of_16_bits(indices: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the indices after a resize of an image of 16 bits to `length` by nearest neighbour.

    Source: Pillow's `ImagingGenericTransform`, which computes each position by itself.
    """
    positions = len(indices) / length * (np.arange(length) + 0.5)
    return indices[np.minimum(positions.astype(np.int64), len(indices) - 1)]


def nearest_of_torch(indices: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the indices after a resize to `length` by nearest neighbour, as torch computes it: by a resize of them."""
    if len(indices) == length:
        return indices
    import torch

    # In the type of masks, as the positions are computed in that of the values: low and high bytes of the numbers.
    numbers = np.arange(len(indices))
    halves = torch.from_numpy(np.stack([numbers % 256, numbers // 256]).astype(np.uint8))[:, None, :, None]
    low, high = torch.nn.functional.interpolate(halves, size=(length, 1), mode="nearest")[:, 0, :, 0].numpy()
    places: npt.NDArray[np.int64] = low.astype(np.int64) + 256 * high.astype(np.int64)
    return indices[places]


@lru_cache(maxsize=512)
def nearest_of_opencv(size: Size, resized: Size) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows and columns that OpenCV takes in a resize by nearest neighbour: by a resize of their numbers."""
    import cv2

    found = []
    for axis, length in enumerate(size):
        numbers = np.arange(length)
        taken = np.zeros(resized[axis], dtype=np.int64)
        for shift in range(0, max(length - 1, 1).bit_length(), 8):  # 8 bits at a time, as masks have them
            part = (numbers >> shift & 255).astype(np.uint8)
            whole = np.ascontiguousarray(np.broadcast_to(part[:, None] if axis == 0 else part, size))
            image = cv2.resize(whole, resized[::-1], interpolation=cv2.INTER_NEAREST)
            taken |= (image[:, 0] if axis == 0 else image[0]).astype(np.int64) << shift
        found.append(taken)
    return found[0], found[1]


def _span(indices: npt.NDArray[np.int64], first: int, length: int) -> npt.NDArray[np.int64]:
    """Return `length` indices from `first` on, which may reach beyond on both sides."""
    made = np.full(length, -1, dtype=np.int64)
    low, high = max(first, 0), min(first + length, len(indices))
    if high > low:
        made[low - first : high - first] = indices[low:high]
    return made


class End(NamedTuple):
    """An image that a sample's operations lead to: the last node that DALI computes, and its output."""

    node: Node
    output: Output


def ends(roots: Sequence[Node], results: Sequence[str] = ()) -> list[End]:
    """Return the images that DALI computes of a sample's files, in their order; the rest stays with the data set.

    `results`: for each of them, what it must not go beyond: `PILLOW`, `PLANES` or `FLOATS`.
    """
    found: list[End] = []
    for number, root in enumerate(roots):
        start = _start(number, root)
        if start is not None:
            _add_ends(root, start, results, found)
    return found


def _start(number: int, root: Node) -> Output | None:
    stages = (Stage.of(root.size),)
    if root.form in ("RGB array", "BGR array"):
        return Output(number, COLOUR, stages, bgr=root.form == "BGR array")
    if not isinstance(root.form, str):
        return Output(number, COLOUR, stages, PLANES)
    if root.form == "RGB" or (
        root.children and all(_becomes_rgb(child) for child in root.children) and not root.needed
    ):
        return Output(number, COLOUR, stages)
    pixels = _PIXELS.get(root.form)
    if pixels is None or (pixels == CLASSES_16 and root.opened.header.format != "PNG"):  # type: ignore[union-attr]
        return None
    height, width = root.size
    return Output(number, pixels, (), indices=(np.arange(height), np.arange(width)))


_PIXELS = {"L": CLASSES, "P": CLASSES, "array of classes": CLASSES}
_PIXELS |= {"I;16": CLASSES_16, "array of classes of 16 bits": CLASSES_16}


def undecoded(roots: Sequence[Node]) -> Any:
    """Return the form of the first image that DALI would not give as the data set opens it; None: it gives all."""
    return next((root.form for number, root in enumerate(roots) if _start(number, root) is None), None)


def _becomes_rgb(node: Node) -> bool:
    return node.operation is not None and node.operation.kind == ("convert", "RGB")


def _add_ends(node: Node, output: Output, results: Sequence[str], found: list[End]) -> bool:
    """Add the ends at a node and after it to `found`; return whether DALI can do all operations there."""
    before = len(found)
    limit = results[before] if before < len(results) else FLOATS
    if _LEVELS.index(output.result) > _LEVELS.index(limit):
        return False
    done = not node.needed
    for child in node.children if done else ():
        after = output.after(child)
        if after is None or not _add_ends(child, after, results, found):
            done = False
            break
    if done and node.children:
        return True
    del found[before:]
    if node.known is not None:  # the first call has computed it
        return True
    if _gives(node, output):
        found.append(End(node, output))
        return True
    return False


def first_left(roots: Sequence[Node]) -> str | None:
    """Return the first operation on an image that DALI cannot do, as people know it; None if there is none.

    That on an image in colour, if one is opened: masks cost little.
    """
    started = [(root, start) for number, root in enumerate(roots) if (start := _start(number, root)) is not None]
    coloured = [each for each in started if each[1].pixels == COLOUR]
    found = (_left(root, start) for root, start in coloured or started)
    return next((name for name in found if name is not None), None)


def cuts(nodes: Sequence[Node]) -> bool:
    """Return whether an operation on these images, or after one of them, resizes or cuts."""
    return any(
        (node.operation is not None and node.operation.kind[0] in ("resize", "window")) or cuts(node.children)
        for node in nodes
    )


def _left(node: Node, output: Output) -> str | None:
    if node.needed:
        return node.needed
    for child in node.children:
        after = output.after(child)
        left = _shown(child.operation.kind) if after is None else _left(child, after)  # type: ignore[union-attr]
        if left is not None:
            return left
    return None


def _shown(kind: tuple[Any, ...]) -> str:
    name, *details = kind
    if name == "window":
        return "a crop" if details == [None] else "a fill"
    return f"{name}({', '.join(map(str, details))})" if details else str(name)


def _gives(node: Node, output: Output) -> bool:
    """Return whether an image is one that DALI can give: it decodes colours as RGB."""
    given = ("RGB", "RGB array", "BGR array", "array of floats")
    return output.pixels in MOVED or node.form in given or not isinstance(node.form, str)


# ---- What the samples of a data set have in common.


@dataclass(frozen=True)
class StageForm:
    """What the stages at one place have in common in all samples.

    Attributes:
        filter: of the resize; None: no sample is resized.
        part: whether a part is taken in some samples.
        window: whether there is a window in some samples.
        fill: what windows are filled with; None: none is.
        across: whether some samples are mirrored left to right.
        over: whether some are mirrored upside down.
    """

    filter: str | None = None
    part: bool = False
    window: bool = False
    fill: tuple[float, ...] | None = None
    across: bool = False
    over: bool = False

    @classmethod
    def of(cls, stage: Stage, size: Size) -> StageForm:
        """Return the form of a stage of an image of this size."""
        part, window = stage.part != (0, 0, *size), stage.window != (0, 0, *stage.size)
        return cls(stage.filter, part, window, stage.fill, *stage.mirrored)

    def takes(self, stage: Stage, size: Size) -> bool:
        """Return whether a stage of an image of this size is of this form."""
        across, over = stage.mirrored
        return (
            stage.filter in (None, self.filter)
            and stage.fill in (None, self.fill)
            and (self.part or stage.part == (0, 0, *size))
            and (self.window or stage.window == (0, 0, *stage.size))
            and (self.across or not across)
            and (self.over or not over)
        )

    def joined(self, other: StageForm) -> StageForm | None:
        """Return the form of stages of both forms; None if there is none."""
        if None not in (self.filter, other.filter) and self.filter != other.filter:
            return None
        if None not in (self.fill, other.fill) and self.fill != other.fill:
            return None
        return StageForm(
            self.filter or other.filter,
            self.part or other.part,
            self.window or other.window,
            self.fill if other.fill is None else other.fill,
            self.across or other.across,
            self.over or other.over,
        )


@dataclass(frozen=True)
class OutputForm:
    """What the outputs at one place have in common in all samples; the attributes are those of `Output`.

    Whether the channels lie beside each other, and their order, are the first sample's: others are copied to the layout
    that they have.
    """

    file: int
    pixels: str
    stages: tuple[StageForm, ...]
    result: str
    factor: tuple[float, ...]
    offset: tuple[float, ...]
    interleaved: bool
    bgr: bool = False

    @classmethod
    def of(cls, output: Output, size: Size) -> OutputForm:
        """Return the form of an output of a file with an image of this size."""
        forms = []
        for stage in output.stages:
            forms.append(StageForm.of(stage, size))
            size = stage.result
        o = output
        return cls(o.file, o.pixels, tuple(forms), o.result, o.factor, o.offset, o.interleaved, o.bgr)

    def takes(self, output: Output, size: Size) -> bool:
        """Return whether an output of a file with an image of this size is of this form."""
        o = output
        if (self.file, self.pixels, self.result) != (o.file, o.pixels, o.result) or len(o.stages) > len(self.stages):
            return False
        if (self.factor, self.offset) != (o.factor, o.offset):
            return False
        if self.bgr != o.bgr and (o.result == FLOATS or any(form.fill is not None for form in self.stages)):
            return False
        for form, stage in zip(self.stages, o.stages, strict=False):
            if not form.takes(stage, size):
                return False
            size = stage.result
        return True

    def joined(self, other: OutputForm) -> OutputForm | None:
        """Return the form of outputs of both forms; None if there is none."""
        if replace(self, stages=()) != replace(other, stages=(), interleaved=self.interleaved, bgr=self.bgr):
            return None
        filled = any(stage.fill is not None for stage in (*self.stages, *other.stages))
        if self.bgr != other.bgr and (filled or self.result == FLOATS):
            return None
        pairs = zip_longest(self.stages, other.stages, fillvalue=StageForm())
        stages = [a.joined(b) for a, b in pairs]
        return None if None in stages else replace(self, stages=tuple(stages))  # type: ignore[arg-type]


Forms = tuple[OutputForm, ...]


def forms_of(found: Sequence[End], roots: Sequence[Node]) -> Forms:
    """Return the forms of a sample's outputs."""
    return tuple(OutputForm.of(output, roots[output.file].size) for _, output in found)


def takes(forms: Forms, found: Sequence[End], roots: Sequence[Node]) -> bool:
    """Return whether a sample's outputs are of these forms."""
    return len(forms) == len(found) and all(
        form.takes(output, roots[output.file].size) for form, (_, output) in zip(forms, found, strict=True)
    )


def joined(a: Forms, b: Forms) -> Forms | None:
    """Return the forms of samples of both; None if there are none."""
    if len(a) != len(b):
        return None
    forms = [one.joined(other) for one, other in zip(a, b, strict=True)]
    return None if None in forms else tuple(forms)  # type: ignore[arg-type]


def outline(forms: Forms) -> Any:
    """Return what two forms must have in common to be joined, besides their stages; hashable."""
    return tuple((form.file, form.pixels, form.result, form.factor, form.offset) for form in forms)


def lowered(a: Forms, b: Forms) -> list[str] | None:
    """Return results up to which samples of both forms may be alike; None if there are none."""
    if len(a) != len(b):
        return None
    results = []
    for one, other in zip(a, b, strict=True):
        level = min(_LEVELS.index(one.result), _LEVELS.index(other.result))
        same = one.joined(other) is not None
        results.append(one.result if same else _LEVELS[max(0, level - (one.result == other.result))])
    return results


def widened(forms: Forms) -> Forms:
    """Return the forms with the freedom that one output needs for all outputs that are made in the same way.

    A few samples do not show each output mirrored, cut and filled.
    """

    def shared(name: str, stage: StageForm, k: int) -> Any:
        alike = [form.stages[k] for form in forms if k < len(form.stages) and form.stages[k].filter == stage.filter]
        return next((value for one in alike if (value := getattr(one, name))), getattr(stage, name))

    def wide(form: OutputForm) -> OutputForm:
        names = ("part", "window", "across", "over")
        stages = [
            replace(stage, **{name: shared(name, stage, k) for name in names}) for k, stage in enumerate(form.stages)
        ]
        if stages:  # this costs next to nothing
            stages[-1] = replace(stages[-1], across=True, window=stages[-1].window or stages[-1].filter is not None)
        return replace(form, stages=tuple(stages))

    return tuple(map(wide, forms))


def moved(output: Output, size: Size) -> bool:
    """Return whether an image in colour is resized or cut; `size` is that of its file's image."""
    form = OutputForm.of(output, size)
    return output.pixels == COLOUR and gains((form,))


def gains(forms: Forms) -> bool:
    """Return whether DALI does more than decode: it resizes or cuts an image.

    Decoding alone takes DALI about the CPU time that it takes Pillow (`python -m benchmarks.decoders`); a second call
    of the data set's code costs more than it may save.
    """
    return any(stage.filter is not None or stage.part or stage.window for form in forms for stage in form.stages)


def share(forms: Forms, where: str, who: str) -> str:
    """Return what a pipeline does for a sample and what remains, a sentence.

    `where` is where that runs, `who` the pipeline, as in "DALI".
    """
    files, images = len({form.file for form in forms}), [form for form in forms if form.pixels == COLOUR]
    stages = [stage for form in images for stage in form.stages]
    done = [
        *(["resizes"] if any(stage.filter is not None for stage in stages) else []),
        *(["cuts"] if any(stage.part or stage.window for stage in stages) else []),
        *(["normalises"] if any(any(form.offset) for form in images) else []),
    ]
    verbs = " and ".join(part for part in (", ".join(done[:-1]), *done[-1:]) if part)
    more = f" and {verbs} {len(images)} image{'s' if len(images) != 1 else ''}" if verbs else ""
    return (
        f"For each sample {who} decodes {files} file{'s' if files != 1 else ''}{more}; your own code draws the "
        f"random numbers and does the rest {where}."
    )


# ---- DALI's part of an output.


def arrays(form: OutputForm, number: int, outputs: Sequence[Output], sizes: Sequence[Size]) -> Fed:
    """Return the inputs of n samples for output `number`, by name; their files have images of these sizes."""
    fed: Fed = {}
    if form.pixels in MOVED:
        return fed
    now = list(sizes)
    for k, stage_form in enumerate(form.stages):
        stages = [
            output.stages[k] if k < len(output.stages) else Stage.of(size)
            for output, size in zip(outputs, now, strict=True)
        ]
        fed |= _stage_arrays(stage_form, f"{number}_{k}", stages)
        now = [stage.result for stage in stages]
    return fed


def _stage_arrays(form: StageForm, name: str, stages: Sequence[Stage]) -> Fed:
    fed: Fed = {}
    parts = np.array([stage.part for stage in stages], dtype=np.int64)
    sizes = np.array([stage.size for stage in stages], dtype=np.int64)
    windows = np.array([stage.window for stage in stages], dtype=np.int64)
    visible = np.array([stage.visible for stage in stages], dtype=np.int64)
    if form.filter is None:
        parts = np.concatenate([parts[:, :2] + visible[:, :2], visible[:, 2:]], axis=1)
    if form.part or (form.filter is None and form.window):
        fed |= {f"part{name}": int32(parts[:, :2]), f"extent{name}": int32(parts[:, 2:])}
    if form.filter is not None:
        fed[f"size{name}"] = float32(visible[:, 2:])
        if form.window:
            scale = parts[:, 2:] / sizes
            fed[f"from{name}"] = float32(visible[:, :2] * scale)
            fed[f"to{name}"] = float32((visible[:, :2] + visible[:, 2:]) * scale)
    if form.fill is not None:
        fed |= {f"start{name}": int32(windows[:, :2] - visible[:, :2]), f"shape{name}": int32(windows[:, 2:])}
    if form.across:
        fed[f"across{name}"] = int32([stage.mirrored[0] for stage in stages])
    if form.over:
        fed[f"over{name}"] = int32([stage.mirrored[1] for stage in stages])
    return fed


def decodes_part(form: OutputForm) -> bool:
    """Return whether a decoder may decode just a part of the file: the inputs `part` and `extent` of stage 0."""
    first = form.stages[0]
    return first.part or (first.filter is None and first.window)


def build(graph: Graph, form: OutputForm, number: int, image: Any, *, decoded_part: bool) -> Any:
    """Return the node of output `number`, of a decoded image.

    `decoded_part`: whether just the part that stage 0 takes was decoded.
    """
    if form.pixels in MOVED:
        return image
    fused = form.result == FLOATS
    for k, stage in enumerate(form.stages):
        last = fused and k == len(form.stages) - 1
        image = _build_stage(graph, stage, f"{number}_{k}", image, cut=decoded_part and k == 0, fused=last)
    if form.result == FLOATS:
        pairs = list(zip(form.factor, form.offset, strict=True))
        options: dict[str, Any] = {"mean": [-offset / factor for factor, offset in pairs]}
        options["std"] = [1 / factor for factor, _ in pairs]
        if form.stages and form.stages[-1].across:
            options["mirror"] = graph.fed(f"across{number}_{len(form.stages) - 1}", 0)
        layout = "HWC" if form.interleaved else "CHW"
        return graph.fn.crop_mirror_normalize(image, dtype=graph.types.FLOAT, output_layout=layout, **options)
    if form.result == PLANES and not form.interleaved:
        return graph.fn.transpose(image, perm=[2, 0, 1])
    return image


def _build_stage(graph: Graph, form: StageForm, name: str, image: Any, *, cut: bool, fused: bool) -> Any:
    fn, types = graph.fn, graph.types
    slicing: dict[str, Any] = {"axis_names": "HW", "normalized_anchor": False, "normalized_shape": False}
    if not cut and (form.part or (form.filter is None and form.window)):
        image = fn.slice(image, graph.fed(f"part{name}", 1), graph.fed(f"extent{name}", 1), **slicing)
    if form.filter is not None:
        options: dict[str, Any] = {"size": graph.fed(f"size{name}", 1, "FLOAT")}
        if form.window:
            options |= {
                "roi_start": graph.fed(f"from{name}", 1, "FLOAT"),
                "roi_end": graph.fed(f"to{name}", 1, "FLOAT"),
            }
        kind = getattr(types, _FILTERS[form.filter])
        smooth = form.filter != "linear"
        image = fn.resize(image, interp_type=kind, antialias=smooth, subpixel_scale=False, **options)
    if form.fill is not None:
        start, shape = graph.fed(f"start{name}", 1), graph.fed(f"shape{name}", 1)
        filling = {"out_of_bounds_policy": "pad", "fill_values": list(form.fill)}
        image = fn.slice(image, start, shape, **slicing, **filling)
    flips = {"horizontal": f"across{name}"} if form.across and not fused else {}
    flips |= {"vertical": f"over{name}"} if form.over else {}
    if flips:
        image = fn.flip(image, **{"horizontal": 0, **{side: graph.fed(given, 0) for side, given in flips.items()}})
    return image
