"""Data sets of torchvision, views of them, and those that say which file a sample is: each sample as by themselves."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, random_split
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from kernel_monitor.errors import NotSwitchable, SampleError
from kernel_monitor.loaders import ImageFiles, switchable
from kernel_monitor.loaders.data.file_source import FileSource
from kernel_monitor.loaders.data.layouts import LAYOUTS as UNDERSTOOD

from ..conftest import augmented, make_folder, on_both, settle, switch_to, worst
from ..photos import FIXED
from .datasets import equal
from .delivered import as_listed, described, samples
from .torchvision_layouts import LAYOUTS, image


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # torchvision's SBU reads its lists so
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_torchvision_data_set_gives_what_its_own_getitem_gives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = LAYOUTS[name](tmp_path, monkeypatch)
    options: dict[str, Any] = {"transform": described}
    if name != "CelebA-none":
        options["target_transform"] = as_listed
    for dataset in (make(**options), make(transform=described), make()):
        plain = [dataset[index] for index in range(len(dataset))]
        ours, _ = samples(dataset)
        if dataset.transform is None:
            plain = [(described(image)[1:], target) for image, target in plain]
            ours = [(described(image)[1:], target) for image, target in ours]
        assert len(plain) > 0
        assert all(map(equal, ours, plain)), (ours, plain)


def test_every_understood_class_has_a_copy_on_disk() -> None:
    tested = {getattr(datasets, name.partition("-")[0]).__getitem__ for name in LAYOUTS}
    assert tested == set(UNDERSTOOD)


# What opens its images in torchvision's own way, as RGB or as they are stored, so that DALI may do it.
PLAIN = sorted(set(LAYOUTS) - {"DatasetFolder", "Omniglot"})
STORED = {name for name in PLAIN if name[:4] in ("Calt", "Cele", "WIDE", "INat")}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("name", PLAIN)
def test_a_torchvision_data_set_is_the_same_on_dali(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {} if name == "CelebA-none" else {"target_transform": as_listed}
    dataset = LAYOUTS[name](tmp_path, monkeypatch)(transform=FIXED, **options)
    plain = [dataset[index] for index in range(len(dataset))]
    ours, decoders = samples(dataset, "dali-cpu")
    assert equal([target for _, target in ours], [target for _, target in plain])
    for (one, _), (other, _) in zip(ours, plain, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().mean() * 255 < 0.5
    paths = [FileSource(dataset).locate(index).path for index in range(len(dataset))]
    for path, decoder in zip(paths, decoders, strict=True):
        if path.lower().endswith((".jpg", ".jpeg")):
            with Image.open(path) as stored:
                kept = name in STORED and stored.mode != "RGB"
            assert decoder == ("torchvision" if kept else "dali-cpu")


@pytest.mark.parametrize("name", sorted(set(LAYOUTS) - set(PLAIN)))
def test_a_data_set_that_does_not_open_as_rgb_is_not_for_dali(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = LAYOUTS[name](tmp_path, monkeypatch)(transform=FIXED)
    loader = switchable(DataLoader(dataset, batch_size=2))
    reason = loader.backends["dali-cpu"].reason or ""
    assert reason.startswith("The data set opens its ")
    assert not loader.backends["dali-cpu"].available
    assert loader.backends["torchvision"].available


@pytest.mark.parametrize("name", ["Flowers102", "Imagenette"])
def test_a_loader_function_gets_the_path_as_the_data_set_keeps_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = LAYOUTS[name](tmp_path, monkeypatch)(loader=lambda path: (type(path), path))
    assert samples(dataset)[0] == [dataset[index] for index in range(len(dataset))]
    assert {kind for (kind, _), _ in samples(dataset)[0]} == {type(dataset[0][0][1])}


def test_a_false_transform_is_left_out_where_the_class_leaves_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing(nn.Sequential):
        def forward(self, _: Any) -> str:
            return "called"

    for name in ("Food101", "Imagenette"):
        dataset = LAYOUTS[name](tmp_path / name, monkeypatch)(transform=Nothing(), target_transform=Nothing())
        kinds = [(type(one), target) for one, target in samples(dataset)[0]]
        assert kinds == [(type(dataset[index][0]), dataset[index][1]) for index in range(len(dataset))]
        assert ("called" in [target for _, target in kinds]) == (name == "Imagenette")


def test_second_files_are_left_to_the_data_sets_own_code_and_joint_transforms_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from .torchvision_layouts import pets

    masks = pets("segmentation")(tmp_path, monkeypatch)()
    assert not switchable(DataLoader(masks)).backends["dali-cpu"].available
    joint = pets("category")(tmp_path, monkeypatch)(transforms=v2.Compose([v2.Resize((8, 8)), v2.PILToTensor()]))
    loader = switchable(DataLoader(joint, batch_size=2, collate_fn=list))
    expected = [sample for batch in loader for sample in batch]
    assert len(expected) == len(joint)
    assert loader.backends["dali-cpu"].available, loader.backends["dali-cpu"].reason
    found = [sample for batch in switch_to(loader, "dali-cpu") for sample in batch]
    assert loader.decoded() == {"dali-cpu": len(joint)}
    for (one, label), (other, expected_label) in zip(found, expected, strict=True):
        assert label == expected_label
        assert one.dtype == other.dtype == torch.uint8
        assert float((one.float() - other.float()).abs().mean()) <= 1.5


@pytest.mark.parametrize("folder_class", [ImageFolder])
def test_data_sets_of_ones_own_are_served_and_named_where_dali_cannot(folder: Path, folder_class: Any) -> None:
    class Other(folder_class):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)

    class Batched(folder_class):
        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    class Same(folder_class):
        pass

    chain = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
    other, plain = Other(folder, chain), ImageFolder(folder, chain)
    view: Any
    for view in (other, Subset(other, [0]), ConcatDataset([plain, other])):
        loader = switchable(DataLoader(view))
        assert loader.backends["dali-cpu"].available, loader.backends["dali-cpu"].reason
        assert len(loader) == len(view)
    for dataset, reason in (
        (Batched(folder, chain), "Batched has a __getitems__ of its own"),
        (StackDataset(plain), "StackDataset has a __getitems__ of its own"),
        (datasets.FakeData(4, transform=chain), "FakeData opens no image file"),
    ):
        backend = switchable(DataLoader(dataset)).backends["dali-cpu"]
        assert not backend.available
        assert reason in str(backend.reason)
    assert len(switchable(DataLoader(Same(folder)))) == 243


# Subset and ConcatDataset


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("parts")
    return [make_folder(root / str(count), count, seed=count) for count in (5, 4, 7)]


def _any(indices: Any) -> Any:
    """Indices that torch takes at run time, whatever its types say."""
    return indices


def views(a: Any, b: Any, c: Any) -> Iterator[Any]:
    """Nested in each other in several ways."""
    yield Subset(ConcatDataset([a, b, c]), [15, 0, 8, -1, 4, 5, 4])
    yield ConcatDataset([Subset(a, [3, 1]), b, Subset(Subset(c, range(1, 7)), _any(torch.tensor([5, 0, 2])))])
    yield ConcatDataset([a, ConcatDataset([b, Subset(ConcatDataset([c, a]), _any(np.array([9, 1])))]), a])
    yield random_split(ConcatDataset([b, c]), [6, 5], generator=torch.Generator().manual_seed(2))[0]


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("workers", [0, 2])
def test_nested_views_give_what_they_give_by_themselves(parts: list[Path], which: int, workers: int) -> None:
    a, b, c = (
        ImageFolder(root, described, target_transform=lambda target, n=n: (n, target)) for n, root in enumerate(parts)
    )
    view = list(views(a, b, c))[which]
    delivered, _ = samples(view, num_workers=workers)
    assert delivered == [view[index] for index in range(len(view))]


@pytest.mark.parametrize("which", range(4))
def test_nested_views_on_dali(parts: list[Path], which: int) -> None:
    a, b, c = (
        ImageFolder(root, FIXED, target_transform=lambda target, n=n: (n, target)) for n, root in enumerate(parts)
    )
    view = list(views(a, b, c))[which]
    delivered, decoders = samples(view, "dali-cpu")
    assert decoders == ["dali-cpu"] * len(view)
    plain = [view[index] for index in range(len(view))]
    assert [target for _, target in delivered] == [target for _, target in plain]
    images = torch.stack([one for one, _ in delivered])
    assert (images - torch.stack([one for one, _ in plain])).abs().mean() * 255 < 0.6  # noise in 16 x 16 pixels


def test_numbers_are_unique_and_negative_indices_are_torchs(parts: list[Path]) -> None:
    a, b, c = (ImageFolder(root) for root in parts)
    view: Any = ConcatDataset([b, ConcatDataset([a, c]), a])
    source = FileSource(view)
    numbers = [source.locate(index).number for index in range(len(view))]
    assert sorted(numbers) == list(range(len(view)))
    assert source.files == len(view)
    for index in range(-len(view), 0):
        assert source.locate(index) == source.locate(index + len(view))
        assert source.locate(index).target == view[index][1]
    for index, kind in ((len(view), IndexError), (-len(view) - 1, ValueError)):
        with pytest.raises(kind):
            view[index]
        with pytest.raises(kind):
            source.locate(index)


def test_parts_with_their_own_transforms_are_exact_on_torchvision(parts: list[Path]) -> None:
    big, small = v1.Compose([v1.Resize((20, 20)), v1.ToTensor()]), v1.Compose([v1.Resize((12, 12)), v1.ToTensor()])
    view: Any = ConcatDataset([ImageFolder(parts[0], big), ImageFolder(parts[1], small), ImageFolder(parts[2])])
    delivered, _ = samples(view, num_workers=2)
    assert all(
        equal(one if isinstance(one, torch.Tensor) else described(one), other if index < 9 else described(other))
        for index, ((one, _), (other, _)) in enumerate(zip(delivered, map(view.__getitem__, range(16)), strict=True))
    )
    shared = switchable(DataLoader(ConcatDataset([ImageFolder(parts[0], big), ImageFolder(parts[1], big)])))
    assert shared.backends["dali-cpu"].available


def test_random_transforms_of_parts_draw_from_the_plan(parts: list[Path]) -> None:
    crop, flip = v1.RandomResizedCrop(8), v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(30), v1.Resize((8, 8))])

    def run(workers: int) -> list[Any]:
        view: Any = ConcatDataset(
            [ImageFolder(parts[0], v1.Compose([crop, described])), ImageFolder(parts[1], v1.Compose([flip, described]))]
        )
        return samples(view, num_workers=workers)[0]

    first = run(0)
    assert run(0) == run(2) == first
    assert len({pixels for (_, _, _, pixels), _ in first}) == 9


def test_views_are_seen_live(parts: list[Path]) -> None:
    a, b, _ = (ImageFolder(root, described) for root in parts)
    indices = [0, 1]
    view: Any = Subset(ConcatDataset([a, b]), indices)
    loader = switchable(DataLoader(view, batch_size=2, collate_fn=list))
    assert [sample for batch in loader for sample in batch] == [view[0], view[1]]
    indices[:] = [8, 6, 0]
    a.transform = lambda one: one.size
    delivered = [sample for batch in loader for sample in batch]
    assert delivered == [view[0], view[1], view[2]]
    assert len(delivered[2][0]) == 2  # a size
    view.dataset = b
    indices[:] = [3]
    assert [sample for batch in loader for sample in batch] == [b[3]]


class Own(Dataset[Any]):
    """Of a user's: paths of several kinds, or encoded bytes."""

    def __init__(self, paths: list[Any], transform: Any = None, target_transform: Any = None) -> None:
        self.paths = paths
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self) -> int:
        return len(self.paths)

    def image_file(self, index: int) -> tuple[Any, Any]:
        return self.paths[index], index * 10

    def __getitem__(self, index: int) -> Any:
        file, target = self.image_file(index)
        one: Any = Image.open(io.BytesIO(file) if isinstance(file, bytes | bytearray | memoryview) else file)
        one = one.convert("RGB")
        if self.transform is not None:
            one = self.transform(one)
        return one, target if self.target_transform is None else self.target_transform(target)


