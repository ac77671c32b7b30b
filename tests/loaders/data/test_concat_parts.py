"""ConcatDatasets whose parts have different transforms: a DALI pipeline for each, batches in the plan's order."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, WeightedRandomSampler, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms import v2

from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.engines.dali_graph import Parts, Pipelines

from ..conftest import check_counts, make_folder, set_cores, switch_to
from ..photos import Located, Photos
from .test_own_datasets import near

pytestmark = pytest.mark.filterwarnings(
    "ignore:The image decoding and encoding capabilities of TorchVision:DeprecationWarning"
)
SEED = 3
CROPPED = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])
CENTRE = v2.Compose(
    [
        v2.Resize((40, 40)),
        v2.CenterCrop(32),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ]
)
SMALL = v1.Compose([v1.Resize((12, 20)), v1.ToTensor()])
RANDOM_CROP = v1.Compose([v1.Resize((50, 50)), v1.RandomCrop(32), v1.ToTensor()])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("parts")
    return [make_folder(root / str(number), 15, seed=number) for number in range(3)]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.jpg"))


class Tensors(Photos):
    """It opens its files by torchvision's own function."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(read_image(str(self.paths[index]), ImageReadMode.RGB)), 200 + index


class Dictionaries(Photos):
    def __getitem__(self, index: int) -> Any:
        return {"image": self.transform(Image.open(self.paths[index]).convert("RGB")), "number": index}


def mixture(folders: list[Path]) -> ConcatDataset[Any]:
    tensors = v2.Compose([v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)])
    return ConcatDataset(
        [ImageFolder(folders[0], CROPPED), Located(files(folders[1]), CENTRE), Tensors(files(folders[2]), tensors)]
    )


def loader_of(dataset: Dataset[Any], **options: Any) -> SwitchableLoader:
    settings = {"batch_size": 7, **options}
    return switchable(DataLoader(dataset, **settings), seed=SEED)


def both(make: Callable[[], SwitchableLoader]) -> tuple[list[Any], list[Any], SwitchableLoader]:
    """The first epoch of two equal loaders: on torchvision, and on dali-cpu; and the second loader."""
    expected, loader = list(make()), make()
    return expected, list(switch_to(loader, "dali-cpu")), loader


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_is_computed_by_a_pipeline_for_each_transform(folders: list[Path], workers: int) -> None:
    dataset = mixture(folders)

    def make() -> SwitchableLoader:
        weights = torch.arange(1.0, 46.0)
        sampler = WeightedRandomSampler(weights.tolist(), 60, generator=torch.Generator().manual_seed(1))
        return loader_of(dataset, sampler=sampler, num_workers=workers)

    expected, found, loader = both(make)
    assert all(map(near, found, expected))
    assert loader.decoded() == {"dali-cpu": 60}
    assert loader.fallbacks() == []
    assert len({int(label) // 100 for _, labels in found for label in labels}) == 2


def test_shuffled_epochs_swapped_in_their_middle(folders: list[Path]) -> None:
    dataset = mixture(folders)

    def make() -> SwitchableLoader:
        return loader_of(dataset, shuffle=True, generator=torch.Generator().manual_seed(2))

    expected, loader, found = list(make()), make(), []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number == 2:
            switch_to(loader, "dali-cpu")
    assert all(map(near, found, expected))
    decoded = loader.decoded()
    assert decoded["torchvision"] >= 14
    assert decoded["dali-cpu"] >= 14
    check_counts(loader, 45)


def test_batches_of_one_part_come_without_the_others(folders: list[Path]) -> None:
    expected, found, loader = both(lambda: loader_of(Subset(mixture(folders), range(15, 45)), batch_size=15))
    assert all(map(near, found, expected))
    assert loader.decoded() == {"dali-cpu": 30}


def test_images_of_different_sizes_go_to_the_users_collate_function(folders: list[Path]) -> None:
    dataset: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[0], CROPPED), ImageFolder(folders[1], SMALL)])
    expected, found, loader = both(
        lambda: loader_of(dataset, collate_fn=list, shuffle=True, generator=torch.Generator().manual_seed(2))
    )
    assert all(map(near, found, expected))
    assert {tuple(image.shape) for batch in found for image, _ in batch} == {(3, 32, 32), (3, 12, 20)}
    assert loader.decoded() == {"dali-cpu": 30}


