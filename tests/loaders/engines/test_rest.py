"""What DALI cannot do of a chain runs in worker processes beside it, with the plan's numbers; or `dali-cpu` is grey."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler, default_collate, get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable
from kernel_monitor.loaders.engines import backends
from kernel_monitor.loaders.transforms.program import share
from kernel_monitor.loaders.transforms.translate import translate

from ..conftest import augmented, dali_begins, make_folder, set_cores, settle, violent

RAND = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.RandAugment(), v1.ToTensor()])
FILES = 40
BAR = 1.0 / 255  # mean difference: posterize may make 16 of 1 in single images


def where(batch: list[Any]) -> Any:
    """The batch, and in which process it was put together."""
    return *default_collate(batch), os.getpid(), get_worker_info() is not None


def minus(label: int) -> int:
    return -label


class Counted(RandomSampler):
    """How many samples were drawn that were not delivered yet, at most."""

    drawn = delivered = most = 0

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            self.drawn += 1
            self.most = max(self.most, self.drawn - self.delivered)
            yield index


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than workers, whatever the machine has."""
    set_cores(monkeypatch, 8)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = make_folder(tmp_path / "photos", FILES, seed=8)
    Image.open(root / "class_0" / "0000.jpg").convert("CMYK").save(root / "class_0" / "0000.jpg")
    return root


def epoch(loader: SwitchableLoader, sampler: Counted, number: int) -> tuple[torch.Tensor, torch.Tensor, set[int]]:
    """One epoch's images, targets and processes."""
    loader.set_epoch(number)
    images, targets, pids = [], [], set()
    for image, target, pid, in_worker in loader:
        sampler.delivered += len(target)
        assert in_worker
        images.append(image)
        targets.append(target)
        pids.add(pid)
    return torch.cat(images), torch.cat(targets), pids


@violent
def test_what_remains_runs_in_workers_as_it_does_on_torchvision(files: Path) -> None:
    dataset = ImageFolder(files, RAND)
    sampler = Counted(dataset, generator=torch.Generator().manual_seed(3))
    loader = switchable(DataLoader(dataset, 4, sampler=sampler, num_workers=2, collate_fn=where), seed=1)
    try:
        state = sampler.generator.get_state()
        expected, targets, _ = epoch(loader, sampler, 0)
        loader.switch("dali-cpu")
        settle(loader)
        assert "dali-cpu failed" not in loader.switch_state.status

        sampler.generator.set_state(state)
        sampler.most = 0
        images, labels, pids = epoch(loader, sampler, 0)
        assert loader.backend == "dali-cpu"
        assert torch.equal(labels, targets)
        assert (images - expected).abs().mean(dim=(1, 2, 3)).median() <= BAR
        assert (images - expected).abs().mean() <= 4 * BAR
        assert loader.decoded() == {"dali-cpu": FILES - 1, "torchvision": 1}
        (fallback,) = loader.fallbacks()
        assert fallback.path.endswith("0000.jpg")
        assert len(pids) == 2
        assert pids <= set(loader.worker_pids)
        assert os.getpid() not in pids
        assert sampler.most <= 4 * 4 + 4  # two workers with two batches each, and the one that is being delivered

        # in the middle of an epoch, there and back
        loader.set_epoch(1)
        delivered = []
        for number, batch in enumerate(loader):
            sampler.delivered += len(batch[1])
            delivered += batch[1].tolist()
            if number == 2:
                loader.switch("torchvision")
            elif number == 5:
                loader.switch("dali-cpu")
                settle(loader)
        assert delivered == [dataset.samples[index][1] for index in loader.plan()]
        counts = loader.state()
        assert (counts["lost"], counts["doubled"]) == (0, 0)
        assert {"torchvision", "dali-cpu"} <= set(loader.decoders())

        # what is changed between epochs is seen, as plain torch without persistent workers sees it
        dataset.target_transform = minus
        sampler.generator.set_state(state)
        _, labels, after = epoch(loader, sampler, 0)
        assert torch.equal(labels, -targets)
        assert not after & pids

        # a file that nobody can read is named, and the engine goes on
        (files / "class_1" / "0001.jpg").unlink()
        with pytest.raises(SampleError, match=r"0001\.jpg"):
            epoch(loader, sampler, 2)
        (files / "class_1" / "0001.jpg").write_bytes((files / "class_1" / "0004.jpg").read_bytes())
        _, labels, _ = epoch(loader, sampler, 3)
        assert len(labels) == FILES
        assert loader.backend == "dali-cpu"

    finally:
        loader.release()
    assert not loader.worker_pids


