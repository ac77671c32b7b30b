"""Data sets whose classes are defined in a notebook's cells, and cells that are run again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .kernels import Page, SharedKernel

NEWEST_ONLY = True

IMPORTS = """
import collections, dataclasses, enum, functools, gc, os, random, sys, tempfile, time, typing
from random import randint
from pathlib import Path
import numpy as np, psutil, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2
from kernel_monitor import switchable
from kernel_monitor.loaders.switchable import live

folder = Path(tempfile.mkdtemp())
for _number in range(24):
    _pixels = np.random.default_rng(_number).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(_pixels).save(folder / f"{_number:02}.jpg")

def settle(loader, name):
    loader.switch(name)
    until = time.monotonic() + 60
    while loader.switch_state.preparing is not None and time.monotonic() < until:
        time.sleep(0.01)

def with_two(loader):
    # The first epoch again, by two workers that are not forked.
    loader.set(workers=2)
    settle(loader, "torchvision")
    until = time.monotonic() + 60
    while len(loader.worker_pids) != 2 and time.monotonic() < until:
        list(loader)
    list(loader)
    loader.set_epoch(0)
    return list(loader)

def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Sample):
        return equal(list(vars(one).values()), list(vars(other).values()))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other
"""
CLASSES = """
class Kind(enum.Enum):
    EVEN = 0
    ODD = 1

Pair = collections.namedtuple("Pair", "first second")

@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    kind: Kind
    pair: Pair
    drawn: tuple = ()
    counted: int = 0

class Odd(ValueError):
    pass

scale = 10
cache = {}
generator = np.random.default_rng(3)  # also the name of an attribute
transform = v2.ToImage()  # the name of an attribute, and another transform

def kind_of(index):
    return named(index)

Index = typing.NewType("Index", int)

@functools.lru_cache
def named(index: Index):
    return Kind(index % 2)

def adder(amount):
    def add(value):
        return value * scale + amount
    return add

class Files(Dataset):
    suffix = ".jpg"
    fails = None

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*" + self.suffix))

    def __len__(self):
        return len(self.paths)

class Photos(Files):
    def __init__(self, folder):
        super().__init__(folder)
        self.add = adder(0.5)
        self.double = lambda value: 2 * value
        self.transform = v2.Compose([v2.RandomResizedCrop(16), v2.RandomHorizontalFlip(), v2.ToImage()])

    def __len__(self):
        return super().__len__()

    def __getitem__(self, index):
        if index == self.fails:
            raise Odd(index)
        image = self.transform(Image.open(self.paths[index]).convert("RGB"))
        drawn = (randint(0, 10**9), generator.random(), float(torch.rand(())), np.random.rand())
        return Sample(image, kind_of(index), Pair(self.double(index), self.add(index)), drawn)

class Counting(Photos):
    def __init__(self, folder):
        super().__init__(folder)
        self.generator = random.Random(5)

    @functools.cached_property
    def shown(self):
        return list(range(len(self)))[::-1]

    def __getitem__(self, index):
        cache[index] = cache.get(index, 0) + 1
        sample = super().__getitem__(self.shown[index])
        sample.counted = cache[index]
        sample.drawn += (self.generator.random(),)
        return sample

def made(kind):
    return switchable(DataLoader(kind(folder), 4, num_workers=1, collate_fn=lambda samples: samples), seed=3)

loader, counting = made(Photos), made(Counting)
"""

CELL = """
class Labelled(Dataset):
    @dataclasses.dataclass
    class Item:
        image: torch.Tensor
        label: int

    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.jpg"))
        self.transform = v2.Compose([v2.CenterCrop({size}), v2.ToImage()])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.Item(self.transform(Image.open(self.paths[index]).convert("RGB")), index + {label})

def listed(samples):
    return list(samples)

