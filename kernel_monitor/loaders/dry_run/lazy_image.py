"""An image that is not decoded: it knows its file, and becomes the image itself as soon as anything else is asked.

In a dry run that is the reason why it cannot be followed. Afterwards it is what keeps other code from ever meeting
a stand-in, should the data set have kept one.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from PIL import Image
from torchvision.io import ImageReadMode

from .calls import NEW_TRANSFORM, NOT_RGB, PIXELS, Call, current, name_of
from .openers import PIL, TENSOR, original_open
from .structure import Place, places, values

_ANSWERED = frozenset(
    {"__class__", "__dict__", "__enter__", "__exit__", "close", "convert", "copy", "load"}
    | {"size", "width", "height", "mode", "format", "filename", "info", "getexif"}
)
"""What a dry run answers; all else needs the pixels, or might."""


class Header(NamedTuple):
    """What Pillow knows of an image that it has opened and not decoded."""

    size: tuple[int, int]
    mode: str
    format: str | None
    info: dict[str | tuple[int, int], Any]
    exif: Image.Exif


class Opened:
    """What was opened: a file, or its content.

    Args:
        original: the opener.
        kind: of image that it gives, see `openers`.
        args: what it was called with.
        named: the same, by name.
        path: of the file; None where there is only content.
        data: the content, where there is no path.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        kind: str,
        args: tuple[Any, ...],
        named: dict[str, Any],
        path: str | None,
        data: bytes | None,
    ) -> None:
        self.original = original
        self.kind = kind
        self.args = args
        self.named = named
        self.path = path
        self.data = data
        self._header: Header | None = None

    @property
    def header(self) -> Header:
        """What the file says of the image, read when it is first asked for."""
        if self._header is None:
            given: Any = self.path if self.data is None else io.BytesIO(self.data)
            with original_open(given) as image:
                self._header = Header(image.size, image.mode, image.format, image.info, image.getexif())
        return self._header

    def real(self) -> Any:
        """The image that was opened."""
        given = self.args[0] if self.kind != PIL else self.path if self.data is None else io.BytesIO(self.data)
        return self.original(given, *self.args[1:], **self.named)


class LazyImage(Image.Image):
    """See the module's text. An `Image.Image`, so that code that asks for one is content."""

    _opened: Opened
    _call: Call
    _rgb: bool  # whether it was made RGB

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        call: Call | None = own.get("_call")
        under_way = call is not None and call is current()
        if name in ("__class__", "__dict__") or (under_way and name in _ANSWERED and call.reason is None):  # type: ignore[union-attr]
            return object.__getattribute__(self, name)
        if call is not None and under_way:
            call.fail(NEW_TRANSFORM if _in_transform() else PIXELS)
        become(self)
        return getattr(self, name)

    def __enter__(self) -> LazyImage:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""

    def load(self) -> None:
        """Nothing is decoded."""

    def convert(self, mode: str | None = None, *others: Any, **named: Any) -> Any:
        call = self.__dict__["_call"]
        if mode != "RGB" or others or named:
            call.fail(NOT_RGB)
            return self.convert(mode, *others, **named)  # it has become the image
        return made(call, self.__dict__["_opened"], rgb=True)

    def copy(self) -> Any:
        return made(self.__dict__["_call"], self.__dict__["_opened"], rgb=self.__dict__["_rgb"])

    @property
    def size(self) -> tuple[int, int]:
        return self.__dict__["_opened"].header.size  # type: ignore[no-any-return]

    @property
    def width(self) -> int:
        return self.size[0]

    @property
    def height(self) -> int:
        return self.size[1]

    @property
    def mode(self) -> str:
        return "RGB" if self.__dict__["_rgb"] else self.__dict__["_opened"].header.mode

    @property
    def format(self) -> str | None:  # type: ignore[override]
        return None if self.__dict__["_rgb"] else self.__dict__["_opened"].header.format

    @property
    def info(self) -> dict[str | tuple[int, int], Any]:  # type: ignore[override]
        return self.__dict__["_opened"].header.info  # type: ignore[no-any-return]

    def getexif(self) -> Image.Exif:
        return self.__dict__["_opened"].header.exif  # type: ignore[no-any-return]

    @property
    def filename(self) -> str:
        return self.__dict__["_opened"].path or ""


