"""What is seen without scrolling, and how it reads: a cell at 1280 by 800, a sidebar of 260 pixels, other needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from kernel_monitor.views.heatmap import tall_row

from .accessibility import serious
from .lab import CELL, LOADER, SHOW, SIDEBAR, Lab, Server

TRAIN = """
import time
while True:
    for images, labels in loader:
        time.sleep(0.02)
"""
# Where the parts begin and end, from the top of the frame that they are in.
PLACES = """([where, frame]) => {
    const el = document.querySelector(where);
    const top = el.closest(frame).getBoundingClientRect().top;
    const place = (part) => { const box = part.getBoundingClientRect(); return [box.top - top, box.bottom - top]; };
    const rows = {};
    for (const part of ['verdict', 'radios', 'stats']) rows[part] = place(el.querySelector(`.km-${part}`));
    const figures = [];
    const look = (root) => {
        for (const part of root.querySelectorAll('*')) {
            if (part.classList.contains('bk-Figure')) figures.push(part);
            if (part.shadowRoot) look(part.shadowRoot);
        }
    };
    look(el);
    // The heatmap itself: below its title and the names of its markers; nothing of the figure is below it.
    const cpu = el.monitor.document.get_model_by_name('cpu');
    const [begin, end] = place(figures[0]);
    rows.heatmap = [begin + cpu.outer_height - cpu.inner_height, end];
    const all = figures.map(place);
    return { ...rows, figures: all, sideways: document.documentElement.scrollWidth > innerWidth };
}"""
# Words that are cut, or beyond the edge, and that no title has.
CUT = """(where) => {
    const el = document.querySelector(where);
    const edge = el.getBoundingClientRect().right;
    const cut = [];
    const look = (root) => {
        for (const part of root.querySelectorAll('*')) {
            if (part.shadowRoot) look(part.shadowRoot);
            const box = part.getBoundingClientRect();
            const words = part.textContent.trim();
            if (words === '' || box.width <= 1 || box.height <= 1 || !part.checkVisibility()) continue;
            const style = getComputedStyle(part);
            const hides = style.overflowX !== 'visible' || style.overflowY !== 'visible';
            const over = part.scrollWidth > part.clientWidth + 1 || part.scrollHeight > part.clientHeight + 1;
            const isCut = (hides && over && style.display !== 'inline') || box.right > edge + 1;
            if (isCut && !part.closest('[title]:not([title=""])')) {
                cut.push(`${part.className || part.tagName}: ${words.slice(0, 80)}`);
            }
        }
    };
    look(el);
    return cut;
}"""
TWO = """
val = switchable(DataLoader(ImageFolder({root!r}, transform), batch_size=16, num_workers=1), name="val")
"""
TURNS = """
import time
while True:
    for turn in (loader, val):
        for k, (images, labels) in enumerate(turn):
            time.sleep(0.02)
            if turn is val and k > 5:
                break