def test_without_one_they_raise_what_a_plain_dataloader_raises(folders: list[Path]) -> None:
    dataset: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[0], CROPPED), ImageFolder(folders[1], SMALL)])
    with pytest.raises(RuntimeError) as plain:
        list(DataLoader(dataset, batch_size=10))
    loader = switch_to(loader_of(dataset, batch_size=10), "dali-cpu")
    with pytest.raises(RuntimeError, match=re.escape(str(plain.value))):
        list(loader)


def test_samples_of_different_structure_go_to_the_users_collate_function(folders: list[Path]) -> None:
    dataset: ConcatDataset[Any] = ConcatDataset(
        [ImageFolder(folders[0], CROPPED), Dictionaries(files(folders[1]), CENTRE)]
    )
    expected, found, loader = both(
        lambda: loader_of(dataset, collate_fn=list, shuffle=True, generator=torch.Generator().manual_seed(2))
    )
    assert all(map(near, found, expected))
    assert {type(sample) for batch in found for sample in batch} == {tuple, dict}
    assert [type(batch[0][0] if isinstance(batch[0], tuple) else batch[0]["image"]) for batch in found] == [
        type(batch[0][0] if isinstance(batch[0], tuple) else batch[0]["image"]) for batch in expected
    ]
    assert loader.decoded() == {"dali-cpu": 30}


def left(image: torch.Tensor) -> torch.Tensor:
    return image.cumsum(2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("other", [CROPPED, CENTRE, v1.Compose([v1.Resize((32, 32)), v1.ToTensor(), left])])
def test_a_part_whose_transform_dali_leaves_in_half(
    other: Any, workers: int, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cores(monkeypatch, 16)
    half = v1.Compose([v1.RandomCrop(32), v1.ToTensor(), left])
    dataset: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[0], other), ImageFolder(folders[1], half)])

    def make() -> SwitchableLoader:
        order = torch.Generator().manual_seed(2)
        return loader_of(dataset, shuffle=True, generator=order, num_workers=workers, collate_fn=list)

    expected, found, loader = both(make)
    for one, same in zip(chain.from_iterable(found), chain.from_iterable(expected), strict=True):
        assert type(one[0]) is type(same[0])
        assert one[0].dtype == same[0].dtype
        assert one[1] == same[1]
        assert float((one[0] - same[0]).abs().mean()) < 0.05
    assert loader.decoded() == {"dali-cpu": 30}
    where = "in the loader's workers" if workers else "on the thread of the training loop"
    assert f"ToTensor and 1 more run {where}" in str(loader.backends["dali-cpu"].note)


def test_a_file_that_dali_is_not_given(folders: list[Path], tmp_path: Path) -> None:
    odd = tmp_path / "odd.gif"
    Image.new("RGB", (50, 40), (10, 200, 30)).save(odd)
    paths = [odd, *files(folders[1])]
    like: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[0], CROPPED), Located(paths, CENTRE)])
    smaller: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[0], CROPPED), Located(paths, SMALL)])
    for dataset, collate in ((like, default_collate), (smaller, list)):
        expected, found, loader = both(partial(loader_of, dataset, batch_size=4, collate_fn=collate))
        assert all(map(near, found, expected))
        assert loader.decoded() == {"dali-cpu": 30, "torchvision": 1}
    loader = switch_to(loader_of(smaller, batch_size=4), "dali-cpu")
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(loader)  # the batch of three of the first part and the file, whose image is smaller


def test_an_unreadable_file_is_skipped_or_raised(folders: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    dataset: ConcatDataset[Any] = ConcatDataset(
        [ImageFolder(folders[0], CROPPED), Located([*files(folders[1]), bad], CENTRE)]
    )
    loader = switch_to(switchable(DataLoader(dataset, batch_size=4), on_error="skip"), "dali-cpu")
    assert sum(len(images) for images, _ in loader) == 30
    assert [skipped.index for skipped in loader.skipped()] == [30]
    with pytest.raises(SampleError):
        list(switch_to(loader_of(dataset), "dali-cpu"))


def test_transforms_of_equal_programs_share_a_pipeline(folders: list[Path]) -> None:
    def crop() -> v1.Compose:
        return v1.Compose([v1.Resize((40, 40)), v1.RandomCrop(32), v1.ToTensor()])

    dataset: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[number % 3], crop()) for number in range(12)])
    expected, found, loader = both(lambda: loader_of(dataset))
    assert all(map(near, found, expected))
    assert loader.decoded() == {"dali-cpu": 180}
    assert Parts(loader.pool.setting.programs, fused=True).numbers == [0] * 12


