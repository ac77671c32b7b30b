"""`switchable` goes through its modules once: one description of the loader is built and passed on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from kernel_monitor import loaders
from kernel_monitor.loaders import switchable

from .conftest import augmented, make_folder

PACKAGE = str(Path(loaders.__file__).parent)
MOST_RETURNS = (
    3  # to `loader` for its attributes, `orders` for the order after the keys, `engine` for where a rest runs
)


@contextmanager
def calls_between_modules() -> Iterator[list[str]]:
    """Give the modules of the package in the order in which calls enter them from others, each run of one as one.

    Every call counts, also those of small helpers and of generators, but not the resumptions of a generator.
    """
    entered: list[str] = []
    stack: list[str] = []

    def profile(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event not in ("call", "return") or not name.startswith(PACKAGE):
            return
        module = name.removeprefix(PACKAGE)
        if event == "return":
            if stack:
                stack.pop()
            return
        resumed = frame.f_lasti > 2 and frame.f_code.co_flags & 0x20
        if not resumed and stack[-1:] != [module] and entered[-1:] != [module]:
            entered.append(module)
        stack.append(module)

    sys.setprofile(profile)
    try:
        yield entered
    finally:
        sys.setprofile(None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), 8)


def test_few_modules_are_entered_again(folder: Path) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(ImageFolder(folder, augmented()), batch_size=4, num_workers=2)

    switchable(make())  # what is imported late, is
    loader = make()
    with calls_between_modules() as entered:
        kept = switchable(loader)  # its end would be seen, too
    returns = len(entered) - len(set(entered))
    print(f"{len(entered)} stops in {len(set(entered))} modules, {returns} returns:", *entered)
    assert entered[0] == "/switchable.py"
    assert kept.backend == "torchvision"
    assert returns <= MOST_RETURNS, entered
