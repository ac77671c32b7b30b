"""See your GPU starve, click once, watch it eat: live CPU and GPU heatmaps and a loader switch for notebooks.

Nothing happens at import; the public names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .loaders import TarShards, switchable
    from .runtime import monitor, open_session
    from .steps import watch_loader
    from .sweeps.plugin import sweep

__all__ = ["TarShards", "__version__", "errors", "monitor", "open_session", "sweep", "switchable", "watch_loader"]

_DEFINED_IN = {
    "TarShards": ".loaders",
    "load_ipython_extension": ".ipython",
    "open_session": ".runtime",
    "switchable": ".loaders",
    "unload_ipython_extension": ".ipython",
    "watch_loader": ".steps",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    if name == "sweep":
        from .plugins import missing, plugin

        sweeps = plugin("sweeps")
        if sweeps is None:
            raise missing("sweeps")
        return sweeps.sweep
    if name == "monitor":
        from .runtime import monitor

        # Who has this package by import alone, as in marimo, shows the widget without %load_ext.
        import_module(".control", __name__).answer_widgets(monitor)
        return monitor
    if name in _DEFINED_IN:
        return getattr(import_module(_DEFINED_IN[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "kernel-monitor"}]
