"""What `switchable` takes, what it refuses and in which words, and what a wrapped loader shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.datasets import ImageFolder

import kernel_monitor
from kernel_monitor.errors import BackendUnavailable, MonitorError, NotSwitchable
from kernel_monitor.loaders import switchable
from kernel_monitor.steps.watched_loader import live

from .conftest import Make, augmented, run_python


class Rows(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 3


class Shuffling:
    def __init__(self) -> None:
        self.dataset = Rows()

    def __iter__(self) -> Any:
        return iter([[0, 1], [2]])

    def __len__(self) -> int:
        return 2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_what_cannot_be_driven_is_refused_in_a_sentence(folder: Path, make: Make) -> None:
    loader = DataLoader(ImageFolder(folder, augmented()), batch_size=4)
    batches = kernel_monitor.watch_loader(loader)
    cases: list[tuple[Any, str]] = [
        ([1, 2], "takes a torch.utils.data.DataLoader, not list; wrap your data set in a DataLoader first"),
        (Rows(), "not Rows; wrap your data set"),
        (3, "not int; wrap your data set"),
        (
            Shuffling(),
            r"not Shuffling\. kernel_monitor.watch_loader\(loader\) shows .* without what Shuffling does itself",
        ),
        (Stream(), "not Stream. kernel_monitor.watch_loader"),
        (batches, "give it the DataLoader itself"),
    ]
    for wrong, said in cases:
        with pytest.raises(NotSwitchable, match=said) as caught:
            switchable(wrong)
        assert isinstance(caught.value, MonitorError)
        assert isinstance(caught.value, TypeError)
    with pytest.raises(MonitorError, match=r"dali=.* takes a function"):
        switchable(loader, dali=object())  # type: ignore[arg-type]
    with pytest.raises(MonitorError, match="on_error"):
        switchable(loader, on_error="ignore")


def test_a_cell_that_is_run_twice_gets_the_same_loader(make: Make) -> None:
    loader = make()
    assert switchable(loader) is loader
    iterator = iter(loader)
    first = next(iterator)
    assert switchable(loader, name="train", seed=7, dry_run=False) is loader
    assert loader.name == loader.state()["name"] == "train"
    assert switchable(loader, on_error="skip").name == "train"
    assert len([first, *iterator]) == len(loader)
    assert loader.state()["lost"] == 0
    view: Any = loader.skip(2)
    assert switchable(view, name="rest") is view
    assert loader.name == "rest"
    fixed = switchable(DataLoader(Stream()))
    assert switchable(fixed, name="stream") is fixed
    assert [source.name for source in live()][-1] == "stream"
    with pytest.raises(MonitorError, match="lone surrogate"):
        switchable(loader, name="\ud800")


PLAIN = """
import sys
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from kernel_monitor import switchable

if __name__ == "__main__":
    chain = transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()])
    loader = switchable(DataLoader(ImageFolder(sys.argv[1], chain), batch_size=50, num_workers=1))
    loader.set(workers=2)
    print(sum(len(targets) for _, targets in loader), loader.backends["dali-cpu"].available, loader.state()["lost"])
    forbidden = ("nvidia.dali", "IPython", "ipykernel", "bokeh", "anywidget")
    print([name for name in sys.modules if name.startswith(forbidden)])
"""


def test_a_plain_script_needs_neither_jupyter_nor_dali(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    done = run_python("-W", "ignore", script, folder)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["243 True 0", "[]"]), done.stderr


def test_a_framework_that_makes_loaders_anew_is_told_so(make: Make) -> None:
    loader = make(num_workers=0)
    assert DataLoader not in type(loader).__mro__  # Lightning and accelerate then leave it as it is
    with pytest.raises(NotSwitchable, match="give that to switchable"):
        type(loader)(dataset=loader.dataset, batch_size=4, shuffle=False)  # type: ignore[call-arg,unused-ignore]


class ByIndex(Stream):
    """As the data sets of MosaicML Streaming and LitData: their samples have an index, their order is their own."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class Shard(DataLoader[Any]):
    """As accelerate's DataLoaderShard: what comes out is not what a DataLoader gives."""

    def __iter__(self) -> Any:
        yield from ()


def test_what_has_no_plan_to_follow_is_watched_and_says_why(folder: Path) -> None:
    images = ImageFolder(folder, augmented())
    cases: list[tuple[DataLoader[Any], str, list[int]]] = [
        (DataLoader(Stream(), batch_size=2), "The data set is iterable-style", [2, 1]),
        (DataLoader(Rows(), batch_size=None), r"The DataLoader gives single samples \(batch_size=None\)", [1] * 3),
        (DataLoader(ByIndex(), batch_size=2), r"The data set is iterable-style: .+: ByIndex has both, so that", [2, 1]),
        (Shard(Stream()), "The data set is iterable-style", []),
        (Shard(images, batch_size=4), "Shard iterates in a way of its own", []),
    ]
    for plain, reason, counts in cases:
        loader = switchable(plain, name="watched")
        assert not any(backend.available for backend in loader.backends.values())
        assert all(re.match(reason, str(backend.reason)) for backend in loader.backends.values())
        with pytest.raises(BackendUnavailable, match=reason):
            loader.switch("dali-cpu")
        assert [len(batch) if isinstance(batch, torch.Tensor) else 1 for batch in loader] == counts
        state = next(source.state() for source in live() if source.name == "watched")
        assert (state["backend"], state["batch"]) == ("loader", len(counts))
        assert {engine["name"] for engine in state["backends"]} == {
            "dali-cpu",
            "dali-gpu",
            "threads",
            "synthetic",
            "ray",
        }
        del loader


def test_names_attributes_and_backends(folder: Path) -> None:
    loader = switchable(DataLoader(ImageFolder(folder, augmented()), batch_size=4, num_workers=0), name="train")
    assert (loader.name, loader.backend, len(loader), len(loader.dataset)) == ("train", "torchvision", 61, 243)
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (4, 0, False)
    with pytest.raises(AttributeError):
        loader.no_such_attribute  # noqa: B018
    with pytest.raises(BackendUnavailable, match="torchvision, dali-cpu, dali-gpu, threads, synthetic, ray; usable"):
        loader.switch("tensorflow")
    if not torch.cuda.is_available():
        with pytest.raises(BackendUnavailable, match=r"dali-gpu cannot be used: No GPU is usable here: .+"):
            loader.switch("dali-gpu")
    with pytest.raises(MonitorError, match="not recorded"):
        loader.plan(7)
    for _ in range(6):
        next(iter(loader))
    with pytest.raises(MonitorError, match="epochs recorded: 2, 3, 4, 5"):
        loader.plan(1)
    loader.set_epoch(40)
    next(iter(loader))
    assert loader.state()["epoch"] == 40
    assert loader.plan(40) == [0, 1, 2, 3]


def test_dali_is_probed_without_importing_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    loader = switchable(DataLoader(ImageFolder(folder, augmented()), batch_size=4))
    assert not loader.backends["dali-cpu"].available
    assert "not installed" in str(loader.backends["dali-cpu"].reason)
    monkeypatch.setattr(sys, "platform", "darwin")
    elsewhere = switchable(DataLoader(ImageFolder(folder, augmented()), batch_size=4))
    assert "Linux only" in str(elsewhere.backends["dali-cpu"].reason)
