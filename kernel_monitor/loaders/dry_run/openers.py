"""The functions that open images: what they do is decided by the call of `__getitem__` under way on their thread.

Pillow's `Image.open`, and torchvision's and torchcodec's decoders, are replaced once, by functions that do the same
wherever no such call is under way: other threads and other code never meet anything else. Those of OpenCV are replaced
for the data set's own functions only, see `libraries`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import io as torchvision_io
from torchvision.io import ImageReadMode
from torchvision.io import image as torchvision_image

from .calls import current

PIL, TENSOR, ARRAY = "pil", "tensor", "array"
"""Kinds of images: Pillow's, uint8 tensors [3, height, width], uint8 NumPy arrays [height, width, 3]."""

RGB, BGR, AS_FILE = "rgb", "bgr", "as file"
"""Colours of an image: known, or those that its file has."""


@dataclass(frozen=True, eq=False)
class Opener:
    """A function that opens image files.

    Attributes:
        function: itself; what it is given first is a path, a file or its content.
        kind: of image that it gives.
        colours: of its images, by the arguments after the first; None where they are not followed.
        turns: whether it turns images as their EXIF orientation says, with these arguments.
    """

    function: Callable[..., Any]
    kind: str
    colours: Callable[[tuple[Any, ...], dict[str, Any]], str | None]
    turns: Callable[[tuple[Any, ...], dict[str, Any]], bool] = lambda _args, _named: False


REPLACED: dict[Any, Callable[..., Any]] = {}
"""Every opener's own function, and what replaces it: data sets that imported one by name are given it, too."""


def install() -> None:
    """Replace the openers of what has been imported, each once in a process."""
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


def _replace(module: Any, name: str, *how: Any) -> Callable[..., Any] | None:
    """Replace one opener; returns what replaces it, None where that was done before."""
    original = getattr(module, name)
    if original in REPLACED.values():
        return None
    replaced = REPLACED[original] = opening(Opener(original, *how))
    setattr(module, name, replaced)
    return replaced


def of_content(
    opener: Opener, args: tuple[Any, ...], named: dict[str, Any], content: bytes
) -> tuple[Opener, tuple[Any, ...]]:
    """The opener, no Pillow's, that makes of a file's content what this one makes of the file, and what to call it
    with, besides `named`.
    """
    if opener.kind == ARRAY:
        cv2: Any = sys.modules["cv2"]
        how = args[1:] if "flags" in named else (*args[1:], cv2.IMREAD_COLOR)[:1]
        return replace(opener, function=cv2.imdecode), (np.frombuffer(content, np.uint8), *how)
    decode = torchvision_image.decode_image if opener.function.__name__ == "read_image" else opener.function
    return replace(opener, function=decode), (torch.frombuffer(bytearray(content), dtype=torch.uint8), *args[1:])


def opening(opener: Opener) -> Callable[..., Any]:
    """A function that opens images as the call under way says."""

    @functools.wraps(opener.function)
    def opened(*args: Any, **named: Any) -> Any:
        call = current()
        return opener.function(*args, **named) if call is None else call.opened(opener, args, named)

    return opened


def asking(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that may be given an image that was not decoded."""

    @functools.wraps(original)
    def function(*args: Any, **named: Any) -> Any:
        call = current()
        return original(*args, **named) if call is None else call.function(original, args, named)

    return function


def _colours_of_pillow(args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    return None if any(given not in ("r", None) for given in (*args, *named.values())) else AS_FILE


def _colours_of_torchvision(args: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    modes = [given for given in (*args, *named.values()) if given not in (ImageReadMode.UNCHANGED, "UNCHANGED")]
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
"""Pillow's own, whatever was replaced."""
