"""An unreadable file: the same SampleError on every engine, or a batch without it; errors of users' own code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable

from ..conftest import Make, augmented, check_counts, make_folder, switch_to

ENGINES = [("torchvision", 0), ("torchvision", 2), ("dali-cpu", 0), ("dali-cpu", 2), ("threads", 0)]


@pytest.mark.parametrize(("backend", "workers"), ENGINES)
@pytest.mark.parametrize("kind", ["text", "truncated"])
def test_a_bad_file_is_named_and_the_loop_can_go_on(
    tmp_path: Path, make: Make, backend: str, workers: int, kind: str
) -> None:
    """Every kind of bad file, in batches of one, is in test_corpus.py."""
    loader = make(root=make_folder(tmp_path, 24), batch_size=4, num_workers=workers)
    path = Path(loader.dataset.samples[5][0])
    path.write_bytes(b"not an image" if kind == "text" else path.read_bytes()[: path.stat().st_size // 2])
    switch_to(loader, backend)
    iterator = iter(loader)
    assert len(next(iterator)[1]) == 4
    with pytest.raises(SampleError) as caught:
        next(iterator)
    assert (caught.value.index, caught.value.path) == (5, str(path))
    assert f"sample 5, {path}" in str(caught.value)
    assert isinstance(caught.value.__cause__, UnidentifiedImageError if kind == "text" else OSError)
    assert sum(len(targets) for _, targets in iterator) == 16
    check_counts(loader, 20)
    assert loader.backend == backend


class Clumsy:
    def __call__(self, image: Any) -> Any:
        if image.mean() > 0:
            raise ZeroDivisionError("the user's own bug")
        return image


@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_own_errors_are_raised_as_torch_raises_them(make: Make, workers: int) -> None:
    loader = make(transform=v1.Compose([v1.ToTensor(), Clumsy()]), num_workers=workers)
    with pytest.raises(ZeroDivisionError, match="the user's own bug") as caught:
        next(iter(loader))
    assert ("in DataLoader worker process" in str(caught.value)) == (workers > 0)


def test_an_error_in_collate_or_target_transform_is_raised_by_dali_too(make: Make) -> None:
    def collate(samples: list[Any]) -> Any:
        raise KeyError("collate")

    loader = make(num_workers=0, collate_fn=collate)
    switch_to(loader, "dali-cpu")
    with pytest.raises(KeyError, match="collate"):
        next(iter(loader))


def test_a_sampler_error_comes_after_what_was_taken(make: Make) -> None:
    class Sampler(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Any:
            yield [1, 2]
            yield [3, 4]
            raise ArithmeticError("the sampler's own")

    loader = make(num_workers=2, batch_size=1, batch_sampler=Sampler())
    iterator = iter(loader)
    assert len(next(iterator)[1]) == len(next(iterator)[1]) == 2
    with pytest.raises(ArithmeticError, match="the sampler's own"):
        next(iterator)
    assert loader.state()["batches"] is None


BAD = {3, 8, 9, 10, 11, 21}  # by place in the sorted list of files; with batches of four, 8 to 11 are a whole batch
CMYK = 2


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 files in three classes, six of them bad in different ways, and one that DALI is not given."""
    root = make_folder(tmp_path_factory.mktemp("spoiled"), 26)
    samples = ImageFolder(root).samples
    for place in BAD:
        path = Path(samples[place][0])
        path.write_bytes(b"no image" if place % 2 else path.read_bytes()[:200])
    Image.new("CMYK", (50, 60)).save(samples[CMYK][0])
    return root


Wrap = Callable[..., SwitchableLoader]


@pytest.fixture
def wrap(spoiled: Path) -> Wrap:
    def wrap(*, workers: int = 0, on_error: str = "skip", **options: Any) -> SwitchableLoader:
        data = DataLoader(ImageFolder(spoiled, augmented()), num_workers=workers, **{"batch_size": 4, **options})
        return switchable(data, seed=1, on_error=on_error)

    return wrap


