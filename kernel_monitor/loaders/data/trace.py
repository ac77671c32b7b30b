"""Traces: the operations on images in a call of a data set's own `__getitem__`, recorded without their pixels.

A data set that transforms several images together, or one image several times, is followed in two calls. In the first
(`TraceCall`) images are opened lazily, and operations on them are recorded. It ends where pixels are needed, or goes on
with the real ones. DALI computes the images that it ended with. In the second (`ReplayCall`) the same code runs
again with the same random numbers; each operation is compared with the recorded one, and at the end of the recorded
operations the lazy image becomes the image that DALI computed. A call that does anything else ends with `Mismatch`.
Images that no engine has computed are computed here by the recorded functions themselves, when pixels are needed.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps, ImagePalette
from torch.overrides import TorchFunctionMode
from torchvision.transforms import _functional_pil as pil_functions
from torchvision.transforms import functional
from torchvision.transforms.v2 import functional as functional_v2
from torchvision.transforms.v2.functional import _augment, _color, _misc, _type_conversion
from torchvision.transforms.v2.functional import _geometry as _sizes
from torchvision.transforms.v2.functional import _utils as _kernels

from .calls import (
    ARRAY,
    AS_ARRAY,
    AS_FILE,
    PIL,
    RGB,
    TENSOR,
    Call,
    Deviation,
    Opened,
    Opener,
    TransformPoint,
    current,
    grey,
)
from .dry_call import opened_by
from .lazy_array import decoded, is_lazy
from .structure import values

# ---- Nodes: an opened file, or the result of an operation on the image of another node.


class Mismatch(Deviation):
    """The second call did something else than the first."""


Form = str | tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Pillow's mode of an image, or shape, strides and type of a tensor, or one of the following."""

ARRAY_RGB, BGR, CLASSES, FLOATS = "RGB array", "BGR array", "array of classes", "array of floats"
"""Forms of NumPy arrays: uint8[height, width, 3], uint8[height, width], float32[height, width, 3]."""

ARRAYS = (ARRAY_RGB, BGR, CLASSES, FLOATS)

LAZY: dict[Form, Callable[[Any, Node], Any]] = {}
"""By form, functions that return a lazy array of a node in a call."""


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
        if _lengths(size, shaped.stride()) == _lengths(size, stride):
            return shaped
        return torch.empty_strided(size, stride, dtype=dtype).copy_(shaped)


# ---- The two calls.


