"""Traces: the operations on images in a call of a data set's own `__getitem__`, recorded without their pixels.

A data set that transforms several images together, or one image several times, is called twice (`trace_calls`). In the
first call, images are opened lazily (`traced_image`, `traced_tensor`, `traced_array`), and the operations on them are
recorded as a tree of nodes. That ends where pixels are needed, or goes on with the real ones. DALI computes the images
at the ends of the tree. In the second call the same code runs again with the same random numbers; each operation is
compared with the recorded one, and at an end the lazy image becomes the image that DALI computed. A call that does
anything else ends with `Mismatch`. Images that no engine has computed are computed here, by the recorded functions
themselves, when pixels are needed.

This module has the nodes, and the functions of libraries that are followed on lazy images.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from PIL import Image
from torchvision.transforms import functional
from torchvision.transforms.v2 import functional as functional_v2
from torchvision.transforms.v2.functional import _augment, _color, _geometry, _misc, _type_conversion
from torchvision.transforms.v2.functional import _utils as _kernels

from .calls import Call, Deviation, Opened, current

# ---- Nodes: an opened file, or the result of an operation on the image of another node.


class Mismatch(Deviation):
    """The second call did something else than the first."""


Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type of a tensor."""

Form = str | Layout
"""Pillow's mode of an image, or the layout of a tensor, or one of the following."""

ARRAY_RGB, BGR, CLASSES, FLOATS = "RGB array", "BGR array", "array of classes", "array of floats"
"""Forms of NumPy arrays: uint8[height, width, 3], uint8[height, width], float32[height, width, 3]."""

ARRAYS = (ARRAY_RGB, BGR, CLASSES, FLOATS)


class Ended(Deviation):
    """The first call is over, as pixels are needed."""


class Operation(NamedTuple):
    """An operation on an image.

    Attributes:
        kind: its name and what it has in common in all samples, such as ("resize", "bilinear"); hashable.
        values: what differs from sample to sample; numbers.
        apply: returns the result for the real image.
    """

    kind: tuple[Any, ...]
    values: tuple[Any, ...]
    apply: Callable[[Any], Any]


class Node:
    """An image in a call.

    Attributes:
        opened: the file; None for the result of an operation.
        parent: the node of the operation's image; None for a file.
        operation: the operation; None for a file.
        size: height and width, pixels.
        form: for an image of Pillow its mode; for a tensor its shape, strides and type.
        children: results of operations on this image, in their order.
        needed: the function that needed pixels of this image first; empty if none did.
        base: the node whose memory holds this tensor, which an operation in place has changed.
        known: the image, where the first call has computed it; else None.
    """

    __slots__ = ("base", "children", "form", "known", "needed", "opened", "operation", "parent", "replayed", "size")

    def __init__(
        self,
        parent: Node | None,
        operation: Operation | None,
        size: tuple[int, int],
        form: Form,
        opened: Opened | None = None,
    ) -> None:
        self.parent = parent
        self.operation = operation
        self.size = size
        self.form = form
        self.opened = opened
        self.children: list[Node] = []
        self.needed = ""
        self.base = self
        self.known: Any = None
        self.replayed = 0  # children that the second call has met

    def real(self, known: Mapping[Node, Any] = MappingProxyType({})) -> Any:
        """Compute the image by the functions that the data set called, from an image that is `known`, or its file."""
        if self in known:
            return known[self]
        if self.known is not None:
            return self.copied()
        if self.parent is None or self.operation is None:
            image = self.opened.real()  # type: ignore[union-attr]
            if isinstance(image, Image.Image):
                image.load()
            return image
        return self.operation.apply(self.parent.real(known))

    def begin_again(self) -> None:
        """Forget that a second call has met the operations on this image."""
        self.replayed = 0
        for child in self.children:
            child.begin_again()

    def copied(self) -> Any:
        """Return a copy of the `known` image."""
        return self.known.clone() if isinstance(self.known, torch.Tensor) else self.known.copy()

    def given(self, image: Any) -> Any:
        """Return a tensor in the shape and memory layout of this node's; images of Pillow as they are."""
        if isinstance(self.form, str):
            return image
        size, stride, dtype = self.form
        shaped = image.reshape(size)
        if lengths(size, shaped.stride()) == lengths(size, stride):
            return shaped
        return torch.empty_strided(size, stride, dtype=dtype).copy_(shaped)


