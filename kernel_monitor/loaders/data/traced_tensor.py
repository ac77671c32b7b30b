"""Tensors in traces, and the functions of torch and torchvision that are followed on them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torchvision.transforms import functional

from .calls import with_arguments
from .lazy_array import is_lazy
from .trace import (
    FUNCTIONS,
    TORCHVISION,
    FollowedCall,
    Layout,
    Node,
    Operation,
    Step,
    by_name,
    called,
    lengths,
    replace_function,
    same_form,
    slices,
)

# ---- Memory without pixels, and torch's functions on tensors in it, on the thread of the call.


class _Memory(NamedTuple):
    """Memory of tensors, without pixels.

    Attributes:
        tensor: returns a tensor in it; None if it was freed.
        nodes: the nodes of the tensors in it, by their geometry.
    """

    tensor: Callable[[], torch.Tensor | None]
    nodes: dict[Any, Node]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _geometry(tensor: torch.Tensor) -> Any:
    """Return a tensor's place in its memory: the same for views that differ in dimensions of length 1 only."""
    return tensor.storage_offset(), *lengths(tensor.shape, tensor.stride())


def _blank(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Any:
    """Return memory for a tensor; zeros, of which the system makes no pages until they are written."""
    items = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return np.zeros(items * dtype.itemsize, dtype=np.uint8)


def _tensor_of(memory: Any) -> torch.Tensor | None:
    return None if memory is None else torch.frombuffer(memory, dtype=torch.uint8)


def interleaved(height: int, width: int) -> Layout:
    """Return the layout of a tensor [3, height, width] of bytes in which a pixel's channels lie beside each other."""
    return (3, height, width), (1, 3 * width, 3), torch.uint8


# Names of torch's functions and of tensors' methods and properties, as modes get them.

_METADATA = frozenset(
    {"size", "dim", "stride", "numel", "nelement", "ndimension", "is_floating_point", "is_complex", "is_contiguous"}
    | {"element_size", "get_device", "__len__", "__hash__", "storage_offset", "is_signed", "is_pinned", "is_shared"}
)
_PROPERTIES = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_quantized", "is_sparse", "is_leaf"}
    | {"is_meta", "is_mps", "is_xpu", "is_nested", "is_mkldnn", "names", "itemsize", "nbytes", "grad", "grad_fn"}
)
_VIEWS = frozenset(
    {"as_tensor", "requires_grad_", "reshape", "view", "unsqueeze", "squeeze", "as_strided", "detach", "cpu"}
)
"""Methods that may return a view of the whole tensor, or the tensor itself."""
_SYNONYMS = {
    "__add__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__truediv__": "div",
    "__iadd__": "add_",
    "__isub__": "sub_",
    "__imul__": "mul_",
    "__itruediv__": "div_",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
}
_CASTS = {"to": None, "float": torch.float32, "long": torch.int64, "byte": torch.uint8, "int": torch.int32}
_PURE = frozenset({"conv2d", "clamp", "pow", "abs", "sqrt", "contiguous"})
"""Functions that draw nothing and which no engine computes; their results have the image's size."""
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


