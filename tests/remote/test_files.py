"""Nodes that do not see the data set's files: they are hidden by a file system that is mounted over their folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

from kernel_monitor import monitor
from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader
from kernel_monitor.ray import cluster as ray_cluster

from ..loaders.conftest import augmented
from .conftest import Make, RunningCluster, until


@pytest.fixture(scope="module")
def mixed(folder: Path) -> Iterator[RunningCluster]:
    """A node that sees the folder, and one that does not."""
    cluster = RunningCluster(nodes=1, cores=1)
    try:
        cluster.hide(str(folder))
        cluster.add()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def joined(mixed: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> RunningCluster:
    monkeypatch.setenv(ray_cluster.VARIABLE, mixed.address)
    monkeypatch.setattr(ray_cluster.Chosen, "send_files", None)
    return mixed


class Captioned(Dataset[Any]):
    """A photo and a text that lies beside it, which only the data set's own code knows of."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*/*.jpg"))
        self.transform = augmented()
        for path in self.paths:
            path.with_suffix(".txt").write_text(f"a photo called {path.stem}")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        image = Image.open(path).convert("RGB")
        return {"image": self.transform(image), "caption": path.with_suffix(".txt").read_text(), "index": index}


class Opaque(Captioned):
    """Its image goes through NumPy, so that no dry run tells what it does."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return {"image": self.transform(Image.fromarray(255 - np.asarray(image))), "index": index}


class Texts(Captioned):
    """No image at all."""

    def __getitem__(self, index: int) -> Any:
        return self.paths[index].with_suffix(".txt").read_text()


def on_both(loader: SwitchableLoader) -> list[Any]:
    """Two epochs on `ray`; in the second both nodes have a worker."""
    loader.switch("ray")
    batches = list(loader)
    until(lambda: all(node.workers for node in loader.nodes if not node.is_ours), loader)
    before = {node.id: node.answered for node in loader.nodes}
    batches += list(loader)
    until(lambda: sum(node.answered for node in loader.nodes) >= len(batches), loader)

    def all_answered() -> bool:
        return all(node.answered > before[node.id] for node in loader.nodes if not node.is_ours)

    for _ in range(5):  # a node that is slow for a while may have had no batch of that epoch
        if not all_answered():
            list(loader)
    until(all_answered, loader)
    return batches


@pytest.mark.parametrize("kind", ["ImageFolder", "its own code"])
def test_the_files_are_sent_to_the_node_that_does_not_see_them(
    kind: str, joined: RunningCluster, make: Make, folder: Path
) -> None:
    def data() -> Any:
        return ImageFolder(folder, augmented()) if kind == "ImageFolder" else Captioned(folder)

    torch.manual_seed(1)
    plain = make(dataset=data(), shuffle=True)
    expected = [*plain, *plain]
    torch.manual_seed(1)
    loader = make(dataset=data(), shuffle=True)
    found = on_both(loader)
    assert loader.decoded(0) == loader.decoded(1) == {"ray": 120}, loader.state()["status"]
    sighted, blind = joined.nodes
    assert {node.id: node.is_sent_files for node in loader.nodes if not node.is_ours} == {sighted: False, blind: True}
    note = str(loader.backends["ray"].note)
    assert note.count("the files are sent to it with each batch") == 1
    for one, other in zip(found, expected, strict=True):
        keys = range(2) if kind == "ImageFolder" else ("image", "caption", "index")
        for key in keys:
            same = torch.equal(one[key], other[key]) if isinstance(one[key], torch.Tensor) else one[key] == other[key]
            assert same
    assert [(counts["lost"], counts["doubled"]) for counts in loader.epochs()] == [(0, 0)] * 2


def test_a_file_that_is_missing_here_too(joined: RunningCluster, make: Make, folder: Path, tmp_path: Path) -> None:
    data = ImageFolder(folder, augmented())
    data.samples[70] = (str(folder / "0" / "gone.jpg"), 0)
    messages = []
    for backend in ("torchvision", "ray"):
        loader = make(dataset=data)
        loader.switch(backend)
        with pytest.raises(SampleError) as raised:
            list(loader)
        messages.append(str(raised.value))
        assert raised.value.index == 70
        loader.release()
    assert messages[0] == messages[1]


def test_forced_and_forbidden(joined: RunningCluster, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor.configure(send_files=True)
    loader = make()
    on_both(loader)
    assert [node.is_sent_files for node in loader.nodes if not node.is_ours] == [True, True]
    loader.release()
    monitor.configure(send_files=False)
    loader = make()
    loader.switch("ray")
    assert len(list(loader)) == 30
    until(lambda: any(node.reason for node in loader.nodes), loader)
    reason = next(node.reason for node in loader.nodes if node.reason)
    assert reason.startswith("it does not see the data set's files; share the folder")
    monitor.configure(send_files="auto")
    assert ray_cluster.Chosen.send_files is None


def test_a_data_set_whose_files_cannot_be_sent(joined: RunningCluster, make: Make, folder: Path) -> None:
    """Its samples are computed where the files are."""
    expected = list(make(dataset=Opaque(folder)))
    loader = make(dataset=Opaque(folder))
    loader.switch("ray")
    found = list(loader)
    assert all(torch.equal(one["image"], other["image"]) for one, other in zip(found, expected, strict=True))
    assert loader.decoded() == {"ray": 120}, loader.state()["status"]
    until(lambda: any(node.reason for node in loader.nodes), loader)
    (left_out,) = [node for node in loader.nodes if node.reason]
    assert left_out.id == joined.nodes[1]
    assert left_out.reason == (
        "it does not see the data set's files; share the folder: they cannot be sent to nodes, as Opaque works on the "
        "pixels itself (__rsub__)"
    )


def test_a_file_that_only_nodes_lack(joined: RunningCluster, make: Make, folder: Path) -> None:
    """What no probe can show: the loop goes on where the file is, and the cause is said."""
    data = Texts(folder)
    expected = list(make(dataset=data))
    joined.remove(joined.nodes[0])  # the one that sees them
    loader = make(dataset=data)
    loader.switch("ray")
    assert list(loader) == expected
    assert loader.backend == "torchvision"
    assert "is on this machine and not on a node" in loader.state()["status"]
    assert loader.decoded()["torchvision"] == 120
