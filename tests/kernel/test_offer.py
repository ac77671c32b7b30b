"""A faster engine is offered to a loop that waits for its data: over the control channel, while a cell runs it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loaders.conftest import make_folder

from ..waiting import until
from .kernels import Page, kernel

WAIT_S = 1.0
"""Instead of ten seconds."""
SETUP = """
%load_ext kernel_monitor
%monitor start --no-record
import time, torch
from pathlib import Path
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from kernel_monitor import monitor, switchable
from kernel_monitor.runtime import current_verdict
current_verdict.BOUND_S = {wait}

chain = transforms.Compose([*[transforms.RandomHorizontalFlip()] * 12, transforms.RandomResizedCrop(96),
                            transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.25,) * 3)])
data = ImageFolder({folder!r}, chain)
"""
WRAP = "loader = switchable(DataLoader(data, batch_size=8, shuffle=True, num_workers=0), name={name!r})"
TRAIN = """
until = time.monotonic() + 60
while time.monotonic() < until and not Path({file!r}).exists():
    for images, labels in loader:
        images.mean().item()
        if Path({file!r}).exists():
            break
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = make_folder(tmp_path_factory.mktemp("images"), 80)
    with kernel() as page:
        page.run(SETUP.format(folder=str(folder), wait=WAIT_S), timeout=120)
        page.rows()
        yield page


class Loop:
    """Runs a loop in a cell; the page looks at it."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self._folder = folder
        self._cells = 0

    def begin(self, name: str) -> str:
        """Wrap the loader anew and run the loop; returns the loader's id."""
        self.end()
        self._cells += 1
        self.page.run(WRAP.format(name=name))
        key: str = self.page.value("loader.id")
        self.page.start(TRAIN.format(file=str(self._file)))
        return key

    def end(self) -> None:
        self._file.touch()
        self.page.run("pass")

    @property
    def _file(self) -> Path:
        return self._folder / f"enough-{self._cells}"

    def offers(self, *, some: bool, seconds: float = 30.0) -> list[dict[str, Any]]:
        """What the page is told once there is something offered, or nothing any more."""
        until(lambda: bool(self.told()["offers"]) is some, seconds, lambda: self.told()["verdict"])
        return list(self.told()["offers"])

    def told(self) -> dict[str, Any]:
        """What a page that subscribes is told."""
        return self.page.ask("subscribe", client="one")

    def stays_without(self, seconds: float) -> None:
        """An input-bound loop to which nothing is offered for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.2)
            assert self.told()["offers"] == []
        assert self.told()["verdict"]["kind"] == "input-bound"


@pytest.fixture
def loop(page: Page, tmp_path: Path) -> Iterator[Loop]:
    made = Loop(page, tmp_path)
    yield made
    made.end()
    page.ask("unsubscribe", client="one")


def test_an_engine_is_offered_and_a_no_is_remembered_when_the_cell_is_run_again(loop: Loop) -> None:
    key = loop.begin("train")
    begun = time.monotonic()
    (one,) = loop.offers(some=True)
    assert time.monotonic() - begun >= WAIT_S
    assert (one["loader"], one["source"], one["engine"]) == (key, "torchvision", "dali-cpu")
    assert one["sentence"].startswith("dali-cpu is ready")
    frames = [frame["content"] for frame in loop.page.frames(0.5)]
    loop.page.ask("subscribe", client="two")  # another page is told the same
    assert loop.page.ask("subscribe", client="two")["offers"] == [one]
    assert frames
    assert loop.page.ask("decline", loader=key)["offers"] == []
    frames = [frame["content"] for frame in loop.page.frames(1.0)]
    assert [frame["offers"] for frame in frames if "offers" in frame][-1] == []
    loop.page.ask("unsubscribe", client="two")
    loop.stays_without(WAIT_S + 3)
    assert loop.begin("train") != key
    loop.stays_without(WAIT_S + 5)


def test_it_is_gone_once_the_engine_is_switched_to_and_stays_gone(loop: Loop) -> None:
    key = loop.begin("other")
    (one,) = loop.offers(some=True)
    told = loop.page.ask("switch", loader=key, backend=one["engine"])
    assert told["loader"]["wanted"] == one["engine"]
    assert loop.told()["offers"] == []
    until(lambda: loop.told()["loaders"][-1]["backend"] == one["engine"], 30)
    loop.page.ask("switch", loader=key, backend="torchvision")
    time.sleep(WAIT_S + 3)
    assert loop.told()["offers"] == []


def test_text_says_it_with_what_to_type(loop: Loop) -> None:
    loop.begin("in words")
    (one,) = loop.offers(some=True)
    loop.end()
    loop.page.run(
        "from IPython.utils.capture import capture_output\nwith capture_output() as said:\n    %monitor verdict"
    )
    text = " ".join(loop.page.value("said.stdout").split())
    assert f"offer {one['sentence']} %monitor switch {one['engine']}" in text
    loop.page.run(f"%monitor switch {one['engine']}")
    assert loop.page.value("monitor.offers") == []
