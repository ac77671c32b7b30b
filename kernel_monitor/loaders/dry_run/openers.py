"""The functions that open images: what they do is decided by the call of `__getitem__` under way on their thread.

Pillow's `Image.open` and torchvision's `read_image`, `decode_image` and `decode_jpeg` are replaced once, by functions
that do the same wherever no such call is under way: other threads and other code never meet anything else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from PIL import Image
from torchvision import io as torchvision_io
from torchvision.io import image as torchvision_image

from .calls import current

PIL, TENSOR = "pil", "tensor"
"""Kinds of images: Pillow's, and uint8 tensors [3, height, width]."""

REPLACED: dict[Any, Callable[..., Any]] = {}
"""Every opener's own function, and what replaces it: data sets that imported one by name are given it, too."""


def install() -> None:
    """Replace the openers, once in a process."""
    if REPLACED:
        return
    for module, name, kind in (
        (Image, "open", PIL),
        (torchvision_image, "read_image", TENSOR),
        (torchvision_image, "decode_image", TENSOR),
        (torchvision_image, "decode_jpeg", TENSOR),
    ):
        original = getattr(module, name)
        replaced = _replacement(original, kind)
        REPLACED[original] = replaced
        setattr(module, name, replaced)
        if module is torchvision_image:
            setattr(torchvision_io, name, replaced)


def _replacement(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def opener(*args: Any, **named: Any) -> Any:
        call = current()
        return original(*args, **named) if call is None else call.opened(original, kind, args, named)

    return opener


original_open = Image.open
"""Pillow's own, whatever was replaced."""
