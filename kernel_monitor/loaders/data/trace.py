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
from torchvision.transforms.v2.functional import _augment, _color, _geometry, _misc, _type_conversion, _utils

from .calls import Call, Deviation, Opened, current, with_arguments

# ---- Nodes: an opened file, or the result of an operation on the image of another node.

Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type of a tensor."""

ARRAY_RGB, BGR, CLASSES, FLOATS = "RGB array", "BGR array", "array of classes", "array of floats"
CLASSES_16 = "array of classes of 16 bits"
"""Forms of NumPy arrays: two of uint8[height, width, 3], uint8 or uint16[height, width], float32[height, width, 3]."""

ARRAYS = (ARRAY_RGB, BGR, CLASSES, CLASSES_16, FLOATS)

Form = str | Layout
"""The form of a lazy object: for an image of Pillow its mode, for a tensor its layout, for an array one of `ARRAYS`."""


class Ended(Deviation):
    """The first call is over, as pixels are needed."""


class Mismatch(Deviation):
    """The second call did something else than the first."""


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
    """An image of a call.

    Attributes:
        opened: the file; None for the result of an operation.
        parent: the node of the operation's image; None for a file.
        operation: the operation; None for a file.
        size: height and width, pixels.
        form: its form.
        children: results of operations on this image, in their order.
        needed: the function that needed pixels of this image first; empty if none did.
        base: of a tensor that operations in place have changed, the node before them; else the node itself.
        known: the image, where the first call has computed it; else None.
        replayed: how many of the children the second call has met.
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
        self.replayed = 0

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
        """Return a computed tensor in the shape and memory layout of the node's; any other image as it is."""
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


# ---- The call in which operations are followed.


class FollowedCall(Call):
    """A call in which operations on images are followed; `trace_calls` has the two kinds.

    Attributes:
        paused: whether torch's functions are not followed now, as an image is computed.
        asking: the function that asks for pixels, as people know it.
        pixels: the images that were computed, by their node.
        stop: the exception that is raised where the call cannot go on without pixels.
    """

    paused = False
    asking = "a function"
    pixels: Mapping[Node, Any]
    stop: type[Deviation]

    def follow(self, node: Node, operation: Operation, size: tuple[int, int], form: Form) -> Any:
        """Record an operation on a node's image; return the lazy result, or the computed one."""
        return self.add(node, Node(node, operation, size, form))

    def add(self, parent: Node | None, node: Node) -> Any:
        """Record a node as `record` does; return its lazy image, or the computed one."""
        raise NotImplementedError

    def record(self, parent: Node | None, node: Node) -> Node:
        """Record the next node after its parent, or the next opened file; return it, or the first call's in its place.

        Raises:
            Mismatch: the first call's node is another one.
        """
        raise NotImplementedError

    def pixels_needed(self, node: Node) -> Any:
        """Return the real image of a node, as its pixels are needed."""
        raise NotImplementedError


def following() -> bool:
    """Return whether operations on images are followed on this thread."""
    return isinstance(current(), FollowedCall)


# ---- The functions that are followed.

Step = tuple[Operation, tuple[int, int], Form] | None
"""An operation, and size and form of its result; None: it is not followed with these arguments."""

Follow = Callable[[Node, Any, Any, Any], Step]
"""A function that describes a library's function of an image: from the image's node, the library's function, the
positional arguments after the image and those by name."""

FUNCTIONS: dict[Any, Follow] = {}
"""The libraries' functions that are followed."""

TORCHVISION = (functional, functional_v2, _type_conversion, _misc, _geometry, _augment, _color)
"""Modules of torchvision in which functions are replaced."""


def replace_function(modules: tuple[Any, ...], name: str, follow: Follow) -> None:
    """Replace a library's function by one that lets the call under way follow it, once in a process.

    Args:
        modules: the modules to replace it in; the first one has it.
        name: its name.
        follow: describes it.
    """
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
    for kernels in getattr(_utils, "_KERNEL_REGISTRY", {}).values():  # in which v2 looks them up by the image's class
        for kind, kernel in kernels.items():
            if kernel is original:
                kernels[kind] = function


def called(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a library's function, or let the call under way follow it."""
    call = current()
    return call.function(original, args, named) if isinstance(call, FollowedCall) else original(*args, **named)


def by_name(names: str, others: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return a function's arguments after the image by their names, given those of the positional ones."""
    return dict(zip(names.split(), others, strict=False)) | named


def slices(key: Any, dimensions: int) -> list[slice] | None:
    """Return a slice for each dimension, from an index of slices and at most one ellipsis; None for any other index."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(not isinstance(part, slice) and part is not Ellipsis for part in keys):
        return None
    places = [place for place, part in enumerate(keys) if part is Ellipsis] or [len(keys)]
    missing = dimensions - len([part for part in keys if part is not Ellipsis])
    if len(places) > 1 or missing < 0:
        return None
    keys[places[0] : places[0] + 1] = [slice(None)] * missing
    return keys


def windowed(
    node: Node, top: int, left: int, height: int, width: int, apply: Callable[[Any], Any], fill: Any = 0
) -> tuple[Operation, tuple[int, int], Form]:
    """Describe a window of an image, in its pixels, that is filled where it reaches beyond the image."""
    inside = top >= 0 and left >= 0 and top + height <= node.size[0] and left + width <= node.size[1]
    kind = ("window", None if inside else fill)
    return Operation(kind, (top, left, height, width), apply), (height, width), node.form


def same_form(node: Node, function: Any, others: Any, named: Any) -> Step:
    """Describe a function that keeps size and form, and which no engine computes."""
    operation = Operation((function.__name__,), (*others, *named.items()), with_arguments(function, others, named))
    return operation, node.size, node.form
