"""A call of a data set's own `__getitem__`: the functions that open images during it, and the images opened."""

from __future__ import annotations

import functools
import io
import os
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import io as torchvision_io
from torchvision.io import ImageReadMode
from torchvision.io import image as torchvision_image

from ...text import line
from ..transforms.chain import NAME, takes_name

# ---- A call of a data set's own `__getitem__`, which decides on its own thread what openers and transforms do.

NO_IMAGE = "opens no image file by a function that is known"
IN_MEMORY = "takes its samples decoded from memory: nothing is decoded in an epoch, and a switch would make it slower"
ON_DISK = (
    "keeps on disk what it has made of its images: after the first epoch nothing is decoded any more, and a switch "
    "would make it slower"
)
CACHED = (
    "keeps the images that it has decoded: after the first epoch nothing is decoded any more, and a switch would make "
    "it slower"
)
TWO_IMAGES = "opens more than one image"
OPENED_TWICE = "opens its file twice"
UNOPENED = "could not be opened"
NOT_RGB = "is not made RGB"
PIXELS = "works on the pixels itself"
TWO_TRANSFORMS = "uses more than one transform"
TWICE = "calls its transform twice for a sample"
NEW_TRANSFORM = "makes its transform anew for each sample"
DIFFERENT = "uses different transforms"
JOINT = "transforms image and target together"
AFTERWARDS = "changes the image after the transform"
NOT_FOUND = "the image is not found in what it returns"
KEEPS = "keeps the image"
AS_ARRAY = "opens an image as an array"
REMEDIES = {
    NO_IMAGE: "DALI has nothing to decode then",
    PIXELS: "leave that to torchvision's functions, on an image of Pillow or a tensor",
    TWO_IMAGES: "open them with Pillow or torchvision, so that it can be followed",
    OPENED_TWICE: "open it with Pillow or torchvision, so that it can be followed",
    TWICE: "open the image with Pillow or torchvision, so that it can be followed",
    TWO_TRANSFORMS: "open the image with Pillow or torchvision, so that it can be followed",
    JOINT: "open the image with Pillow or torchvision, so that it can be followed",
    AS_ARRAY: "open it with Pillow or torchvision, so that it can be followed",
    NEW_TRANSFORM: "make it once, in __init__",
    NOT_RGB: 'add .convert("RGB") or cv2.COLOR_BGR2RGB, if that is what you mean',
    DIFFERENT: "use a loader for each of them",
    AFTERWARDS: "put that into the transform",
    KEEPS: "remove the cache, of which each worker has its own anyway",
}
"""What to do about a reason for which DALI is given no files."""

_local = threading.local()


class Deviation(BaseException):
    """The end of a dry run; not an Exception, which the user's own retry loops would catch."""


