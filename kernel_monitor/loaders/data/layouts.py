"""How a data set keeps its image files, or why `switchable` cannot know.

Data sets are recognised by their exact `__getitem__` (a subclass that replaces it may do something else), or by
the method `image_file` of the protocol `ImageFiles`. Subset and ConcatDataset are looked through.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import ConcatDataset, Subset
from torchvision import get_image_backend
from torchvision.datasets.folder import default_loader, pil_loader

from ...errors import NotSwitchable
from .torchvision_sets import LAYOUTS, Layout, Opener


def plain(opener: Opener) -> bool:
    """Whether a function opens images as RGB with Pillow, as torchvision does."""
    return opener is pil_loader or (opener is default_loader and get_image_backend() == "PIL")


def _image_file(dataset: Any, index: int) -> tuple[Any, Any]:
    given, target = dataset.image_file(index)
    return given, target


PROTOCOL = Layout(
    entries=lambda dataset: dataset,
    entry=_image_file,
    opener=lambda _: pil_loader,
    transforms=lambda dataset: (dataset.transform, getattr(dataset, "target_transform", None)),
)


def layout_of(part: Any) -> Layout:
    """How a data set keeps its files.

    Raises:
        NotSwitchable: it is none of those that are understood.
    """
    if hasattr(type(part), "image_file"):
        return PROTOCOL
    layout = LAYOUTS.get(getattr(type(part), "__getitem__", None))
    if layout is None:
        raise NotSwitchable(
            f"switchable() does not know which file each sample of {type(part).__name__} comes from. It understands "
            "torchvision's data sets of one image file per sample (ImageFolder, Imagenette, Food101…; a subclass is "
            "fine as long as it keeps their __getitem__), Subset and ConcatDataset of these, and any data set with a "
            "method image_file(index) that returns (path or bytes, target) and an attribute transform: see "
            "kernel_monitor.loaders.ImageFiles."
        )
    return layout


def check(view: Any) -> None:
    """Raise `NotSwitchable` for a part of the tree of data sets that is not understood."""
    getitem = getattr(type(view), "__getitem__", None)
    batches = getattr(type(view), "__getitems__", None)
    if getitem is Subset.__getitem__ and batches is Subset.__getitems__:
        check(view.dataset)
        return
    if getitem is ConcatDataset.__getitem__ and batches is None:
        for part in view.datasets:
            check(part)
        return
    layout = layout_of(view)
    name = type(view).__name__
    if layout is PROTOCOL:
        if not callable(view.image_file) or not hasattr(view, "transform"):
            raise NotSwitchable(
                f"{name} has image_file but no attribute transform; set self.transform (None for no transform), "
                "see kernel_monitor.loaders.ImageFiles."
            )
        return
    if hasattr(view, "__getitems__"):
        raise NotSwitchable(
            f"{name} has a __getitems__ of its own, and switchable() does not know what it reads; remove it, or "
            "give the data set a method image_file(index), see kernel_monitor.loaders.ImageFiles."
        )
    refusal = layout.refusal(view)
    if refusal is not None:
        raise NotSwitchable(refusal)
    layout.transforms(view)  # refuses a joint transform
