"""The dashboard in the output of a cell (its page half: ``widgets/src/widget.ts``).

The widget carries no state of the monitor: its page talks to the kernel over the control channel and listens to iopub,
like the sidebar; in a front end that has neither, by custom messages of the widget (`stream/widget_pages.py`). What
Python owns here is only what a page needs before it has spoken to the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ._version import __version__
from .errors import MonitorError
from .protocol.message_types import PROTOCOL
from .stream.widget_pages import WidgetPages

_STATIC = Path(__file__).resolve().parent / "static"

if not (_STATIC / "widget.js").exists():
    raise MonitorError("The dashboard's page half is not built in this source checkout: run make build.")


class Dashboard(anywidget.AnyWidget):
    """A widget with heatmaps, rates, loader switch and export of this kernel's monitor, or of a recorded session."""

    _esm = _STATIC / "widget.js"
    _css = _STATIC / "widget.css"

    protocol = traitlets.Int(PROTOCOL, read_only=True).tag(sync=True)
    version = traitlets.Unicode(__version__, read_only=True).tag(sync=True)
    recorded = traitlets.Unicode(None, allow_none=True, read_only=True).tag(sync=True)

    def __init__(self, pages: WidgetPages | None, *, recorded: str | None = None) -> None:
        self.set_trait("recorded", recorded)  # before the page is told of the widget
        super().__init__()
        self._page = None if pages is None else pages.add(self.send, live=recorded is None)
        self.on_msg(self._receive)

    def _receive(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if self._page is not None:
            self._page.receive(content)
