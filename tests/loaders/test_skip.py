"""on_error="skip": batches come without what cannot be read, everything else as planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable

from .conftest import augmented, make_folder, settle

BAD = {3, 8, 9, 10, 11, 21}  # by place in the sorted list of files; with batches of four, 8 to 11 are a whole batch


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 files in three classes, six of them bad in different ways."""
    root = make_folder(tmp_path_factory.mktemp("spoiled"), 26)
    samples = ImageFolder(root).samples
    for place in BAD:
        path = Path(samples[place][0])
        path.write_bytes(b"no image" if place % 2 else path.read_bytes()[:200])
    return root


Wrap = Callable[..., SwitchableLoader]


@pytest.fixture
def wrap(spoiled: Path) -> Iterator[Wrap]:
    made: list[SwitchableLoader] = []

    def wrap(*, workers: int = 0, on_error: str = "skip", **options: Any) -> SwitchableLoader:
        data = DataLoader(ImageFolder(spoiled, augmented()), num_workers=workers, **{"batch_size": 4, **options})
        made.append(switchable(data, seed=1, on_error=on_error))
        return made[-1]

    yield wrap
    for loader in made:
        loader.release()


def expected(loader: SwitchableLoader) -> list[list[int]]:
    """The targets of each batch of the plan, without the bad, without batches of which nothing is left."""
    plan = loader.plan()
    size = loader.batch_size
    batches = [[index for index in plan[at : at + size] if index not in BAD] for at in range(0, len(plan), size)]
    return [[loader.dataset.targets[index] for index in batch] for batch in batches if batch]


@pytest.mark.parametrize("backend", ["torchvision", "dali-cpu"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_shrink_and_the_counts_add_up(wrap: Wrap, backend: str, workers: int) -> None:
    loader = wrap(workers=workers)
    loader.switch(backend)
    if workers == 0:
        settle(loader)
    batches = list(loader)
    assert [targets.tolist() for _, targets in batches] == expected(loader)
    assert [len(images) for images, _ in batches] == [3, 4, 4, 4, 3, 2]
    state = loader.state()
    assert (state["samples"], state["skipped"], state["planned"]) == (20, 6, 26)
    assert (state["lost"], state["doubled"], state["batch"], state["batches"]) == (0, 0, 7, 7)
    assert len(loader.decoders()) == 20
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
        loader.switch(backend)
        settle(loader)
        batches = list(loader)
        assert loader.decoded().get(backend) == 20
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
        loader.switch(("torchvision", "dali-cpu")[number % 2])
        settle(loader)
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
    loader.release()


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_stays_the_default_and_an_error_of_ones_own_is_never_skipped(wrap: Wrap, workers: int) -> None:
    with pytest.raises(SampleError, match="sample 3"):
        list(wrap(workers=workers, on_error="raise"))

    def refuse(samples: Any) -> Any:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        list(wrap(workers=workers, collate_fn=refuse))
