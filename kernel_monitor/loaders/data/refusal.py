"""What the walks of the file formats share: how they refuse, and what size they take."""

from __future__ import annotations

from PIL import Image


class NotForDali(Exception):
    """Why an image is not handed to DALI."""


def checked_size(height: int, width: int) -> tuple[int, int]:
    """Return (height, width), pixels.

    Raises:
        NotForDali: there are none, or more than Pillow decodes without a word.
    """
    if height <= 0 or width <= 0:
        raise NotForDali("the image has no pixels")
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and height * width > limit:
        raise NotForDali("the image is larger than Pillow's limit for decompression bombs")
    return height, width