class TracedTensors(TorchFunctionMode):
    """The tensors without pixels of a call. While this is entered, torch's functions on them are followed.

    They are recognised by their memory, as views of one tensor are different objects.
    """

    def __init__(self, call: FollowedCall) -> None:
        super().__init__()
        self.call = call
        self._memory: dict[int, _Memory] = {}  # by address
        # Computed images, by the node whose tensor becomes one of them, perhaps by operations in place.
        self._computed = {end.base: image for end, image in call.pixels.items() if not isinstance(end.form, str)}

    def lazy(self, node: Node, layout: Layout) -> torch.Tensor:
        """Return a tensor without pixels for a node: in memory of its own, or in that of the image it will become."""
        size, stride, dtype = layout
        memory: torch.Tensor | None = self._computed.get(node)
        if memory is not None:
            self._memory[_address(memory)] = _Memory(lambda: memory, {_geometry(memory): node})
            return memory
        blank = _blank(size, stride, dtype)
        tensor = torch.frombuffer(blank, dtype=dtype).as_strided(size, stride)
        address = _address(tensor)
        # The memory is forgotten when it is freed: its address may be given to other tensors.
        alive = weakref.ref(blank, lambda _: self._memory.pop(address, None))
        self._memory[address] = _Memory(lambda: _tensor_of(alive()), {_geometry(tensor): node})
        return tensor

    def track(self, tensor: torch.Tensor, node: Node) -> None:
        """Record that a tensor, in memory without pixels, is the image of a node."""
        self._memory[_address(tensor)].nodes[_geometry(tensor)] = node

    def untrack(self, tensor: torch.Tensor) -> _Memory:
        """Forget a tensor's memory, which now has pixels; return it."""
        return self._memory.pop(_address(tensor))

    def node_of(self, tensor: torch.Tensor) -> Node | None:
        """Return the node of a tensor; None for a tensor with pixels of its own."""
        memory = self._memory.get(_address(tensor)) if self._memory else None
        return None if memory is None else memory.nodes.get(_geometry(tensor))

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in memory without pixels."""
        return _address(tensor) in self._memory

    def alone(self, tensor: torch.Tensor) -> bool:
        """Return whether no other tensor is known in the memory of this one."""
        return len(self._memory[_address(tensor)].nodes) == 1

    def others_than(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether there is memory without pixels, and still in use, besides that of these tensors."""
        known = set(map(_address, tensors))
        return any(address not in known and memory.tensor() is not None for address, memory in self._memory.items())

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill a tensor's memory with pixels."""
        for (offset, size, stride), node in self.untrack(tensor).nodes.items():
            image = self.call.pixels_needed(node)
            image.new_empty(0).set_(tensor.untyped_storage(), offset, size, stride).copy_(image.reshape(size))

    def fill_all(self) -> None:
        """Fill all memory without pixels."""
        for memory in list(self._memory.values()):
            tensor = memory.tensor()
            if tensor is not None:
                self.fill(tensor)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        call = self.call
        if args and call.gave_array and is_lazy(args[0]) and not call.paused:
            return args[0].as_tensor(function, args[1:], named)
        if call.paused or not self._memory:
            return function(*args, **named)
        found: list[torch.Tensor] = []
        self._add_unfilled(args, found)
        if named:
            self._add_unfilled(named.values(), found)
        if not found:
            return function(*args, **named)
        name = getattr(function, "__name__", "")
        if name == "__get__":
            if getattr(function.__self__, "__name__", "") in _PROPERTIES:
                return function(*args, **named)
        elif name in _METADATA:
            return function(*args, **named)
        elif found[0] is args[0] and len(found) == 1:
            node = self.node_of(found[0])
            if node is not None:
                followed = _follow(self, node, _SYNONYMS.get(name, name), function, args, named)
                if followed is not NotImplemented:
                    return followed
        call.asking = f"torch.{name.strip('_')}"
        for tensor in found:
            if self.knows(tensor):
                self.fill(tensor)
        return function(*args, **named)

    def _add_unfilled(self, values: Iterable[Any], found: list[torch.Tensor], depth: int = 4) -> None:
        """Add the tensors without pixels among a function's arguments to `found`."""
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.layout is torch.strided and value.device.type == "cpu" and self.knows(value):
                    found.append(value)
            elif depth and isinstance(value, (list, tuple)):
                self._add_unfilled(value, found, depth - 1)
            elif depth and isinstance(value, dict):
                self._add_unfilled(value.values(), found, depth - 1)


def _follow(tensors: TracedTensors, node: Node, name: str, function: Any, args: Any, named: Any) -> Any:
    """Return the result of a function of a tensor without pixels; NotImplemented if it is not followed."""
    tensor, others = args[0], args[1:]
    if (
        name in _VIEWS
        or (name == "contiguous" and tensor.is_contiguous())
        or (name == "to" and _stays(tensor, others, named))
    ):
        result = function(*args, **named)
        return result if tensors.node_of(result) is node else NotImplemented
    if name.rstrip("_") in _ARITHMETIC and not name.startswith("__"):
        return _arithmetic(tensors, node, name, function, args, named)
    apply = functools.partial(_shaped, tuple(tensor.shape), with_arguments(function, others, named))
    if name == "round_" and not others and not named:
        return _in_place(tensors, node, Operation(("round",), (), _of_copy(tensor, function)), tensor)
    if name == "__getitem__":
        window = _window(tensor, others[0])
        if window is None:
            return NotImplemented
        return _part(tensors, node, Operation(("window", None), window, apply), function(*args, **named))
    found = _described(node, name, tensor, others, named)
    if found is None:
        return NotImplemented
    kind, values, size = found
    beside = [other.to("meta") if isinstance(other, torch.Tensor) else other for other in others]
    shaped = function(_meta(tensor), *beside, **named)
    if tuple(shaped.shape[-2:]) != size:
        return NotImplemented
    return _as_class(tensors.call.follow(node, Operation(kind, values, apply), size, _layout(shaped)), shaped)


