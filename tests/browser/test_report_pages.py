"""The exported page as people get it: by keyboard, by screen reader, on paper, in both themes, quickly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from kernel_monitor.output import write
from kernel_monitor.report.page import render
from tests.browser.accessibility import serious
from tests.browser.scenes import machine, run
from tests.browser.test_report import Seen, bottom, opened
from tests.unit.analysis.test_compare_segments import session
from tests.unit.reports import analysis, nothing

TIMES = """() => Object.fromEntries(['first-contentful-paint', 'charts-drawn'].map((name) =>
  [name, performance.getEntriesByName(name)[0].startTime]))"""
WIDE = """() => [...document.querySelectorAll('main *')]
  .filter((one) => one.closest('#charts') === null && one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.tagName)"""
PRINTED = "dispatchEvent(new Event('beforeprint'))"
AFTER = "dispatchEvent(new Event('afterprint'))"
INK = "getComputedStyle(document.querySelector('h1')).color"
# The darkest and lightest of what a plot's axis was painted with.
AXIS = """(name) => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name));
  let darkest = 255;
  for (const canvas of view.canvas_view.el.shadowRoot.querySelectorAll('canvas')) {
    const { height } = canvas;
    const data = canvas.getContext('2d').getImageData(0, 0, 50 * devicePixelRatio, height).data;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) darkest = Math.min(darkest, data[i]);
  }
  return darkest;
}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    html = render(session(cores=4, gpus=1), analysis())
    return write(tmp_path_factory.mktemp("pages") / "run.html", html)


@pytest.fixture(params=["light", "dark"])
def seen(request: Any, browser: Browser, path: Path) -> Iterator[Seen]:
    with opened(browser, path, color_scheme=request.param) as found:
        yield found


def test_axe_finds_nothing_serious(seen: Seen) -> None:
    seen.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert serious(seen.page) == []
    assert seen.complaints == []


def test_axe_finds_nothing_serious_in_a_page_of_nothing(browser: Browser, tmp_path: Path) -> None:
    html = render(session(switch=False), nothing("No step ended in this session."))
    with opened(browser, write(tmp_path / "nothing.html", html)) as found:
        assert serious(found.page) == []


def test_words_and_pictures_are_there_before_the_charts(seen: Seen) -> None:
    times = seen.run(TIMES)
    assert times["first-contentful-paint"] < times["charts-drawn"]
    assert times["first-contentful-paint"] < 3000  # the bar is 1 s; benchmarks.report measures it
    box = seen.page.get_by_role("img", name="Share of a step's time").first.bounding_box()
    assert box is not None
    assert box["width"] > 600
    assert bottom(seen.page.locator("#summary .cards")) < 900


def test_the_contents_and_what_is_folded_work_by_keyboard(browser: Browser, path: Path) -> None:
    with opened(browser, path) as found:
        page = found.page
        page.get_by_role("link", name="Epochs").focus()
        page.keyboard.press("Enter")
        page.wait_for_function("document.querySelector('#epochs').getBoundingClientRect().top < 200")
        folded = page.get_by_role("table", name="Rules that did not fire")
        assert page.get_by_text("The batch is small").is_hidden()
        page.locator("summary", has_text="Found nothing").focus()
        page.keyboard.press("Enter")
        page.get_by_text("The batch is small").wait_for(state="visible")
        assert folded.count() == 0 or folded.is_visible()


def test_a_screen_reader_is_told_what_the_pictures_show(browser: Browser, path: Path) -> None:
    with opened(browser, path) as found:
        names = found.page.locator("svg[role=img]").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
        assert any("data wait 60 %" in name for name in names)
        assert any("train/2 · dali-cpu mostly 80 to 90 %" in name for name in names)
        headings = found.page.get_by_role("heading", level=2).all_inner_texts()
        assert {"Verdict", "Charts", "Percentiles", "Rules", "Cost", "How each figure was obtained"} <= set(headings)
        # A name for every region: a list of landmarks is a table of contents.
        unnamed = "(all) => all.filter((one) => !document.getElementById(one.getAttribute('aria-labelledby'))).length"
        assert found.page.locator("section").evaluate_all(unnamed) == 0


def test_on_paper_it_is_light_unfolded_and_whole(browser: Browser, path: Path) -> None:
    with opened(browser, path, color_scheme="dark") as found:
        dark = found.run(INK)
        charts = found.run("document.getElementById('charts').offsetWidth")
        page = found.page
        page.emulate_media(media="print", color_scheme="dark")
        page.set_viewport_size({"width": 703, "height": 1000})  # an A4 sheet between its margins
        found.run(f"document.getElementById('charts').style.width = '{charts}px'")
        found.run(PRINTED)
        assert found.run(INK) == "rgb(27, 34, 45)"
        assert found.run(AXIS, "images") < 130  # dark on white, painted before the sheet is made
        assert page.locator("details:not([open])").count() == 0
        for hidden in ("#theme", ".tools", "nav", ".screen-only"):
            assert page.locator(hidden).first.is_hidden(), hidden
        assert found.run(WIDE) == []
        box = page.locator("#charts").bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 704
        found.run(AFTER)
        assert page.locator("details[open]").count() == 0
        page.emulate_media(media="screen")
        assert found.run(INK) == dark
        assert found.complaints == []


def test_it_prints(browser: Browser, path: Path, tmp_path: Path) -> None:
    with opened(browser, path) as found:
        found.page.pdf(path=tmp_path / "run.pdf", prefer_css_page_size=True)
    printed = (tmp_path / "run.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    pages = printed.count(b"/Type /Page\n") or printed.count(b"/Type /Page ")
    assert 3 <= pages <= 12


def test_nothing_is_wider_than_a_narrow_screen(browser: Browser, path: Path) -> None:
    with opened(browser, path) as found:
        for width in (390, 320):
            found.fits(width)


def test_a_large_machine_has_the_same_first_screen(browser: Browser, tmp_path: Path) -> None:
    snapshot = run(machine(cores=64, sockets=2, nodes=2, gpus=8, interval=0.6), seconds=600.0)
    with opened(browser, write(tmp_path / "large.html", render(snapshot, analysis()))) as found:
        assert bottom(found.page.locator("#summary .cards")) < 900
        assert found.complaints == []
