"""NumPy arrays in traces, and the functions of NumPy, OpenCV and albumentations that are followed on them.

The transforms of albumentations run for real: they draw their numbers, and compute boxes and keypoints. Of those in
`_FOLLOWED`, only the functions that compute pixels are replaced; any other transform gets real arrays.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import calls
from .calls import RED_AND_BLUE, with_arguments
from .lazy_array import LazyArray, decoded, is_lazy, with_real
from .structure import places, put, values
from .trace import ARRAY_RGB as RGB
from .trace import (
    BGR,
    CLASSES,
    CLASSES_16,
    FLOATS,
    FUNCTIONS,
    FollowedCall,
    Form,
    Node,
    Operation,
    Step,
    by_name,
    replace_function,
    slices,
    windowed,
)

_FLAT = (CLASSES, CLASSES_16)  # arrays without channels
_DTYPES = {FLOATS: np.float32, CLASSES_16: np.uint16}  # of elements; of others: uint8
_ALL, _BACK = slice(None), slice(None, None, -1)


class TracedArray(LazyArray):
    """A lazy array of a trace, which becomes a real one at the first operation that is not followed.

    It may be a view of another one. Then that becomes real with it, as the two share their memory.

    Args:
        call: the call under way.
        node: the image.
        base: the array that this is a view of; None: it has memory of its own.
        step: returns the view of the real base.
        strides: bytes from one element to the next; None: those of a contiguous array.
        planar: whether the channels are the first dimension.
        packed: whether a planar array is contiguous, in memory of its own.
    """

    _call: FollowedCall
    _node: Node
    _base: Any  # a `TracedArray`, a `TracedStack` or None
    _step: Any
    _strides: tuple[int, ...]
    _planar: bool
    _packed: bool
    _real: Any = None  # the real array, once there is one
    _shared = False  # whether there is a tensor without pixels in the same memory

    def __init__(
        self,
        call: FollowedCall,
        node: Node,
        base: TracedArray | TracedStack | None = None,
        step: Callable[[Any], Any] | None = None,
        strides: tuple[int, ...] | None = None,
        *,
        planar: bool = False,
        packed: bool = False,
    ) -> None:
        call.gave_array = True
        self.__dict__.update(_call=call, _node=node, _base=base, _step=step, _planar=planar, _packed=packed)
        self.__dict__["_strides"] = _packed_strides(self.shape, self.dtype.itemsize) if strides is None else strides

    @property
    def node(self) -> Node | None:
        """The image; None if the channels come first, or there are pixels."""
        return None if self._planar else self._lazy

    @property
    def _lazy(self) -> Node | None:
        """The image; None if there are pixels."""
        if self._real is not None or (self._base is not None and self._base._lazy is None):
            return None
        return self._node

    @property
    def shape(self) -> tuple[int, ...]:
        node = self._lazy
        if node is None:
            return self._pixels(None).shape  # type: ignore[no-any-return]
        if node.form in _FLAT:
            return node.size
        return (3, *node.size) if self._planar else (*node.size, 3)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> Any:
        if self._lazy is None:
            return self._pixels(None).dtype
        return np.dtype(_DTYPES.get(str(self._node.form), np.uint8))

    @property
    def strides(self) -> tuple[int, ...]:
        return self._strides if self._lazy is not None else self._pixels(None).strides

    @property
    def _contiguous(self) -> bool:
        """Whether the elements lie one after the other."""
        packed = _packed_strides(self.shape, self.dtype.itemsize)
        return all(length == 1 or a == b for length, a, b in zip(self.shape, self._strides, packed, strict=True))

    def __len__(self) -> int:
        return self.shape[0]

    def _pixels(self, operation: str | None) -> Any:
        if self._real is None:
            call, under_way = self._call, self._call is calls.current()
            if self._shared and under_way:  # the tensor would not see changes of the array
                raise call.stop
            call.asking = operation or "np.array"
            if self._base is not None:
                real = self._step(self._base._pixels(operation))
            else:
                real = call.pixels_needed(self._node) if under_way else self._node.real()
            self.__dict__["_real"] = real
        return self._real

    def fill(self, real: Any) -> None:
        """Give it the pixels of its node."""
        self.__dict__["_real"] = self._step(real) if self._planar else real

    # ---- What needs no pixels.

    def copy(self, order: str = "C") -> Any:
        node = self.node
        if node is None or order != "C":
            return self._pixels(".copy").copy(order)
        return self._clone(np.copy)

    def __copy__(self) -> Any:
        return self.copy()

    def transpose(self, *axes: Any) -> Any:
        node = self.node
        if node is None or node.form in _FLAT or axes not in ((2, 0, 1), ((2, 0, 1),), ([2, 0, 1],)):
            return self._pixels(".transpose").transpose(*axes)
        down, across, beside = self._strides
        return TracedArray(self._call, node, self, _planes, (beside, down, across), planar=True)

    def __getitem__(self, key: Any) -> Any:
        parts = self._parts(key)
        if parts is None:
            return self._pixels("indexing")[key]
        (top, height, over), (left, width, across), reverse = parts
        steps: list[tuple[Any, Any, Any]] = []  # kinds and values of operations, and the indices that do them
        if (top, left, height, width) != (0, 0, *self._node.size):
            index = (slice(top, top + height), slice(left, left + width))
            steps.append((("window", None), (top, left, height, width), index))
        if over:
            steps.append((("mirror", True), (), (_BACK,)))
        if across:
            steps.append((("mirror", False), (), (_ALL, _BACK)))
        if reverse:
            steps.append((("reverse",), (), (..., _BACK)))
        made: Any = self
        for kind, numbers, index in steps:
            if is_lazy(made) and made.node is not None:
                made = made._part_of(Operation(kind, numbers, functools.partial(_part, index)))
            else:
                made = made[index]
        return made if steps else TracedArray(self._call, self._node, self, functools.partial(_part, ...), self.strides)

    def _parts(self, key: Any) -> Any:
        """Return (first, length, backwards) of an index for rows and columns, and whether it reverses the channels.

        None: it is an index of another kind.
        """
        node = self.node
        keys = None if node is None else slices(key, self.ndim)
        if node is None or keys is None:
            return None
        spans = []
        for part, length in zip(keys[:2], node.size, strict=True):
            start, stop, step = part.indices(length)
            if step == 1 and stop > start:
                spans.append((start, stop - start, False))
            elif step == -1 and (start, stop) == (length - 1, -1):
                spans.append((0, length, True))
            else:
                return None
        channels = keys[2].indices(3) if len(keys) == 3 else (0, 3, 1)
        reverse = channels == (2, -1, -1)
        if channels != (0, 3, 1) and not (reverse and node.form in (RGB, BGR)):
            return None
        return (*spans, reverse)

    def _part_of(self, operation: Operation) -> Any:
        """Return a view of this array, which an index gives."""
        form = _reversed(self._node.form) if operation.kind == ("reverse",) else self._node.form
        size = operation.values[2:] if operation.kind[0] == "window" else self._node.size
        made = self._call.follow(self._node, operation, size, form)
        if is_lazy(made):
            back = {("mirror", True): 0, ("mirror", False): 1, ("reverse",): 2}.get(operation.kind)
            strides = tuple(-step if axis == back else step for axis, step in enumerate(self._strides))
            made.__dict__.update(_base=self, _step=operation.apply, _strides=strides)
        return made

    def _clone(self, function: Callable[[Any], Any]) -> Any:
        """Return the lazy result of a function that copies the array."""
        return self._call.follow(self._node, Operation(("clone",), (), function), self._node.size, self._node.form)

    # ---- Functions.

    def called(self, function: Any, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a function that copies the array or gives a view of it; else NotImplemented."""
        if self._lazy is None:
            return NotImplemented
        name = function.__name__
        if function is torch.from_numpy:
            return self.as_tensor(function, others, named)
        if function in calls.COPIES or name == "ensure_contiguous_output":
            if others or named.keys() - {"dtype"} or named.get("dtype") not in (None, np.uint8, "uint8"):
                return NotImplemented
            if named and self.dtype != np.uint8:
                return NotImplemented
            contiguous = self._contiguous
            if self._planar and function is np.array:
                return NotImplemented  # which keeps the order of the dimensions in memory
            if function is not np.array and (contiguous or function is np.asarray):
                return self
            if self._planar:
                apart = TracedArray(self._call, self._node)  # changes of the base in place do not reach the copy
                step = functools.partial(_packed, self._step)
                return TracedArray(self._call, self._node, apart, step, planar=True, packed=True)
            return self._clone(np.ascontiguousarray if contiguous else np.array)
        if self.node is None or named:
            return NotImplemented
        if function is np.copy and not others:
            return self.copy()
        if function is np.transpose and others in (((2, 0, 1),), ([2, 0, 1],)):
            return self.transpose(2, 0, 1)
        key = _KEYS.get(function)
        return self[key] if key is not None and not others else NotImplemented

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.stack and len(args) == 1 and not kwargs and self._call is calls.current():
            return _stacked(args[0])
        if args and args[0] is self and self._call is calls.current():
            others, named, called = args[1:], kwargs, func
            axis = (*others, *named.values())
            if func is np.flip and axis in ((0,), (1,)):
                called, others, named = (np.flipud, np.fliplr)[axis[0]], (), {}
            found = self.called(called, others, named)
            if found is not NotImplemented:
                return found
        return with_real(func, args, kwargs)

    def as_tensor(self, function: Any, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a function of torch that makes a tensor of the array."""
        node = self._lazy
        copies = function is torch.tensor
        followed = function in (torch.from_numpy, torch.as_tensor, torch.tensor) and not others and not named
        contiguous = self._base._contiguous if self._planar and not self._packed else self._contiguous
        if node is None or not followed or not contiguous or (node.form not in _FLAT and not self._planar):
            return with_real(function, (self, *others), named)
        height, width = node.size
        dtype = {FLOATS: torch.float32, CLASSES_16: torch.uint16}.get(str(node.form), torch.uint8)
        if node.form in _FLAT:
            form: Form = ((height, width), (width, 1), dtype)
        elif self._packed or copies:
            form = ((3, height, width), (height * width, width, 1), dtype)
        else:
            form = ((3, height, width), (1, 3 * width, 3), dtype)
        apply = functools.partial(_as_tensor, function, self._step if self._planar else None)
        array: TracedArray | None = None if copies else self
        while array is not None:  # a change of the tensor in place would change these arrays
            array.__dict__["_shared"] = True
            array = array._base
        return self._call.follow(node, Operation(("planes",), (), apply), node.size, form)


class TracedStack(LazyArray):
    """A lazy array of several lazy arrays without channels, one after the other, as `np.stack` makes it.

    Args:
        call: the call under way.
        arrays: the arrays, which nothing else holds.
    """

    node = None  # it is no image itself
    _call: FollowedCall
    _arrays: list[TracedArray]
    _base: Any
    _real: Any = None  # the real array, once there is one
    _shared = False  # whether there is a tensor without pixels in the same memory

    def __init__(self, call: FollowedCall, arrays: list[TracedArray]) -> None:
        self.__dict__.update(_call=call, _arrays=arrays, _base=None)

    @property
    def _lazy(self) -> list[TracedArray] | None:
        """The arrays; None if there are pixels."""
        return self._arrays if self._real is None else None

    @property
    def shape(self) -> tuple[int, ...]:
        arrays = self._lazy
        return self._pixels(None).shape if arrays is None else (len(arrays), *arrays[0].shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return self._arrays[0].dtype if self._lazy is not None else self._pixels(None).dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        arrays = self._lazy
        if arrays is None or type(key) is not int or not -len(arrays) <= key < len(arrays):
            return self._pixels("indexing")[key]
        return TracedArray(self._call, arrays[key]._node, self, operator.itemgetter(key))

    def __iter__(self) -> Any:
        return iter(self._pixels("__iter__")) if self._lazy is None else map(self.__getitem__, range(len(self)))

    def _pixels(self, operation: str | None) -> Any:
        if self._real is None:
            if self._shared and self._call is calls.current():  # a tensor would not see changes of the array
                raise self._call.stop
            self.__dict__["_real"] = np.stack([array._pixels(operation) for array in self._arrays])
        return self._real

    def called(self, function: Any, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a function that leaves the array as it is; else NotImplemented."""
        leaves = function in (np.asarray, np.ascontiguousarray) or function.__name__ == "ensure_contiguous_output"
        return self if leaves and not others and not named and self._lazy is not None else NotImplemented

    def as_tensor(self, function: Any, others: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a function of torch."""
        return with_real(function, (self, *others), named)


def _stacked(arrays: Any) -> Any:
    """Return the result of `np.stack` with these arrays."""
    nodes = [array.node if type(array) is TracedArray else None for array in arrays]
    alike = {("", (0, 0)) if node is None else (str(node.form), node.size) for node in nodes}
    if len(alike) == 1 and next(iter(alike))[0] in _FLAT:
        arrays = [array.copy() for array in arrays]
        if all(map(is_lazy, arrays)):
            return TracedStack(arrays[0]._call, arrays)
    return with_real(np.stack, (arrays,), {})


_KEYS = {np.flipud: (_BACK,), np.fliplr: (_ALL, _BACK)}


def _packed_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides of an array whose elements lie one after the other."""
    strides = [itemsize]
    for length in shape[:0:-1]:
        strides.insert(0, strides[0] * length)
    return tuple(strides)


def _reversed(form: Form) -> Form:
    return BGR if form == RGB else RGB


def _part(key: Any, array: Any) -> Any:
    return array[key]


def _planes(array: Any) -> Any:
    return array.transpose(2, 0, 1)


def _packed(step: Callable[[Any], Any], array: Any) -> Any:
    return np.ascontiguousarray(step(array))


def _as_tensor(function: Any, step: Callable[[Any], Any] | None, array: Any) -> Any:
    return function(array if step is None else step(array))


def without_lazy(sample: Any) -> Any:
    """Return a sample with real arrays in place of the lazy ones."""
    for value in [value for value in values(sample) if is_lazy(value)]:
        real = decoded(value)
        for place in list(places(sample, value)):
            sample = put(sample, place, real)
    return sample


# ---- Functions of NumPy and OpenCV.


def _array(node: Node, function: Any, others: Any, named: Any) -> Step:
    """Describe a function that makes an array of an image of Pillow."""
    if others or named.keys() - {"dtype", "copy"} or named.get("dtype") not in (None, np.uint8, "uint8"):
        return None
    if named.get("copy") is False or node.form not in ("RGB", "L", "P", "I;16"):
        return None
    if node.form == "I;16" and named.get("dtype") is not None:
        return None
    form = {"RGB": RGB, "I;16": CLASSES_16}.get(node.form, CLASSES)
    return Operation(("array",), (), with_arguments(function, others, named)), node.size, form


def _image(node: Node, function: Any, others: Any, named: Any) -> Step:
    """Describe Pillow's `fromarray`."""
    if node.form not in (RGB, BGR, *_FLAT) or others or named:
        return None
    return Operation(("pillow",), (), function), node.size, {CLASSES: "L", CLASSES_16: "I;16"}.get(node.form, "RGB")


_RESIZES = {0: "nearest of OpenCV", 1: "linear"}  # cv2.INTER_NEAREST, INTER_LINEAR


def _colours(node: Node, function: Any, others: Any, named: Any) -> Step:
    if (*others, *named.values()) != (RED_AND_BLUE,) or named.keys() - {"code"} or node.form not in (RGB, BGR):
        return None
    apply = with_arguments(function, others, named)
    return Operation(("reverse",), (), apply), node.size, _reversed(node.form)


def _resized(node: Node, height: Any, width: Any, interpolation: Any, apply: Callable[[Any], Any]) -> Step:
    size = operator.index(height), operator.index(width)
    if min(size) <= 0 or node.form not in (RGB, BGR, *_FLAT):
        return None
    if size == node.size:
        return Operation(("clone",), (), apply), size, node.form
    name = _RESIZES.get(interpolation, f"{interpolation} of OpenCV")
    return Operation(("resize", name), size, apply), size, node.form


def _cv2_resize(node: Node, function: Any, others: Any, named: Any) -> Step:
    given = by_name("dsize dst fx fy interpolation", others, named)
    if given.keys() - {"dsize", "interpolation"} or given.get("dsize") is None:
        return None
    width, height = given["dsize"]
    apply = with_arguments(function, others, named)
    return _resized(node, height, width, given.get("interpolation", 1), apply)


def _cv2_flip(node: Node, function: Any, others: Any, named: Any) -> Step:
    code = (*others, *named.values())
    if code not in ((0,), (1,)) or named.keys() - {"flipCode"}:
        return None
    apply = with_arguments(function, others, named)
    return Operation(("mirror", code == (0,)), (), apply), node.size, node.form


_SIDES = ("top", "bottom", "left", "right")


def _cv2_border(node: Node, function: Any, others: Any, named: Any) -> Step:
    given = by_name("top bottom left right borderType dst value", others, named)
    if (
        given.keys() - {*_SIDES, "borderType", "dst", "value"}
        or given.get("dst") is not None
        or given.get("borderType") != 0
    ):
        return None
    apply = with_arguments(function, others, named)
    # A number fills the first channel alone.
    value = given.get("value")
    value = (value, 0, 0) if isinstance(value, (int, float)) and node.form not in _FLAT else value
    return _padded(node, [given[side] for side in _SIDES], value, apply)


def _padded(node: Node, sides: list[int], fill: Any, apply: Callable[[Any], Any]) -> Step:
    """Describe a function that pads an image with a fill; `sides`: pixels at the top, bottom, left and right."""
    top, bottom, left, right = sides
    if node.form not in (RGB, BGR, *_FLAT) or min(top, bottom, left, right) < 0:
        return None
    values = [0] if fill is None else list(fill) if isinstance(fill, (list, tuple, np.ndarray)) else [fill]
    most = 65535 if node.form == CLASSES_16 else 255
    if any(not 0 <= value <= most or int(value) != value for value in values):
        return None
    if node.form in _FLAT:
        filled: Any = int(values[0]) if values else 0
    else:
        filled = tuple(int(value) for value in (values * 3 if len(values) == 1 else [*values, 0, 0, 0])[:3])
    height, width = node.size[0] + top + bottom, node.size[1] + left + right
    return windowed(node, -top, -left, height, width, apply, filled)


# ---- albumentations.

_FOLLOWED = frozenset(
    {"Resize", "RandomScale", "LongestMaxSize", "SmallestMaxSize", "RandomResizedCrop", "RandomSizedCrop"}
    | {"Pad", "PadIfNeeded", "RandomCrop", "CenterCrop", "Crop", "RandomCropFromBorders", "NoOp"}
    | {"BBoxSafeRandomCrop", "RandomSizedBBoxSafeCrop", "AtLeastOneBBoxRandomCrop", "RandomCropNearBBox"}
    | {"HorizontalFlip", "VerticalFlip", "Normalize", "ToTensorV2"}
)
"""Transforms whose pixels are computed by the functions that are followed."""


def _resize(node: Node, function: Any, others: Any, named: Any) -> Step:
    given = by_name("target_shape interpolation", others, named)
    height, width = given["target_shape"][:2]
    apply = with_arguments(function, others, named)
    return _resized(node, height, width, given["interpolation"], apply)


def _pad(node: Node, function: Any, others: Any, named: Any) -> Step:
    sides = "h_pad_top h_pad_bottom w_pad_left w_pad_right"
    given = by_name(f"{sides} border_mode value", others, named)
    if given["border_mode"] != 0:
        return None
    value = given["value"]
    if isinstance(value, int) and node.form not in _FLAT:  # OpenCV fills the first channel alone
        value = (value, 0, 0)
    apply = with_arguments(function, others, named)
    return _padded(node, [given[side] for side in sides.split()], value, apply)


def _flip(node: Node, function: Any, others: Any, named: Any, *, vertical: bool) -> Step:
    if others or named:
        return None
    return Operation(("mirror", vertical), (), function), node.size, node.form


def _normalize(node: Node, function: Any, others: Any, named: Any) -> Step:
    given = by_name("mean denominator", others, named)
    mean, factor = (_three(given.get(name)) for name in ("mean", "denominator"))
    if node.form not in (RGB, BGR) or mean is None or factor is None or 0.0 in factor:
        return None
    apply = with_arguments(function, others, named)
    return Operation(("scale",), (*mean, *factor), apply), node.size, FLOATS


def _three(value: Any) -> tuple[float, ...] | None:
    """Return a number for each of three channels; None if there are others."""
    found = np.asarray(value, dtype=np.float64).reshape(-1).tolist() if value is not None else []
    found = found * 3 if len(found) == 1 else found
    return tuple(found) if len(found) == 3 else None


def install() -> None:
    """Replace the functions of the modules imported so far, each once in a process."""
    FUNCTIONS.update(dict.fromkeys(calls.COPIES, _array))
    FUNCTIONS[calls.original_fromarray()] = _image
    cv2: Any = sys.modules.get("cv2")
    if cv2 is not None:
        FUNCTIONS.update({cv2.cvtColor: _colours, cv2.resize: _cv2_resize, cv2.flip: _cv2_flip})
        FUNCTIONS[cv2.copyMakeBorder] = _cv2_border
    if "albumentations" in sys.modules:
        _install_albumentations()


def _install_albumentations() -> None:
    modules = sys.modules
    interface: Any = modules.get("albumentations.core.transforms_interface")
    geometric: Any = modules.get("albumentations.augmentations.geometric.functional")
    flips: Any = modules.get("albumentations.augmentations.geometric.flip")
    pixels: Any = modules.get("albumentations.augmentations.pixel.transforms")
    tensors: Any = modules.get("albumentations.pytorch.transforms")
    if tensors is not None and getattr(tensors, "torch", None) is torch:
        tensors.torch = calls.torch_view()
    if any(module is None for module in (interface, geometric, flips, pixels)):
        return
    base: Any = getattr(interface, "BasicTransform", None)
    names = (geometric, "resize"), (geometric, "pad_with_params"), (flips, "hflip"), (flips, "vflip")
    others = (pixels, "normalize"), (interface, "ensure_contiguous_output"), (base, "update_transform_params")
    if any(not hasattr(module, name) for module, name in (*names, *others)):
        return  # another version
    if hasattr(base.update_transform_params, "_followed"):
        return
    replace_function((geometric,), "resize", _resize)
    replace_function((geometric,), "pad_with_params", _pad)
    replace_function((flips,), "hflip", functools.partial(_flip, vertical=False))
    replace_function((flips,), "vflip", functools.partial(_flip, vertical=True))
    replace_function((pixels,), "normalize", _normalize)
    replace_function((interface,), "ensure_contiguous_output", _unfollowed)
    base.update_transform_params = _with_real_arrays(base.update_transform_params)


def _unfollowed(_node: Node, _function: Any, _others: Any, _named: Any) -> Step:
    """Describe nothing, as `TracedArray.called` follows the function."""
    return None


def _with_real_arrays(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `update_transform_params` of transforms, which then gives all but the `_FOLLOWED` ones real arrays.

    albumentations calls it when a transform is to be applied, before anything looks at the transform's data.
    """

    @functools.wraps(original)
    def update_transform_params(self: Any, params: dict[str, Any], data: dict[str, Any]) -> Any:
        call = calls.current()
        if call is not None and call.gave_array:
            kind = type(self)
            if kind.__name__ not in _FOLLOWED or not kind.__module__.startswith("albumentations."):
                for key, value in data.items():
                    data[key] = decoded(value)
        return original(self, params, data)

    update_transform_params._followed = True  # type: ignore[attr-defined]
    return update_transform_params