_Description = tuple[tuple[Any, ...], tuple[Any, ...], tuple[int, int]]
"""Kind and values of an operation, and the size of its result."""


def _described(node: Node, name: str, tensor: torch.Tensor, others: Any, named: Any) -> _Description | None:
    """Describe a function of a tensor; None if it is not followed."""
    if name in ("clone", "round"):
        return None if others or named else ((name,), (), node.size)
    if name in _CASTS:
        dtype = _CASTS[name] or _dtype(others, named)
        return (("cast", str(dtype)), (), node.size) if isinstance(dtype, torch.dtype) else None
    if name == "flip":
        dims = others[0] if len(others) == 1 and not isinstance(others[0], int) else others or named.get("dims", ())
        dims = [dim if dim < 0 else dim - tensor.ndim for dim in dims] if isinstance(dims, (list, tuple)) else [dims]
        return (("mirror", dims == [-2]), (), node.size) if dims in ([-1], [-2]) else None
    if name == "interpolate":
        return _interpolated(tensor, by_name("size scale_factor mode align_corners", others, named))
    if name == "pad":
        return _padded(node, by_name("pad mode value", others, named))
    return ((name,), (), node.size) if name in _PURE else None


def _interpolated(tensor: torch.Tensor, given: dict[str, Any]) -> _Description | None:
    mode = given.get("mode", "nearest")
    if given.get("align_corners") or given.get("scale_factor") is not None or tensor.ndim != 4:
        return None
    if mode != "nearest" and not given.get("antialias"):
        return None
    height, width = map(int, given["size"])
    return ("resize", "nearest of torch" if mode == "nearest" else mode), (height, width), (height, width)


def _padded(node: Node, given: dict[str, Any]) -> _Description | None:
    sides, mode = list(given["pad"]), given.get("mode", "constant")
    if len(sides) not in (2, 4):
        return None
    left, right, top, bottom = [*sides, 0, 0][:4]
    size = node.size[0] + top + bottom, node.size[1] + left + right
    kind = ("window", float(given.get("value") or 0)) if mode == "constant" else ("pad", mode)
    return kind, (-top, -left, *size), size


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same class and layout on torch's device `meta`, which computes layouts alone."""
    blank = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return _as_class(blank, tensor)


