"""How a data set keeps its image files.

Data sets are recognised by their exact `__getitem__` (a subclass that replaces it may do something else), or by
the method `image_file` of the protocol `ImageFiles`. Subset and ConcatDataset are looked through. What any other data
set does is for `loaders.dry_run` to find out.

Each entry of `LAYOUTS` describes what the `__getitem__` of one of torchvision's classes does (torchvision 0.21 to
0.29): which file it opens, by which function, with which target, and which transforms it applies. Before 0.22 most had
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
    """`Image.open(path)`: the image in the file's own mode; decoded here, so that a bad file shows here."""
    image = Image.open(path)
    try:
        image.load()
    except BaseException:  # raised again: only to close the file, after an interrupt too
        image.close()
        raise
    return image


def open_gray(path: Any) -> Image.Image:
    """`Image.open(path).convert("L")`."""
    with Image.open(path) as image:
        return image.convert("L")


def _both(dataset: Any) -> tuple[Any, Any]:
    return dataset.transform, dataset.target_transform


def _if_true(dataset: Any) -> tuple[Any, Any]:
    """Classes that write `if self.transform:`, which leaves out an empty `nn.Sequential`."""
    return dataset.transform or None, dataset.target_transform or None


def _standard(dataset: Any) -> tuple[Any, Any]:
    """Classes that call `self.transforms`, which takes the image and the target together."""
    joint = dataset.transforms
    return (None, None) if joint is None else (joint.transform, joint.target_transform)


def _is_joint(dataset: Any) -> bool:
    """Return whether it has a transform of image and target that is not made of one for each."""
    return dataset.transforms is not None and type(dataset.transforms) is not StandardTransform


@dataclass(frozen=True)
class Layout:
    """How a class of data sets keeps its files."""

    entries: Callable[[Any], Sequence[Any]]  # the list that `__getitem__` indexes
    # an index to what the opening function takes (a path) and the target before any target transform
    entry: Callable[[Any, int], tuple[Any, Any]]
    # the function that opens an image
    opener: Callable[[Any], Opener] = lambda dataset: getattr(dataset, "loader", pil_loader)
    # (transform, target transform), each None where nothing is applied
    transforms: Callable[[Any], tuple[Any, Any]] = _both
    other: Callable[[Any], bool] = lambda _: False  # whether this very data set does something else


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

    `switchable` opens, decodes and transforms the image itself, on whichever engine is in use, so it calls
    `image_file` in place of `__getitem__`. The image is opened as RGB by Pillow, as torchvision's ImageFolder does.
    There is nothing to inherit (docs/howto/own-data.md has an example); a data set also has a `__getitem__` of its own
    if it is to be used by itself. A `target_transform`, where it has that attribute and it is not None, is applied to
    the target.
    """

    transform: Any  # applied to the image; None for none

    def __len__(self) -> int: ...

    def image_file(self, index: int) -> tuple[str | os.PathLike[str] | bytes, Any]:
        """Return the image file of sample `index`, and its target.

        The image is a path, or the file's content (encoded: JPEG, PNG…) as bytes. It is called in worker processes and
        in the loop's own, more than once for the same sample, and has to give the same each time.
        """
        ...


PROTOCOL = Layout(
    entries=lambda dataset: dataset,
    entry=lambda dataset, index: dataset.image_file(index),
    opener=lambda _: pil_loader,
    transforms=lambda dataset: (dataset.transform, getattr(dataset, "target_transform", None)),
)


def layout_of(part: Any) -> Layout | None:
    """Return how a data set keeps its files; None where only its own `__getitem__` knows."""
    if hasattr(type(part), "image_file"):
        return PROTOCOL
    layout = LAYOUTS.get(getattr(type(part), "__getitem__", None))
    return None if layout is None or hasattr(part, "__getitems__") or layout.other(part) else layout


def parts(view: Any) -> Iterator[tuple[Any, Layout | None]]:
    """Yield the data sets at the bottom, each once per place it has, and how each keeps its files."""
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
    """Return which part of a ConcatDataset an index falls into, and where in it; as `ConcatDataset.__getitem__`."""
    if index < 0:
        if -index > len(view):
            raise ValueError("absolute value of index should not exceed dataset length")
        index += len(view)
    number = bisect.bisect_right(view.cumulative_sizes, index)
    if number == len(view.datasets):
        raise IndexError("list index out of range")
    return number, index - view.cumulative_sizes[number - 1] if number else index


def gives_batches(dataset: Any) -> bool:
    """Return whether samples come by a `__getitems__` of somebody's own, a whole batch at once.

    A ConcatDataset has none.
    """
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
