"""The status bar: the active notebook's kernel at a glance, and nothing where there is nothing to show."""

from __future__ import annotations

import re
import time
from pathlib import Path

from playwright.sync_api import Locator, expect

from .lab import LOADER, SIDEBAR, START, Lab

LINE = re.compile(r"^CPU \d+ % · \d+\.\d/\d+ GB$")
TRAIN = f"""{LOADER}
until = time.monotonic() + 60
while time.monotonic() < until:
    for batch in loader:
        time.sleep(0.05)
        if time.monotonic() > until:
            break
"""


def _item(lab: Lab) -> Locator:
    return lab.page.locator(".km-glance button")


def test_it_shows_the_kernel_without_the_sidebar(lab: Lab) -> None:
    lab.open(lab.server.notebook("glance.ipynb", "1", START, "%monitor stop"))
    lab.run_cell(0)
    expect(_item(lab)).to_be_hidden()
    lab.run_cell(1)
    expect(_item(lab)).to_have_text(LINE)
    assert not lab.page.locator(SIDEBAR).is_visible()
    # Its parts are explained, and its name says them too.
    assert "mean over the cores" in str(_item(lab).get_attribute("title"))
    assert "glance.ipynb" in str(_item(lab).get_attribute("title"))
    expect(lab.page.get_by_role("button", name=re.compile(r"^Kernel monitor: CPU: \d+ % busy"))).to_be_visible()
    # Once a second: it changes, and not with every sample. On a full machine it may stay the same for some seconds.
    seen, least = lab.page.evaluate(
        """async () => {
            const el = document.querySelector('.km-glance button');
            const times = [];
            const watch = new MutationObserver(() => times.push(performance.now()));
            watch.observe(el, {attributes: true, attributeFilter: ['title']});
            const begun = performance.now();
            while (times.length < 3 && performance.now() - begun < 60_000) {
                await new Promise((resolve) => setTimeout(resolve, 100));
            }
            watch.disconnect();
            return [times.length, times.length ? times.at(-1) - times[0] : 0];
        }"""
    )
    assert seen >= 3
    assert least > 500  # ms, for at least two changes more
    _item(lab).click()
    expect(lab.page.locator(SIDEBAR)).to_be_visible()
    lab.wait_running(SIDEBAR)
    expect(_item(lab)).to_have_text(LINE)
    lab.run_cell(2)
    expect(_item(lab)).to_be_hidden()
    assert lab.errors == []


def test_it_shows_images_while_a_loader_delivers(lab: Lab, images: Path) -> None:
    lab.open(lab.server.notebook("glance-images.ipynb", START, TRAIN.format(root=str(images))))
    lab.run_cell(0)
    expect(_item(lab)).to_have_text(LINE)
    lab.run_cell(1)
    expect(_item(lab)).to_have_text(re.compile(r" · [1-9]\d* img/s$"))
    assert lab.status() == "busy"


def test_it_can_be_hidden_and_keeps_to_the_active_notebook(lab: Lab) -> None:
    first = lab.server.notebook("glance-first.ipynb", START)
    second = lab.server.notebook("glance-second.ipynb", "1")
    lab.open(first)
    lab.run_cell(0)
    expect(_item(lab)).to_have_text(LINE)
    lab.bring(second)
    expect(_item(lab)).to_be_hidden()
    lab.bring(first)
    expect(_item(lab)).to_be_visible()
    lab.command("kernel-monitor:toggle-status-bar")
    expect(_item(lab)).to_be_hidden()
    time.sleep(2)  # a glance that was on its way does not bring it back
    expect(_item(lab)).to_be_hidden()
    lab.command("kernel-monitor:toggle-status-bar")
    expect(_item(lab)).to_be_visible()