def _as_class(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return result if type(like) is torch.Tensor else result.as_subclass(type(like))


def _layout(tensor: torch.Tensor) -> Layout:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _shaped(size: tuple[int, ...], function: Callable[[Any], Any], image: torch.Tensor) -> Any:
    """Call a function of an image in the shape that it was recorded with; dimensions of length 1 may differ."""
    return function(image.reshape(size))


def _of_copy(tensor: torch.Tensor, function: Any, others: tuple[Any, ...] = ()) -> Callable[[Any], Any]:
    """Return a function of an image that gives this one, which may work in place, a copy of it."""
    size = tuple(tensor.shape)
    return lambda image: function(image.reshape(size).clone(), *others)


def _stays(tensor: torch.Tensor, others: Any, named: Any) -> bool:
    """Return whether `Tensor.to` with these arguments returns the tensor itself."""
    given = [*others, *named.values()]
    return bool(given) and all(value is tensor.dtype or value in ("cpu", torch.device("cpu")) for value in given)


def _dtype(others: Any, named: Any) -> Any:
    """Return the type that `Tensor.to` is called with, if that is its only argument; else None."""
    if len(others) == 1 and not named:
        return others[0]
    return named["dtype"] if not others and named.keys() == {"dtype"} else None


def _window(tensor: torch.Tensor, key: Any) -> tuple[int, int, int, int] | None:
    """Return top, left, height and width of a part inside an image; None for any other index."""
    keys = slices(key, tensor.ndim)
    if keys is None or any(part != slice(None) for part in keys[:-2]):
        return None
    spans = [part.indices(length) for part, length in zip(keys[-2:], tensor.shape[-2:], strict=True)]
    if any(step != 1 or stop <= start for start, stop, step in spans):
        return None
    (top, bottom, _), (left, right, _) = spans
    return top, left, bottom - top, right - left


def _arithmetic(tensors: TracedTensors, node: Node, name: str, function: Any, args: Any, named: Any) -> Any:
    tensor = args[0]
    if tensor.dtype is not torch.float32 or len(args) != 2 or named or tensor.ndim < 3 or tensor.shape[-3] != 3:
        return NotImplemented
    values = _channels(args[1])
    if values is None:
        return NotImplemented
    apply = _of_copy(tensor, function, args[1:])
    if name.endswith("_"):
        return _in_place(tensors, node, Operation((name[:-1],), values, apply), tensor)
    result = tensors.call.follow(node, Operation((name,), values, apply), node.size, _layout(tensor))
    return result if type(tensor) is torch.Tensor else _as_class(result, function(_meta(tensor), 1.0))


def _channels(value: Any) -> tuple[float, ...] | None:
    """Return a value for each of three channels; None if it is something else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (float(value),) * 3
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or value.device.type != "cpu":
        return None
    if value.ndim == 0 or value.numel() == 1:
        return (float(value),) * 3
    if tuple(value.shape[-3:]) == (3, 1, 1) and value.numel() == 3:
        return tuple(value.reshape(-1).tolist())
    return None


def _in_place(tensors: TracedTensors, node: Node, operation: Operation, tensor: torch.Tensor) -> Any:
    """Follow an operation in place; return the tensor, or NotImplemented if others share its memory."""
    if not tensors.alone(tensor):
        return NotImplemented
    changed = tensors.call.record(node, Node(node, operation, node.size, node.form))
    if changed in tensors.call.pixels:
        tensors.untrack(tensor)
    else:
        changed.base = node.base
        tensors.track(tensor, changed)
    return tensor


def _part(tensors: TracedTensors, node: Node, operation: Operation, result: torch.Tensor) -> Any:
    """Follow an operation whose result is a part of the tensor in the same memory; return the part."""
    size = (int(result.shape[-2]), int(result.shape[-1]))
    made = tensors.call.record(node, Node(node, operation, size, _layout(result)))
    if made in tensors.call.pixels and made.base is made:
        return tensors.call.pixels[made]
    tensors.track(result, made)
    return result


# ---- Functions of torchvision that take tensors.


def _as_pillow(node: Node, function: Any, others: Any, named: Any) -> Step:
    if isinstance(node.form, str) or node.form[2] is not torch.uint8 or node.form[0][0] != 3 or others or named:
        return None
    return Operation(("pillow",), (), function), node.size, "RGB"


def _normalized(node: Node, function: Any, others: Any, named: Any) -> Step:
    """Follow torchvision's function as a whole: it calls a dozen of torch's for an image."""
    arguments = by_name("mean std inplace", others, named)
    mean: Any = arguments.get("mean")
    std: Any = arguments.get("std")
    lists = isinstance(mean, (list, tuple)) and isinstance(std, (list, tuple)) and {len(mean), len(std)} <= {1, 3}
    if isinstance(node.form, str) or node.form[2] is not torch.float32 or arguments.get("inplace") or not lists:
        return None
    values = (*(list(map(float, mean)) * 3)[:3], *(list(map(float, std)) * 3)[:3])
    if 0.0 in values[3:]:
        return None
    return Operation(("normalize",), values, with_arguments(function, others, named)), node.size, node.form


_torch_normalize, _torch_gaussian_blur = functional.normalize, functional.gaussian_blur
FUNCTIONS |= {_torch_normalize: _normalized, _torch_gaussian_blur: same_form}


# The replacements have the signatures of torchvision's functions, as users script modules that call them.


def _normalize(tensor: torch.Tensor, mean: list[float], std: list[float], inplace: bool = False) -> torch.Tensor:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return called(_torch_normalize, tensor, mean, std, inplace)  # type: ignore[no-any-return]
    return _torch_normalize(tensor, mean, std, inplace)  # type: ignore[no-any-return]


def _gaussian_blur(img: torch.Tensor, kernel_size: list[int], sigma: list[float] | None = None) -> torch.Tensor:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return called(_torch_gaussian_blur, img, kernel_size, sigma)  # type: ignore[no-any-return]
    return _torch_gaussian_blur(img, kernel_size, sigma)  # type: ignore[no-any-return]


def install() -> None:
    """Replace torchvision's functions that take tensors and are followed as a whole, once in a process."""
    if functional.normalize is _torch_normalize:
        functional.normalize = _normalize
    if functional.gaussian_blur is _torch_gaussian_blur:
        functional.gaussian_blur = _gaussian_blur
    replace_function(TORCHVISION, "to_pil_image", _as_pillow)
