"""Render in a process of its own: Bokeh never runs, and never holds the GIL, in the process that trains."""

from __future__ import annotations

from collections.abc import Callable

from ..store import Snapshot
from ..stream.render_process import TIMEOUT_S, run_module


def render_in_process(snapshot: Snapshot | Callable[[], Snapshot], timeout: float = TIMEOUT_S) -> str:
    """The session as the text of one HTML file, made by `python -m kernel_monitor.report`.

    `snapshot` may be what reads it while the process starts. A MonitorError is raised if the process fails, or takes
    longer than `timeout` seconds from when it has the snapshot.
    """

    def content() -> bytes:
        return (snapshot() if callable(snapshot) else snapshot).to_bytes()

    # One that is there is packed before the process starts: beside a training loop not both in the same step.
    stdin = content if callable(snapshot) else content()
    return run_module("kernel_monitor.report", stdin, timeout=timeout).decode("utf-8")
