"""Recorded sessions in the page: after a kernel's death, from the palette, and in a cell."""

from __future__ import annotations

import re
import time
from pathlib import Path

from playwright.sync_api import Locator, expect

from .lab import CELL, SIDEBAR, START, Lab

DIE = "import os, time\ntime.sleep(1)\nos.kill(os.getpid(), 9)"
ENOUGH = f"""{START}
import time
from kernel_monitor import monitor
while monitor.store.last_seq < 30: time.sleep(0.1)"""
TAB = ".km-recorded .km-dashboard"


def _is_a_picture(lab: Lab, where: str) -> Locator:
    """Labelled as recorded, nothing to steer, everything of the session in view; and no frame arrives."""
    shown = lab.page.locator(where).first
    expect(shown.get_by_role("status").first).to_contain_text(re.compile(r"^Recorded \d{4}-\d\d-\d\d \d\d:\d\d, .* s"))
    lab.until(where, "monitor.feed?.drawn")
    for name in ("Start", "Stop", "Charts"):
        expect(shown.get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(shown.get_by_role("radiogroup")).to_have_count(0)
    expect(shown.get_by_role("button", name="All")).to_have_attribute("aria-pressed", "true")
    rows = lab.monitor(where, "monitor.feed.newest.seq")
    time.sleep(1)
    assert lab.monitor(where, "monitor.feed.newest.seq") == rows
    span = lab.monitor(
        where, "(([a, b]) => b - a)(['start', 'end'].map((e) => monitor.document.get_model_by_name('time')[e]))"
    )
    seconds = lab.monitor(where, "monitor.source.recorded.seconds")
    assert seconds * 1000 - 1 <= span <= seconds * 1000 + 2000
    return shown


def test_after_a_death_the_recording_is_offered_and_opens(lab: Lab, tmp_path: Path) -> None:
    lab.show(START, DIE, where=SIDEBAR)
    sidebar = lab.page.locator(".km-sidebar")
    session = lab.monitor(SIDEBAR, "monitor.source.session")
    lab.until(SIDEBAR, "monitor.stats.received > 25")
    lab.run_cell(1)
    expect(sidebar.get_by_role("status").first).to_contain_text("died", timeout=60_000)
    _dismiss(lab)
    lab.wait_for_idle()
    expect(sidebar.get_by_role("status").first).to_contain_text("The kernel died and was started again.")
    expect(sidebar).to_contain_text("Its session was recorded")
    sidebar.get_by_role("button", name="Open it").click()
    tab = _is_a_picture(lab, TAB)
    expect(tab.get_by_role("status").first).to_contain_text("ended without goodbye — not live")
    assert lab.monitor(TAB, "monitor.source.session") == session
    assert lab.monitor(TAB, "monitor.source.recorded.seconds") > 2

    assert "recorded" in lab.export(tab, tmp_path).read_text().lower()


def _dismiss(lab: Lab) -> None:
    """JupyterLab's own message of a kernel that died."""
    dialog = lab.page.locator(".jp-Dialog button.jp-mod-accept")
    try:
        dialog.first.click(timeout=5000)
    except Exception:  # noqa: BLE001 - not every version shows one
        assert dialog.count() == 0


def test_from_the_palette(lab: Lab) -> None:
    lab.show(START, "%monitor stop", where=SIDEBAR)
    lab.until(SIDEBAR, "monitor.stats.received > 25")
    lab.run_cell(1)
    expect(lab.page.locator(SIDEBAR).get_by_role("button", name="Start", exact=True)).to_be_enabled()
    lab.command("kernel-monitor:open-recorded")
    dialog = lab.page.locator(".jp-Dialog")
    choices = dialog.locator("select option")
    expect(choices.first).to_contain_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d · \d+ s"))
    dialog.get_by_role("button", name="Open").click()
    tab = _is_a_picture(lab, TAB)
    # The session that was stopped a moment ago, by its own word.
    expect(tab.get_by_role("status").first).not_to_contain_text("without goodbye")
    assert lab.errors == []


def _drag(lab: Lab, cell: Locator) -> None:
    """Drag the first chart to the right, so that it shows what was before."""
    box = cell.locator("canvas, .bk-Canvas").first.bounding_box()
    if box is None:  # the page is about to put another chart in its place
        return
    x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5
    lab.page.mouse.move(x, y)
    lab.page.mouse.down()
    lab.page.mouse.move(x + 80, y, steps=5)
    lab.page.mouse.up()


def test_in_a_cell_while_it_is_still_recorded(lab: Lab) -> None:
    lab.open(lab.server.notebook("replayed.ipynb", ENOUGH, "%monitor open", "for _ in range(300): time.sleep(0.1)"))
    lab.run_cell(0)
    lab.wait_for_idle()
    lab.run_cell(1)
    cell = _is_a_picture(lab, CELL)
    expect(cell.get_by_role("status").first).to_contain_text("a still picture, not live")
    before = lab.monitor(CELL, "monitor.source.recorded.seconds")
    lab.run_cell(2)
    # What is read is what the recorder has written by then, which on a busy machine is late.
    until = time.monotonic() + 30
    while lab.monitor(CELL, "monitor.source.recorded.seconds") <= before + 1:
        assert time.monotonic() < until
        time.sleep(2)
        cell.get_by_role("button", name="Reload").click()
        expect(cell.get_by_role("button", name="Reload")).to_be_enabled()
    lab.until(CELL, "monitor.feed?.drawn?.time > argument + 1", before)  # the new charts: the old end at about `before`
    assert lab.status() == "busy"
    # Pan: the charts stay where a person put them.
    start = lab.monitor(CELL, "monitor.document.get_model_by_name('time').start")
    until = time.monotonic() + 30
    while lab.monitor(CELL, "monitor.document.get_model_by_name('time').start") >= start:
        assert time.monotonic() < until
        _drag(lab, cell)  # again where the page is still being laid out, so that it went beside the chart
        time.sleep(1)
    cell.get_by_role("button", name="All").click()
    lab.until(CELL, "Math.abs(monitor.document.get_model_by_name('time').start - argument) < 1000", start)
    assert lab.errors == []
