"""Layouts: descriptions of how known classes of data sets keep their image files.

A data set is recognised by its exact `__getitem__` (a subclass that replaces it may do something else), or by the
method `image_file` of the protocol `ImageFiles`. Subset and ConcatDataset are unwrapped. For any other data set, a dry
run finds out what it does (`own_dataset`).

Each entry of `LAYOUTS` describes the `__getitem__` of one of torchvision's classes (torchvision 0.21 to 0.29): the file
that it opens, the function that opens it, the target, and the transforms that it applies. Before 0.22 most classes had
no `loader` and opened their images as `pil_loader` does. A class that reads more than one image file per sample has no
entry.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets, get_image_backend
from torchvision.datasets.folder import default_loader, pil_loader
from torchvision.datasets.vision import StandardTransform

from ...errors import NotSwitchable

Opener = Callable[[Any], Any]


def open_as_stored(path: Any) -> Image.Image:
    """Return the image in the file's own mode; it is decoded here, so that a bad file raises here."""
    image = Image.open(path)
    try:
        image.load()
    except BaseException:  # raised again after the file is closed, also after an interrupt
        image.close()
        raise
    return image


def open_gray(path: Any) -> Image.Image:
    """Return the image converted to grey."""
    with Image.open(path) as image:
        return image.convert("L")


def _both(dataset: Any) -> tuple[Any, Any]:
    return dataset.transform, dataset.target_transform


def _if_true(dataset: Any) -> tuple[Any, Any]:
    """Return the transforms of classes that test `if self.transform:`, which is false for an empty `nn.Sequential`."""
    return dataset.transform or None, dataset.target_transform or None


def _standard(dataset: Any) -> tuple[Any, Any]:
    """Return the transforms of classes that call `self.transforms` on image and target together."""
    joint = dataset.transforms
    return (None, None) if joint is None else (joint.transform, joint.target_transform)


def _is_joint(dataset: Any) -> bool:
    """Return whether a data set has a joint transform of image and target, not a separate one for each."""
    return dataset.transforms is not None and type(dataset.transforms) is not StandardTransform


@dataclass(frozen=True)
class Layout:
    """A description of how a class of data sets keeps its files; each field is a function of the data set."""

    entries: Callable[[Any], Sequence[Any]]  # returns the list that `__getitem__` indexes
    # Returns for an index the path for the opening function, and the target before any target transform.
    entry: Callable[[Any, int], tuple[Any, Any]]
    # Returns the function that opens an image.
    opener: Callable[[Any], Opener] = lambda dataset: getattr(dataset, "loader", pil_loader)
    # Returns (transform, target transform), each None if nothing is applied.
    transforms: Callable[[Any], tuple[Any, Any]] = _both
    other: Callable[[Any], bool] = lambda _: False  # returns whether this data set does something else


def _pairs(name: str, **rest: Any) -> Layout:
    return Layout(lambda dataset: getattr(dataset, name), lambda dataset, index: getattr(dataset, name)[index], **rest)


def _columns(paths: str, targets: str, **rest: Any) -> Layout:
    return Layout(
        lambda dataset: getattr(dataset, paths),
        lambda dataset, index: (getattr(dataset, paths)[index], getattr(dataset, targets)[index]),
        **rest,
    )


def _one_or_all(targets: list[Any]) -> Any:
    return tuple(targets) if len(targets) > 1 else targets[0]


def _caltech101(dataset: Any, index: int) -> tuple[str, Any]:
    category = dataset.y[index]
    folder = os.path.join(dataset.root, "101_ObjectCategories", dataset.categories[category])  # noqa: PTH118
    targets = [category for _ in dataset.target_type]  # only "category" passes `refusal`
    return os.path.join(folder, f"image_{dataset.index[index]:04d}.jpg"), _one_or_all(targets)  # noqa: PTH118


def _caltech256(dataset: Any, index: int) -> tuple[str, Any]:
    category = dataset.y[index]
    folder = os.path.join(dataset.root, "256_ObjectCategories", dataset.categories[category])  # noqa: PTH118
    return os.path.join(folder, f"{category + 1:03d}_{dataset.index[index]:04d}.jpg"), category  # noqa: PTH118


