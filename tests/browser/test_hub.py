"""A real JupyterHub: the dashboard of a user's server through the hub's proxy, and the metrics with the hub's token."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Browser, expect

from ..kernel.servers import TOKEN, JupyterServer
from ..kernel.test_server_metrics import GPU, GPU_IDLE, IDLE, MEMORY, RATIO, ROOT, cull, metrics
from ..waiting import until
from .lab import CELL, LOADER, SHOW, SIDEBAR, Lab, Server, wait_for_server

USER = "ada"
CONFIG = """
import sys
c.JupyterHub.bind_url = {base!r}
c.JupyterHub.hub_port = {hub}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {home!r}
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = [
    "--allow-root", "--LabApp.expose_app_in_browser=True", "--config={server}",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
]
c.Spawner.environment = {environment!r}
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.JupyterHub.services = [{{"name": "administration", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [{{"name": "administration", "services": ["administration"], "scopes": ["access:servers"]}}]
"""
TRAIN = "for epoch in range(1000):\n    for images, labels in loader:\n        time.sleep(0.02)\n"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """A hub on loopback with its proxy, where everybody may log in; yields its address."""
    with _hub(tmp_path) as base:
        yield base


@contextmanager
def _hub(folder: Path) -> Iterator[str]:
    ports = _free_ports(3)
    base = f"http://127.0.0.1:{ports[0]}"
    proxy = ROOT / "node_modules" / ".bin" / "configurable-http-proxy"
    assert proxy.exists(), "the hub's proxy is a package of npm: npm ci"
    for name in ("home", "etc"):
        (folder / name).mkdir()
    settings = folder / "etc" / "jupyter_server_config.py"
    settings.write_text("c.KernelMonitor.prometheus = True\n")
    quiet = folder / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    kept = {
        name: str(folder / "home" / name.lower())
        for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "KERNEL_MONITOR_SESSIONS", "KERNEL_MONITOR_CACHE")
    }
    kept |= {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "PATH": os.environ["PATH"]}
    config = folder / "jupyterhub_config.py"
    config.write_text(
        CONFIG.format(
            base=base, hub=ports[1], api=ports[2], proxy=str(proxy), home=str(folder / "home"), server=str(settings),
            environment=kept, token=TOKEN,
        )
    )  # fmt: skip
    log = folder / "hub.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "--config", str(config)],
            cwd=folder, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            wait_for_server(f"{base}/hub/health", process, log)
            yield base
        finally:
            process.terminate()  # it ends its users' servers and its proxy
            process.wait(60)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def test_a_user_of_a_hub_switches_in_a_busy_cell_and_the_hub_reads_metrics(
    browser: Browser, hub: str, tmp_path: Path, images: Path
) -> None:
    files = Server.__new__(Server)
    files.root, files.base = tmp_path / "home", f"{hub}/user/{USER}"
    simulated = GPU.format(path=os.pathsep.join([str(ROOT / "benchmarks" / "nvml"), str(ROOT)]))
    with Lab(browser, files) as lab:
        lab.page.goto(f"{hub}/hub/login")
        lab.page.get_by_label("Username").fill(USER)
        lab.page.get_by_role("button", name="Sign in").click()
        lab.page.wait_for_url(f"**/user/{USER}/lab**", timeout=120_000)
        dashboard = lab.show(simulated + LOADER.format(root=str(images)) + SHOW, TRAIN)
        lab.run_cell(1)
        lab.wait_for_busy()
        expect(dashboard.get_by_text(re.compile(r"batch [1-9]\d* of"))).to_be_visible()
        lab.open_sidebar()
        lab.wait_running(SIDEBAR)
        dashboard.get_by_role("radio", name=re.compile("dali-cpu")).click()
        expect(dashboard.get_by_role("status").first).to_contain_text("dali-cpu since batch")
        assert lab.monitor(CELL, "monitor.stats.missed") == 0

        server = JupyterServer(files.base, tmp_path / "home" / "jupyter_runtime_dir")
        with pytest.raises(HTTPError, match="403") as refused:
            server.read("/metrics", token="")
        refused.value.close()
        (kernel,) = server.kernels()
        until(lambda: MEMORY in metrics(server, kernel), 30)
        seen = metrics(server, kernel)
        assert set(seen) == {IDLE, GPU_IDLE, RATIO, MEMORY}
        assert (seen[IDLE], seen[GPU_IDLE]) == (0.0, 0.0)
        cull(server, 0.0)
        assert server.kernels() == [kernel]
        lab.command("notebook:interrupt-kernel")
        until(lambda: metrics(server, kernel)[GPU_IDLE] > 2.0, 60)
        cull(server, 2.0)
        until(lambda: server.kernels() == [], 20)