"""


@pytest.fixture(scope="module")
def running(browser: Browser, lab_server: Server, images: Path) -> Iterator[Lab]:
    """A loop that waits for its data, its dashboard on the screen, nothing opened before."""
    with Lab(browser, lab_server, width=1280, height=800, tools=False) as lab:
        cells = (LOADER.format(root=str(images)), SHOW, TRAIN)
        lab.open(lab_server.notebook("layout.ipynb", *cells))
        lab.command("application:toggle-left-area")
        lab.run_cell(0)
        lab.wait_for_idle()
        lab.run_cell(1)
        lab.wait_running(CELL)
        lab.run_cell(2)
        expect(lab.dashboard(CELL).locator(".km-verdict")).not_to_contain_text("No verdict yet", timeout=60_000)
        yield lab
        lab.shut_down()


def _places(lab: Lab, where: str, frame: str) -> dict[str, Any]:
    places: dict[str, Any] = lab.page.evaluate(PLACES, [where, frame])
    print(where, places)
    return places


def test_a_cell_shows_verdict_numbers_loader_and_heatmap_without_scrolling(running: Lab) -> None:
    running.page.locator(".jp-CodeCell").nth(1).evaluate("(el) => el.scrollIntoView({ block: 'start' })")
    places = _places(running, CELL, ".jp-WindowedPanel-outer")
    visible = running.page.locator(".jp-WindowedPanel-outer").first.evaluate("(el) => el.clientHeight")
    for name in ("verdict", "radios", "stats", "heatmap"):
        assert 0 <= places[name][0] < places[name][1] <= visible, name
    # The verdict and the engines are one line.
    assert abs(places["verdict"][0] - places["radios"][0]) < 3
    # With the line of `%monitor` above it.
    assert places["heatmap"][1] < 420
    expect(running.dashboard(CELL).get_by_role("button", name="Tools")).to_be_hidden()
    assert serious(running.page, CELL) == []


def test_in_a_narrow_sidebar_the_heatmap_begins_within_360_pixels(running: Lab) -> None:
    sidebar = running.open_sidebar()
    running.wait_running(SIDEBAR)
    assert 255 < sidebar.bounding_box()["width"] < 300  # type: ignore[index]
    dashboard = running.dashboard(SIDEBAR)
    places = _places(running, SIDEBAR, ".km-sidebar")
    assert places["heatmap"][0] <= 360
    assert not places["sideways"]
    for name in ("Stop", "Export", "Diagnose", "Profile 10 steps", "Mark…", "Charts"):
        expect(dashboard.get_by_role("button", name=name, exact=True)).to_be_hidden()
    tools = dashboard.get_by_role("button", name="Tools", exact=True)
    tools.focus()
    tools.press("Enter")
    expect(tools).to_have_attribute("aria-expanded", "true")
    for name in ("Stop", "Export", "Diagnose", "Profile 10 steps", "Mark…", "Charts"):
        expect(dashboard.get_by_role("button", name=name, exact=True)).to_be_visible()
    expect(dashboard.locator(".km-counts")).to_contain_text(re.compile(r"epoch \d+ · batch"))
    assert serious(running.page, SIDEBAR) == []
    tools.click()

    # The engine that cannot be chosen takes no room; by keyboard it is reached all the same, with its reason.
    gpu = dashboard.get_by_role("radio", name="dali-gpu", exact=True)
    assert gpu.bounding_box()["width"] <= 1  # type: ignore[index]
    dashboard.get_by_role("radio", name="torchvision", exact=True).focus()
    for _ in range(2):
        running.page.keyboard.press("ArrowRight")
    expect(gpu).to_be_focused()
    assert gpu.bounding_box()["width"] > 30  # type: ignore[index]
    expect(dashboard.locator(".km-reasons")).to_be_visible()

    # After a swap, which adds its line.
    dashboard.get_by_role("radio", name="dali-cpu", exact=True).click()
    expect(dashboard.locator(".km-strip")).to_be_visible(timeout=60_000)
    assert _places(running, SIDEBAR, ".km-sidebar")["heatmap"][0] <= 360


@pytest.mark.parametrize("pixels", [260, 210])
def test_nothing_is_cut_without_a_tooltip(running: Lab, pixels: int) -> None:
    running.open_sidebar()
    running.wait_running(SIDEBAR)
    dashboard = running.dashboard(SIDEBAR)
    dashboard.get_by_role("radio", name="dali-cpu", exact=True).click()
    strip = dashboard.locator(".km-strip")
    expect(strip).to_contain_text(re.compile(r"\d → [\d,.]+ images/s"), timeout=60_000)
    dashboard.evaluate("(el, width) => { el.style.width = `${width}px`; }", pixels)
    try:
        running.page.wait_for_timeout(700)
        assert running.page.evaluate(CUT, SIDEBAR) == []
        # What is left out of a line is in its title.
        assert "ms" in str(dashboard.locator(".km-verdict-line").get_attribute("title"))
        assert "CPU p95" in str(strip.locator("summary").get_attribute("title"))
        expect(strip.locator("summary")).not_to_contain_text("CPU p95", use_inner_text=True)
        expect(dashboard.locator(".km-verdict-line")).to_contain_text(re.compile(r"\d %"), use_inner_text=True)
        for opened in (dashboard.locator(".km-verdict summary"), strip.locator("summary")):
            opened.click()
            assert running.page.evaluate(CUT, SIDEBAR) == []
            opened.click()
    finally:
        dashboard.evaluate("(el) => { el.style.width = ''; }")


def test_without_a_gpu_there_is_one_line_and_a_larger_heatmap(running: Lab) -> None:
    schema = "monitor.source.schema"
    if running.monitor(CELL, f"{schema}.gpus.length"):
        pytest.skip("this machine has a GPU")
    dashboard = running.dashboard(CELL)
    line = dashboard.get_by_text("No NVIDIA GPU: ")
    expect(line).to_have_count(1)
    assert line.bounding_box()["height"] < 30  # type: ignore[index]
    expect(dashboard.locator(".km-stat:visible")).to_have_count(3)
    cores = running.monitor(CELL, f"{schema}.cpus.length")
    pixels = running.monitor(CELL, "monitor.document.get_model_by_name('cpu').inner_height")
    assert pixels >= cores * tall_row(cores)


@pytest.mark.parametrize("how", ["zoom", "contrast", "reduced", "dark"])
def test_it_stays_readable(running: Lab, how: str) -> None:
    """200 % of size, colours of the system's own, less motion, the dark theme: nothing is cut or too faint."""
    page = running.page
    if how == "zoom":  # twice the size is half the window
        page.set_viewport_size({"width": 640, "height": 400})
    elif how == "contrast":
        page.emulate_media(forced_colors="active")
    elif how == "reduced":
        page.emulate_media(reduced_motion="reduce")
    else:
        running.command("apputils:change-theme", {"theme": "JupyterLab Dark"})
        page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    try:
        page.wait_for_timeout(700)
        for where in (CELL, SIDEBAR):
            dashboard = page.locator(where).first
            chosen = dashboard.locator(".km-radio[aria-checked=true]")
            expect(chosen).to_have_count(1)
            if how == "contrast":
                styles = "(el) => [getComputedStyle(el).backgroundColor, getComputedStyle(el).color]"
                other = dashboard.get_by_role("radio", name="synthetic", exact=True)
                assert chosen.evaluate(styles) != other.evaluate(styles)
            if how == "reduced":
                moving = "(el) => el.getAnimations({ subtree: true }).filter((a) => a.playState === 'running').length"
                assert dashboard.evaluate(moving) == 0
            wide = "(el) => el.scrollWidth - el.clientWidth"
            assert dashboard.locator(".km-controls").evaluate(wide) <= 1
            assert serious(page, where) == []
    finally:
        page.emulate_media(forced_colors="none", reduced_motion="no-preference")
        page.set_viewport_size({"width": 1280, "height": 800})
        running.command("apputils:change-theme", {"theme": "JupyterLab Light"})


