"""The two calls of a data set's own `__getitem__` for a trace: the first records operations, the second compares them.

`trace` says what they are for; `own_traces.Trace` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import calls, traced_array, traced_image, traced_tensor
from .calls import ARRAY, AS_ARRAY, AS_FILE, PIL, RGB, TENSOR, Opened, Opener, TransformPoint
from .dry_call import opened_by
from .lazy_array import decoded, is_lazy
from .structure import values
from .trace import ARRAY_RGB, ARRAYS, BGR, CLASSES, CLASSES_16, FUNCTIONS, Ended, FollowedCall, Form, Mismatch, Node
from .traced_array import TracedArray
from .traced_image import TracedFile, TracedImage
from .traced_tensor import TracedTensors, interleaved


def install() -> None:
    """Replace the openers, and the functions that are followed, of the modules imported so far; each once."""
    calls.install()
    traced_image.install()
    traced_tensor.install()
    traced_array.install()


class _TracedCall(FollowedCall):
    """A call in which openers return lazy images, and functions of these are followed: the base of both calls.

    Args:
        pixels: see `FollowedCall`.

    Attributes:
        roots: the nodes of the opened files.
        tensors: the tensors without pixels.
    """

    def __init__(self, pixels: Mapping[Node, Any]) -> None:
        self.pixels = pixels
        self.roots: list[Node] = []
        self.tensors = TracedTensors(self)

    def __enter__(self) -> _TracedCall:
        super().__enter__()
        self.tensors.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self.tensors.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)

    def opened(self, opener: Opener, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        opened = header = None
        try:
            opened = opened_by(opener, args, named)
            header = None if opened is None else opened.header
        except Exception:  # noqa: BLE001, S110 - the opener itself raises its own error
            pass
        if opened is None or header is None:
            return opener.function(*args, **named)
        self.path = opened.path or self.path
        if opener.kind == ARRAY:
            form = _form_of_array(opener, opened, args[1:], named)
            if form is None:
                self.fail(AS_ARRAY, opener.function.__name__)
                return opener.function(*args, **named)
            return self.add(None, Node(None, None, opened.size, form, opened))
        if opener.colours(args[1:], named) not in (AS_FILE, RGB):
            return opener.function(*args, **named)
        if opener.kind == TENSOR and (header.mode != "RGB" or opened.turned):
            return opener.function(*args, **named)
        size = height, width = header.size[1], header.size[0]
        form = header.mode if opener.kind == PIL else interleaved(height, width)
        node = Node(None, None, size, form, opened)
        return self.add(None, node)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return point.transform(*args, **named)

    def function(self, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        image: Any = args[0] if args else None
        before, self.paused = self.paused, True
        try:
            if isinstance(image, torch.Tensor):
                node = self.tensors.node_of(image)
            elif is_lazy(image):
                found = image.called(original, args[1:], named)
                if found is not NotImplemented:
                    return found
                node = image.node
            else:
                node = traced_image.node_of(image, self)
            follow = FUNCTIONS.get(original)  # others are replaced for dry runs
            step = None if node is None or follow is None else follow(node, original, args[1:], named)
            if node is not None and step is not None:
                return self.follow(node, *step)
        finally:
            self.paused = before
        if self.gave_array:
            args, named = decoded(args), {name: decoded(value) for name, value in named.items()}
        return original(*args, **named)

    def add(self, parent: Node | None, node: Node) -> Any:
        node = self.record(parent, node)
        if node in self.pixels and node.base is node:
            return self.pixels[node]
        if node.form in ARRAYS:
            return TracedArray(self, node)
        if isinstance(node.form, str):
            return (TracedImage if node.opened is None else TracedFile).of(self, node)
        return self.tensors.lazy(node, node.form)

    def computed(self, node: Node) -> Any:
        """Compute the image of a node by the functions that the data set called; return it."""
        self.paused, before = True, self.paused
        try:
            return node.real()
        finally:
            self.paused = before


class TraceCall(_TracedCall):
    """The first call, which records the operations.

    Args:
        goes_on: whether the call goes on where pixels are needed, with the real ones; else it ends there. It ends also
            where those of an image in colour are needed that is resized or cut: DALI is to compute it.

    Attributes:
        needed: whether pixels were needed.
    """

    stop = Ended

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__({})
        self.needed = False
        self._goes_on = goes_on
        self._ended = False

    def record(self, parent: Node | None, node: Node) -> Node:
        (self.roots if parent is None else parent.children).append(node)
        return node

    def pixels_needed(self, node: Node) -> Any:
        node.needed = node.needed or self.asking
        self.needed = True
        if not self._ended and not (self._goes_on and not _moved_in_colour(node)):
            self._ended = True  # code that catches everything must come to an end
            raise Ended
        if node.known is None:
            node.known = self.computed(node)
        return node.copied()

    def held(self, sample: Any) -> list[Held] | None:
        """Return the images without pixels in a sample, after the call; None if there may be others.

        Others may be inside objects of the user's own classes, which are not searched.
        """
        found: list[Held] = []
        different = {id(value): value for value in values(sample)}  # an image may be in several places
        for value in different.values():
            if isinstance(value, torch.Tensor):
                node = self.tensors.node_of(value) if value.layout is torch.strided else None
                if node is not None:
                    found.append(Held(value, node))
            elif is_lazy(value):
                if value._call is not self or value._lazy is None or "_node" not in value.__dict__:
                    return None
                found.append(Held(value, value._node))
            elif (node := traced_image.node_of(value, self)) is not None:
                found.append(Held(value, node))
        nodes = {held.node for held in found}
        tensors = [held.image for held in found if isinstance(held.image, torch.Tensor)]
        if self.tensors.others_than(tensors) or any(leaf.needed or leaf not in nodes for leaf in _leaves(self.roots)):
            return None
        return found


def _moved_in_colour(node: Node) -> bool:
    """Return whether an image is in colour, and resized or cut."""
    moved, root = False, node
    while root.parent is not None:
        moved |= root.operation is not None and root.operation.kind[0] in ("resize", "window")
        root = root.parent
    return moved and (not isinstance(root.form, str) or root.form in ("RGB", ARRAY_RGB, BGR))


class Held(NamedTuple):
    """A tensor, array or image without pixels in a sample, and its node."""

    image: Any
    node: Node

    def fill(self, real: Any) -> None:
        """Give it the pixels of the real image."""
        if is_lazy(self.image):
            self.image.fill(real)
            return
        if isinstance(self.image, TracedImage):
            traced_image.fill(self.image, real)
            return
        with torch._C.DisableTorchFunctionSubclass():
            self.image.data = self.node.given(real).reshape(self.image.shape)


def _leaves(roots: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes on each branch at which pixels are needed first, or which end it."""
    for node in roots:
        if node.needed or not node.children:
            yield node
        else:
            yield from _leaves(node.children)


