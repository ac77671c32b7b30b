"""JupyterLab's own *Busy*, looked at each tenth of a second while cells run, in the orders in which people run them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from .lab import CELL, SHOW, SIDEBAR, Lab, Server, server

SLIDER = "import ipywidgets\nipywidgets.IntSlider()"
WORK_S = 3.0
WORK = f"""\
import time
print("from", time.time(), flush=True)
until = time.monotonic() + {WORK_S}
while time.monotonic() < until: pass
print("to", time.time())"""
NEWS_S = 1.5
"""A page that is laid out anew on two busy cores shows what the kernel says this much later. An *Idle* of the kind that
this test is for lasts as long as the cell."""

WATCH = """
() => {
    window.looks = [];
    clearInterval(window.looking);
    window.looking = setInterval(() => {
        const panel = window.jupyterapp.shell.currentWidget;
        const status = panel?.sessionContext?.session?.kernel?.status;
        const shown = panel?.node.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status;
        window.looks.push([Date.now() / 1000, status, shown ?? null]);
    }, 100);
}
"""


class Watched:
    """A page whose kernel status is looked at all the time."""

    def __init__(self, lab: Lab, path: str, tree: str = "lab/tree") -> None:
        self.lab = lab.open(path, tree=tree)
        self.lab.page.wait_for_load_state("networkidle")  # what JupyterLab asks a kernel when it has loaded is over
        self.lab.page.evaluate(WATCH)

    def run_all(self) -> None:
        """Run all cells; through the whole last one the kernel must be shown as busy."""
        self.begin()
        self.lab.run_all()
        self.through()

    def begin(self) -> None:
        self.lab.page.evaluate("() => { window.looks.length = 0; }")
        self.lab.command("notebook:clear-all-cell-outputs")

    def through(self) -> None:
        """Wait until the last cell has run, and say when it was not shown as busy."""
        output = self.lab.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").last
        text = output.locator(".jp-OutputArea-output", has_text=re.compile(r"from .*to \d", re.DOTALL))
        text.wait_for(timeout=60_000)
        begin, end = map(float, re.findall(r"\d+\.\d+", text.inner_text()))
        looks = self.lab.page.evaluate("() => window.looks")
        inside = [tuple(look[1:]) for look in looks if begin + NEWS_S < look[0] < end]
        assert set(inside) == {("busy", "busy")}, inside


@pytest.fixture(params=["python3", "python3-ipykernel6"])
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def notebook_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("notebook"), "notebook") as running:
        yield running


def test_busy_in_every_order(browser: Browser, lab_server: Server, lab: Lab, kernel: str) -> None:
    path = lab_server.notebook(f"status-{kernel}.ipynb", SHOW, SLIDER, WORK, kernel=kernel)
    first = Watched(lab, path)
    first.run_all()  # in a new kernel
    first.lab.wait_running(CELL)
    first.run_all()  # again in the same one
    first.lab.open_sidebar()
    second = Watched(Lab(browser, lab_server), path)
    first.run_all()  # with a second tab
    second.run_all()
    second.lab.close()
    first.lab.restart()
    first.run_all()  # after a restart
    other = lab_server.notebook(f"status-other-{kernel}.ipynb", SLIDER, WORK, kernel=kernel)
    first.lab.bring(other)  # beside the first one, which stays open
    first.lab.wait_for_notebook(other)
    first.lab.wait_for_idle()
    first.run_all()  # a second kernel beside it


def test_busy_while_the_sidebar_loads_the_package(lab: Lab) -> None:
    watched = Watched(lab, lab.server.notebook("status-sidebar.ipynb", WORK))
    watched.begin()
    watched.lab.run_all()
    watched.lab.open_sidebar().get_by_role("button", name="Start").click()
    watched.through()


def test_busy_in_notebook_7(browser: Browser, notebook_server: Server) -> None:
    path = notebook_server.notebook("status.ipynb", SHOW, SLIDER, WORK)
    watched = Watched(Lab(browser, notebook_server), path, "notebooks")
    watched.run_all()
    watched.run_all()
    button = watched.lab.page.get_by_role("button", name="Kernel monitor: measuring")
    expect(button).to_be_visible()
    button.click()
    expect(watched.lab.page.locator(SIDEBAR)).to_be_visible()
    watched.lab.close()


def test_kernels_that_do_not_use_us_are_asked_nothing(lab_server: Server, lab: Lab, kernel: str) -> None:
    log = Path(lab_server.root).parent / "jupyterlab.log"
    before = log.stat().st_size
    path = lab_server.notebook(f"plain-{kernel}.ipynb", "1 + 1", kernel=kernel)
    lab.open(path)
    lab.open_sidebar().get_by_text("not loaded").first.wait_for()
    lab.run_all()
    lab.wait_for_idle()
    lab.restart()
    lab.page.wait_for_timeout(1000)
    said = log.read_bytes()[before:].decode()
    assert "kernel_monitor" not in said, said
    assert "UNKNOWN" not in said, said