def test_there_are_not_too_many_pipelines(folders: list[Path]) -> None:
    def parts(count: int) -> ConcatDataset[Any]:
        chains = [v1.Compose([v1.Resize((20 + number, 20)), v1.ToTensor()]) for number in range(count)]
        return ConcatDataset([ImageFolder(folders[0], chain) for chain in chains])

    assert loader_of(parts(8)).backends["dali-cpu"].available
    backend = loader_of(parts(9)).backends["dali-cpu"]
    assert "have 9 different transforms" in str(backend.reason)


def test_a_transform_that_dali_cannot_do_in_one_part_is_named(folders: list[Path]) -> None:
    mixing = v1.Compose([v1.Resize((32, 32)), v2.MixUp(num_classes=3)])
    dataset: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[0], CROPPED), ImageFolder(folders[1], mixing)])
    backend = loader_of(dataset).backends["dali-cpu"]
    assert backend.reason == "MixUp (transform 2 of 2): it mixes whole batches; apply it in the collate function."


def test_a_parts_transform_is_replaced_between_epochs(folders: list[Path]) -> None:
    dataset: ConcatDataset[Any] = ConcatDataset([ImageFolder(folders[0], CROPPED), Located(files(folders[1]), CENTRE)])
    loader = switch_to(loader_of(dataset), "dali-cpu")
    first = [images for images, _ in loader]
    dataset.datasets[1].transform = CROPPED  # type: ignore[attr-defined] # one for all now
    second = [images for images, _ in loader]
    assert float(torch.cat(first)[15:].min()) < 0 <= float(torch.cat(second)[15:].min())
    dataset.datasets[0].transform = CENTRE  # type: ignore[attr-defined]
    third = torch.cat([images for images, _ in loader])
    assert float(third[:15].min()) < 0 <= float(third[15:].min())
    assert loader.decoded() == {"dali-cpu": 30}
    assert loader.backend == "dali-cpu"


def test_an_error_of_one_pipeline_costs_a_fallback(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = mixture(folders)
    expected, loader = list(loader_of(dataset)), loader_of(dataset)
    switch_to(loader, "dali-cpu")
    failing: Iterator[bool] = iter([False, True])
    original = Pipelines.outputs

    def outputs(self: Pipelines, **options: Any) -> Any:
        if next(failing, False):
            raise RuntimeError("out of luck")
        return original(self, **options)

    monkeypatch.setattr(Pipelines, "outputs", outputs)
    found = list(loader)
    assert all(map(near, found, expected))
    assert loader.decoded() == {"dali-cpu": 38, "torchvision": 7}
    check_counts(loader, 45)


class Contents(Located):
    """It gives the files' content."""

    def image_file(self, index: int) -> Any:
        path, target = super().image_file(index)
        return path.read_bytes(), target


class Bytes(Photos):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(io.BytesIO(self.paths[index].read_bytes())).convert("RGB")), index


@pytest.mark.parametrize("last", [Contents, Bytes])
def test_paths_in_one_part_and_bytes_in_another(folders: list[Path], last: Any, tmp_path: Path) -> None:
    dataset: ConcatDataset[Any] = ConcatDataset(
        [Located(files(folders[0]) * 3, CROPPED), Photos(files(folders[1]), CROPPED), last(files(folders[2]), CENTRE)]
    )
    expected, found, loader = both(partial(loader_of, dataset))
    assert all(map(near, found, expected))
    assert loader.decoded() == {"dali-cpu": 75}
    assert loader.parity(10).mean < 1
    dataset.datasets[0].paths[4] = tmp_path / "missing.jpg"  # type: ignore[attr-defined]
    loader = switch_to(switchable(DataLoader(dataset, batch_size=5), on_error="skip"), "dali-cpu")
    assert sum(len(images) for images, _ in loader) == 74
    assert [(skipped.index, Path(skipped.path).name) for skipped in loader.skipped()] == [(4, "missing.jpg")]


def test_parity_compares_each_part_by_its_own_transform(folders: list[Path]) -> None:
    parity = loader_of(mixture(folders)).parity(12)
    assert (parity.samples, parity.skipped, parity.parameters_equal) == (12, 0, True)
    assert [step.name for step in parity.steps].count("Resize") == 2
    assert 0 < parity.mean < 1
    assert parity.greatest == max(
        step.greatest for step in parity.steps if step.name in ("ToTensor", "Normalize", "ToDtype")
    )