loader = switchable(DataLoader(Labelled(folder), 4, num_workers=1, collate_fn=listed))
delivered = list(loader)
"""


@pytest.fixture(scope="module")
def page(shared: SharedKernel) -> Iterator[Page]:
    with shared.fresh() as page:
        page.run(IMPORTS)
        yield page


def test_classes_of_cells_reach_workers_that_are_not_forked(page: Page) -> None:
    page.run(CLASSES)
    page.run(
        """
forked, counted = list(loader), list(counting)
settle(loader, "dali-cpu")
loader.set_epoch(0)
decoded = list(loader)
used = loader.decoded()
sent, counted_again = with_two(loader), with_two(counting)
grey = counting.backends["dali-cpu"].reason
counts = {sample.counted for batch in counted_again for sample in batch}
for sample in sum(counted + counted_again, []):
    sample.counted = 0
flat = [sample for batch in sent for sample in batch]
"""
    )
    assert page.value("used") == {"dali-cpu": 24}
    assert page.value("(loader.backend, loader.knobs.workers, len(loader.worker_pids))") == ("torchvision", 2, 2)
    assert page.value("[psutil.Process(pid).ppid() == os.getpid() for pid in loader.worker_pids]") == [False, False]
    assert page.value("equal(sent, forked)")
    assert "changes its own attributes" in page.value("grey")
    assert page.value("equal(counted_again, counted)")
    assert page.value("min(counts) > 1")  # the workers keep what a cell's function caches
    assert page.value("all(type(sample) is Sample and type(sample.pair) is Pair for sample in flat)")
    assert page.value("all(sample.kind is Kind(k % 2) for k, sample in enumerate(flat))")
    # DALI's samples are the same but for the images, whose pixels it may round otherwise.
    page.run("for batch in decoded + forked:\n    for sample in batch:\n        sample.image = None")
    assert page.value("equal(decoded, forked)")


def test_an_exception_of_a_cell_comes_back_as_itself(page: Page) -> None:
    page.run(
        """
loader.dataset.fails = 6
try:
    list(loader)
except Odd as error:
    raised = "Caught Odd in DataLoader worker process" in str(error)
loader.dataset.fails = None
"""
    )
    assert page.value("raised")


def test_a_cell_that_is_run_again_makes_a_loader_of_its_own(page: Page) -> None:
    page.run(
        """
def sizes(loader):
    return {tuple(item.image.shape[1:]) for batch in loader for item in batch}

def labels(loader):
    return [item.label for batch in loader for item in batch]

def kinds(loader):
    return {type(item) for batch in loader for item in batch}

def served(loader, kind, size, label):
    for name in ("torchvision", "dali-cpu", "torchvision"):
        settle(loader, name)
        assert kinds(loader) == {kind.Item} and loader.backend == name
        assert sizes(loader) == {(size, size)}
        assert labels(loader) == list(range(label, label + 24))
        assert loader.backends["dali-cpu"].available and not loader.fallbacks()
    return True
"""
    )
    page.run("loader = counting = None\ngc.collect()")
    assert page.value("len(live())") == 0
    page.run(CELL.format(size=16, label=0) + "\nold, Old = loader, Labelled")
    page.run(CELL.format(size=12, label=100))
    page.run("fine = Old is not Labelled and sizes(old) == {(16, 16)} and labels(old) == list(range(24))")
    assert page.value("fine")
    page.run("for each in (old, loader):\n    with_two(each)")  # that are not forked
    assert page.value("served(old, Old, 16, 0)")
    assert page.value("served(loader, Labelled, 12, 100)")
    assert page.value("served(old, Old, 16, 0)")
    assert page.value("len(live())") == 2
    page.run(
        """
pids = old.worker_pids
del old, each
gc.collect()
until = time.monotonic() + 20
while any(map(psutil.pid_exists, pids)) and time.monotonic() < until:
    time.sleep(0.05)
"""
    )
    assert page.value("(len(pids), any(map(psutil.pid_exists, pids)), len(live()))") == (2, False, 1)
    assert page.value("served(loader, Labelled, 12, 100)")
