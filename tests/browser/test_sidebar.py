"""The sidebar follows the active notebook and survives what happens to kernels, pages and tabs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from .lab import CELL, SIDEBAR, Lab, Server

START = "%load_ext kernel_monitor\n%monitor start"
LONG = "import time\nfor _ in range(200): time.sleep(0.1)\nprint('over')"


def _start(sidebar: Locator) -> None:
    sidebar.get_by_role("button", name="Start").click()


def _received(lab: Lab, where: str = SIDEBAR) -> int:
    return int(lab.monitor(where, "monitor.stats.received"))


def _flows(lab: Lab, where: str = SIDEBAR) -> None:
    """More frames arrive than had."""
    lab.wait_running(where)
    before = _received(lab, where)
    lab.page.wait_for_function(
        "([where, before]) => (document.querySelector(where)?.monitor?.stats?.received ?? 0) > before + 5",
        arg=[where, before],
    )


def test_start_in_a_notebook_that_never_loaded_the_extension(lab: Lab) -> None:
    lab.open(lab.server.notebook("never.ipynb", "1 + 1"))
    sidebar = lab.open_sidebar()
    _start(sidebar)
    _flows(lab)
    expect(sidebar.get_by_text("from kernel_monitor import switchable")).to_be_visible()


def test_start_in_the_middle_of_a_running_cell(lab: Lab) -> None:
    lab.open(lab.server.notebook("midcell.ipynb", LONG))
    sidebar = lab.open_sidebar()
    lab.run_cell(0)
    time.sleep(1)
    _start(sidebar)
    _flows(lab)
    assert lab.status() == "busy"
    assert "over" not in lab.output(0)


def test_on_ipykernel_6_start_waits_for_the_cell_and_says_so(lab: Lab) -> None:
    lab.open(
        lab.server.notebook("waits.ipynb", "import time\ntime.sleep(8)\nprint('over')", kernel="python3-ipykernel6")
    )
    sidebar = lab.open_sidebar()
    lab.run_cell(0)
    time.sleep(1)
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
    lab.command("docmanager:open", {"path": second})
    expect(sidebar).to_contain_text("second.ipynb")
    expect(sidebar.get_by_role("button", name="Start")).to_be_enabled()
    lab.command("docmanager:open", {"path": first})
    expect(sidebar).to_contain_text("first.ipynb")
    _flows(lab)
    assert lab.monitor(SIDEBAR, "monitor.source.session") == session


def test_kernel_restart_then_start_again(lab: Lab) -> None:
    lab.open(lab.server.notebook("restart.ipynb", START))
    lab.run_cell(0)
    sidebar = lab.open_sidebar()
    _flows(lab)
    session = lab.monitor(SIDEBAR, "monitor.source.session")
    lab.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    lab.wait_for_idle()
    expect(sidebar.get_by_role("button", name="Start")).to_be_enabled()
    _start(sidebar)
    lab.page.wait_for_function(
        """([where, old]) => {
            const session = document.querySelector(where)?.monitor?.source.session;
            return session && session !== old;
        }""",
        arg=[SIDEBAR, session],
    )
    _flows(lab)


def test_page_reload_gets_the_history(lab: Lab) -> None:
    lab.open(lab.server.notebook("reload.ipynb", START + "\n%monitor"))
    lab.run_cell(0)
    lab.open_sidebar()
    _flows(lab, CELL)
    _flows(lab)
    session = lab.monitor(SIDEBAR, "monitor.source.session")
    time.sleep(2)
    lab.command("docmanager:save")
    time.sleep(1)
    lab.page.reload()
    lab.page.wait_for_selector(".jp-Notebook .jp-Cell")
    lab.open_sidebar()
    _flows(lab)
    assert lab.monitor(SIDEBAR, "monitor.source.session") == session
    assert lab.monitor(SIDEBAR, "monitor.stats.backfilled") > 20


def test_reload_in_the_middle_of_a_cell(lab: Lab, tmp_path: Path) -> None:
    """The cell's own dashboard comes back when the cell has ended: JupyterLab asks for widgets where cells wait."""
    over = tmp_path / "over"
    wait = f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.1)"
    lab.open(lab.server.notebook("midreload.ipynb", START + "\n%monitor", wait))
    lab.run_cell(0)
    _flows(lab, CELL)
    lab.command("docmanager:save")
    time.sleep(1)
    lab.run_cell(1)
    lab.page.reload()
    lab.page.wait_for_selector(".jp-Notebook .jp-Cell")
    lab.open_sidebar()
    _flows(lab)
    over.touch()
    lab.wait_for_idle()
    _flows(lab, CELL)


def test_two_tabs_on_one_kernel(browser: Browser, lab_server: Server) -> None:
    one, two = Lab(browser, lab_server), Lab(browser, lab_server)
    try:
        path = lab_server.notebook("two.ipynb", START)
        one.open(path)
        one.run_cell(0)
        one.open_sidebar()
        _flows(one)
        two.open(path)
        two.open_sidebar()
        _flows(two)
        assert one.monitor(SIDEBAR, "monitor.source.session") == two.monitor(SIDEBAR, "monitor.source.session")
        two.close()
        _flows(one)
        assert one.monitor(SIDEBAR, "monitor.stats.missed") == 0
    finally:
        one.close()


def test_a_closed_notebook_is_said_to_be_closed(lab: Lab) -> None:
    lab.open(lab.server.notebook("closed.ipynb", START))
    lab.run_cell(0)
    sidebar = lab.open_sidebar()
    _flows(lab)
    lab.command("docmanager:save")  # or JupyterLab would ask
    lab.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")
    lab.command("application:close")
    expect(sidebar).to_contain_text("closed.ipynb was closed")
    expect(sidebar.locator("canvas, .bk-Canvas")).to_have_count(0)


@pytest.mark.parametrize("how", ["stop", "start"])
def test_buttons(lab: Lab, how: str) -> None:
    lab.open(lab.server.notebook(f"buttons-{how}.ipynb", START))
    lab.run_cell(0)
    sidebar = lab.open_sidebar()
    _flows(lab)
    sidebar.get_by_role("button", name="Stop").click()
    expect(sidebar.get_by_role("status").first).to_contain_text("stopped", ignore_case=True)
    before = _received(lab)
    time.sleep(1)
    assert _received(lab) <= before + 1
    if how == "start":
        _start(sidebar)
        _flows(lab)
