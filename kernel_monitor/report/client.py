"""Render in a process of its own: Bokeh never runs, and never holds the GIL, in the process that trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..stream.render import TIMEOUT_S, run_module

if TYPE_CHECKING:
    from ..store import Snapshot


def render_in_process(snapshot: Snapshot, timeout: float = TIMEOUT_S) -> str:
    """The session as the text of one HTML file, made by `python -m kernel_monitor.report`.

    Raises:
        MonitorError: the process failed or took longer than `timeout` seconds.
    """
    return run_module("kernel_monitor.report", snapshot.to_bytes(), timeout=timeout).decode("utf-8")
