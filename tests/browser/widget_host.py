"""A front end with the widget protocol and nothing else: no control channel, and no iopub but for widgets.

It stands for VS Code and Colab. Its kernel is a real ipykernel, its browser a real Chromium; between them are a page
that implements anywidget's model over comm messages, and this module, which carries messages between the two.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from playwright.sync_api import Browser, Locator, Page

VIEW = "application/vnd.jupyter.widget-view+json"
PAGE = """<!doctype html><meta charset="utf-8"><title>Widget host</title><main id="outputs"></main><script>
const models = new Map();
const buffersOf = texts => texts.map(t => new DataView(Uint8Array.from(atob(t), c => c.charCodeAt(0)).buffer));
class Model {
  constructor(id, state) {
    this.id = id; this.state = state; this.listeners = new Map(); this.dropped = 0;
    const url = URL.createObjectURL(new Blob([state._esm], { type: 'text/javascript' }));
    this.module = import(url).then(found => found.default);
    const style = document.head.appendChild(document.createElement('style'));
    style.textContent = state._css;
  }
  get(name) { return this.state[name]; }
  set(name, value) { this.state[name] = value; }
  save_changes() {}
  send(content) { void window.toKernel(JSON.stringify({ comm_id: this.id, content })); }
  on(event, callback) { this.listeners.set(callback, event); }
  off(event, callback) { this.listeners.delete(callback); }
  custom(content, buffers) {
    if (this.listeners.size === 0) this.dropped += 1;
    for (const [callback, event] of this.listeners) if (event === 'msg:custom') callback(content, buffers);
  }
}
window.host = {
  open(id, state) { models.set(id, new Model(id, state)); },
  message(id, data, buffers) {
    const model = models.get(id);
    if (model && data.method === 'custom') model.custom(data.content, buffersOf(buffers));
    if (model && data.method === 'update') Object.assign(model.state, data.state);
  },
  async show(id) {
    const model = models.get(id);
    const el = document.querySelector('#outputs').appendChild(document.createElement('div'));
    const widget = await model.module;
    // What a view gets: anywidget passes these of the model, and no kernel.
    const { get, send, on, off, set, save_changes } = Model.prototype;
    const bound = Object.entries({ get, send, on, off, set, save_changes }).map(([k, f]) => [k, f.bind(model)]);
    widget.render({ model: Object.fromEntries(bound), el });
  }
};
</script>"""
DASHBOARD = "#outputs .km-dashboard"


class WidgetHost:
    """One notebook of such a front end."""

    def __init__(self, page: Page, client: BlockingKernelClient, pid: int, base: str) -> None:
        self.page = page
        self.pid = pid  # of the kernel
        self.errors: list[str] = []
        self.printed = ""
        self.busy = False
        self.to_kernel = 0
        self._client = client
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.expose_function("toKernel", self._to_kernel)
        page.goto(base)

    def start(self, code: str, *, allow_stdin: bool = True) -> None:
        """Run a cell, and do not wait for it."""
        self.busy = True
        self._client.execute(code, allow_stdin=allow_stdin, stop_on_error=False)

    def run(self, code: str, *, allow_stdin: bool = True, seconds: float = 60) -> None:
        self.start(code, allow_stdin=allow_stdin)
        self.until(lambda: not self.busy, seconds)

    def until(self, true: Callable[[], Any], seconds: float = 30) -> None:
        """Carry messages until something is true."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"not within {seconds} s; printed: {self.printed}; errors: {self.errors}"
            self.carry(0.1)

    def carry(self, seconds: float) -> None:
        """Carry messages for some time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.page.evaluate("0")  # Playwright calls `_to_kernel` while it waits for an answer
            try:
                self._from_kernel(self._client.get_iopub_msg(timeout=min(left, 0.05)))
            except queue.Empty:
                continue

    def monitor(self, expression: str) -> Any:
        """Evaluate JavaScript in which `monitor` is the dashboard's debugging handle; None before there is one."""
        return self.page.evaluate(
            f"where => {{ const monitor = document.querySelector(where)?.monitor; return monitor && ({expression}); }}",
            DASHBOARD,
        )

    def text(self) -> str:
        """The text of the outputs."""
        return str(self.page.evaluate("document.querySelector('#outputs').innerText"))

    def dashboard(self) -> Locator:
        return self.page.locator(DASHBOARD).first

    def _to_kernel(self, text: str) -> None:
        message = json.loads(text)
        data = {"method": "custom", "content": message["content"]}
        content = {"comm_id": message["comm_id"], "data": data}
        self.to_kernel += 1
        self._client.shell_channel.send(self._client.session.msg("comm_msg", content))

    def _from_kernel(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        buffers = [base64.b64encode(bytes(buffer)).decode() for buffer in message["buffers"]]
        if kind == "status" and message["parent_header"].get("msg_type") == "execute_request":
            self.busy = content["execution_state"] == "busy"
        elif kind == "comm_open" and content["data"]["state"].get("_model_module") == "anywidget":
            self.page.evaluate("([id, state]) => host.open(id, state)", [content["comm_id"], content["data"]["state"]])
        elif kind == "comm_msg":
            arguments = [content["comm_id"], content["data"], buffers]
            self.page.evaluate("([id, data, buffers]) => host.message(id, data, buffers)", arguments)
        elif kind == "display_data" and VIEW in content["data"]:
            self.page.evaluate("id => void host.show(id)", content["data"][VIEW]["model_id"])
        elif kind == "stream":
            self.printed += content["text"]
        elif kind == "error":
            self.printed += "\n".join(content["traceback"])


class _PageHandler(BaseHTTPRequestHandler):
    """Serves the one page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""


@contextmanager
def widget_host(browser: Browser, folder: Path, **env: str) -> Iterator[WidgetHost]:
    """Start a kernel and open the page."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, **env}, cwd=str(folder))
    client = manager.blocking_client()
    client.start_channels()
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    # Served and not made by Playwright: Chromium lets pages of this machine alone ask a server of this machine.
    server = ThreadingHTTPServer(("127.0.0.1", 0), _PageHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        client.wait_for_ready(timeout=60)
        base = f"http://127.0.0.1:{server.server_port}/"
        provisioner: Any = manager.provisioner
        yield WidgetHost(context.new_page(), client, provisioner.pid, base)
    finally:
        context.close()
        server.shutdown()
        server.server_close()
        client.stop_channels()
        manager.shutdown_kernel(now=True)