def expected(loader: SwitchableLoader) -> list[list[int]]:
    """The targets of each batch of the plan, without the bad, without batches of which nothing is left."""
    plan = loader.plan()
    size = loader.batch_size
    batches = [[index for index in plan[at : at + size] if index not in BAD] for at in range(0, len(plan), size)]
    return [[loader.dataset.targets[index] for index in batch] for batch in batches if batch]


@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, list])
def test_batches_shrink_and_the_counts_add_up(wrap: Wrap, backend: str, workers: int, collate: Any) -> None:
    loader = wrap(workers=workers, collate_fn=collate)
    switch_to(loader, backend)
    batches = list(loader)
    if collate is None:
        assert [targets.tolist() for _, targets in batches] == expected(loader)
    else:
        assert [[target for _, target in batch] for batch in batches] == expected(loader)
    assert [len(batch) for batch in expected(loader)] == [3, 4, 4, 4, 3, 2]
    state = loader.state()
    assert (state["samples"], state["skipped"], state["planned"]) == (20, 6, 26)
    assert (state["lost"], state["doubled"], state["batch"], state["batches"]) == (0, 0, 7, 7)
    assert len(loader.decoders()) == 20
    assert loader.decoded() == ({"dali-cpu": 19, "torchvision": 1} if backend == "dali-cpu" else {"torchvision": 20})
    assert loader.backend == backend
    skipped = loader.skipped()
    assert [one.index for one in skipped] == sorted(BAD)
    for one in skipped:
        assert one.path == loader.dataset.samples[one.index][0]
        assert "UnidentifiedImageError" in one.reason or "OSError" in one.reason
    assert [skip["index"] for skip in state["skips"]] == [8, 9, 10, 11, 21]
    assert loader.epochs()[-1]["skipped"] == 6


def test_both_engines_deliver_and_skip_the_same(wrap: Wrap) -> None:
    found = []
    for backend in ("torchvision", "dali-cpu"):
        loader = wrap(shuffle=True, generator=torch.Generator().manual_seed(7))
        switch_to(loader, backend)
        batches = list(loader)
        assert loader.decoded()[backend] >= 19
        found.append((loader.plan(), batches, loader.skipped()))
    (plan, batches, skipped), (other_plan, other_batches, other_skipped) = found
    assert plan == other_plan
    assert skipped == other_skipped
    assert [targets.tolist() for _, targets in batches] == [targets.tolist() for _, targets in other_batches]
    for (images, _), (others, _) in zip(batches, other_batches, strict=True):
        assert (images - others).abs().mean() * 255 * 0.226 < 1.5


def test_switches_in_between_change_nothing(wrap: Wrap) -> None:
    loader = wrap(workers=2, batch_size=1)
    loader.switch("dali-cpu")
    targets = []
    for number, batch in enumerate(loader):
        targets.append(batch[1].tolist())
        switch_to(loader, ("torchvision", "dali-cpu")[number % 2])
    assert targets == expected(loader)
    assert len(loader.history) > 3
    state = loader.state()
    assert (state["samples"] + state["skipped"], state["lost"], state["doubled"]) == (26, 0, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_but_bad_files_is_an_empty_epoch(tmp_path: Path, workers: int) -> None:
    for name in "abc":
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / f"{name}.jpg").write_bytes(b"")
    data = DataLoader(ImageFolder(tmp_path, augmented()), batch_size=2, num_workers=workers)
    loader = switchable(data, on_error="skip")
    assert list(loader) == []
    assert list(loader) == []
    state = loader.state()
    assert (state["samples"], state["skipped"], state["lost"], state["epoch"]) == (0, 3, 0, 1)
    assert loader.meter.totals().steps == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_stays_the_default_and_an_error_of_ones_own_is_never_skipped(wrap: Wrap, workers: int) -> None:
    with pytest.raises(SampleError, match="sample 3"):
        list(wrap(workers=workers, on_error="raise"))

    def refuse(samples: Any) -> Any:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        list(wrap(workers=workers, collate_fn=refuse))
