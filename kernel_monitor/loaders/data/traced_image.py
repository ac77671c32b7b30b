"""Images of Pillow in traces, and the functions of Pillow and torchvision that are followed on them."""

from __future__ import annotations

import functools
import operator
import sys
from types import FrameType
from typing import Any

import torch
from PIL import Image, ImageFilter, ImageOps, ImagePalette
from torchvision.transforms import _functional_pil as pil_functions
from torchvision.transforms import functional

from .calls import Opened, current, with_arguments
from .lazy_image import ANSWERED, LazyImage, turn_into
from .trace import (
    ARRAY_RGB,
    TORCHVISION,
    FollowedCall,
    Form,
    Node,
    Operation,
    Step,
    by_name,
    replace_function,
    same_form,
    windowed,
)
from .traced_tensor import interleaved

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Image.Resampling
_PLAIN_MODES = ("RGB", "L", "P", "1", "I", "I;16", "F")


class _AsImage(type):
    """A metaclass whose classes equal `Image.Image` as keys: torchvision looks `fill` up by an image's class."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or (other is Image.Image and not issubclass(cls, TracedFile))

    def __hash__(cls) -> int:
        return hash(Image.Image)


class TracedImage(LazyImage, metaclass=_AsImage):
    """A lazy image of a trace, which becomes a real one at the first operation that is not followed."""

    answered = (
        ANSWERED
        | {"resize", "crop", "transpose", "getbands", "readonly", "getpalette", "putpalette", "filter", "point"}
        | {"_call", "_node", "_real", "_follow", "_same_form"}
    )
    _call: FollowedCall
    _node: Node

    @classmethod
    def of(cls, call: FollowedCall, node: Node) -> TracedImage:
        """Return the lazy image of a node."""
        image = object.__new__(cls)
        object.__getattribute__(image, "__dict__").update(_call=call, _node=node)
        return image

    def asked(self, call: Any, name: str) -> None:
        call.asking = _asked_by(sys._getframe(2), name)
        become(self, call)

    def copy(self) -> Any:
        return TracedImage.of(self._call, self._node)

    @property
    def size(self) -> tuple[int, int]:
        height, width = self._node.size
        return width, height

    @property
    def mode(self) -> str:
        return str(self._node.form)

    @property  # type: ignore[misc]
    def readonly(self) -> int:
        return 0

    def getbands(self) -> tuple[str, ...]:
        return tuple(Image.getmodebandnames(self.mode))

    @property
    def format(self) -> str | None:  # type: ignore[override]
        opened = self._node.opened
        return None if opened is None else opened.header.format

    @property
    def filename(self) -> str:
        opened = self._node.opened
        return "" if opened is None else opened.path or ""

    @property
    def info(self) -> dict[str | tuple[int, int], Any]:  # type: ignore[override]
        return dict(_root(self._node).header.info)

    def getpalette(self, rawmode: str | None = "RGB") -> list[int] | None:
        palette = _root(self._node).header.palette
        if palette is None or self.mode != "P":
            found: list[int] | None = self._real("getpalette")(rawmode)
            return found
        return with_palette(Image.new("P", (1, 1)), palette).getpalette(rawmode)

    def putpalette(self, data: Any, rawmode: str = "RGB") -> None:
        if self.mode != "P" or rawmode != "RGB" or data != self.getpalette():
            self._real("putpalette")(data, rawmode)

    def getexif(self) -> Image.Exif:
        return _root(self._node).exif

    def convert(self, mode: str | None = None, *others: Any, **named: Any) -> Any:
        node = self._node
        if others or named or mode is None:
            return self._real("convert")(mode, *others, **named)
        if mode == node.form:
            return self.copy()
        operation = Operation(("convert", mode), (), operator.methodcaller("convert", mode))
        return self._follow(operation, node.size, mode)

    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Any:
        node = self._node
        wanted = _size(size)
        if wanted is None or box is not None or reducing_gap is not None or node.form not in _PLAIN_MODES:
            return self._real("resize")(size, resample, box, reducing_gap)
        height, width = wanted
        if wanted == node.size:
            return self.copy()
        name = "nearest" if node.form in ("1", "P") else _FILTERS.get(3 if resample is None else int(resample))
        apply = operator.methodcaller("resize", (width, height), resample)
        return self._follow(Operation(("resize", name), wanted, apply), wanted, node.form)

    def crop(self, box: Any = None) -> Any:
        node = self._node
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
        node = self._node
        if node.form not in ("RGB", "L"):
            return self._real(name)(argument)
        operation = Operation((name,), (_described(argument),), operator.methodcaller(name, argument))
        return self._follow(operation, node.size, node.form)

    def transpose(self, method: Any) -> Any:
        node = self._node
        vertical = {0: False, 1: True}.get(int(method))  # FLIP_LEFT_RIGHT, FLIP_TOP_BOTTOM
        if vertical is None:
            return self._real("transpose")(method)
        operation = Operation(("mirror", vertical), (), operator.methodcaller("transpose", method))
        return self._follow(operation, node.size, node.form)

    def _real(self, name: str) -> Any:
        """Turn the image into the real one, and return its method of this name."""
        self._call.asking = f"Image.{name}"
        become(self, self._call)
        return getattr(self, name)

    def _follow(self, operation: Operation, size: tuple[int, int], form: Form) -> Any:
        return self._call.follow(self._node, operation, size, form)


class TracedFile(TracedImage):
    """A lazy image as `Image.open` returns it, whose class is that of its format."""


def node_of(value: Any, call: FollowedCall) -> Node | None:
    """Return the node of a lazy image of this call; None for any other value."""
    own = value.__dict__ if isinstance(value, TracedImage) else {}
    return own["_node"] if own.get("_call") is call else None


def _size(size: Any) -> tuple[int, int] | None:
    """Return height and width of a size as Pillow takes it; None if it is none."""
    try:
        width, height = map(operator.index, size)
    except TypeError:
        return None
    return (height, width) if min(width, height) > 0 else None


def _described(argument: Any) -> Any:
    """Return an argument in a form that can be compared with that of the second call."""
    return (type(argument), vars(argument)) if isinstance(argument, ImageFilter.Filter) else argument


def _root(node: Node) -> Opened:
    """Return the file of a node's image."""
    while node.parent is not None:
        node = node.parent
    return node.opened  # type: ignore[return-value]


