"""A real sweep, small: real images, real engines, a real process; its table, its JSON and its page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from kernel_monitor import open_session
from kernel_monitor.cli import main
from tests.browser.accessibility import serious
from tests.browser.lab import chromium

from .conftest import IMAGES, Start

WIDE = """() => [...document.querySelectorAll('main *')]
  .filter((one) => one.closest('.scroll') === null && one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.tagName)"""
ENGINES = ("torchvision", "dali-cpu", "steam")


@dataclass(frozen=True)
class Swept:
    """A sweep that ended: two loads, two engines, and one that there is not."""

    folder: Path
    status: int
    summary: dict[str, Any]
    said: str

    def cell(self, row: str, engine: str) -> dict[str, Any]:
        (found,) = (one for one in self.summary["cells"] if (one["row"], one["engine"]) == (row, engine))
        return dict(found)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, start: Start) -> Swept:
    folder = tmp_path_factory.mktemp("sweep") / "out"
    grid = ("--models", "resnet18", "--loads", "1", "2", "--engines", *ENGINES)
    process = start(folder, *grid, "--price", "2.50 €", "--json")
    out, said = process.communicate(timeout=240)
    assert process.returncode in (0, 1), said
    return Swept(folder, process.returncode, json.loads(out), said)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(params=[("light", 1200), ("dark", 400)], ids=lambda one: "-".join(map(str, one)))
def page(request: Any, browser: Browser, swept: Swept) -> Iterator[tuple[Page, list[str]]]:
    scheme, width = request.param
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith("file:") else None)
    page.goto((swept.folder / "index.html").as_uri())
    yield page, complaints
    context.close()


@pytest.mark.parametrize("row", ["resnet18 · load 1", "resnet18 · load 2"])
@pytest.mark.parametrize("engine", ENGINES[:2])
def test_every_time_has_what_was_delivered_for_it(swept: Swept, row: str, engine: str) -> None:
    found = swept.cell(row, engine)
    assert found["problem"] is None
    assert found["steps"] == found["batches"] >= 2 * 12
    assert found["samples"] == 4 * found["batches"]
    assert found["decoded"] == {engine: found["samples"]}
    assert found["rate"] == pytest.approx(found["samples"] / found["seconds"])
    assert found["epoch"] == pytest.approx(IMAGES / found["rate"])
    assert found["cost"] == pytest.approx(2.5 / 3600 * found["epoch"])
    assert 0 < found["own_work"] <= found["step"]
    # Both measure the same steps, one by its own clock, one by the loop's.
    assert found["seconds"] / found["steps"] == pytest.approx(found["step"] / 1e3, rel=0.25)


def test_its_progress_and_the_time_left_are_shown_from_the_beginning(swept: Swept) -> None:
    first, *_, last = swept.said.splitlines()
    assert re.search(r"^\[·+\] 0 of 4 passes · starting · about \d+ s left$", first)
    assert last == "4 of 4 passes are measured"


def test_an_engine_that_there_is_not_is_named_and_the_others_go_on(swept: Swept) -> None:
    assert swept.status == 1
    for row in ("resnet18 · load 1", "resnet18 · load 2"):
        found = swept.cell(row, "steam")
        assert "there is no such engine" in found["problem"]
        assert (found["epoch"], found["samples"]) == (None, 0)


def test_another_engine_was_predicted_before_the_switch(swept: Swept) -> None:
    found = swept.cell("resnet18 · load 2", "dali-cpu")
    assert "of your files" in found["basis"]
    assert found["low"] < found["high"]
    assert found["sign_right"] in (True, False)
    assert swept.summary["signs"]["judged"] == 2


def test_the_recording_has_the_windows(swept: Swept) -> None:
    session = open_session(swept.folder / "recordings")
    marks = [event["label"] for event in session.events() if event["kind"] == "mark"]
    assert "resnet18 · load 1, dali-cpu, pass 2" in marks
    assert session.ended is not None
    assert session.ended["goodbye"]


def test_a_finished_sweep_is_not_measured_again(swept: Swept, start: Start) -> None:
    before = (swept.folder / "sweep.json").read_bytes()
    grid = ("--models", "resnet18", "--loads", "1", "2", "--engines", *ENGINES)
    out, said = (again := start(swept.folder, *grid)).communicate(timeout=120)
    assert again.returncode == 1, said
    assert (swept.folder / "sweep.json").read_bytes() == before
    assert "resnet18 · load 2" in out
    assert "not measured: steam" in out


def test_another_grid_is_refused_in_one_sentence(swept: Swept, start: Start) -> None:
    out, said = (other := start(swept.folder, "--models", "resnet18", "--loads", "8")).communicate(timeout=120)
    assert (other.returncode, out) == (2, "")
    assert said.count("\n") == 1
    assert "another grid" in said


def test_two_sweeps_are_compared_by_their_ratios(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--compare", str(swept.folder), str(swept.folder)]) == 0
    said = capsys.readouterr().out
    assert "resnet18 · load 2, dali-cpu" in said
    assert "The largest difference is 0.0 %." in said


def test_the_page_shows_it_all_and_asks_for_nothing(page: tuple[Page, list[str]], swept: Swept) -> None:
    seen, complaints = page
    text = seen.locator("main").inner_text()
    for row in ("resnet18 · load 1", "resnet18 · load 2"):
        for engine in ENGINES[:2]:
            assert f"{swept.cell(row, engine)['samples']:,} samples delivered" in text
    assert "there is no such engine" in text
    assert "This is the quick form: 2 measurements of 0.4 s" in text
    assert "images of “pictures”" in text
    assert "115.23" in text or "115" in text  # published
    assert seen.locator("svg.histogram path").count() > 0
    assert seen.evaluate(WIDE) == []
    assert serious(seen) == []
    assert complaints == []


def test_the_page_and_the_file_name_no_folder(swept: Swept, pictures: Path) -> None:
    for name in ("index.html", "sweep.json"):
        text = (swept.folder / name).read_text("utf-8")
        assert str(pictures.parent) not in text
        assert "a client" not in text
