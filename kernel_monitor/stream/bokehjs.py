"""BokehJS as this environment's Bokeh ships it, and its version, without importing Bokeh."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata, util
from pathlib import Path

from ..errors import MonitorError


@lru_cache(maxsize=1)
def version() -> str:
    """The version of Bokeh."""
    return metadata.version("bokeh")


def path() -> Path:
    """The file of BokehJS.

    Raises:
        MonitorError: Bokeh is not installed.
    """
    spec = util.find_spec("bokeh")
    if spec is None or spec.origin is None:
        raise MonitorError("bokeh is not installed in the kernel's environment: pip install bokeh.")
    return Path(spec.origin).parent / "server" / "static" / "js" / "bokeh.min.js"
