"""Every file of the corpus: the same pixels or the same error on both engines, with and without workers."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import SwitchableLoader, switchable

from ..conftest import run_python, settle, switch_to
from .corpus import Case, cases, jpeg, picture

CASES = {case.name: case for case in cases()}
ENGINES = [("torchvision", 0), ("torchvision", 2), ("dali-cpu", 0), ("dali-cpu", 2), ("threads", 0)]
LIMIT = 120  # s; nothing here takes a tenth of it unless something hangs
# Mean difference of floats that DALI and Pillow may have: with a resize half a grey level, without only a rounding.
TOLERANCE = {"crop and resize": 0.5 / 255, "crop": 1e-7}

Outcome = torch.Tensor | tuple[int, str, str, str]
Ran = dict[Any, Any]  # the outcomes by engine, and the tolerance


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Raise in this thread, wherever it waits, when the time is up."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"still waiting after {seconds} s")

    former = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def wrapped(root: Path, chain: Any, backend: str, **options: Any) -> SwitchableLoader:
    """A loader of the corpus, in its order, on a backend."""
    on_error = options.pop("on_error", "raise")
    (root / "class").mkdir(exist_ok=True)
    Image.new("RGB", (9, 9)).save(root / "class" / "first.png")
    dataset = ImageFolder(root, chain)
    # Listed by hand: ImageFolder passes over what it does not know by its suffix.
    dataset.samples = [(str(root / "corpus" / name), number) for number, name in enumerate(CASES)]
    loader = switchable(DataLoader(dataset, **options), seed=3, on_error=on_error)
    switch_to(loader, backend)
    return loader


def cropped() -> v1.Compose:
    """A chain that begins with a crop: DALI decodes only the region."""
    return v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])


def centred() -> v1.Compose:
    return v1.Compose([v1.CenterCrop(24), v1.ToTensor()])


CHAINS = {"crop and resize": cropped, "crop": centred}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "corpus").mkdir()
    for case in CASES.values():
        case.write(root / "corpus" / case.name)
    return root


def outcomes(loader: SwitchableLoader) -> list[Outcome]:
    """What became of every sample of an epoch, in order; the loader has batches of one."""
    found: list[Outcome] = []
    iterator = iter(loader)
    while len(found) < len(CASES):
        try:
            images, targets = next(iterator)
            assert targets.tolist() == [len(found)]
            found.append(images[0])
        except SampleError as error:
            found.append((error.index, error.path, str(error), type(error.__cause__).__name__))
    assert next(iterator, None) is None
    return found


@pytest.fixture(scope="module", params=CHAINS)
def ran(root: Path, request: pytest.FixtureRequest) -> Ran:
    found: dict[Any, Any] = {"tolerance": TOLERANCE[request.param]}
    with warnings.catch_warnings(), no_longer_than(LIMIT):
        warnings.simplefilter("ignore")  # Pillow's, about the files
        for backend, workers in ENGINES:
            loader = wrapped(root, CHAINS[request.param](), backend, batch_size=1, num_workers=workers)
            found[backend, workers] = outcomes(loader)
            if backend != "torchvision":
                assert loader.backend == backend
                assert (
                    loader.decoders()
                    == [backend if case.dali else "torchvision" for case in CASES.values() if case.readable]
                    or workers
                )
                unread = {fallback.path for fallback in loader.fallbacks()}
                names = {str(root / "corpus" / name) for name, case in CASES.items() if case.readable and not case.dali}
                assert unread == names or workers
            loader.release()
    return found


def test_the_corpus_is_large_enough() -> None:
    assert len(CASES) >= 100
    assert sum(not case.readable for case in CASES.values()) >= 30


@pytest.mark.parametrize("name", CASES, ids=ascii)
def test_all_engines_do_the_same(ran: Ran, root: Path, name: str) -> None:
    number, case, path = list(CASES).index(name), CASES[name], str(root / "corpus" / name)
    expected = ran["torchvision", 0][number]
    assert isinstance(expected, torch.Tensor) == case.readable, expected
    for engine in ENGINES[1:]:
        found = ran[engine][number]
        if isinstance(expected, torch.Tensor):
            assert isinstance(found, torch.Tensor), (engine, found)
            bound = 0 if engine[0] == "torchvision" or not case.dali else ran["tolerance"]
            assert (expected - found).abs().mean() <= bound, engine
        else:
            assert found == expected, engine
            assert expected[:2] == (number, path)
            assert f"sample {number}, {path}" in expected[2]


@pytest.mark.parametrize(("backend", "workers"), ENGINES)
def test_what_cannot_be_read_is_skipped_and_listed(root: Path, backend: str, workers: int, ran: Ran) -> None:
    with warnings.catch_warnings(), no_longer_than(LIMIT):
        warnings.simplefilter("ignore")
        loader = wrapped(root, cropped(), backend, batch_size=4, num_workers=workers, on_error="skip")
        targets = torch.cat([targets for _, targets in loader]).tolist()
        skipped = [(one.index, one.path, f"sample {one.index}, {one.path}: {one.reason}") for one in loader.skipped()]
        loader.release()
    assert targets == [number for number, case in enumerate(CASES.values()) if case.readable]
    assert skipped == [one[:3] for one in ran["torchvision", 0] if not isinstance(one, torch.Tensor)]


# Root may read everything by two capabilities (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH); a program that is started
# after they were dropped (PR_CAPBSET_DROP) has root's name only, and can still read the interpreter in root's home.
WITHOUT_POWERS = """
import ctypes, os, sys