class ReplayCall(_TracedCall):
    """The second call, which compares the operations with the first's, and returns the computed images at the ends.

    Args:
        trace: the files that the first call opened, with the operations on their images.
        pixels: the images that were computed, by their node.
    """

    stop = Mismatch

    def __init__(self, trace: Sequence[Node], pixels: Mapping[Node, Any]) -> None:
        super().__init__(pixels)
        self._trace = trace

    def record(self, parent: Node | None, node: Node) -> Node:
        if parent is None:
            expected, place = self._trace, len(self.roots)
            self.roots.append(node)
        else:
            expected, place = parent.children, parent.replayed
            parent.replayed += 1
        if place >= len(expected):
            return node
        if not _same(expected[place], node):
            raise Mismatch
        return expected[place]

    def pixels_needed(self, node: Node) -> Any:
        return self.computed(node)

    def finish(self, sample: Any) -> None:
        """Give all images in the sample, and all tensors, their pixels; to be called after the call.

        Other images of Pillow become real when they are used.
        """
        for value in values(sample):
            if traced_image.node_of(value, self) is not None:
                traced_image.become(value, self)
        self.tensors.fill_all()


def _same(known: Node, node: Node) -> bool:
    if known.size != node.size or known.form != node.form:
        return False
    if known.operation is None or node.operation is None:
        a, b = known.opened, node.opened
        return a is not None and b is not None and a.path == b.path and a.data == b.data
    return known.operation[:2] == node.operation[:2]


def _form_of_array(opener: Opener, opened: Opened, args: tuple[Any, ...], named: dict[str, Any]) -> Form | None:
    """Return the form of the array that OpenCV makes of a file; None if it is not followed."""
    colours = opener.colours(args, named)
    if colours is None:
        form = {"L": CLASSES, "I;16": CLASSES_16}.get(opened.header.mode)
        return form if form is not None and calls.grey(opened.header, args, named) else None
    return ARRAY_RGB if colours == RGB else BGR