def test_of_two_loaders_one_is_large_and_the_charts_are_on_the_first_screen(
    browser: Browser, lab_server: Server, images: Path
) -> None:
    root = str(images)
    with Lab(browser, lab_server, tools=False) as lab:
        cells = (LOADER.format(root=root) + TWO.format(root=root), SHOW, TURNS)
        lab.open(lab_server.notebook("two-loaders.ipynb", *cells))
        lab.run_cell(0)
        lab.wait_for_idle()
        sidebar = lab.open_sidebar()
        lab.run_cell(1)
        lab.wait_running(SIDEBAR)
        lab.run_cell(2)
        line = sidebar.get_by_role("button", name=re.compile(r"^val · torchvision"))
        expect(line).to_have_text(re.compile(r"images/s$"), timeout=60_000)
        expect(sidebar.locator(".km-verdict:visible")).not_to_contain_text("No verdict yet", timeout=60_000)
        expect(sidebar.get_by_role("radiogroup")).to_have_count(1)
        expect(sidebar.locator(".km-stat-label").first).to_have_text("images/s, loader-1")
        figures = lab.page.evaluate(PLACES, [SIDEBAR, ".km-sidebar"])["figures"]
        height = sidebar.bounding_box()["height"]  # type: ignore[index]
        # The cores and the images per second, with an offer above them, too.
        assert all(bottom <= height for _, bottom in figures[:2]), (figures, height)
        assert serious(lab.page, SIDEBAR) == []
        line.focus()
        line.press("Enter")
        expect(line).to_have_attribute("aria-expanded", "true")
        expect(sidebar.get_by_role("radiogroup", name="Loader val")).to_be_visible()
        line.press("Space")
        expect(line).to_have_attribute("aria-expanded", "false")
        expect(sidebar.get_by_role("radiogroup")).to_have_count(1)
        assert lab.errors == []
        lab_server.end_kernels()


def test_while_a_cell_runs_without_a_loader_it_says_so_and_advises_after_it(lab: Lab, tmp_path: Path) -> None:
    over = tmp_path / "over"
    wait = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.1)"
    lab.open(lab.server.notebook("no-loader.ipynb", "%load_ext kernel_monitor\n%monitor start", wait))
    lab.run_cell(0)
    lab.wait_for_idle()
    lab.run_cell(1)
    sidebar = lab.open_sidebar()
    lab.wait_running(SIDEBAR)
    runs = sidebar.get_by_text("A cell is running; no DataLoader has been iterated yet.")
    snippet = sidebar.get_by_text("from kernel_monitor import watch_loader")
    expect(runs).to_be_visible()
    expect(snippet).to_be_hidden()
    over.touch()
    lab.wait_for_idle()
    expect(snippet).to_be_visible()
    expect(runs).to_be_hidden()
    assert "watch_loader\nbatches = watch_loader(" in snippet.inner_text()