if os.getuid() == 0:
    for capability in (1, 2):
        assert ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-W", "ignore", *sys.argv[1:]])
"""

UNREADABLE = """
import sys, time
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from kernel_monitor.errors import SampleError
from kernel_monitor.loaders import switchable

root = sys.argv[1]
chain = T.Compose([T.Resize((8, 8)), T.ToTensor()])
for backend, workers in (("torchvision", 0), ("torchvision", 2), ("dali-cpu", 2), ("dali-cpu", 0)):
    loader = switchable(DataLoader(ImageFolder(root, chain), batch_size=1, num_workers=workers))
    loader.switch(backend)
    while workers == 0 and loader.switch_state.preparing is not None:
        time.sleep(0.01)
    iterator = iter(loader)
    while True:
        try:
            print(len(next(iterator)[1]))
        except StopIteration:
            break
        except SampleError as error:
            print(error.index, error.path, error)
    loader.release()
"""


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(3):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(jpeg())
    path = tmp_path / "class" / "1.jpg"
    path.chmod(0)
    ran = run_python("-c", WITHOUT_POWERS, "-c", UNREADABLE, tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    message = f"sample 1, {path}: PermissionError: [Errno 13] Permission denied: '{path}'"
    assert ran.stdout.splitlines() == ["1", f"1 {path} {message}", "1"] * 4


def replaced(path: Path, kind: str) -> None:
    if kind == "vanished":
        path.unlink()
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "text":
        path.write_text("not an image")
    else:
        status = path.stat()
        content = path.read_bytes()
        damaged = content[:20] + bytes(len(content) - 20)
        if kind == "same size and time, in place":
            path.write_bytes(damaged)
        else:
            path.with_suffix(".new").write_bytes(damaged)
            path.with_suffix(".new").rename(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "kind", ["vanished", "pipe", "folder", "text", "same size and time, in place", "same size and time, another file"]
)
def test_a_file_replaced_between_epochs_is_noticed(tmp_path: Path, kind: str, workers: int) -> None:
    (tmp_path / "class").mkdir()
    for number in range(6):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(jpeg(picture(height=40 + number)))
    found = []
    for backend in ("torchvision", "dali-cpu"):
        shutil.copytree(tmp_path / "class", tmp_path / backend / "class")
        path = tmp_path / backend / "class" / "2.jpg"
        dataset = ImageFolder(tmp_path / backend, centred())
        loader = DataLoader(dataset, batch_size=2, num_workers=workers, persistent_workers=workers > 0)
        driven = switchable(loader, seed=1)
        driven.switch(backend)
        with no_longer_than(LIMIT):
            for _ in range(2):  # the second epoch is wholly of this backend
                assert sum(len(targets) for _, targets in driven) == 6
                settle(driven)
            assert set(driven.decoded()) == {backend}
            replaced(path, kind)
            with pytest.raises(SampleError) as caught:
                list(driven)
            driven.release()
        found.append((caught.value.index, str(caught.value).replace(backend, "")))
    assert found[0] == found[1]
    assert found[0][0] == 2


def test_a_file_mended_between_epochs_goes_to_dali_again(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    path = tmp_path / "class" / "0.jpg"
    path.write_bytes(jpeg(picture("CMYK")))
    loader = switchable(DataLoader(ImageFolder(tmp_path, centred()), num_workers=0))
    switch_to(loader, "dali-cpu")
    list(loader)
    assert loader.decoded() == {"torchvision": 1}
    path.write_bytes(jpeg())
    list(loader)
    assert loader.decoded() == {"dali-cpu": 1}


def test_cases_are_named_once() -> None:
    everything: list[Case] = cases()
    assert len(everything) == len({case.name for case in everything})