class Like(os.PathLike[str]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [image(tmp_path / f"{n}.jpg", "L" if n == 3 else "RGB") for n in range(5)]


KINDS: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": Path,
    "PathLike": Like,
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_protocol(files: list[Path], kind: str, workers: int) -> None:
    given = [KINDS[kind](path) for path in files]
    dataset: ImageFiles = Own(given, described, as_listed)
    delivered, _ = samples(dataset, num_workers=workers)
    assert all(map(equal, delivered, map(Own(given, described, as_listed).__getitem__, range(5))))
    source = FileSource(Own(given))
    assert source.encoded == (kind in ("bytes", "bytearray", "memoryview"))
    assert source.locate(2).path == ("Own[2]" if source.encoded else str(files[2]))
    assert source.locate(-1).number == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_protocol_on_dali(files: list[Path], kind: str) -> None:
    dataset = Own([KINDS[kind](path) for path in files], FIXED, as_listed)
    delivered, decoders = samples(Subset(dataset, [4, 3, 0, 0]), "dali-cpu")
    assert decoders == ["dali-cpu"] * 4
    for (one, target), index in zip(delivered, (4, 3, 0, 0), strict=True):
        plain, wanted = dataset[index]
        assert target == wanted
        assert (one - plain).abs().mean() * 255 < 0.5


def test_encoded_files_are_decoded_as_far_as_a_crop_keeps_them(folder: Path) -> None:
    encoded = [path.read_bytes() for path in sorted(folder.glob("*/*.jpg"))[:24]]
    loader = switchable(DataLoader(Own(encoded, augmented()), 8), seed=5)
    (expected, targets), (images, same_targets) = on_both(loader)
    assert loader.decoded() == {"dali-cpu": 24}
    assert torch.equal(targets, same_targets)
    assert worst(images, expected) < 1.5


def test_the_protocol_needs_neither_getitem_nor_a_target_transform(files: list[Path]) -> None:
    class Bare:
        transform = None

        def __len__(self) -> int:
            return len(files)

        def image_file(self, index: int) -> tuple[Path, int]:
            return files[index], index

    loader = switchable(DataLoader(Bare(), batch_size=5, collate_fn=list))  # type: ignore[arg-type]
    (batch,) = loader
    assert [target for _, target in batch] == list(range(5))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda _: b"no image", "UnidentifiedImageError: cannot identify image file Own[1]"),
        (lambda good: good[:300], "OSError: Truncated File Read"),
    ],
    ids=["no image", "cut"],
)
def test_bad_bytes_are_named_by_data_set_and_place(
    files: list[Path], workers: int, bad: Callable[[bytes], bytes], said: str
) -> None:
    good = files[0].read_bytes()
    dataset = Own([good, bad(good), good, good, good], FIXED)
    texts = []
    for backend in ("torchvision", "dali-cpu"):
        loader = switchable(DataLoader(Subset(dataset, range(5)), num_workers=workers))
        switch_to(loader, backend)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(SampleError) as caught:
            next(iterator)
        loader.release()
        assert caught.value.index == 1
        assert caught.value.path == "Own[1]"
        texts.append(str(caught.value))
        assert sum(map(len, (targets for _, targets in iterator))) == 3
    assert texts[0] == texts[1]
    assert f"sample 1, Own[1]: {said}" in texts[0]