def with_palette(image: Image.Image, palette: tuple[str, bytes]) -> Image.Image:
    """Give an image of palette indices the palette of a file's header; return the image."""
    image.palette = ImagePalette.raw(*palette)
    image.load()
    return image


def become(image: TracedImage, call: FollowedCall) -> None:
    """Turn a lazy image into a real one."""
    node = object.__getattribute__(image, "__dict__")["_node"]
    fill(image, call.pixels_needed(node) if call is current() else node.real())


def fill(image: TracedImage, real: Image.Image) -> None:
    """Turn a lazy image into this real one."""
    if type(image) is not TracedFile and type(real) is not Image.Image:
        real = real.copy()  # as Pillow's `copy` and `convert` give no image of the file's class
    turn_into(image, real)


def _asked_by(frame: FrameType, name: str) -> str:
    """Return the name of the function that asks for an attribute of an image, as people know it.

    It is the function of torchvision or Pillow that the user's code called, or `np.array`, or the attribute itself.
    `frame` is that of the code that asks.
    """
    found = "np.array" if name.startswith("__array") else f"Image.{name}"
    caller: FrameType | None = frame
    while caller is not None and (module := str(caller.f_globals.get("__name__"))).startswith(("PIL.", "torchvision.")):
        function = caller.f_code.co_name
        if not function.startswith("_") and (module.startswith("PIL.") or "functional" in module):
            found = function
        caller = caller.f_back
    return found


# ---- Functions of Pillow and torchvision that take images of Pillow.


def _as_tensor(node: Node, function: Any, others: Any, named: Any, *, floats: bool) -> Step:
    if node.form == ARRAY_RGB and floats:
        node = Node(None, None, node.size, "RGB")  # `to_tensor` does the same to both
    if others or named or (floats and torch.get_default_dtype() is not torch.float32):
        return None
    height, width = node.size
    if node.form in ("L", "P", "I;16") and not floats:
        dtype = torch.uint16 if node.form == "I;16" else torch.uint8
        return Operation(("planes",), (), function), node.size, ((1, height, width), (1, width, 1), dtype)
    if node.form != "RGB":
        return None
    if not floats:
        return Operation(("planes",), (), function), node.size, interleaved(height, width)
    form = (3, height, width), (height * width, width, 1), torch.float32
    return Operation(("floats",), (), function), node.size, form


def _expanded(node: Node, function: Any, others: Any, named: Any) -> Step:
    arguments = by_name("border fill", others, named)
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
    return windowed(node, -top, -left, height, width, with_arguments(function, others, named), fill)


def _grey(node: Node, function: Any, others: Any, named: Any) -> Step:
    operation, size, _ = same_form(node, function, others, named)  # type: ignore[misc]
    channels = by_name("num_output_channels", others, named).get("num_output_channels", 1)
    return (operation, size, "L" if channels == 1 else "RGB") if node.form == "RGB" else None


_TONES = ("invert", "posterize", "solarize", "autocontrast", "equalize")
_COLOURS = ("brightness", "contrast", "saturation", "hue", "gamma", "sharpness")


def install() -> None:
    """Replace the functions of Pillow and torchvision that take lazy images, once in a process."""
    replace_function((functional,), "to_tensor", functools.partial(_as_tensor, floats=True))
    replace_function(TORCHVISION, "pil_to_tensor", functools.partial(_as_tensor, floats=False))
    replace_function((ImageOps,), "expand", _expanded)
    replace_function((pil_functions,), "to_grayscale", _grey)
    for name in _TONES:
        replace_function((ImageOps,), name, same_form)
    for name in (*_TONES, *(f"adjust_{colour}" for colour in _COLOURS)):
        replace_function((pil_functions,), name, same_form)