def _celeba(dataset: Any, index: int) -> tuple[str, Any]:
    path = os.path.join(dataset.root, dataset.base_folder, "img_align_celeba", dataset.filename[index])  # noqa: PTH118
    columns = {
        "attr": lambda: dataset.attr[index, :],
        "identity": lambda: dataset.identity[index, 0],
        "bbox": lambda: dataset.bbox[index, :],
        "landmarks": lambda: dataset.landmarks_align[index, :],
    }
    targets = []
    for kind in dataset.target_type:
        if kind not in columns:
            raise ValueError(f'Target type "{kind}" is not recognized.')  # in CelebA's words
        targets.append(columns[kind]())
    return path, _one_or_all(targets) if targets else None


def _celeba_transforms(dataset: Any) -> tuple[Any, Any]:
    return dataset.transform, dataset.target_transform if dataset.target_type else None


def _inaturalist(dataset: Any, index: int) -> tuple[str, Any]:
    category, name = dataset.index[index]
    ranks = dataset.categories_map[category]
    targets = [category if rank == "full" else ranks[rank] for rank in dataset.target_type]
    return os.path.join(dataset.root, dataset.all_categories[category], name), _one_or_all(targets)  # noqa: PTH118


def _omniglot(dataset: Any, index: int) -> tuple[str, Any]:
    name, character = dataset._flat_character_images[index]
    return os.path.join(dataset.target_folder, dataset._characters[character], name), character  # noqa: PTH118


def _pet(dataset: Any, index: int) -> tuple[Any, Any]:
    labels = {"category": dataset._labels, "binary-category": dataset._bin_labels}
    targets = [labels[kind][index] for kind in dataset._target_types]
    return dataset._images[index], _one_or_all(targets) if targets else None


def _sbu(dataset: Any, index: int) -> tuple[str, Any]:
    return os.path.join(dataset.root, "dataset", dataset.photos[index]), dataset.captions[index]  # noqa: PTH118


def _flickr8k(dataset: Any, index: int) -> tuple[str, Any]:
    name = dataset.ids[index]
    return name, dataset.annotations[name]


def _flickr30k(dataset: Any, index: int) -> tuple[str, Any]:
    name = dataset.ids[index]
    return os.path.join(dataset.root, name), dataset.annotations[name]  # noqa: PTH118


def _wider(dataset: Any, index: int) -> tuple[str, Any]:
    face = dataset.img_info[index]
    return face["img_path"], None if dataset.split == "test" else face["annotations"]


def _own_loader_or(opener: Opener) -> Callable[[Any], Opener]:
    return lambda dataset: opener if getattr(dataset, "loader", None) is None else dataset.loader


def _always(opener: Opener) -> Callable[[Any], Opener]:
    return lambda _: opener


LAYOUTS: dict[Any, Layout] = {
    # ImageFolder, ImageNet, Country211 and EuroSAT inherit DatasetFolder's.
    datasets.DatasetFolder.__getitem__: _pairs("samples"),
    datasets.Imagenette.__getitem__: _pairs("_samples"),
    datasets.StanfordCars.__getitem__: _pairs("_samples"),
    datasets.RenderedSST2.__getitem__: _pairs("_samples", transforms=_if_true),
    datasets.GTSRB.__getitem__: _pairs("_samples", opener=_always(pil_loader)),
    datasets.Places365.__getitem__: _pairs("imgs", transforms=_standard, other=_is_joint),
    datasets.Flowers102.__getitem__: _columns("_image_files", "_labels", transforms=_if_true),
    datasets.Food101.__getitem__: _columns("_image_files", "_labels", transforms=_if_true),
    datasets.DTD.__getitem__: _columns("_image_files", "_labels", transforms=_if_true),
    datasets.FGVCAircraft.__getitem__: _columns("_image_files", "_labels", transforms=_if_true),
    datasets.SUN397.__getitem__: _columns("_image_files", "_labels", transforms=_if_true),
    datasets.CLEVRClassification.__getitem__: _columns("_image_files", "_labels", transforms=_if_true),
    datasets.LFWPeople.__getitem__: _columns("data", "targets", opener=lambda dataset: dataset._loader),
    datasets.OxfordIIITPet.__getitem__: Layout(
        lambda dataset: dataset._images,
        _pet,
        _always(pil_loader),
        _standard,
        lambda dataset: "segmentation" in dataset._target_types or _is_joint(dataset),
    ),
    datasets.Caltech101.__getitem__: Layout(
        lambda dataset: dataset.y,
        _caltech101,
        _always(open_as_stored),
        other=lambda dataset: "annotation" in dataset.target_type,
    ),
    datasets.Caltech256.__getitem__: Layout(lambda dataset: dataset.y, _caltech256, _always(open_as_stored)),
    datasets.CelebA.__getitem__: Layout(
        lambda dataset: dataset.filename, _celeba, _always(open_as_stored), _celeba_transforms
    ),
    datasets.WIDERFace.__getitem__: Layout(lambda dataset: dataset.img_info, _wider, _always(open_as_stored)),
    datasets.INaturalist.__getitem__: Layout(
        lambda dataset: dataset.index, _inaturalist, _own_loader_or(open_as_stored)
    ),
    datasets.Omniglot.__getitem__: Layout(
        lambda dataset: dataset._flat_character_images, _omniglot, _own_loader_or(open_gray), _if_true
    ),
    datasets.SBU.__getitem__: Layout(lambda dataset: dataset.photos, _sbu),
    datasets.Flickr8k.__getitem__: Layout(lambda dataset: dataset.ids, _flickr8k),
    datasets.Flickr30k.__getitem__: Layout(lambda dataset: dataset.ids, _flickr30k),
}


