"""The server extension in a real Jupyter server: GPU use and idle time of its kernels on `/metrics`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import kernel_monitor
from kernel_monitor import server_extension
from kernel_monitor.analysis.idle_gpus import USED_PERCENT

from ..record import hostile
from ..record.recorded import sql
from ..record.test_unknown_origin import HARMFUL
from ..waiting import until
from .kernels import Page
from .servers import TOKEN, JupyterServer, jupyter_server

ROOT = Path(__file__).parents[2]
IDLE, GPU_IDLE = "kernel_monitor_kernel_idle_seconds", "kernel_monitor_gpu_idle_seconds"
RATIO, MEMORY = "kernel_monitor_gpu_utilization_ratio", "kernel_monitor_gpu_memory_bytes"
# A GPU on which the kernel holds memory and does nothing: the simulated load is that of all these processes together.
GPU = """
import json, os
os.environ["PYTHONPATH"] = {path!r}
os.environ["KERNEL_MONITOR_FAKE_NVML"] = json.dumps(
    {{"gpus": 1, "latency": False, "pids": [os.getpid(), *range(2**22 + 1, 2**22 + 200)]}}
)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    """A server that finds the extension as an installed wheel has it, with the option on."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "etc" / "jupyter_server_config.d").mkdir(parents=True)
    shutil.copyfile(
        Path(kernel_monitor.__file__).with_name("jupyter_server_config.json"),
        folder / "etc" / "jupyter_server_config.d" / "kernel_monitor.json",
    )
    (folder / "etc" / "jupyter_server_config.py").write_text("c.KernelMonitor.prometheus = True\n")
    with jupyter_server(folder, JUPYTER_CONFIG_PATH=str(folder / "etc")) as found:
        yield found


def metrics(server: JupyterServer, kernel: str) -> dict[str, float]:
    """The values of our metrics of a kernel, by name."""
    text = server.read("/metrics").decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("kernel_id") == kernel
    }


def state(server: JupyterServer, kernel: str) -> str:
    return str(server.call(f"/api/kernels/{kernel}")["execution_state"])


@pytest.fixture
def kernel(server: JupyterServer) -> Iterator[tuple[str, Page]]:
    """A kernel of the server that will find a GPU, and a page of it."""
    kernel = server.start_kernel()
    page = server.connect(kernel)
    page.run(GPU.format(path=os.pathsep.join([str(ROOT / "benchmarks" / "nvml"), str(ROOT)])))
    yield kernel, page
    page.close()
    if kernel in server.kernels():
        server.call(f"/api/kernels/{kernel}", "DELETE")


def run_beside(page: Page, code: str) -> None:
    """Execute on a subshell, as the sidebar does; return when it is done."""
    session, client = page.client.session, page.client
    client.control_channel.send(request := session.msg("create_subshell_request", {}))
    reply = client.get_control_msg(timeout=20)
    assert reply["parent_header"]["msg_id"] == request["header"]["msg_id"]
    message = session.msg("execute_request", {"code": code, "silent": True, "store_history": False})
    message["header"]["subshell_id"] = reply["content"]["subshell_id"]
    client.shell_channel.send(message)
    assert client.get_shell_msg(timeout=20)["parent_header"]["msg_id"] == message["header"]["msg_id"]


def cull(server: JupyterServer, limit: float) -> None:
    """Run the script of `docs/howto/hubs.md`."""
    (code,) = re.findall(r"```python\n(import .*?)```", (ROOT / "docs/howto/hubs.md").read_text("utf-8"), re.DOTALL)
    told = {"JUPYTER_SERVER_URL": server.base, "JUPYTER_TOKEN": TOKEN, "GPU_IDLE_LIMIT_S": str(limit)}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **told}, check=True, timeout=30)


def test_a_running_cell_is_never_idle_and_a_held_gpu_is_after_it(
    server: JupyterServer, kernel: tuple[str, Page]
) -> None:
    name, page = kernel
    page.start("%load_ext kernel_monitor\n%monitor start\nimport time\nfor _ in range(300): time.sleep(0.1)")
    until(lambda: MEMORY in metrics(server, name), 30, lambda: server.read("/metrics").decode()[-3000:])
    page.ask("subscribe", client="one")  # as a page does: its answer ends with the status idle
    time.sleep(0.5)
    assert state(server, name) == "busy", "the server would cull a kernel whose cell runs"
    run_beside(page, "1 + 1")
    until(lambda: state(server, name) == "idle")  # so says the server, and the cell still runs
    time.sleep(2.0)
    seen = metrics(server, name)
    assert (seen[IDLE], seen[GPU_IDLE]) == (0.0, 0.0)
    assert seen[MEMORY] > 1e6
    assert seen[RATIO] < USED_PERCENT / 100
    server.call(f"/api/kernels/{name}/interrupt", "POST")
    page.client.get_shell_msg(timeout=20)
    ended = time.time()
    until(lambda: metrics(server, name)[GPU_IDLE] > 2.0)
    seen, past = metrics(server, name), time.time() - ended
    page.run("import kernel_monitor.runtime.publisher as publisher; publisher.AFTER_S = (1.0,)")
    page.run("import kernel_monitor.analysis.idle_gpus as idle_gpus; idle_gpus.AFTER_S = (1.0,)")
    page.ask("subscribe", client="one")
    told = [frame["content"].get("notices") for frame in page.frames(3.0)]
    (sentences,) = [sentences for sentences in told if sentences]
    assert re.fullmatch(r"No cell has run .* holds [\d.]+ GB of GPU 0 without using it\. .*", sentences[0]), sentences
    assert 1.0 < seen[GPU_IDLE] <= seen[IDLE] <= past + 1.0
    assert set(seen) == {IDLE, GPU_IDLE, RATIO, MEMORY}

    cull(server, 600.0)
    assert name in server.kernels()
    cull(server, 2.0)
    assert name not in server.kernels()


def test_however_often_it_is_scraped_the_kernels_are_read_once_a_second() -> None:
    class Kernels:
        asked = 0

        def list_kernel_ids(self) -> list[str]:
            self.asked += 1
            return []

    kernels = Kernels()
    collector = server_extension.KernelCollector(kernels, pytest.fail)
    assert [metric.samples for metric in collector.describe()] == [[]] * 4
    began = time.monotonic()
    while time.monotonic() < began + 1.5 * server_extension.PERIOD_S:
        list(collector.collect())
    assert kernels.asked == 2


class Manager:
    """A kernel of a server, as far as the extension asks: this process."""

    provisioner = SimpleNamespace(pid=os.getpid())
    execution_state = "idle"
    last_activity = None

    def observe(self, *_callback: object) -> None:
        pass


@pytest.mark.parametrize("name", ["events as an endless view", "9.8 MB that unpack to 10 GB"])
def test_a_hostile_recording_costs_the_server_little_and_is_named_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.kmsession"
    hostile.base(path)
    sql(path, "UPDATE meta SET value = ? WHERE key = 'origin'", values=[f"{time.time() - 60.0}"])  # its rows are of now
    HARMFUL[name][0](path)
    os.utime(path, (1.0, 1.0))
    code = f"import sys; file = open({str(path)!r}, 'rb'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "kernel_monitor.sample"]
    warned: list[str] = []
    manager = Manager()
    kernels = SimpleNamespace(list_kernel_ids=lambda: ["k"], get_kernel=lambda _id: manager)
    collector = server_extension.KernelCollector(kernels, warned.append)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sampler:
        assert sampler.stdout is not None
        sampler.stdout.readline()
        spent = []
        found: dict[str, Any] = {}
        for _ in range(3):
            began = time.process_time()
            with warnings.catch_warnings(action="ignore"):  # of damaged blocks, as people are told
                found = {metric.name: metric.samples for metric in collector.collect()}
            spent.append(time.process_time() - began)
            time.sleep(server_extension.PERIOD_S)
        sampler.communicate()
    assert [sample.labels for sample in found[IDLE]] == [{"kernel_id": "k"}]
    assert found[MEMORY] == []
    assert len(warned) == (name == "events as an endless view")
    assert max(spent[1:]) < 1.0, spent


def test_without_the_option_the_extension_is_inert_and_shows_nothing(tmp_path: Path) -> None:
    with jupyter_server(tmp_path, "--ServerApp.jpserver_extensions=kernel_monitor.server_extension=True") as server:
        text = server.read("/metrics").decode()
        assert "kernel_monitor_" not in text
        assert "http_request_duration_seconds" in text
        log = (tmp_path / "server.log").read_text()
        assert "kernel_monitor.server_extension | extension was successfully loaded" in log
    code = "import kernel_monitor.server_extension, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "bokeh", "numpy", "psutil", "prometheus_client", "sqlite3"} & set(loaded) == set()