def lengths(size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return lengths and strides of the dimensions that are longer than 1."""
    long = [(length, step) for length, step in zip(size, stride, strict=True) if length != 1]
    return tuple(length for length, _ in long), tuple(step for _, step in long)


# ---- The call in which operations are followed, and the functions that are.


class Following(Call):
    """A call in which operations on images are followed.

    Attributes:
        paused: whether functions of torch are not followed, as an image is computed.
        asking: the function that asks for pixels.
        pixels: the images that were computed, by their node.
        stop: raised where the call cannot go on without pixels.
    """

    paused = False
    asking = "a function"
    pixels: Mapping[Node, Any]
    stop: type[Deviation]

    def follow(self, node: Node, operation: Operation, size: tuple[int, int], form: Form) -> Any:
        """Return the lazy or real result of an operation on a node's image."""
        return self.add(node, Node(node, operation, size, form))

    def add(self, parent: Node | None, node: Node) -> Any:
        """Record a node as `record` does; return its lazy or real image."""
        raise NotImplementedError

    def record(self, parent: Node | None, node: Node) -> Node:
        """Add a node to its parent, or to the opened files; return it, or the first call's node in its place.

        Raises:
            Mismatch: the first call's node is another one.
        """
        raise NotImplementedError

    def pixels_needed(self, node: Node) -> Any:
        """Return an image for a node whose pixels are needed."""
        raise NotImplementedError


def following() -> bool:
    """Return whether operations on images are followed on this thread."""
    return isinstance(current(), Following)


Step = tuple[Operation, tuple[int, int], Form] | None
FUNCTIONS: dict[Any, Callable[[Node, Any, Any, Any], Step]] = {}


def windowed(
    node: Node, top: int, left: int, height: int, width: int, apply: Callable[[Any], Any], fill: Any = 0
) -> tuple[Operation, tuple[int, int], Form]:
    inside = top >= 0 and left >= 0 and top + height <= node.size[0] and left + width <= node.size[1]
    kind = ("window", None if inside else fill)
    return Operation(kind, (top, left, height, width), apply), (height, width), node.form


def rest(function: Callable[..., Any], others: tuple[Any, ...], named: dict[str, Any], image: Any) -> Any:
    return function(image, *others, **named)


def same_form(node: Node, function: Any, others: Any, named: Any) -> Step:
    """Follow a function that keeps size and form, and which no engine computes."""
    operation = Operation(
        (function.__name__,), (*others, *named.items()), functools.partial(rest, function, others, named)
    )
    return operation, node.size, node.form


def called(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function of Pillow's or torchvision's, or let the call under way follow it."""
    call = current()
    return call.function(original, args, named) if isinstance(call, Following) else original(*args, **named)


_torch_normalize, _torch_gaussian_blur = functional.normalize, functional.gaussian_blur


TORCHVISION = (functional, functional_v2, _type_conversion, _misc, _geometry, _augment, _color)
"""Modules of torchvision in which functions are replaced."""


def replace_function(modules: tuple[Any, ...], name: str, follow: Callable[..., Step]) -> None:
    original = getattr(modules[0], name)
    if hasattr(original, "_followed"):
        return

    @functools.wraps(original)
    def function(*args: Any, **named: Any) -> Any:
        return called(original, *args, **named)

    function._followed = True  # type: ignore[attr-defined]
    FUNCTIONS[original] = follow
    for module in modules:
        if getattr(module, name, None) is original:
            setattr(module, name, function)
    for kernels in getattr(
        _kernels, "_KERNEL_REGISTRY", {}
    ).values():  # v2's functions look theirs up there, by the image's class
        for kind, kernel in kernels.items():
            if kernel is original:
                kernels[kind] = function
