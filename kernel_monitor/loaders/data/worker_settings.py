"""Process settings that forked workers inherit, for workers that are started in another way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torchvision
from PIL import Image, ImageFile


@dataclass(frozen=True)
class Inherited:
    """Settings that influence samples and are kept in modules, not in the data set."""

    dtype: torch.dtype  # torch's default type of floats
    image_backend: str  # torchvision's image backend
    truncated: bool  # whether Pillow opens truncated files
    pixels: int | None  # number of pixels above which Pillow warns; None: never

    @classmethod
    def now(cls) -> Inherited:
        """Return the present settings of this process."""
        return cls(
            torch.get_default_dtype(),
            torchvision.get_image_backend(),
            ImageFile.LOAD_TRUNCATED_IMAGES,
            Image.MAX_IMAGE_PIXELS,
        )

    def restore(self) -> None:
        """Make them the settings of this process."""
        torch.set_default_dtype(self.dtype)
        torchvision.set_image_backend(self.image_backend)
        ImageFile.LOAD_TRUNCATED_IMAGES = self.truncated
        Image.MAX_IMAGE_PIXELS = self.pixels