def test_what_image_file_gives_wrongly_or_raises_is_said(files: list[Path]) -> None:
    class Wrong(Own):
        def image_file(self, index: int) -> Any:
            return np.zeros(3), self.paths[index]

    class Raises(Own):
        def image_file(self, index: int) -> Any:
            if index == 2:
                raise KeyError("no row 2")
            return super().image_file(index)

    with pytest.raises(TypeError, match="gave ndarray for an image file; it must give a path or bytes"):
        next(iter(switchable(DataLoader(Wrong(files)))))
    for backend in ("torchvision", "dali-cpu"):
        loader = switchable(DataLoader(Raises(files, FIXED)))
        switch_to(loader, backend)
        iterator = iter(loader)
        assert [int(next(iterator)[1]) for _ in range(2)] == [0, 10]
        with pytest.raises(KeyError, match="no row 2"):
            next(iterator)
        assert [int(target) for _, target in iterator] == [30, 40]
        loader.release()


def test_a_protocol_without_transform_is_told_so(files: list[Path]) -> None:
    class Forgot:
        def __len__(self) -> int:
            return 1

        def image_file(self, _: int) -> tuple[Path, int]:
            return files[0], 0

    with pytest.raises(NotSwitchable, match="Forgot has image_file but no attribute transform; set"):
        switchable(DataLoader(Forgot()))  # type: ignore[arg-type]


def test_relative_paths_survive_a_change_of_folder(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files[0].parent)
    dataset = Own([path.name for path in files], FIXED)
    plain = [dataset[index][0] for index in range(5)]
    loaders = [switchable(DataLoader(dataset, batch_size=5)) for _ in range(2)]
    loaders[1].switch("dali-cpu")
    monkeypatch.chdir("/")
    for loader in loaders:
        settle(loader)
        (batch,) = loader
        assert (batch[0] - torch.stack(plain)).abs().mean() * 255 < 0.5
        loader.release()
