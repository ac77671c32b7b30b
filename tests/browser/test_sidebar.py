"""The sidebar follows the active notebook and survives what happens to kernels, pages and tabs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from .lab import CELL, SHOW, SIDEBAR, START, Lab, Server

LONG = "import time\nfor _ in range(200): time.sleep(0.1)\nprint('over')"


def _start(sidebar: Locator) -> None:
    sidebar.get_by_role("button", name="Start").click()


def _shown(lab: Lab, name: str = "") -> Locator:
    """The sidebar of a new notebook that measures."""
    lab.show(START, name=name, where=SIDEBAR)
    return lab.page.locator(".km-sidebar")


def _received(lab: Lab, where: str = SIDEBAR) -> int:
    return int(lab.monitor(where, "monitor.stats.received"))


def _flows(lab: Lab, where: str = SIDEBAR) -> None:
    """More frames arrive than had."""
    lab.wait_running(where)
    lab.until(where, "monitor.stats.received > argument + 5", _received(lab, where))


def test_start_in_a_notebook_that_never_loaded_the_extension(lab: Lab) -> None:
    lab.open(lab.server.notebook("never.ipynb", "1 + 1"))
    sidebar = lab.open_sidebar()
    _start(sidebar)
    _flows(lab)
    expect(sidebar.get_by_text("from kernel_monitor import watch_loader")).to_be_visible()


def test_start_in_the_middle_of_a_running_cell(lab: Lab) -> None:
    lab.open(lab.server.notebook("midcell.ipynb", LONG))
    sidebar = lab.open_sidebar()
    lab.run_cell(0)
    lab.wait_for_busy()
    _start(sidebar)
    _flows(lab)
    assert lab.status() == "busy"
    assert "over" not in lab.output(0)


def test_on_ipykernel_6_start_waits_for_the_cell_and_says_so(lab: Lab) -> None:
    cell = "import time\ntime.sleep(8)\nprint('over')"
    lab.open(lab.server.notebook("waits.ipynb", cell, kernel="python3-ipykernel6"))
    sidebar = lab.open_sidebar()
    lab.run_cell(0)
    lab.wait_for_busy()
    _start(sidebar)
    expect(sidebar.get_by_role("status").first).to_contain_text("wait", ignore_case=True)
    _flows(lab)


def test_it_follows_the_active_notebook(lab: Lab) -> None:
    first = lab.server.notebook("first.ipynb", START)
    second = lab.server.notebook("second.ipynb", "'nothing here'")
    lab.open(first)
    lab.run_cell(0)
    sidebar = lab.open_sidebar()
    _flows(lab)
    session = lab.monitor(SIDEBAR, "monitor.source.session")
    expect(sidebar).to_contain_text("first.ipynb")
    lab.bring(second)
    expect(sidebar).to_contain_text("second.ipynb")
    expect(sidebar.get_by_role("button", name="Start")).to_be_enabled()
    lab.bring(first)
    expect(sidebar).to_contain_text("first.ipynb")
    _flows(lab)
    assert lab.monitor(SIDEBAR, "monitor.source.session") == session


def test_kernel_restart_then_start_again(lab: Lab) -> None:
    sidebar = _shown(lab)
    session = lab.monitor(SIDEBAR, "monitor.source.session")
    lab.restart()
    expect(sidebar.get_by_role("button", name="Start")).to_be_enabled()
    _start(sidebar)
    lab.until(SIDEBAR, "monitor.source.session && monitor.source.session !== argument", session)
    _flows(lab)


def _reload(lab: Lab, *cells: int) -> None:
    """Save the notebook, run cells of it, reload the page, and open the sidebar."""
    lab.save()
    for cell in cells:
        lab.run_cell(cell)
    lab.page.reload()
    lab.page.wait_for_selector(".jp-Notebook .jp-Cell")
    lab.open_sidebar()


def test_page_reload_gets_the_history(lab: Lab) -> None:
    lab.show(SHOW)
    lab.open_sidebar()
    _flows(lab)
    session = lab.monitor(SIDEBAR, "monitor.source.session")
    lab.until(SIDEBAR, "monitor.stats.received > 20")
    _reload(lab)
    _flows(lab)
    assert lab.monitor(SIDEBAR, "monitor.source.session") == session
    assert lab.monitor(SIDEBAR, "monitor.stats.backfilled") > 20


def test_reload_in_the_middle_of_a_cell(lab: Lab, tmp_path: Path) -> None:
    """The cell's own dashboard comes back when the cell has ended: JupyterLab asks for widgets where cells wait."""
    over = tmp_path / "over"
    wait = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.1)"
    lab.show(SHOW, wait)
    _reload(lab, 1)
    _flows(lab)
    over.touch()
    lab.wait_for_idle()
    _flows(lab, CELL)


