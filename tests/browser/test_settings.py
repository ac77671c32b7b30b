"""Settings: the chooser in the dashboard, JupyterLab's settings editor, and what each tells a running kernel."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from .lab import CELL, SHOW, SIDEBAR, START, Lab, Server

LONG = "import time\nfor _ in range(400): time.sleep(0.1)\nprint('over')"


def _interval(lab: Lab, where: str, seconds: float) -> None:
    """The kernel measures so often, and the charts say so."""
    lab.until(where, "monitor.schema?.interval === argument && monitor.source.settings?.interval === argument", seconds)


def _charts(lab: Lab, where: str) -> list[str]:
    return list(lab.monitor(where, "monitor.source.settings.charts"))


def _choose(where: Locator, title: str) -> Locator:
    return where.get_by_role("checkbox", name=title, exact=True)


def test_chooser_while_a_cell_runs(lab: Lab) -> None:
    cell = lab.show(SHOW, LONG)
    lab.run_cell(1)
    cell.get_by_role("button", name="Charts").click()
    expect(_choose(cell, "CPU")).to_be_checked()
    # Without a GPU its counters cannot be chosen, and NVML says why.
    counters = _choose(cell, "GPU counters")
    expect(counters).to_be_disabled()
    assert counters.evaluate("(el) => document.getElementById(el.getAttribute('aria-describedby')).textContent")

    some = "monitor.schema.series.some((series) => series.name.startsWith('{}/'))"
    assert not lab.monitor(CELL, some.format("process"))
    _choose(cell, "Processes").check()
    lab.until(CELL, some.format("process"))
    expect(_choose(cell, "Processes")).to_be_checked()
    _choose(cell, "CPU").uncheck()
    lab.until(CELL, f"!{some.format('cpu')}")
    # The charts that stand are those of the new choice.
    lab.until(
        CELL,
        "monitor.feed?.drawn?.values.length === monitor.schema.series.length"
        " && monitor.document.get_model_by_name('cpu-tiles') === null",
    )

    before = lab.monitor(CELL, "monitor.source.session")
    cell.get_by_role("combobox", name="Measure every").select_option("0.5")
    _interval(lab, CELL, 0.5)
    expect(cell.get_by_role("combobox", name="Measure every")).to_have_value("0.5")
    received = lab.monitor(CELL, "monitor.stats.received")
    time.sleep(4)
    assert 4 <= lab.monitor(CELL, "monitor.stats.received") - received <= 10
    assert lab.monitor(CELL, "monitor.source.session") == before
    assert lab.status() == "busy"
    assert lab.errors == []


def test_recording_is_told_and_can_be_switched_off(lab: Lab) -> None:
    cell = lab.show(SHOW)
    told = cell.locator(".km-recording")
    expect(told).to_contain_text("recording")
    expect(told).to_have_attribute("data-state", "recording")
    assert Path(str(told.get_attribute("title"))).is_file()
    cell.get_by_role("button", name="Charts").click()
    _choose(cell, "Record the session").uncheck()
    expect(told).to_have_text("●not recording")
    _choose(cell, "Record the session").check()
    expect(told).to_have_attribute("data-state", "recording")


def test_what_is_not_set_is_left_to_the_notebook(lab: Lab) -> None:
    lab.show(START + " --interval 0.3 --charts cpu,memory", where=SIDEBAR)
    time.sleep(1)
    _interval(lab, SIDEBAR, 0.3)
    assert _charts(lab, SIDEBAR) == ["cpu", "memory"]


@pytest.fixture
def set_up(lab_server: Server) -> Iterator[Path]:
    """The file in which JupyterLab keeps what a person set; gone again after the test."""
    file = lab_server.root.parent / "settings" / "kernel-monitor" / "plugin.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    yield file
    file.unlink(missing_ok=True)


def test_what_is_set_is_given_to_a_kernel_and_changes_it_while_it_runs(
    browser: Browser, lab_server: Server, set_up: Path
) -> None:
    set_up.write_text(json.dumps({"interval": 0.5, "charts": ["cpu", "memory"]}))
    with Lab(browser, lab_server) as lab:
        lab.open(lab_server.notebook("given.ipynb", START, LONG))
        lab.run_cell(0)
        lab.wait_for_idle()
        lab.run_cell(1)
        lab.open_sidebar()
        _interval(lab, SIDEBAR, 0.5)
        assert _charts(lab, SIDEBAR) == ["cpu", "memory"]

        lab.command("settingeditor:open", {"query": "Kernel Monitor"})
        form = lab.page.locator(".jp-SettingsForm")
        box = form.locator('input[name$="plugin_interval"]')
        box.fill("0.2")
        box.blur()
        _interval(lab, SIDEBAR, 0.2)
        # Reset: the default comes back.
        form.get_by_role("button", name="Restore to Defaults").click()
        _interval(lab, SIDEBAR, 0.1)
        assert _charts(lab, SIDEBAR) == ["cpu", "gpu", "images", "wait"]


def test_palette_commands(lab: Lab) -> None:
    lab.open(lab.server.notebook("palette.ipynb", "1 + 1"))
    lab.page.keyboard.press("Control+Shift+C")
    palette = lab.page.locator(".lm-CommandPalette")
    palette.locator("input").fill("kernel monitor")
    for label in (
        "Show the Kernel Monitor",
        "Start Measuring This Kernel",
        "Export What Was Measured to an HTML File",
        "Choose Charts and the Interval…",
        "Open a Recorded Session…",
        "Show the Kernel in the Status Bar",
    ):
        expect(palette.get_by_text(label, exact=True)).to_be_visible()
    # No loader: nothing to switch.
    expect(palette.get_by_text("Switch Loader to")).to_have_count(0)
    lab.page.keyboard.press("Escape")
    # Start, in a kernel that never loaded the extension, with the sidebar closed.
    lab.command("kernel-monitor:start")
    expect(lab.page.locator(".km-glance button")).to_be_visible()
    lab.command("kernel-monitor:choose-charts")
    expect(lab.page.locator(SIDEBAR).get_by_role("checkbox", name="CPU", exact=True)).to_be_focused()
