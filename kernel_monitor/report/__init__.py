"""A session as one HTML file that opens offline. Importing this imports no Bokeh; :func:`render` may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..output import write

if TYPE_CHECKING:
    from ..store import Snapshot


def render(snapshot: Snapshot) -> str:
    """The session as the text of one HTML file. May import Bokeh: in a process that trains use `report.client`."""
    from . import page

    return page.render(snapshot)


__all__ = ["render", "write"]
