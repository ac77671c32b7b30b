"""To look at a data set, a sampler, a transform or a collate function never raises and changes nothing: whatever fails
meanwhile turns engines grey, and `torchvision` delivers what plain torch does.
"""

from __future__ import annotations

import enum
import gc
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor import switchable
from kernel_monitor.errors import BackendUnavailable
from kernel_monitor.loaders.data.fingerprint import fingerprint

from ..conftest import switch_to
from ..photos import FIXED, Photos
from .datasets import equal

SIZE = 12

pytestmark = pytest.mark.usefixtures("without_dali")


class Rows(dict[str, Any]):
    """As Hugging Face's `Features`: a dict with methods of its own that use NumPy."""

    def arrays(self) -> list[Any]:
        return [np.array(value) for value in self.values()]


class Names(list[str]):
    def arrays(self) -> Any:
        return np.array(self)


class Word(str):
    __slots__ = ("__dict__",)

    def array(self) -> Any:
        return np.array([self])


class Pair(tuple[int, ...]):
    __slots__ = ()

    def array(self) -> Any:
        return np.array(self)


class Meta(torch.Tensor):
    """As MONAI's `MetaTensor`."""

    def plain(self) -> Any:
        return np.array(self)


class Labelled(np.ndarray[Any, Any]):
    def plain(self) -> Any:
        return np.array(self)


class Colour(enum.Enum):
    RED = 1

    def array(self) -> Any:
        return np.array(self.value)


class Slotted:
    __slots__ = ("__weakref__", "generator", "unset")

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def array(self) -> Any:
        return np.array(1)


class Final:
    """Its class cannot be derived from."""

    def __init__(self) -> None:
        self.transform = FIXED

    def __init_subclass__(cls) -> None:
        raise TypeError("final")


class _Registering(type):
    made: ClassVar[list[str]] = []

    def __new__(mcs, name: str, bases: Any, members: Any) -> Any:
        _Registering.made.append(name)
        return super().__new__(mcs, name, bases, members)


class Registered(metaclass=_Registering):
    def __init__(self) -> None:
        self.transform = FIXED


class _Hostile(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__mro__", "__dict__", "__del__", "__getitem__", "image_file"):
            raise RuntimeError("a hostile metaclass")
        return super().__getattribute__(name)

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("a hostile metaclass")


class HostileKind(metaclass=_Hostile):
    def __init__(self) -> None:
        self.inner = 1


class Raising:
    def __init__(self) -> None:
        self.inner = FIXED

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def _raise(self, *_: object) -> Any:
        raise ValueError("not to be asked")

    value = property(_raise)
    __len__ = __bool__ = __iter__ = __eq__ = __hash__ = __reduce__ = __reduce_ex__ = _raise
    __copy__ = __deepcopy__ = __getstate__ = __repr__ = __str__ = _raise


class Guarded:
    """Not even its class may be asked, as of a lazy object that would be made then."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is not to be asked")


class Classless:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("a class of its own")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class Boxed:
    """Its attributes are no dictionary."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no attributes")


class Loading(Mapping[str, Any]):
    """Loads its values, which takes long: an index of files, or a database."""

    def __getitem__(self, key: str) -> Any:
        raise OSError("the database is not there")

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class Stepping(list[int]):
    """Every look at it moves it on."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()


def circle() -> Any:
    one = Holder(None)
    one.held = [one, {"again": one}]
    return one


def deep() -> Any:
    found: list[Any] = []
    for _ in range(5000):
        found = [found]
    return found


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


HELD: dict[str, Callable[[], Any]] = {
    "dict": lambda: Rows(a=1),
    "list": lambda: Names(["a"]),
    "str": lambda: Word("a"),
    "tuple": lambda: Pair((1, 2)),
    "tensor": lambda: torch.ones(2).as_subclass(Meta),
    "array": lambda: np.ones(2).view(Labelled),
    "enum": lambda: Colour.RED,
    "slots": Slotted,
    "final": Final,
    "registered": Registered,
    "in C": lambda: re.compile("a").finditer("aa"),
    "metaclass": HostileKind,
    "raising": Raising,
    "guarded": Guarded,
    "classless": Classless,
    "boxed": Boxed,
    "loading": Loading,
    "circle": circle,
    "deep": deep,
}


class Numbers(Dataset[Any]):
    """Holds something odd, and gives numbers."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.in_list = [held]
        self.in_holder = Holder(held)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return np.array([index, index + 1]), index


class Batches(Numbers):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


def alike(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(equal, one, other))


@pytest.mark.parametrize("kind", [Numbers, Batches])
@pytest.mark.parametrize("held", HELD)
def test_whatever_a_data_set_holds(held: str, kind: Any) -> None:
    registered = list(_Registering.made)
    for options in ({}, {"dry_run": False}, {"seeded": False}):
        data = kind(HELD[held]())
        loader = switchable(DataLoader(data, 5, shuffle=True), **options)  # type: ignore[arg-type]
        torch.manual_seed(1)
        ours = [batch for _ in range(2) for batch in loader]
        torch.manual_seed(1)
        plain = DataLoader(kind(HELD[held]()), 5, shuffle=True)
        assert alike(ours, [batch for _ in range(2) for batch in plain])
        assert not loader.backends["dali-cpu"].available
        assert loader.backend == "torchvision"
        assert loader.state()["lost"] == 0
    assert _Registering.made == registered


