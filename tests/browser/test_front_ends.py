"""Front ends with the widget protocol and no control channel: what is live there, and what a click does."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from .lab import LOADER, TOKEN, Server, wait_for_server
from .widget_host import WidgetHost, widget_host

SPIN = "_until = time.monotonic() + {seconds}\nwhile time.monotonic() < _until:\n    sum(range(1000))\n"
SHOW = "import time\n%load_ext kernel_monitor\n%monitor\n"
TRAIN = "for epoch in range(1000):\n    for images, labels in loader:\n        time.sleep(0.02)\n"
LINE = "charts are live, but while a cell runs clicks cannot reach the kernel"


@pytest.fixture
def host(browser: Browser, tmp_path: Path) -> Iterator[WidgetHost]:
    with widget_host(browser, tmp_path) as host:
        yield host
        assert host.errors == []


def test_one_cell_that_never_yields_shows_live_charts_from_its_beginning(host: WidgetHost) -> None:
    """The page is there only once the cell runs, and no request of its own is answered before the end."""
    host.start(SHOW + SPIN.format(seconds=60))
    host.until(lambda: host.monitor("monitor.stats.received > 5 && monitor.feed?.drawn"), 40)
    before, began = host.monitor("monitor.stats.received"), time.monotonic()
    host.carry(5)
    rate = (host.monitor("monitor.stats.received") - before) / (time.monotonic() - began)
    assert host.busy, host.printed
    assert rate > 1
    assert host.monitor("monitor.stats.missed") == 0
    note = host.page.get_by_role("note")
    expect(note).to_contain_text(f"This front end: {LINE}. In a terminal:")
    expect(note).to_contain_text("kernel-monitor switch dali-cpu")


def test_a_click_while_a_cell_runs_is_refused_with_the_command_that_works(host: WidgetHost, images: Path) -> None:
    host.run(LOADER.format(root=str(images)) + SHOW)
    host.until(lambda: host.monitor("monitor.stats.received > 5"))
    host.start(TRAIN)
    _trains(host)
    host.dashboard().get_by_role("radio", name=re.compile("dali-cpu")).click()
    host.until(lambda: "A cell is running" in host.text())
    assert "kernel-monitor switch dali-cpu" in host.text()
    command = [sys.executable, "-m", "kernel_monitor", "switch", "dali-cpu", "--session", str(host.pid)]
    terminal = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    host.until(lambda: terminal.poll() is not None)
    assert terminal.communicate()[0].startswith("loader-1: dali-cpu since batch")
    host.until(lambda: "dali-cpu since batch" in _status(host), 5)
    assert host.busy


def test_over_http_a_click_is_acted_on_within_two_seconds(host: WidgetHost, images: Path) -> None:
    host.run(LOADER.format(root=str(images)) + "monitor.configure(http=True)\n" + SHOW)
    host.until(lambda: host.monitor("monitor.stats.received > 5"))
    host.start(TRAIN)
    _trains(host)
    assert "clicks reach the kernel over 127.0.0.1:" in host.text()
    radio = host.dashboard().get_by_role("radio", name=re.compile("threads"))
    clicked = time.monotonic()
    radio.click()
    host.until(lambda: "threads since batch" in _status(host), 10)
    assert time.monotonic() - clicked < 2
    assert host.busy


def _trains(host: WidgetHost) -> None:
    host.until(lambda: host.busy and re.search(r"batch [1-9]\d* of", host.text()))


def _status(host: WidgetHost) -> str:
    return host.dashboard().get_by_role("status").first.inner_text()


MARIMO = """
import marimo
app = marimo.App()

@app.cell
def _():
    import time
    from kernel_monitor import monitor
    monitor.dashboard()
    return monitor, time

@app.cell
def _(monitor, time):
    until = time.monotonic() + 40
    while time.monotonic() < until and monitor.session:
        sum(range(1000))
    return
"""


def test_marimo_shows_live_charts_while_a_cell_runs(browser: Browser, tmp_path: Path) -> None:
    with marimo(tmp_path, MARIMO) as base, browser.new_context() as context:
        page = context.new_page()
        page.goto(base)
        note = page.get_by_role("note").filter(has_text=LINE)
        expect(note).to_contain_text(f"marimo: {LINE}")
        _live(page)
        received = _stat(page)
        page.wait_for_timeout(4000)
        assert _stat(page) - received > 4
        assert "A cell is running" in page.locator(".km-dashboard").first.inner_text()


def _live(page: Page) -> None:
    """Wait until a dashboard draws live frames; a locator looks into shadow roots."""
    dashboard = page.locator(".km-dashboard[data-state=running]").first
    dashboard.wait_for(timeout=45_000)
    handle = dashboard.element_handle()
    page.wait_for_function("el => el.monitor.stats.received > 5 && el.monitor.feed?.drawn", arg=handle, timeout=45_000)


def _stat(page: Page) -> int:
    return int(page.locator(".km-dashboard").first.evaluate("el => el.monitor.stats.received"))


@contextmanager
def marimo(folder: Path, notebook: str, *, theme: str = "light") -> Iterator[str]:
    """Open a notebook in marimo's editor on loopback; yields its address."""
    (folder / "notebook.py").write_text(textwrap.dedent(notebook).lstrip())
    settings = folder / "config" / "marimo" / "marimo.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[display]\ntheme = "{theme}"\n[runtime]\nauto_instantiate = true\n')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["marimo", "edit", "notebook.py", "--headless", "--no-token", "--skip-update-check", "--no-sandbox"]
    log = folder / "marimo.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--port", str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder / "config")},
        )
        try:
            wait_for_server(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def test_nbclassic_shows_live_charts_while_a_cell_runs(browser: Browser, lab_server: Server) -> None:
    book = lab_server.notebook("classic.ipynb", SHOW + SPIN.format(seconds=25))
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{lab_server.base}/nbclassic/notebooks/{book}?token={TOKEN}")
        page.wait_for_function("() => window.Jupyter?.notebook?.kernel?.is_connected()", timeout=60_000)
        page.evaluate("() => window.Jupyter.notebook.execute_all_cells()")
        _live(page)
        assert "A cell is running" in page.locator(".km-dashboard").first.inner_text()
        expect(page.get_by_role("note").filter(has_text=LINE)).to_contain_text(f"nbclassic: {LINE}")