class LazyTensor(torch.Tensor):
    """The same for what torchvision's decoders give: whatever torch is to do with it is done with the real tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(_decoded, args), **{name: _decoded(value) for name, value in (kwargs or {}).items()})


def _decoded(value: Any) -> Any:
    """The real tensor in the place of a lazy one; in lists and tuples, too."""
    if type(value) in (list, tuple):
        return type(value)(map(_decoded, value))
    if type(value) is not LazyTensor:
        return value
    own: dict[str, Any] = value.__dict__
    call: Call = own["_call"]
    if call is current():
        call.fail(NEW_TRANSFORM if _in_transform() else PIXELS)
    if "_real" not in own:
        own["_real"] = own["_opened"].real()
    return own["_real"]


def check_colours(image: Any, call: Call) -> None:
    """End the dry run where what is given to the transform would not be RGB."""
    own = object.__getattribute__(image, "__dict__")
    if not own["_rgb"] and own["_opened"].header.mode != "RGB":
        call.fail(NOT_RGB)


def made(call: Call, opened: Opened, *, rgb: bool) -> Any:
    """A lazy image of this dry run."""
    is_tensor = opened.kind == TENSOR
    image: Any = torch.Tensor._make_subclass(LazyTensor, _NOTHING) if is_tensor else object.__new__(LazyImage)
    object.__getattribute__(image, "__dict__").update(_call=call, _opened=opened, _rgb=rgb)
    return image


LAZY = (LazyImage, LazyTensor)
_NOTHING = torch.empty(0, dtype=torch.uint8)


def become(image: LazyImage) -> None:
    """Turn a lazy image that has outlived its dry run into the image that was opened."""
    own = object.__getattribute__(image, "__dict__")
    opened, rgb = own["_opened"], own["_rgb"]
    real = opened.real().convert("RGB") if rgb else opened.real()
    real.load()  # what is not loaded closes its file when it is gone
    own.clear()
    own.update(real.__dict__)
    object.__setattr__(image, "__class__", type(real))


def _in_transform() -> bool:
    """Whether one of torchvision's transforms looks at the image: one that was not found in the data set."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "torchvision.transforms.transforms" or module.startswith("torchvision.transforms.v2._"):
            return True
        frame = frame.f_back if module.startswith(("PIL.", "torch")) else None
    return False


def opened_of(image: Any) -> Opened:
    """What a lazy image was opened from."""
    found: Opened = object.__getattribute__(image, "__dict__")["_opened"]
    return found


def lazy_image(
    call: Call, original: Callable[..., Any], kind: str, args: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """What an opener returns in a dry run; None where it was called in a way that cannot be followed.

    Raises:
        OSError: the file is not there.
    """
    if not args:
        call.fail(PIXELS)
        return None
    given, others = args[0], (*args[1:], *named.values())
    path: str | None = None
    data: bytes | None = None
    if isinstance(given, str | os.PathLike):
        path = os.fsdecode(given)
    elif kind == PIL:
        path, data = _content(given)
    else:
        data = given.numpy().tobytes()  # a tensor of encoded bytes
    if path is not None and not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - once per sample
        raise OSError("not a regular file")
    opened = Opened(original, kind, args, named, path, data)
    if kind == PIL:
        if any(other not in ("r", None) for other in others):
            call.fail(PIXELS)
            return None
        return made(call, opened, rgb=False)
    modes = [other for other in others if other not in (ImageReadMode.UNCHANGED, "UNCHANGED")]
    if any(mode not in (ImageReadMode.RGB, "RGB") for mode in modes):
        call.fail(NOT_RGB)
        return None
    return made(call, opened, rgb=bool(modes))


def _content(file: Any) -> tuple[str | None, bytes | None]:
    """The path of an open file that nothing was read of, else the content of a file object."""
    name = name_of(file)
    if name is not None and isinstance(file, io.BufferedReader) and file.tell() == 0:
        return name, None
    if isinstance(file, io.BytesIO):
        return None, file.getvalue()
    file.seek(0)
    return None, file.read()


def first_image(sample: Any) -> tuple[Any, list[Place]]:
    """An image in a sample that was not decoded, and its places."""
    image = next((value for value in values(sample) if type(value) in LAZY), None)
    return image, [] if image is None else list(places(sample, image))


def as_opened(opened: Opened) -> Any:
    """The image that the transform is given, decoded."""
    if opened.kind == TENSOR:
        return opened.real()
    with opened.real() as image:
        return image.convert("RGB")