class TransformPoint:
    """A stand-in for a transform of the data set during our calls; at other times it behaves as that transform."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, *args: Any, **named: Any) -> Any:
        call = current()
        return self.transform(*args, **named) if call is None else call.transformed(self, args, named)

    def __getattr__(self, name: str) -> Any:
        if name == "transform":  # missing while this object is unpickled or copied
            raise AttributeError(name)
        return getattr(self.transform, name)

    def __bool__(self) -> bool:
        return bool(self.transform)

    def same(self, other: TransformPoint) -> bool:
        """Return whether both stand for the same transform."""
        return self.transform is other.transform


class Call:
    """A call of `__getitem__` under way on this thread; a context manager.

    Attributes:
        path: the path of the image file opened last; None if there is none, or if the file has no name.
        reason: why a dry run cannot follow the call, as the end of "The data set …"; None if it can.
        gave_array: whether a lazy array was returned to the data set, which functions written in C do not accept.
    """

    path: str | None = None
    reason: str | None = None
    gave_array = False
    _before: Call | None = None

    def __enter__(self) -> Call:
        self._before = current()
        _local.call = self
        return self

    def __exit__(self, *_: object) -> None:
        _local.call = self._before

    def fail(self, reason: str, detail: str | None = None) -> None:
        """Set why a dry run cannot follow the call; `detail` is what the data set did. The first reason is kept."""
        self.reason = self.reason or (reason if detail is None else f"{reason} ({line(detail)})")

    def opened(self, opener: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of an opener of images."""
        raise NotImplementedError

    def function(self, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a library's function, whose arguments may contain an image."""
        return original(*args, **named)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the result of a transform of the data set."""
        raise NotImplementedError


class RealCall(Call):
    """A call in which images are decoded, and the first one is transformed by `transform`.

    Args:
        point: the point whose calls `transform` replaces; None: no transform is replaced.
        transform: takes and returns an image. A second image of a sample goes to the user's own transform: it must not
            get the same random numbers again.

    Attributes:
        opened_any: whether an image was opened.
    """

    def __init__(self, point: TransformPoint | None, transform: Callable[[Any], Any] | None) -> None:
        self._point = point
        self._transform = transform
        self.opened_any = False

    def opened(self, opener: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.opened_any = True
        self.path = name_of(args[0]) if args else None
        return opener.function(*args, **named)

    def transformed(self, point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        transform = self._transform
        image = image_of(point, args, named)
        if transform is None or self._point is None or not point.same(self._point) or image is None:
            return point.transform(*args, **named)
        self._transform = None
        return result_of(point, transform(image))


def image_of(point: TransformPoint, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the image among a transform's arguments; None if there are others than the image, or none."""
    if takes_name(point.transform):
        return named[NAME] if not args and named.keys() == {NAME} else None
    return args[0] if len(args) == 1 and not named else None


def result_of(point: TransformPoint, image: Any) -> Any:
    """Return an image in the form in which the transform returns its result: itself, or a dictionary."""
    return {NAME: image} if takes_name(point.transform) else image


def plainly(reason: str | None) -> str | None:
    """Return a reason of this module without its detail."""
    return None if reason is None else reason.partition(" (")[0]


def current() -> Call | None:
    """Return the call under way on this thread."""
    call: Call | None = getattr(_local, "call", None)
    return call


def name_of(argument: Any) -> str | None:
    """Return the path of an opener's argument: a path, or an open file; None if it has none."""
    if isinstance(argument, str | os.PathLike):
        return os.fsdecode(argument)
    name = getattr(argument, "name", None)
    return name if isinstance(name, str) else None


# ---- The functions that open images, which follow the call of `__getitem__` under way on their thread.

PIL, TENSOR, ARRAY = "pil", "tensor", "array"
"""Kinds of images: Pillow images, uint8 tensors [3, height, width], uint8 NumPy arrays [height, width, 3]."""

RGB, BGR, AS_FILE = "rgb", "bgr", "as file"
"""Orders of an image's channels: known, or as in its file."""


@dataclass(frozen=True, eq=False)
class Opener:
    """A function that opens image files.

    Attributes:
        function: the function; its first argument is a path, a file or a file's content.
        kind: the kind of its images.
        colours: returns the channels of its images from the arguments after the first; None if these are not followed.
        turns: returns whether, with these arguments, it turns images by their EXIF orientation.
    """

    function: Callable[..., Any]
    kind: str
    colours: Callable[[tuple[Any, ...], dict[str, Any]], str | None]
    turns: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda _args, _named: False


REPLACED: dict[Any, Callable[..., Any]] = {}
"""Each opener's own function, and its replacement, also for data sets that imported the function by name."""


def install() -> None:
    """Replace the openers of the modules imported so far, each once in a process."""
    _replace(Image, "open", PIL, _colours_of_pillow)
    for name in ("read_image", "decode_image", "decode_jpeg"):
        opener = _replace(torchvision_image, name, TENSOR, _colours_of_torchvision)
        if opener is not None:
            setattr(torchvision_io, name, opener)
    if Image.fromarray not in REPLACED.values():
        original = Image.fromarray
        Image.fromarray = REPLACED[original] = asking(original)
    torchcodec = sys.modules.get("torchcodec.decoders")
    for name in ("decode_image", "decode_jpeg"):  # since 0.17
        if hasattr(torchcodec, name):
            _replace(torchcodec, name, TENSOR, _colours_of_torchcodec, lambda _args, _named: True)


def _replace(module: Any, name: str, *properties: Any) -> Callable[..., Any] | None:
    """Replace an opener; return the replacement, or None if it was replaced before."""
    original = getattr(module, name)
    if original in REPLACED.values():
        return None
    replaced = REPLACED[original] = opening(Opener(original, *properties))
    setattr(module, name, replaced)
    return replaced


def _of_content(
    opener: Opener, args: tuple[Any, ...], named: dict[str, Any], content: bytes
) -> tuple[Opener, tuple[Any, ...]]:
    """Return an opener of a file's content in place of an opener of the file, and its arguments besides `named`.

    It is for openers other than Pillow's.
    """
    if opener.kind == ARRAY:
        cv2: Any = sys.modules["cv2"]
        flags = args[1:] if "flags" in named else (*args[1:], cv2.IMREAD_COLOR)[:1]
        return replace(opener, function=cv2.imdecode), (np.frombuffer(content, np.uint8), *flags)
    decode = torchvision_image.decode_image if opener.function.__name__ == "read_image" else opener.function
    return replace(opener, function=decode), (torch.frombuffer(bytearray(content), dtype=torch.uint8), *args[1:])


def opening(opener: Opener) -> Callable[..., Any]:
    """Return a function that opens images in the way of the call under way."""

    @functools.wraps(opener.function)
    def opened(*args: Any, **named: Any) -> Any:
        call = current()
        return opener.function(*args, **named) if call is None else call.opened(opener, args, named)

    return opened


def asking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that lets the call under way handle arguments that are lazy images."""

    @functools.wraps(original)
    def function(*args: Any, **named: Any) -> Any:
        call = current()
        return original(*args, **named) if call is None else call.function(original, args, named)

    return function


def _colours_of_pillow(args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    return None if any(value not in ("r", None) for value in (*args, *named.values())) else AS_FILE


def _colours_of_torchvision(args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    modes = [value for value in (*args, *named.values()) if value not in (ImageReadMode.UNCHANGED, "UNCHANGED")]
    if any(mode not in (ImageReadMode.RGB, "RGB") for mode in modes):
        return None
    return RGB if modes else AS_FILE


def _colours_of_torchcodec(args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    mode = named.get("mode", "RGB")
    mode = getattr(mode, "name", mode)
    if args or named.keys() - {"mode"} or not isinstance(mode, str):
        return None
    return {"RGB": RGB, "UNCHANGED": AS_FILE}.get(mode.upper())


original_open = Image.open
"""Pillow's own `open`, even after it was replaced."""


ORIENTATION = 0x0112  # tag of EXIF
_ON_ITS_SIDE = (5, 6, 7, 8)  # orientations that exchange width and height

# ---- An opened file or content, and the steps on its image that need no pixel values.


class _Header(NamedTuple):
    """The properties of an image that Pillow has opened and not decoded."""

    size: tuple[int, int]
    mode: str
    format: str | None
    info: dict[str | tuple[int, int], Any]
    palette: tuple[str, bytes] | None  # its order of colours, and the colours


class Opened:
    """A file (or its content) that was opened, and the steps on its image that needed no pixel values.

    Args:
        opener: the function that opened it.
        args: the function's positional arguments.
        named: the function's arguments by name.
        path: the file's path; None if there is only content.
        data: the content, if there is no path.

    Attributes:
        kind: the kind of image after the steps: `PIL`, `TENSOR` or `ARRAY`.
        turned: whether the image is turned by its EXIF orientation.
    """

    def __init__(
        self, opener: Opener, args: tuple[Any, ...], named: dict[str, Any], path: str | None, data: bytes | None
    ) -> None:
        self.kind = opener.kind
        self.turned = opener.turns(args[1:], named)
        self.path = path
        self.data = data
        self._opener = opener
        self._args = args
        self._named = named
        self._steps: tuple[Callable[[Any], Any], ...] = ()
        self._header: _Header | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the first argument, which may be an open file."""
        return {**self.__dict__, "_args": (None, *self._args[1:]), "_header": None}

    def _copy(self) -> Opened:
        copy = object.__new__(Opened)
        copy.__dict__.update(self.__dict__)
        return copy

    def with_content(self, content: bytes) -> Opened:
        """Return a copy with the content of the file in place of the file."""
        copy = self._copy()
        copy.data = content
        if self._opener.kind != PIL:
            copy._opener, copy._args = _of_content(self._opener, self._args, self._named, content)
        return copy

    @property
    def header(self) -> _Header:
        """The properties of the image in its file's header, read when first asked for."""
        if self._header is None:
            file: Any = self.path if self.data is None else io.BytesIO(self.data)
            with original_open(file) as image:
                palette = (
                    None if image.palette is None else (image.palette.rawmode or "RGB", bytes(image.palette.palette))
                )
                self._header = _Header(image.size, image.mode, image.format, image.info, palette)
        return self._header

    @property
    def exif(self) -> Image.Exif:
        """The EXIF tags, read when asked for: of a PNG, Pillow decodes all of it."""
        file: Any = self.path if self.data is None else io.BytesIO(self.data)
        with original_open(file) as image:
            return image.getexif()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image as it is opened: turned or not; pixels."""
        width, height = self.header.size
        turned = self.turned and self.exif.get(ORIENTATION, 1) in _ON_ITS_SIDE
        return (width, height) if turned else (height, width)

    def then(self, step: Callable[[Any], Any], kind: str) -> Opened:
        """Return a copy with one more step, which only moves or copies pixels, and the kind of its result."""
        copy = self._copy()
        copy.kind, copy._steps = kind, (*self._steps, step)
        return copy

    def real(self) -> Any:
        """Decode the image, run the steps on it, and return it."""
        file = self._args[0]
        if self._opener.kind == PIL:
            file = self.path if self.data is None else io.BytesIO(self.data)
        image = self._opener.function(file, *self._args[1:], **self._named)
        for step in self._steps:
            image = step(image)
        return image


def as_opened(opened: Opened) -> Any:
    """Return the decoded image, as the transform gets it."""
    if opened.kind != PIL:
        return opened.real()
    with opened.real() as image:
        return image.convert("RGB")


# ---- NumPy and OpenCV for a data set's own functions, in versions that let the call handle lazy images.

COPIES = (np.array, np.asarray, np.ascontiguousarray)
"""Functions that make the array of an image, or copy one."""

RED_AND_BLUE = 4
"""The code of `cv2.cvtColor` that exchanges red and blue: COLOR_BGR2RGB and COLOR_RGB2BGR."""

_COPYING = tuple(function.__name__ for function in COPIES)
_KNOWN: dict[str, types.ModuleType] = {}


class _LibraryView(types.ModuleType):
    """A module with some functions replaced; all other names are looked up in the original."""

    def __init__(self, module: types.ModuleType, functions: dict[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__.update(functions)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)


def seen(module: types.ModuleType, code: types.CodeType) -> types.ModuleType:
    """Return the replacement of a module for a function with this code; the module itself if that is enough."""
    if module is np:
        return _numpy() if _names(code, _COPYING) else module
    if module is torch:
        return torch_view() if _names(code, ("from_numpy",)) else module
    return _opencv(module) if module is sys.modules.get("cv2") else module


def with_arguments(
    function: Callable[..., Any], others: tuple[Any, ...], named: dict[str, Any]
) -> Callable[[Any], Any]:
    """Return a function of an image that calls this one with these arguments besides; it can be sent to workers."""
    return functools.partial(_with_first, function, others, named)


def _with_first(function: Callable[..., Any], others: tuple[Any, ...], named: dict[str, Any], first: Any) -> Any:
    return function(first, *others, **named)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType, names: tuple[str, ...]) -> bool:
    """Return whether code uses one of these names."""
    inside = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return any(name in code.co_names for name in names) or any(_names(part, names) for part in inside)


def replacement(function: Any) -> Any:
    """Return the replacement of a function that was imported by name; for any other function, itself."""
    name = getattr(function, "__name__", "")
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and getattr(cv2, name, None) is function:
        return getattr(_opencv(cv2), name)
    if function is torch.from_numpy:
        return torch_view().from_numpy
    return getattr(_numpy(), name) if function in COPIES else function


def torch_view() -> types.ModuleType:
    """Return the replacement of `torch` for code that calls `torch.from_numpy`, which torch's modes do not see."""
    if "torch" not in _KNOWN:
        _KNOWN["torch"] = _LibraryView(torch, {"from_numpy": asking(torch.from_numpy)})
    return _KNOWN["torch"]


def _numpy() -> types.ModuleType:
    if "numpy" not in _KNOWN:
        _KNOWN["numpy"] = _LibraryView(np, {function.__name__: asking(function) for function in COPIES})
    return _KNOWN["numpy"]


def _opencv(cv2: Any) -> types.ModuleType:
    if "cv2" not in _KNOWN:
        functions = {
            name: asking(value) for name, value in vars(cv2).items() if isinstance(value, types.BuiltinFunctionType)
        }
        for name in ("imread", "imdecode"):
            functions[name] = opening(Opener(getattr(cv2, name), ARRAY, _colours, _turns))
        _KNOWN["cv2"] = _LibraryView(cv2, functions)
    return _KNOWN["cv2"]


def _flags(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    cv2 = sys.modules["cv2"]
    return args[0] if len(args) == 1 and not named else named.get("flags", cv2.IMREAD_COLOR)


def _colours(args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    cv2 = sys.modules["cv2"]
    if len(args) > 1 or named.keys() - {"flags"}:
        return None
    flags = _flags(args, named)
    if not isinstance(flags, int) or flags < 0:
        return None
    flags &= ~cv2.IMREAD_IGNORE_ORIENTATION
    red_first = getattr(cv2, "IMREAD_COLOR_RGB", 0)  # since 4.11
    return BGR if flags == cv2.IMREAD_COLOR else RGB if red_first and flags & ~cv2.IMREAD_COLOR == red_first else None


def _turns(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return not _flags(args, named) & sys.modules["cv2"].IMREAD_IGNORE_ORIENTATION


def grey(header: _Header, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether OpenCV, with these arguments, reads a grey image of 8 or 16 bits as its values."""
    cv2 = sys.modules["cv2"]
    flags = None if len(args) > 1 or named.keys() - {"flags"} else _flags(args, named)
    if flags == cv2.IMREAD_UNCHANGED:
        return "transparency" not in header.info
    if header.mode == "I;16":
        return flags in (cv2.IMREAD_ANYDEPTH, cv2.IMREAD_ANYDEPTH | cv2.IMREAD_ANYCOLOR)
    return isinstance(flags, int) and flags & ~cv2.IMREAD_IGNORE_ORIENTATION == cv2.IMREAD_GRAYSCALE


def original_fromarray() -> Any:
    """Return Pillow's own `fromarray`, even after it was replaced."""
    return getattr(Image.fromarray, "__wrapped__", Image.fromarray)
