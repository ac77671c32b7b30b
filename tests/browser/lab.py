"""A real JupyterLab (or Notebook 7) in a real Chromium, driven as a person drives it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Locator, Page, ViewportSize, sync_playwright

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = "kernel-monitor-test"  # noqa: S105 - guards nothing: the server listens on loopback for one test run
TOOLS = "localStorage.getItem('kernel-monitor:open') ?? localStorage.setItem('kernel-monitor:open', '[\"tools\"]')"
CLEAR = f"""async () => {{
    const app = window.jupyterapp;
    for (const button of document.querySelectorAll('.jp-Dialog button.jp-mod-reject')) button.click();
    await app.serviceManager.sessions.shutdownAll();
    for (const widget of [...app.shell.widgets('main')]) widget.dispose();
    app.shell.collapseRight();
    localStorage.clear();
    {TOOLS};
}}"""
SESSION = "window.jupyterapp.shell.currentWidget.sessionContext"
SIDEBAR = ".km-sidebar .km-dashboard"
CELL = ".jp-OutputArea .km-dashboard"
START = "%load_ext kernel_monitor\n%monitor start"
SHOW = "%load_ext kernel_monitor\n%monitor"
IMPORTS = """\
import os, time, torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from kernel_monitor import monitor, switchable
"""
LOADER = f"""{IMPORTS}
transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
loader = switchable(DataLoader(ImageFolder({{root!r}}, transform), batch_size=8, num_workers=0))
"""
NUMBERS = itertools.count(1)


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path, "the browser tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Server:
    """One Jupyter server over a folder of its own."""

    def __init__(self, root: Path, process: subprocess.Popen[bytes], port: int) -> None:
        self.root = root
        self.process = process
        self.base = f"http://127.0.0.1:{port}"

    def notebook(self, name: str, *cells: str, kernel: str = "python3") -> str:
        """Write a notebook of code cells; returns its path below the root."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        book.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        nbformat.write(book, self.root / name)
        return name

    def end_kernels(self) -> None:
        """End every kernel: one that goes on measures, and takes the next tests' time."""
        for kernel in json.loads(self._call("GET", "/api/kernels")):
            self._call("DELETE", f"/api/kernels/{kernel['id']}")

    def _call(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{self.base}{path}", method=method, headers={"Authorization": f"token {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - loopback
            content: bytes = reply.read()
        return content


@contextmanager
def server(root: Path, app: str = "jupyterlab", *, python: str | Path = sys.executable, **env: str) -> Iterator[Server]:
    """Start ``app`` (``jupyterlab`` or ``notebook``) of ``python`` on loopback; ended by its own process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files = root / "files"
    files.mkdir(parents=True, exist_ok=True)
    # No question about news over the page, and no request for them.
    quiet = root / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True, exist_ok=True)
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    log = (root / f"{app}.log").open("wb")
    expose = "LabApp" if app == "jupyterlab" else "JupyterNotebookApp"
    process = subprocess.Popen(
        [
            python, "-m", app, "--no-browser", "--allow-root",
            "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={files}",
            f"--{expose}.expose_app_in_browser=True",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        ],
        stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
            "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
            "IPYTHONDIR": str(root / "ipython"),
            "KERNEL_MONITOR_SESSIONS": str(root / "sessions"),
            "KERNEL_MONITOR_CACHE": str(root / "cache"),
            **env,
        },
    )  # fmt: skip
    try:
        wait_for_server(f"http://127.0.0.1:{port}/api?token={TOKEN}", process, root / f"{app}.log")
        yield Server(files, process, port)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def wait_for_server(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=2).close()  # noqa: S310 - loopback
            return
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the server did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


class Lab:
    """A browser page with one notebook open."""

    def __init__(
        self,
        browser: Browser,
        server: Server,
        *,
        width: int = 1500,
        height: int = 1000,
        dark: bool = False,
        tools: bool = True,
    ):
        """``tools``: in narrow dashboards *Tools* has been opened before, as it is remembered."""
        self.server = server
        self.size: ViewportSize = {"width": width, "height": height}
        self.context = browser.new_context(viewport=self.size, accept_downloads=True)
        if tools:
            self.context.add_init_script(TOOLS)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.dark = dark
        self.loaded = False

    def open(self, path: str, *, tree: str = "lab/tree", reload: bool = False) -> Lab:
        """Open a notebook and wait for its kernel; JupyterLab itself is loaded once, or anew with ``reload``."""
        if self.loaded and not reload:
            self.bring(path)
            self.wait_for_notebook(path)
        else:
            self.page.goto(f"{self.server.base}/{tree}/{path}?token={TOKEN}&reset")
            self.loaded = True
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        if self.dark:
            self.command("apputils:change-theme", {"theme": "JupyterLab Dark"})
        self.wait_for_idle()
        return self

    def show(
        self, *cells: str, name: str = "", where: str = CELL, kernel: str = "python3", seconds: float = 60
    ) -> Locator:
        """Open a new notebook of these cells and run the first; return the dashboard once it draws live frames."""
        self.open(self.server.notebook(name or f"notebook-{next(NUMBERS)}.ipynb", *cells, kernel=kernel))
        self.run_cell(0)
        if where == SIDEBAR:
            self.open_sidebar()
        self.wait_running(where, seconds)
        return self.dashboard(where)

    def clear(self) -> None:
        """Leave JupyterLab as it was loaded: no notebook, no kernel, no sidebar, nothing remembered."""
        self.page.evaluate(CLEAR)
        self.page.set_viewport_size(self.size)
        self.page.wait_for_timeout(300)  # what the closed connections still say
        self.errors.clear()

    def bring(self, path: str) -> None:
        """Show a notebook, as a click on its tab does."""
        self.command("docmanager:open", {"path": path})

    def save(self) -> None:
        """Save the notebook, and wait until that is done."""
        self.command("docmanager:save")
        self.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty")

    def restart(self) -> None:
        """Restart the kernel of the notebook that is shown."""
        self.page.evaluate(f"() => {SESSION}.session.kernel.restart()")
        self.wait_for_idle()

    def shut_down(self) -> None:
        """End the kernel of the notebook that is shown."""
        self.page.evaluate(f"() => {SESSION}.shutdown()")

    def wait_for_notebook(self, path: str) -> None:
        self.page.wait_for_function(
            "(path) => window.jupyterapp.shell.currentWidget?.context?.path === path", arg=path, timeout=60_000
        )

    def command(self, name: str, args: dict[str, Any] | None = None) -> None:
        """Run a JupyterLab command, as the menus and the palette do. Does not wait for its end."""
        self.page.evaluate(
            "([name, args]) => { void window.jupyterapp.commands.execute(name, args); }", [name, args or {}]
        )

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def run_cell(self, index: int) -> None:
        """Select a cell and run it with the keyboard."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(index)
        cell.locator(".cm-content").first.click()
        self.page.keyboard.press("Control+Enter")

    def output(self, index: int) -> str:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(index).locator(".jp-OutputArea").first.inner_text()

    def status(self) -> str:
        """JupyterLab's own kernel status: ``idle``, ``busy``…"""
        indicator = self.page.locator(".jp-NotebookPanel .jp-Notebook-ExecutionIndicator").first
        return str(indicator.get_attribute("data-status"))

    def wait_for_idle(self, seconds: float = 90) -> None:
        self.page.wait_for_function(
            """() => { const w = window.jupyterapp.shell.currentWidget;
                       const k = w?.sessionContext?.session?.kernel; return k && k.status === 'idle'; }""",
            timeout=seconds * 1000,
        )

    def open_sidebar(self) -> Locator:
        self.command("kernel-monitor:show-sidebar")
        sidebar = self.page.locator(".km-sidebar")
        sidebar.wait_for(state="visible")
        return sidebar

    def dashboard(self, where: str = CELL) -> Locator:
        found = self.page.locator(where).first
        found.wait_for(state="visible")
        return found

    def wait_running(self, where: str, seconds: float = 60) -> None:
        """Until the charts in ``where`` are drawn from live frames."""
        self.until(where, "monitor.stats.received > 5 && monitor.feed?.drawn", seconds=seconds)

    def until(self, where: str, condition: str, argument: Any = None, *, seconds: float = 60) -> None:
        """Wait until JavaScript is true in which `monitor` is the dashboard's debugging handle."""
        self.page.wait_for_function(
            f"""([where, argument]) => {{
                const monitor = document.querySelector(where)?.monitor;
                return monitor && ({condition});
            }}""",
            arg=[where, argument],
            timeout=seconds * 1000,
        )

    def wait_printed(self, cell: int, word: str, seconds: float = 60) -> None:
        """Wait until a cell has printed something; an error that it prints instead ends the wait, too."""
        self.page.wait_for_function(
            """([cell, word]) => {
                const output = document.querySelectorAll('.jp-CodeCell')[cell].querySelector('.jp-OutputArea');
                return output?.textContent.includes(word) || output?.querySelector('[data-mime-type*=stderr]');
            }""",
            arg=[cell, word],
            timeout=seconds * 1000,
        )

    def wait_for_busy(self) -> None:
        """Until JupyterLab knows that a cell runs."""
        self.page.wait_for_function(f"() => {SESSION}?.session?.kernel?.status === 'busy'")

    def monitor(self, where: str, expression: str) -> Any:
        """Evaluate JavaScript with ``monitor`` bound to the dashboard's debugging handle."""
        return self.page.evaluate(
            f"(where) => {{ const monitor = document.querySelector(where).monitor; return {expression}; }}", where
        )

    def export(self, place: Locator, folder: Path) -> Path:
        """Press *Export* there; return the file that was downloaded."""
        with self.page.expect_download(timeout=180_000) as download:
            place.get_by_role("button", name="Export").click()
        target = folder / download.value.suggested_filename
        download.value.save_as(target)
        return target

    def close(self) -> None:
        self.context.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
