"""Giving DALI's images the form that the torchvision path's have: type, dtype, layout and whose memory it is.

The form is not derived from the transforms' names but seen: the user's own transforms are run once on a blank image.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torchvision import tv_tensors

from ..transforms.inject import Injected


class Form:
    """What one image is on the torchvision path.

    Args:
        like: such an image; None where it is not known, which leaves type, dtype and layout as they are.
    """

    def __init__(self, like: torch.Tensor | None = None) -> None:
        self._like = like

    @classmethod
    def seen(cls, injected: Injected | None, row: int, height: int, width: int) -> Form:
        """Look at what the transforms make of a blank image, pixels, as of sample `row` of the batch begun last."""
        made = None if injected is None else injected.run(Image.new("RGB", (width, height)), row)
        return cls(made if isinstance(made, torch.Tensor) else None)

    def batch(self, images: torch.Tensor, *, own: bool) -> torch.Tensor:
        """Return a batch, [n, ...], as torch's default collate would have made it.

        Args:
            images: DALI's.
            own: whether it must have memory that torch can resize.
        """
        dtype = images.dtype if self._like is None else self._like.dtype
        return images.to(dtype, copy=own)

    def image(self, image: torch.Tensor) -> torch.Tensor:
        """Return one image as a collate function is given it: in memory of its own, as many other rows follow."""
        like = self._like
        if like is None or like.shape != image.shape:
            return image.clone()
        made = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=image.device)
        made.copy_(image)
        if made.device.type == "cpu" and not like.untyped_storage().resizable():
            made = torch.from_numpy(made.numpy())  # as torchvision makes a tensor of a PIL image
        if isinstance(like, tv_tensors.TVTensor):
            wrapped: Any = tv_tensors.wrap(made, like=like)
            return wrapped  # type: ignore[no-any-return]
        return made