def of(files: Path, transform: Any, workers: int = 2) -> Any:
    loader = switchable(DataLoader(ImageFolder(files, transform), 4, num_workers=workers))
    try:
        return loader.backends["dali-cpu"], loader.state()["backends"][1]
    finally:
        loader.release()


class Opaque:
    """An object that does more than it holds."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        return self.transforms(image).clamp(0, 1)


def test_a_swap_that_could_only_be_slower_is_grey(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of(files, Opaque(RAND))[0].available  # traces see into it
    backend, told = of(files, Opaque(v1.Compose([v1.RandAugment(), v1.ToTensor()])))
    assert not backend.available
    assert backend.reason is not None
    assert backend.reason.startswith("DALI would only decode")
    assert "Opaque (transform 1 of 1)" in backend.reason
    assert told["note"] is None

    dali_begins()
    lock = threading.Lock()  # the fork server has not inherited it

    def local(image: Any) -> Any:
        with lock:
            return image

    backend, _ = of(files, v1.Compose([v1.RandomResizedCrop(32), local, v1.ToTensor()]))
    assert not backend.available
    assert "local (transform 2 of 3)" in str(backend.reason)
    assert "cannot pickle '_thread.lock' object" in str(backend.reason)
    set_cores(monkeypatch, 2)
    backend, told = of(files, RAND)
    crowded = "It may be slower here: 2 workers, 2 threads and the training loop share 2 cores. Tune measures it."
    assert backend.available
    assert told["note"].endswith(f"RandAugment and 1 more run in the loader's workers. {crowded}")
    jitter = v1.Compose([v1.RandomResizedCrop(32), v1.ColorJitter(0.2), v1.ToTensor()])
    costly = "It may be slower here: ColorJitter takes DALI several times the CPU time that Pillow takes."
    assert of(files, jitter)[1]["note"] == costly
    assert of(files, jitter, workers=0)[1]["note"] is None
    # without workers the wrapped loader works on this thread as well
    for chain in (Opaque(RAND), v1.Compose([v1.RandomResizedCrop(32), local, v1.ToTensor()])):
        assert of(files, chain, workers=0)[0].available


def test_a_torch_whose_workers_cannot_be_given_single_batches_makes_it_grey(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "CAN_OFFER", False)
    backend, _ = of(files, RAND)
    assert f"PyTorch {torch.__version__} cannot give single batches to workers" in str(backend.reason)
    assert of(files, RAND, workers=0)[0].available
    assert of(files, augmented())[0].available


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (RAND, "DALI decodes and does RandomResizedCrop, RandomHorizontalFlip; RandAugment and 1 more run in the"),
        (v1.Compose([abs]), "DALI only decodes; abs runs in the"),
        (v1.Compose([v1.CenterCrop(9)]), "DALI decodes and does CenterCrop; what makes a batch of it runs in the"),
    ],
)
def test_the_note_says_what_remains(chain: Any, said: str) -> None:
    assert share(translate(chain), "in the loader's workers", "DALI") == f"{said} loader's workers."


def test_the_state_has_the_note_and_a_whole_chain_has_none(files: Path) -> None:
    assert of(files, RAND)[1]["note"].endswith("RandAugment and 1 more run in the loader's workers.")
    assert of(files, RAND, workers=0)[1]["note"].endswith("on the thread of the training loop.")
    assert of(files, augmented())[1]["note"] is None


def test_the_note_follows_the_number_of_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_cores(monkeypatch, 2)
    chain = v1.Compose([v1.RandomResizedCrop(24), v1.RandAugment(), v1.ToTensor()])
    loader = switchable(DataLoader(ImageFolder(folder, chain), batch_size=8))
    found = [loader.backends["dali-cpu"].note]
    for workers in (2, 0):
        loader.num_workers = workers
        next(iter(loader))
        found.append(loader.backends["dali-cpu"].note)
    assert ["slower" in str(note) for note in found] == [False, True, False]