@pytest.mark.parametrize("held", ["dict", "tensor", "metaclass", "raising", "guarded", "deep"])
def test_workers_too(held: str) -> None:
    data = Numbers(HELD[held]())
    loader = switchable(DataLoader(data, 5, num_workers=2))
    plain = DataLoader(data, 5)
    for _ in range(2):
        assert alike(list(loader), list(plain))


def test_the_reason_names_what_was_raised(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        loader = switchable(DataLoader(Numbers(HostileKind()), 5))
    reason = str(loader.backends["dali-cpu"].reason)
    assert reason == "Numbers cannot be examined (RuntimeError: a hostile metaclass)."
    with pytest.raises(BackendUnavailable, match="hostile metaclass"):
        loader.switch("dali-cpu")
    assert "cannot be examined" in caplog.text
    assert "a hostile metaclass" in caplog.text


class Holding(Photos):
    def __init__(self, folder: Path, held: Any) -> None:
        super().__init__(sorted(folder.rglob("*.jpg"))[:SIZE])
        self.held = held


@pytest.mark.parametrize("held", sorted(HELD.keys() - {"metaclass", "boxed", "deep"}))
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_dali_serves_what_can_be_followed_beside_it(held: str, folder: Path) -> None:
    loader = switchable(DataLoader(Holding(folder, HELD[held]()), 4))
    assert loader.backends["dali-cpu"].available, loader.backends["dali-cpu"].reason


class Ending(Holding):
    """Closes its file at its end, as Hugging Face's data sets and those over HDF5 do."""

    closed = 0

    def __del__(self) -> None:
        Ending.closed += 1


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_what_a_data_set_does_at_its_end_is_done_once(folder: Path) -> None:
    data = Ending(folder, None)
    loader = switchable(DataLoader(data, 4))
    assert "cannot be tried on a copy of it, because of its __del__" in str(loader.backends["dali-cpu"].reason)
    list(loader)
    gc.collect()
    assert Ending.closed == 0
    del loader, data
    gc.collect()
    assert Ending.closed == 1


class Handle:
    """A database that is opened at the first sample, in the process that reads it."""

    def __init__(self) -> None:
        self.file: Any = None

    def path(self, path: Path) -> Path:
        if self.file is None:
            self.file = path.open("rb")
        return path


class Lazy(Holding):
    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.held is not None:
            self.held.path(self.paths[index])
        elif self.file is None:
            self.file = self.paths[index].open("rb")
        return super().__getitem__(index)


@pytest.mark.parametrize("held", [None, Handle], ids=["itself", "a helper"])
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_what_is_opened_at_the_first_sample_is_not_opened_here(folder: Path, held: Any) -> None:
    data = Lazy(folder, None if held is None else held())
    loader = switchable(DataLoader(data, 4, num_workers=1))
    list(loader)
    assert (data.file if held is None else data.held.file) is None
    source = loader.pool.setting.keyed.source
    assert (source.dataset.file if held is None else source.dataset.held.file) is None


class Circular(v1.Compose):
    """Holds itself: to take it apart does not end."""


def circular() -> Any:
    made = v1.Compose([FIXED])
    made.transforms.append(v1.RandomApply([made], p=0.0))
    return made


class Touchy:
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __call__(self, image: Any) -> Any:
        return FIXED(image)


class HostileTransform(metaclass=_Hostile):
    def __call__(self, image: Any) -> Any:
        return FIXED(image)


@pytest.mark.parametrize("transform", [circular, Touchy, HostileTransform])
def test_a_transform_that_cannot_be_taken_apart(folder: Path, transform: Any) -> None:
    loader = switchable(DataLoader(ImageFolder(folder, transform()), 50))
    assert alike(list(loader), list(DataLoader(ImageFolder(folder, transform()), 50)))
    if transform is circular:
        assert "The transform cannot be examined (RecursionError" in str(loader.backends["dali-cpu"].reason)


def test_a_collate_function_that_cannot_be_searched() -> None:
    held = HostileKind()

    def collate(samples: list[Any]) -> Any:
        return held.inner, samples

    data = Numbers(None)
    loader = switchable(DataLoader(data, 5, collate_fn=collate), dali=lambda sample: sample.encoded)
    assert [len(samples) for _, samples in loader] == [5, 5, 2]
    assert "collate function cannot be examined" in str(loader.pool.setting.refusal)


class Drawing(Sampler[int]):
    """Answers no question but the one for its order."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(SIZE, generator=self.generator).tolist())

    def __len__(self) -> int:
        raise ValueError("not known")

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def state_dict(self) -> Any:
        raise OSError("not now")

    def load_state_dict(self, state: Any) -> None:
        raise OSError("not now")


def listed(loader: Any) -> list[Any]:
    """Without a look at its length, which `list` would take."""
    return list(batch for batch in loader)  # noqa: C400


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_may_not_be_asked(workers: int) -> None:
    loader = switchable(DataLoader(Numbers(None), 5, sampler=Drawing(), num_workers=workers))
    plain = DataLoader(Numbers(None), 5, sampler=Drawing())
    for _ in range(2):
        assert alike(listed(loader), listed(plain))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = listed(iterator)
    again = switchable(DataLoader(Numbers(None), 5, sampler=Drawing()))
    again.load_state_dict(state)
    assert alike(listed(again), rest)


class Lengthless(Numbers):
    def __len__(self) -> int:
        raise OSError("the index is not there yet")


def test_a_loader_that_cannot_be_described_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    """The sampler knows the order, so torch never asks for the length."""
    loader = switchable(DataLoader(Lengthless(None), batch_sampler=[[1, 2], [3]]))
    assert alike(list(loader), list(DataLoader(Lengthless(None), batch_sampler=[[1, 2], [3]])))
    reason = "The loader cannot be examined (OSError: the index is not there yet)."
    assert loader.backends["dali-cpu"].reason == reason
    assert "the index is not there yet" in caplog.text
    with pytest.raises(BackendUnavailable, match="is not there yet"):
        loader.switch("dali-cpu")


def test_an_interrupt_is_none_of_ours() -> None:
    class Interrupting(Numbers):
        def __len__(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        switchable(DataLoader(Interrupting(None), batch_sampler=[[1]]))


def test_a_class_that_turns_odd_between_two_epochs(folder: Path) -> None:
    data = ImageFolder(folder, FIXED)
    loader = switchable(DataLoader(data, 100))
    first = list(loader)
    data.transform = circular()
    assert alike(list(loader), first)
    assert "cannot be examined" in str(loader.backends["dali-cpu"].reason)
    data.transform = FIXED
    assert alike(list(loader), first)
    assert loader.backends["dali-cpu"].available
    switch_to(loader, "dali-cpu")


def test_a_copy_of_what_cannot_be_described_is_no_change() -> None:
    held, deep_one = Raising(), deep()
    one, other = Numbers(held), Numbers(held)
    one.held = other.held = deep_one
    one.in_list, other.in_list = [1], [1]
    one.in_holder = other.in_holder = Holder(1)
    assert fingerprint(one) == fingerprint(other)
    other.in_list = [2]
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(HostileKind())


def test_a_look_moves_nothing_on() -> None:
    held = Stepping([1, 2])
    loader = switchable(DataLoader(Numbers(held), 5))
    list(loader)
    assert held.looks == 0


def resized(examples: Any) -> Any:
    return {**examples, "image": [FIXED(image.convert("RGB")) for image in examples["image"]]}


def of_hugging_face(folder: Path, in_place: bool) -> Any:
    from datasets import Dataset as Table
    from datasets import Image as ImageColumn

    paths = [str(path) for path in sorted(folder.rglob("*.jpg"))[:SIZE]]
    made = Table.from_dict({"image": paths, "label": list(range(SIZE))}).cast_column("image", ImageColumn())
    if not in_place:
        return made.with_transform(resized)
    made.set_transform(resized)
    return made


def of_monai(cached: bool) -> Any:
    from monai import data, transforms

    chain = transforms.Compose([transforms.EnsureType(), transforms.ScaleIntensity()])
    rows = [np.random.default_rng(k).random((1, 6, 6), dtype=np.float32) for k in range(SIZE)]
    return data.CacheDataset(rows, chain, progress=False) if cached else data.Dataset(rows, chain)


REAL: dict[str, Callable[[Path], Any]] = {
    "Hugging Face, with_transform": lambda folder: of_hugging_face(folder, in_place=False),
    "Hugging Face, set_transform": lambda folder: of_hugging_face(folder, in_place=True),
    "MONAI, Dataset": lambda _: of_monai(cached=False),
    "MONAI, CacheDataset": lambda _: of_monai(cached=True),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("made", REAL)
def test_data_sets_of_other_frameworks(made: str, workers: int, folder: Path) -> None:
    for options in ({}, {"dry_run": False}, {"seeded": False}):
        given: dict[str, Any] = {"batch_size": 5, "shuffle": True, "num_workers": workers}
        loader = switchable(DataLoader(REAL[made](folder), **given), **options)  # type: ignore[arg-type]
        torch.manual_seed(1)
        ours = [batch for _ in range(2) for batch in loader]
        torch.manual_seed(1)
        plain = DataLoader(REAL[made](folder), **given)
        assert alike(ours, [batch for _ in range(2) for batch in plain])
        learnt = made.startswith("Hugging Face") and not options
        assert loader.backends["dali-cpu"].available == learnt
        loader.release()