class _Following(Call):
    """A call in which operations on images are followed.

    Attributes:
        paused: whether functions of torch are not followed, as an image is computed.
        asking: the function that asks for pixels.
    """

    paused = False
    asking = "a function"

    def __init__(self) -> None:
        self.roots: list[Node] = []
        self._memory: dict[int, _Memory] = {}  # by address: memory of tensors whose pixels are not there yet
        self._mode: Any = _Mode(self)

    def __enter__(self) -> _Following:
        super().__enter__()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
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
        form = header.mode if opener.kind == PIL else _interleaved(height, width)
        node = Node(None, None, size, form, opened)
        return self.add(None, node)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return point.transform(*args, **named)

    def function(self, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        image: Any = args[0] if args else None
        before, self.paused = self.paused, True
        try:
            if isinstance(image, torch.Tensor):
                node = self.node_of(image)
            elif is_lazy(image):
                found = image.called(original, args[1:], named)
                if found is not NotImplemented:
                    return found
                node = image.node
            else:
                node = image.node if isinstance(image, TracedImage) else None
            follow = FUNCTIONS.get(original)  # others are replaced for dry runs
            step = None if node is None or follow is None else follow(node, original, args[1:], named)
            if node is not None and step is not None:
                return self.follow(node, *step)
        finally:
            self.paused = before
        if self.gave_array:
            args, named = decoded(args), {name: decoded(value) for name, value in named.items()}
        return original(*args, **named)

    def follow(self, node: Node, operation: Operation, size: tuple[int, int], form: Form) -> Any:
        """Return the lazy or real result of an operation on a node's image."""
        return self.add(node, Node(node, operation, size, form))

    def add(self, parent: Node | None, node: Node) -> Any:
        """Add a node to its parent, or to the opened files; return its lazy or real image."""
        raise NotImplementedError

    def pixels_needed(self, node: Node) -> Any:
        """Return an image for a node whose pixels are needed."""
        raise NotImplementedError

    def lazy(self, node: Node, memory: torch.Tensor | None = None) -> Any:
        """Return the lazy image of a node; that of a tensor lies in `memory`, if that is given."""
        if node.form in LAZY:
            return LAZY[node.form](self, node)
        if isinstance(node.form, str):
            return (TracedImage if node.opened is None else TracedFile).of(self, node)
        if memory is not None:
            self._memory[_address(memory)] = _Memory(lambda: memory, {_geometry(memory): node})
            return memory
        blank = _blank(*node.form)
        tensor = torch.frombuffer(blank, dtype=node.form[2]).as_strided(*node.form[:2])
        address = _address(tensor)
        # The memory is forgotten when it is freed: its address may be given to other tensors.
        alive = weakref.ref(blank, lambda _: self._memory.pop(address, None))
        self._memory[address] = _Memory(lambda: _of(alive()), {_geometry(tensor): node})
        return tensor

    # ---- Tensors, which are known by their memory, as views of one tensor are different objects.

    def track(self, tensor: torch.Tensor, node: Node) -> None:
        """Record that a tensor, in memory without pixels, is the image of a node."""
        self._memory[_address(tensor)].nodes[_geometry(tensor)] = node

    def node_of(self, tensor: Any) -> Node | None:
        """Return the node of a tensor; None for a tensor with pixels of its own."""
        memory = self._memory.get(_address(tensor)) if self._memory else None
        return None if memory is None else memory.nodes.get(_geometry(tensor))

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in memory without pixels."""
        return _address(tensor) in self._memory

    def alone(self, tensor: torch.Tensor) -> bool:
        """Return whether no other part of its memory is known as an image."""
        return len(self._memory[_address(tensor)].nodes) == 1

    def untrack(self, tensor: torch.Tensor) -> _Memory:
        """Forget a tensor's memory, which now has pixels; return it."""
        return self._memory.pop(_address(tensor))

    def need(self, tensor: torch.Tensor) -> None:
        """Fill a tensor's memory, as its pixels are needed."""
        raise NotImplementedError

    def computed(self, node: Node) -> Any:
        """Return the image of a node, computed by the functions that were called."""
        self.paused, before = True, self.paused
        try:
            return node.real()
        finally:
            self.paused = before

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill a tensor's memory."""
        memory = self.untrack(tensor)
        for (offset, size, stride), node in memory.nodes.items():
            image = self.pixels_needed(node)
            image.new_empty(0).set_(tensor.untyped_storage(), offset, size, stride).copy_(image.reshape(size))


class TraceCall(_Following):
    """The first call: it records the operations.

    Args:
        goes_on: whether the call goes on where pixels are needed, with the real ones; else it ends there.

    Attributes:
        needed: how many nodes there were when pixels were needed first; None: they were not needed.
        count: how many nodes there are.
    """

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__()
        self.needed: int | None = None
        self.count = 0
        self._goes_on = goes_on

    def add(self, parent: Node | None, node: Node) -> Any:
        (self.roots if parent is None else parent.children).append(node)
        self.count += 1
        return self.lazy(node)

    def pixels_needed(self, node: Node) -> Any:
        node.needed = node.needed or self.asking
        if self.needed is None:
            self.needed = self.count
        if not self._goes_on:
            self._goes_on = True  # code that catches everything must come to an end
            raise Ended
        if node.known is None:
            node.known = self.computed(node)
        return node.copied()

    def need(self, tensor: torch.Tensor) -> None:
        self.fill(tensor)

    def held(self, sample: Any) -> list[Held] | None:
        """Return what a sample holds without pixels, after the call; None if more than what is found may be without.

        Nothing is found inside objects of the user's own classes.
        """
        found: list[Held] = []
        different = {id(value): value for value in values(sample)}  # an image may be in several places
        for value in different.values():
            if isinstance(value, torch.Tensor):
                node = self.node_of(value) if value.layout is torch.strided else None
                if node is not None:
                    found.append(Held(value, node))
            elif is_lazy(value):
                if value.__dict__["_call"] is not self or value._lazy is None:
                    return None
                found.append(Held(value, value.__dict__["_node"]))
            elif isinstance(value, TracedImage) and value.__dict__.get("_call") is self:
                found.append(Held(value, value.__dict__["_node"]))
        nodes = {held.node for held in found}
        known = {_address(held.image) for held in found if isinstance(held.image, torch.Tensor)}
        hidden = any(address not in known and memory.tensor() is not None for address, memory in self._memory.items())
        if hidden or any(leaf.needed or leaf not in nodes for leaf in leaves(self.roots)):
            return None
        return found


class Held(NamedTuple):
    """A tensor or an image without pixels in a sample, and its node."""

    image: Any
    node: Node

    def fill(self, real: Any) -> None:
        """Give it its pixels."""
        if is_lazy(self.image):
            self.image.fill(real)
            return
        if isinstance(self.image, TracedImage):
            _set(self.image, real)
            return
        with torch._C.DisableTorchFunctionSubclass():
            self.image.data = self.node.given(real).reshape(self.image.shape)


class ReplayCall(_Following):
    """The second call: it compares the operations with the first's, and gives the images that were computed.

    Args:
        trace: the files that the first call opened, with the operations on their images.
        pixels: the images that were computed, by their node.
    """

    def __init__(self, trace: Sequence[Node], pixels: Mapping[Node, Any]) -> None:
        super().__init__()
        self._trace = trace
        self.pixels = pixels
        self._bases = {node.base: node for node in pixels if not isinstance(node.form, str)}

    def add(self, parent: Node | None, node: Node) -> Any:
        expected = self._trace if parent is None else parent.children
        place = len(self.roots) if parent is None else parent.replayed
        if parent is None:
            self.roots.append(node)
        else:
            parent.replayed += 1
        if place >= len(expected):
            return self.lazy(node)
        known = expected[place]
        if not _same(known, node):
            raise Mismatch
        if known in self.pixels and known.base is known:
            return self.pixels[known]
        ends = self._bases.get(known)
        return self.lazy(known, None if ends is None else self.pixels[ends])

    def in_place(self, node: Node, operation: Operation) -> tuple[Node, bool]:
        """Return the node after an operation in place, and whether its pixels are in the tensor's memory now."""
        found = Node(node, operation, node.size, node.form)
        place, node.replayed = node.replayed, node.replayed + 1
        if place >= len(node.children):
            return found, False
        known = node.children[place]
        if not _same(known, found):
            raise Mismatch
        return known, known in self.pixels

    def pixels_needed(self, node: Node) -> Any:
        return self.computed(node)

    def need(self, tensor: torch.Tensor) -> None:
        self.fill(tensor)

    def finish(self, sample: Any) -> None:
        """Fill what the call left without pixels; to be called after it. Other images are real when they are used."""
        for value in values(sample):
            if isinstance(value, TracedImage) and value.__dict__.get("_call") is self:
                _become(value, self)
        for memory in list(self._memory.values()):
            tensor = memory.tensor()
            if tensor is not None:
                self.need(tensor)


def following() -> bool:
    """Return whether operations on images are followed on this thread."""
    return isinstance(current(), _Following)


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
        return CLASSES if opened.header.mode == "L" and grey(opened.header, args, named) else None
    return ARRAY_RGB if colours == RGB else BGR


def leaves(roots: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes whose pixels are needed first: none of the nodes before them is needed."""
    for node in roots:
        if node.needed or not node.children:
            yield node
        else:
            yield from leaves(node.children)


# ---- Images of Pillow.

_KNOWN = frozenset(
    {"__class__", "__dict__", "__enter__", "__exit__", "node", "close", "load", "copy", "convert", "resize", "crop"}
    | {"transpose", "size", "width", "height", "mode", "format", "filename", "info", "getexif", "getbands", "readonly"}
    | {"getpalette", "putpalette", "filter", "point"}
    | {"_real", "_follow", "_same_form"}
)
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Image.Resampling
_PLAIN_MODES = ("RGB", "L", "P", "1", "I", "I;16", "F")


class _AsImage(type):
    """The class of a class that is found where a dictionary has `Image.Image`, as torchvision's `fill` may have it."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or (other is Image.Image and not issubclass(cls, TracedFile))

    def __hash__(cls) -> int:
        return hash(Image.Image)


class TracedImage(Image.Image, metaclass=_AsImage):
    """A lazy image of Pillow, which becomes a real one at the first operation that is not followed."""

    @classmethod
    def of(cls, call: _Following, node: Node) -> TracedImage:
        """Return the lazy image of a node."""
        image = object.__new__(cls)
        object.__getattribute__(image, "__dict__").update(_call=call, _node=node)
        return image

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        call: _Following | None = own.get("_call")
        if name in ("__class__", "__dict__") or (name in _KNOWN and call is not None and call is current()):
            return object.__getattribute__(self, name)
        if call is not None:
            call.asking = _asked_by(sys._getframe(1), name)
            _become(self, call)
        return getattr(self, name)

    @property
    def node(self) -> Node | None:
        """The image's node."""
        return self.__dict__.get("_node")

    def __enter__(self) -> TracedImage:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file is open."""

    def close(self) -> None:
        """Do nothing: no file is open."""

    def load(self) -> None:
        """Do nothing: pixels are not needed by that."""

    def copy(self) -> Any:
        return TracedImage.of(self.__dict__["_call"], self.__dict__["_node"])

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.__dict__["_node"].size
        return width, height

    @property
    def width(self) -> int:
        return self.size[0]

    @property
    def height(self) -> int:
        return self.size[1]

    @property
    def mode(self) -> str:
        return str(self.__dict__["_node"].form)

    @property  # type: ignore[misc]
    def readonly(self) -> int:
        return 0

    def getbands(self) -> tuple[str, ...]:
        return tuple(Image.getmodebandnames(self.mode))

    @property
    def format(self) -> str | None:  # type: ignore[override]
        opened = self.__dict__["_node"].opened
        return None if opened is None else opened.header.format

    @property
    def filename(self) -> str:
        opened = self.__dict__["_node"].opened
        return "" if opened is None else opened.path or ""

    @property
    def info(self) -> dict[str | tuple[int, int], Any]:  # type: ignore[override]
        return dict(_root(self.__dict__["_node"]).header.info)

    def getpalette(self, rawmode: str | None = "RGB") -> list[int] | None:
        palette = _root(self.__dict__["_node"]).header.palette
        if palette is None or self.mode != "P":
            found: list[int] | None = self._real("getpalette")(rawmode)
            return found
        return with_palette(Image.new("P", (1, 1)), palette).getpalette(rawmode)

    def putpalette(self, data: Any, rawmode: str = "RGB") -> None:
        if self.mode != "P" or rawmode != "RGB" or data != self.getpalette():
            self._real("putpalette")(data, rawmode)

    def getexif(self) -> Image.Exif:
        return _root(self.__dict__["_node"]).exif

    def convert(self, mode: str | None = None, *others: Any, **named: Any) -> Any:
        node = self.__dict__["_node"]
        if others or named or mode is None:
            return self._real("convert")(mode, *others, **named)
        if mode == node.form:
            return self.copy()
        operation = Operation(("convert", mode), (), operator.methodcaller("convert", mode))
        return self._follow(operation, node.size, mode)

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        node = self.__dict__["_node"]
        arguments = (size, resample, box, reducing_gap)
        if box is not None or reducing_gap is not None or node.form not in _PLAIN_MODES:
            return self._real("resize")(*arguments)
        try:
            width, height = map(operator.index, size)
        except TypeError:
            return self._real("resize")(*arguments)
        if min(width, height) <= 0:
            return self._real("resize")(*arguments)
        if (height, width) == node.size:
            return self.copy()
        filtering = 3 if resample is None else int(resample)
        if node.form in ("1", "P"):
            filtering = 0
        operation = Operation(
            ("resize", _FILTERS.get(filtering)),
            (height, width),
            operator.methodcaller("resize", (width, height), resample),
        )
        return self._follow(operation, (height, width), node.form)

    def crop(self, box: Any = None) -> Any:
        node = self.__dict__["_node"]
        if box is None:
            return self.copy()
        left, top, right, bottom = (round(side) for side in box)
        if right <= left or bottom <= top:
            return self._real("crop")(box)
        return self._follow(*windowed(node, top, left, bottom - top, right - left, operator.methodcaller("crop", box)))

    def filter(self, filter: Any) -> Any:  # noqa: A002 - Pillow's name
        return self._same_form("filter", filter)

    def point(self, lut: Any, mode: str | None = None) -> Any:
        return self._same_form("point", lut) if mode is None else self._real("point")(lut, mode)

    def _same_form(self, name: str, argument: Any) -> Any:
        """Follow a method that keeps size and mode, and which no engine computes."""
        node = self.__dict__["_node"]
        if node.form not in ("RGB", "L"):
            return self._real(name)(argument)
        operation = Operation((name,), (_described(argument),), operator.methodcaller(name, argument))
        return self._follow(operation, node.size, node.form)

    def transpose(self, method: Any) -> Any:
        node = self.__dict__["_node"]
        vertical = {0: False, 1: True}.get(int(method))  # FLIP_LEFT_RIGHT, FLIP_TOP_BOTTOM
        if vertical is None:
            return self._real("transpose")(method)
        operation = Operation(("mirror", vertical), (), operator.methodcaller("transpose", method))
        return self._follow(operation, node.size, node.form)

    def _real(self, name: str) -> Any:
        call = self.__dict__["_call"]
        call.asking = f"Image.{name}"
        _become(self, call)
        return getattr(self, name)

    def _follow(self, operation: Operation, size: tuple[int, int], form: Form) -> Any:
        return self.__dict__["_call"].follow(self.__dict__["_node"], operation, size, form)


def _described(argument: Any) -> Any:
    """Return an argument in a form in which those of two calls can be compared."""
    return (type(argument), vars(argument)) if isinstance(argument, ImageFilter.Filter) else argument


def with_palette(image: Image.Image, palette: tuple[str, bytes]) -> Image.Image:
    """Give an image of numbers of a palette the palette of a file's header; return it."""
    image.palette = ImagePalette.raw(*palette)
    image.load()
    return image


class TracedFile(TracedImage):
    """A lazy image as `Image.open` returns it, whose class is that of its format."""


def windowed(
    node: Node, top: int, left: int, height: int, width: int, apply: Callable[[Any], Any], fill: Any = 0
) -> tuple[Operation, tuple[int, int], Form]:
    inside = top >= 0 and left >= 0 and top + height <= node.size[0] and left + width <= node.size[1]
    kind = ("window", None if inside else fill)
    return Operation(kind, (top, left, height, width), apply), (height, width), node.form


def _root(node: Node) -> Opened:
    while node.parent is not None:
        node = node.parent
    return node.opened  # type: ignore[return-value]


def _become(image: TracedImage, call: _Following) -> None:
    """Turn a lazy image into a real one."""
    own = object.__getattribute__(image, "__dict__")
    node = own["_node"]
    _set(image, call.pixels_needed(node) if call is current() else node.real())


def _asked_by(frame: FrameType, name: str) -> str:
    """Return the function that asks for an attribute of an image, as people know it; `frame` is that of the caller.

    That of torchvision or Pillow which is nearest to the user's code; no object's method.
    """
    found = "np.array" if name.startswith("__array") else f"Image.{name}"
    caller: FrameType | None = frame
    while caller is not None and (module := str(caller.f_globals.get("__name__"))).startswith(("PIL.", "torchvision.")):
        function = caller.f_code.co_name
        if not function.startswith("_") and (module.startswith("PIL.") or "functional" in module):
            found = function
        caller = caller.f_back
    return found


def _set(image: TracedImage, real: Image.Image) -> None:
    real.load()
    if type(image) is not TracedFile and type(real) is not Image.Image:
        real = real.copy()  # as Pillow's `copy` and `convert` give no image of the file's class
    own = object.__getattribute__(image, "__dict__")
    own.clear()
    own.update(real.__dict__)
    object.__setattr__(image, "__class__", type(real))


# ---- Functions of Pillow and torchvision that take images of Pillow.

_Step = tuple[Operation, tuple[int, int], Form] | None


def _as_tensor(node: Node, function: Any, others: Any, named: Any, *, floats: bool) -> _Step:
    if node.form == ARRAY_RGB and floats:
        node = Node(None, None, node.size, "RGB")  # the same functions of the pixels
    if others or named or (floats and torch.get_default_dtype() is not torch.float32):
        return None
    height, width = node.size
    if node.form in ("L", "P") and not floats:
        return Operation(("planes",), (), function), node.size, ((1, height, width), (1, width, 1), torch.uint8)
    if node.form != "RGB":
        return None
    if not floats:
        return Operation(("planes",), (), function), node.size, _interleaved(height, width)
    form = (3, height, width), (height * width, width, 1), torch.float32
    return Operation(("floats",), (), function), node.size, form


def _expanded(node: Node, function: Any, others: Any, named: Any) -> _Step:
    arguments = dict(zip(("border", "fill"), others, strict=False)) | named
    border, fill = arguments.get("border", 0), arguments.get("fill", 0)
    sides = (border,) * 4 if isinstance(border, int) else tuple(border)
    sides = sides * 2 if len(sides) == 2 else sides
    if len(sides) != 4 or node.form not in _PLAIN_MODES or (node.form != "RGB" and not isinstance(fill, int)):
        return None
    if isinstance(fill, str):
        return None
    left, top, right, bottom = (int(side) for side in sides)
    height, width = node.size[0] + top + bottom, node.size[1] + left + right
    if min(height, width) <= 0:
        return None
    if node.form == "RGB" and isinstance(fill, int):  # red is the lowest byte for Pillow
        fill = tuple(fill.to_bytes(4, "little", signed=True)[:3])
    return windowed(node, -top, -left, height, width, functools.partial(_rest, function, others, named), fill)


def _other(node: Node, function: Any, others: Any, named: Any) -> _Step:
    """Follow a function that keeps size and form, and which no engine computes."""
    operation = Operation(
        (function.__name__,), (*others, *named.items()), functools.partial(_rest, function, others, named)
    )
    return operation, node.size, node.form


def _grey(node: Node, function: Any, others: Any, named: Any) -> _Step:
    operation, size, _ = _other(node, function, others, named)  # type: ignore[misc]
    channels = {**dict(zip(("num_output_channels",), others, strict=False)), **named}.get("num_output_channels", 1)
    return (operation, size, "L" if channels == 1 else "RGB") if node.form == "RGB" else None


def _as_pillow(node: Node, function: Any, others: Any, named: Any) -> _Step:
    if isinstance(node.form, str) or node.form[2] is not torch.uint8 or node.form[0][0] != 3 or others or named:
        return None
    return Operation(("pillow",), (), function), node.size, "RGB"


def _normalized(node: Node, function: Any, others: Any, named: Any) -> _Step:
    """Follow torchvision's function as a whole: it calls a dozen of torch's for an image."""
    arguments = dict(zip(("mean", "std", "inplace"), others, strict=False)) | named
    mean, std = (arguments.get(name) for name in ("mean", "std"))
    lists = isinstance(mean, (list, tuple)) and isinstance(std, (list, tuple)) and {len(mean), len(std)} <= {1, 3}
    if isinstance(node.form, str) or node.form[2] is not torch.float32 or arguments.get("inplace") or not lists:
        return None
    values = (*(list(map(float, mean)) * 3)[:3], *(list(map(float, std)) * 3)[:3])
    if 0.0 in values[3:]:
        return None
    return Operation(("normalize",), values, functools.partial(_rest, function, others, named)), node.size, node.form


def _rest(function: Callable[..., Any], others: tuple[Any, ...], named: dict[str, Any], image: Any) -> Any:
    return function(image, *others, **named)


FUNCTIONS: dict[Any, Callable[[Node, Any, Any, Any], _Step]] = {}
_TONES = ("invert", "posterize", "solarize", "autocontrast", "equalize")
_COLOURS = ("brightness", "contrast", "saturation", "hue", "gamma", "sharpness")


def install() -> None:
    """Replace the functions of Pillow and torchvision that take lazy images, once in a process."""
    everywhere = (functional, functional_v2, _type_conversion, _misc, _sizes, _augment, _color)
    replace_function((functional,), "to_tensor", functools.partial(_as_tensor, floats=True))
    replace_function(everywhere, "pil_to_tensor", functools.partial(_as_tensor, floats=False))
    replace_function(everywhere, "to_pil_image", _as_pillow)
    replace_function((ImageOps,), "expand", _expanded)
    if functional.normalize is _torch_normalize:
        functional.normalize = _normalize
    if functional.gaussian_blur is _torch_gaussian_blur:
        functional.gaussian_blur = _gaussian_blur
    replace_function((pil_functions,), "to_grayscale", _grey)
    for name in _TONES:
        replace_function((ImageOps,), name, _other)
    for name in (*_TONES, *(f"adjust_{colour}" for colour in _COLOURS)):
        replace_function((pil_functions,), name, _other)


def called(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function of Pillow's or torchvision's, or let the call under way follow it."""
    call = current()
    return call.function(original, args, named) if isinstance(call, _Following) else original(*args, **named)


_torch_normalize, _torch_gaussian_blur = functional.normalize, functional.gaussian_blur


# With the signatures of torchvision's, as users script modules that call them.


def _normalize(tensor: torch.Tensor, mean: list[float], std: list[float], inplace: bool = False) -> torch.Tensor:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return called(_torch_normalize, tensor, mean, std, inplace)  # type: ignore[no-any-return]
    return _torch_normalize(tensor, mean, std, inplace)  # type: ignore[no-any-return]


def _gaussian_blur(img: torch.Tensor, kernel_size: list[int], sigma: list[float] | None = None) -> torch.Tensor:
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return called(_torch_gaussian_blur, img, kernel_size, sigma)  # type: ignore[no-any-return]
    return _torch_gaussian_blur(img, kernel_size, sigma)  # type: ignore[no-any-return]


FUNCTIONS |= {_torch_normalize: _normalized, _torch_gaussian_blur: _other}


def replace_function(modules: tuple[Any, ...], name: str, follow: Callable[..., _Step]) -> None:
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


# ---- Tensors: torch's functions are followed on the thread of the call.


class _Memory(NamedTuple):
    """Memory without pixels: a function that returns a tensor in it, or None if it was freed, and the images in it."""

    tensor: Callable[[], torch.Tensor | None]
    nodes: dict[Any, Node]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _geometry(tensor: torch.Tensor) -> Any:
    """Return what all views of an image have in common that differ in dimensions of length 1 only."""
    return tensor.storage_offset(), *_lengths(tensor.shape, tensor.stride())


def _lengths(size: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return lengths and strides of the dimensions that are longer than 1."""
    long = [(length, step) for length, step in zip(size, stride, strict=True) if length != 1]
    return tuple(length for length, _ in long), tuple(step for _, step in long)


def _blank(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Any:
    """Return the memory of a tensor of zeros; its pages are not touched."""
    items = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return np.zeros(items * dtype.itemsize, dtype=np.uint8)


def _of(memory: Any) -> torch.Tensor | None:
    return None if memory is None else torch.frombuffer(memory, dtype=torch.uint8)


def _interleaved(height: int, width: int) -> Form:
    """Return the form of a tensor made of an image whose channels lie beside each other."""
    return (3, height, width), (1, 3 * width, 3), torch.uint8


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
_NAMES = {
    "__truediv__": "div",
    "true_divide": "div",
    "__sub__": "sub",
    "__add__": "add",
    "__mul__": "mul",
    "divide": "div",
}
_NAMES |= {"multiply": "mul", "subtract": "sub", "__isub__": "sub_", "__iadd__": "add_", "__imul__": "mul_"}
_NAMES |= {"__itruediv__": "div_"}
_CASTS = {"to": None, "float": torch.float32, "long": torch.int64, "byte": torch.uint8, "int": torch.int32}
_PURE = frozenset({"conv2d", "clamp", "pow", "abs", "sqrt", "contiguous"})
"""Functions that draw nothing and which no engine computes; their results have the image's size."""
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


class _Mode(TorchFunctionMode):
    """Follows torch's functions on tensors without pixels."""

    def __init__(self, call: _Following) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        call = self._call
        if args and call.gave_array and is_lazy(args[0]) and not call.paused:
            return args[0].as_tensor(function, args[1:], named)
        if call.paused or not call._memory:
            return function(*args, **named)
        found: list[torch.Tensor] = []
        _unfilled(call, args, found)
        if named:
            _unfilled(call, named.values(), found)
        if not found:
            return function(*args, **named)
        name = getattr(function, "__name__", "")
        if name == "__get__":
            if getattr(function.__self__, "__name__", "") in _PROPERTIES:
                return function(*args, **named)
        elif name in _METADATA:
            return function(*args, **named)
        elif found[0] is args[0] and len(found) == 1:
            node = call.node_of(found[0])
            if node is not None:
                followed = _follow(call, node, _NAMES.get(name, name), function, args, named)
                if followed is not NotImplemented:
                    return followed
        call.asking = f"torch.{name.strip('_')}"
        for tensor in found:
            if call.knows(tensor):
                call.need(tensor)
        return function(*args, **named)


def _unfilled(call: _Following, values: Iterable[Any], found: list[torch.Tensor], depth: int = 4) -> None:
    """Add the tensors without pixels among a function's arguments to `found`."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and value.device.type == "cpu" and call.knows(value):
                found.append(value)
        elif depth and isinstance(value, (list, tuple)):
            _unfilled(call, value, found, depth - 1)
        elif depth and isinstance(value, dict):
            _unfilled(call, value.values(), found, depth - 1)


def _follow(call: _Following, node: Node, name: str, function: Any, args: Any, named: Any) -> Any:
    """Return the result of a function of a tensor without pixels; NotImplemented if it is not followed."""
    tensor: torch.Tensor = args[0]
    others = args[1:]
    if (
        name in _VIEWS
        or (name == "contiguous" and tensor.is_contiguous())
        or (name == "to" and _stays(tensor, others, named))
    ):
        result = function(*args, **named)
        return result if call.node_of(result) is node else NotImplemented
    if name.rstrip("_") in _ARITHMETIC and not name.startswith("__"):
        return _arithmetic(call, node, name, function, args, named)
    values: tuple[Any, ...] = ()
    size = node.size
    kind: tuple[Any, ...]
    if name == "clone" and not others and not named:
        kind = ("clone",)
    elif name in _CASTS:
        dtype = _CASTS[name] or _dtype(others, named)
        if not isinstance(dtype, torch.dtype):
            return NotImplemented
        kind = ("cast", str(dtype))
    elif name in ("round", "round_") and not others and not named:
        kind = ("round",)
        if name == "round_":
            apply = functools.partial(_copied, tuple(tensor.shape), function, ())
            return _in_place(call, node, Operation(kind, (), apply), tensor)
    elif name == "flip":
        dims = others[0] if len(others) == 1 and not isinstance(others[0], int) else others or named.get("dims", ())
        dims = [dim if dim < 0 else dim - tensor.ndim for dim in dims] if isinstance(dims, (list, tuple)) else [dims]
        if dims not in ([-1], [-2]):
            return NotImplemented
        kind = ("mirror", dims == [-2])
    elif name == "__getitem__":
        window = _sliced(tensor, others[0])
        if window is None:
            return NotImplemented
        result = function(*args, **named)
        apply = functools.partial(_shaped, tuple(tensor.shape), functools.partial(_rest, function, others, named))
        return _view(call, node, Operation(("window", None), window, apply), result)
    elif name == "interpolate":
        given = dict(zip(("size", "scale_factor", "mode", "align_corners"), others, strict=False)) | named
        if given.get("align_corners") or given.get("scale_factor") is not None or tensor.ndim != 4:
            return NotImplemented
        if given.get("mode", "nearest") != "nearest" and not given.get("antialias"):
            return NotImplemented
        mode = given.get("mode", "nearest")
        height, width = given["size"]
        size, values = (int(height), int(width)), (int(height), int(width))
        kind = ("resize", {"nearest": "nearest of torch"}.get(mode, mode))
    elif name == "pad":
        given = dict(zip(("pad", "mode", "value"), others, strict=False)) | named
        sides = list(given["pad"])
        if len(sides) not in (2, 4):
            return NotImplemented
        left, right, top, bottom = [*sides, 0, 0][:4]
        size = node.size[0] + top + bottom, node.size[1] + left + right
        mode = given.get("mode", "constant")
        kind, values = ("window", float(given.get("value") or 0)), (-top, -left, *size)
        kind = kind if mode == "constant" else ("pad", mode)
    elif name in _PURE:
        kind = (name,)
    else:
        return NotImplemented
    blank = _unreal(tensor)
    beside = [other.to("meta") if isinstance(other, torch.Tensor) else other for other in others]
    shaped = function(blank, *beside, **named)
    if tuple(shaped.shape[-2:]) != size:
        return NotImplemented
    apply = functools.partial(_shaped, tuple(tensor.shape), functools.partial(_rest, function, others, named))
    return _as_class(call.follow(node, Operation(kind, values, apply), size, _form(shaped)), shaped)


def _unreal(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same class and form on torch's device for forms alone."""
    blank = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return blank if type(tensor) is torch.Tensor else blank.as_subclass(type(tensor))


def _as_class(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return result if type(like) is torch.Tensor else result.as_subclass(type(like))


def _form(tensor: torch.Tensor) -> Form:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def _shaped(size: tuple[int, ...], function: Callable[[Any], Any], image: torch.Tensor) -> Any:
    """Return a function of an image in the shape in which it was called; dimensions of length 1 may differ."""
    return function(image.reshape(size))


def _stays(tensor: torch.Tensor, others: Any, named: Any) -> bool:
    """Return whether `Tensor.to` with these arguments returns the tensor itself."""
    given = [*others, *named.values()]
    return bool(given) and all(value is tensor.dtype or value in ("cpu", torch.device("cpu")) for value in given)


def _dtype(others: Any, named: Any) -> Any:
    if len(others) == 1 and not named:
        return others[0]
    return named["dtype"] if not others and named.keys() == {"dtype"} else None


def _sliced(tensor: torch.Tensor, key: Any) -> tuple[int, int, int, int] | None:
    """Return top, left, height and width of a part inside an image; None for any other index."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if any(not isinstance(part, slice) and part is not Ellipsis for part in keys) or keys.count(Ellipsis) > 1:
        return None
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (tensor.ndim - len(keys) + 1)
    keys += [slice(None)] * (tensor.ndim - len(keys))
    if any(part != slice(None) for part in keys[:-2]):
        return None
    spans = [part.indices(length) for part, length in zip(keys[-2:], tensor.shape[-2:], strict=True)]
    if any(step != 1 or stop <= start for start, stop, step in spans):
        return None
    (top, bottom, _), (left, right, _) = spans
    return top, left, bottom - top, right - left


def _arithmetic(call: _Following, node: Node, name: str, function: Any, args: Any, named: Any) -> Any:
    tensor = args[0]
    if tensor.dtype is not torch.float32 or len(args) != 2 or named or tensor.ndim < 3 or tensor.shape[-3] != 3:
        return NotImplemented
    values = _channels(args[1])
    if values is None:
        return NotImplemented
    apply = functools.partial(_copied, tuple(tensor.shape), function, args[1:])
    if name.endswith("_"):
        return _in_place(call, node, Operation((name[:-1],), values, apply), tensor)
    result = call.follow(node, Operation((name,), values, apply), node.size, _form(tensor))
    return result if type(tensor) is torch.Tensor else _as_class(result, function(_unreal(tensor), 1.0))


def _copied(
    size: tuple[int, ...], function: Callable[..., Any], others: tuple[Any, ...], image: torch.Tensor
) -> torch.Tensor:
    result: torch.Tensor = function(image.reshape(size).clone(), *others)
    return result


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


def _in_place(call: _Following, node: Node, operation: Operation, tensor: torch.Tensor) -> Any:
    if not call.alone(tensor):
        return NotImplemented
    if isinstance(call, ReplayCall):
        changed, there = call.in_place(node, operation)
        if there:
            call.untrack(tensor)
            return tensor
    else:
        changed = Node(node, operation, node.size, node.form)
        node.children.append(changed)
    changed.base = node.base
    call.track(tensor, changed)
    return tensor


def _view(call: _Following, node: Node, operation: Operation, result: torch.Tensor) -> Any:
    """Return a part of a tensor without pixels, which shares its memory."""
    size = (int(result.shape[-2]), int(result.shape[-1]))
    made = Node(node, operation, size, _form(result))
    if isinstance(call, ReplayCall):
        place, node.replayed = node.replayed, node.replayed + 1
        if place < len(node.children):
            if not _same(node.children[place], made):
                raise Mismatch
            made = node.children[place]
            if made in call.pixels and made.base is made:
                return call.pixels[made]
    else:
        node.children.append(made)
    call.track(result, made)
    return result
