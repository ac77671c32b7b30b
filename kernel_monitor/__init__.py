"""See your GPU starve, click once, watch it eat: live CPU and GPU heatmaps and a loader switch for notebooks.

Nothing happens at import; the public names are loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .loaders import switchable
    from .runtime import monitor, open_session
    from .steps import watch_loader

__all__ = ["__version__", "errors", "monitor", "open_session", "switchable", "watch_loader"]


def __getattr__(name: str) -> Any:
    if name == "switchable":
        from .loaders import switchable

        return switchable
    if name == "monitor":
        from .runtime import monitor, open_session

        return monitor
    if name == "open_session":
        from .runtime import open_session

        return open_session
    if name == "watch_loader":
        from .steps import watch_loader

        return watch_loader
    if name == "errors":
        from importlib import import_module

        return import_module(".errors", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: InteractiveShell) -> None:
    from .ipython import load

    load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    from .ipython import unload

    unload(shell)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    return [{"src": "labextension", "dest": "kernel-monitor"}]