def plain(opener: Opener) -> bool:
    """Return whether a function opens images as RGB with Pillow, as torchvision does."""
    return opener is pil_loader or (opener is default_loader and get_image_backend() == "PIL")


class ImageFiles(Protocol):
    """A data set that gives the image file and the target of an index.

    `switchable` opens, decodes and transforms the image itself, on the engine in use, so it calls `image_file` in place
    of `__getitem__`. Pillow opens the image as RGB, as in torchvision's ImageFolder. No base class is needed
    (docs/howto/own-data.md has an example); a data set that is also used without `switchable` needs a `__getitem__`,
    too. If the data set has a `target_transform` that is not None, it is applied to the target.
    """

    transform: Any  # is applied to the image; None for none

    def __len__(self) -> int: ...

    def image_file(self, index: int) -> tuple[str | os.PathLike[str] | bytes, Any]:
        """Return the image file of sample `index`, and its target.

        The image is a path, or the file's content (encoded: JPEG, PNG…) as bytes. The method is called in worker
        processes and in the loop's own process, several times for a sample, and must return the same each time.
        """
        ...


PROTOCOL = Layout(
    entries=lambda dataset: dataset,
    entry=lambda dataset, index: dataset.image_file(index),
    opener=lambda _: pil_loader,
    transforms=lambda dataset: (dataset.transform, getattr(dataset, "target_transform", None)),
)


def layout_of(part: Any) -> Layout | None:
    """Return the layout of a data set; None if only its own `__getitem__` knows its files."""
    if hasattr(type(part), "image_file"):
        return PROTOCOL
    layout = LAYOUTS.get(getattr(type(part), "__getitem__", None))
    return None if layout is None or hasattr(part, "__getitems__") or layout.other(part) else layout


def parts(view: Any) -> Iterator[tuple[Any, Layout | None]]:
    """Yield each innermost data set, once for each of its places, with its layout."""
    getitem = getattr(type(view), "__getitem__", None)
    batches = getattr(type(view), "__getitems__", None)
    if getitem is Subset.__getitem__ and batches is Subset.__getitems__:
        yield from parts(view.dataset)
    elif getitem is ConcatDataset.__getitem__ and batches is None:
        for part in view.datasets:
            yield from parts(part)
    else:
        yield view, layout_of(view)


def part_of(view: Any, index: Any) -> tuple[int, Any]:
    """Return the number of the part of a ConcatDataset for an index, and the index in that part."""
    if index < 0:
        if -index > len(view):
            raise ValueError("absolute value of index should not exceed dataset length")
        index += len(view)
    number = bisect.bisect_right(view.cumulative_sizes, index)
    if number == len(view.datasets):
        raise IndexError("list index out of range")
    return number, index - view.cumulative_sizes[number - 1] if number else index


def gives_batches(dataset: Any) -> bool:
    """Return whether a data set has its own `__getitems__`, which computes a whole batch; ConcatDataset has none."""
    while getattr(type(dataset), "__getitems__", None) is Subset.__getitems__:
        dataset = dataset.dataset
    return layout_of(dataset) is None and bool(getattr(dataset, "__getitems__", None))


def check(dataset: Any) -> None:
    """Raise `NotSwitchable` for an `image_file` that lacks its transform."""
    for part, layout in parts(dataset):
        if layout is PROTOCOL and not (callable(part.image_file) and hasattr(part, "transform")):
            raise NotSwitchable(
                f"{type(part).__name__} has image_file but no attribute transform; set self.transform (None for no "
                "transform), see kernel_monitor.loaders.ImageFiles."
            )