def test_two_tabs_on_one_kernel(browser: Browser, lab_server: Server, lab: Lab) -> None:
    one = lab
    with Lab(browser, lab_server) as two:
        path = lab_server.notebook("two.ipynb", START)
        one.open(path)
        one.run_cell(0)
        one.open_sidebar()
        _flows(one)
        two.open(path)
        two.open_sidebar()
        _flows(two)
        assert one.monitor(SIDEBAR, "monitor.source.session") == two.monitor(SIDEBAR, "monitor.source.session")
    _flows(one)
    assert one.monitor(SIDEBAR, "monitor.stats.missed") == 0


def test_a_closed_notebook_is_said_to_be_closed(lab: Lab) -> None:
    sidebar = _shown(lab, name="closed.ipynb")
    lab.save()  # or JupyterLab would ask
    lab.command("application:close")
    expect(sidebar).to_contain_text("closed.ipynb was closed")
    expect(sidebar.locator("canvas, .bk-Canvas")).to_have_count(0)


@pytest.mark.parametrize("how", ["stop", "start"])
def test_buttons(lab: Lab, how: str) -> None:
    sidebar = _shown(lab)
    sidebar.get_by_role("button", name="Stop").click()
    expect(sidebar.get_by_role("status").first).to_contain_text("stopped", ignore_case=True)
    before = _received(lab)
    time.sleep(1)
    assert _received(lab) <= before + 1
    if how == "start":
        _start(sidebar)
        _flows(lab)


def test_run_all_opens_the_sidebar_in_the_middle(lab: Lab) -> None:
    """In a new kernel, with cells queued behind, and only in the page whose cell it was."""
    path = lab.server.notebook("asks.ipynb", "%load_ext kernel_monitor\n%monitor", "%monitor sidebar", LONG)
    lab.open(path)
    hint = lab.page.locator(".km-hint")
    lab.run_all()
    expect(lab.page.locator(SIDEBAR)).to_be_visible()
    assert lab.status() == "busy"
    _flows(lab)
    expect(lab.page.locator(".jp-Notebook .jp-CodeCell").nth(1)).to_contain_text("shows this kernel")
    assert "over" not in lab.output(2)
    expect(hint).to_be_hidden()
    lab.command("application:toggle-right-area")
    expect(hint).to_have_text("The same is in the sidebar: the Kernel monitor tab at the right, or %monitor sidebar.")
    hint.get_by_role("button", name="sidebar").click()
    expect(lab.page.locator(SIDEBAR)).to_be_visible()
    assert lab.errors == []


def test_the_sidebar_opens_for_the_notebook_that_asked(browser: Browser, lab_server: Server, lab: Lab) -> None:
    """Not in another window of the same notebook, and not while another notebook is shown."""
    one = lab
    with Lab(browser, lab_server) as two:
        path = lab_server.notebook("asks-one.ipynb", START, "import time; time.sleep(2)", "%monitor sidebar")
        one.open(path)
        two.open(path)
        one.run_cell(0)
        one.wait_for_idle()
        expect(two.page.get_by_role("button", name="Kernel monitor: measuring")).to_be_visible()
        one.run_cell(1)
        one.run_cell(2)
        one.bring(lab_server.notebook("asks-not.ipynb", "1"))
        panel = one.page.locator(".km-sidebar")
        one.wait_for_notebook("asks-not.ipynb")
        one.page.wait_for_timeout(4000)
        expect(panel).to_be_hidden()
        one.bring(path)
        expect(panel).to_be_visible()
        expect(panel).to_contain_text("asks-one.ipynb")
        expect(two.page.locator(".km-sidebar")).to_be_hidden()


def test_the_toolbars_button_stands_where_the_kernel_could_use_it(lab: Lab) -> None:
    other = Path(lab.server.root).parent / "ipython" / "kernels" / "other"
    other.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (other / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Other", "language": "bash"}))
    lab.open(lab.server.notebook("button.ipynb", START, "%monitor stop"))
    lab.page.evaluate("() => window.jupyterapp.serviceManager.kernelspecs.refreshSpecs()")
    button = lab.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .km-toolbar-button")
    named = lab.page.get_by_role("button", name="Kernel monitor", exact=True)
    tab = lab.page.get_by_role("tab", name="Kernel monitor")
    expect(tab).to_have_text("Kernel monitor")
    expect(named).to_be_visible()
    lab.run_cell(0)
    expect(lab.page.get_by_role("button", name="Kernel monitor: measuring")).to_be_visible()
    assert button.get_attribute("data-state") == "running"
    expect(lab.page.locator(SIDEBAR)).to_be_hidden()
    button.get_by_role("button").click()
    _flows(lab)
    button.get_by_role("button").press("Enter")
    expect(lab.page.locator(SIDEBAR)).to_be_visible()
    lab.run_cell(1)
    expect(named).to_be_visible()
    lab.bring(lab.server.notebook("button-other.ipynb", "1", kernel="other"))
    expect(lab.page.locator(".km-sidebar")).to_contain_text("runs bash")
    expect(button).to_be_hidden()
    assert lab.errors == []
