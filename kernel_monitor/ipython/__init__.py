"""``%load_ext kernel_monitor`` and ``%unload_ext kernel_monitor``.

Internal: no part of the public interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .extension import Extension

_loaded: list[Extension] = []  # at most one


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics and, in a kernel, the control channel. Loading twice is harmless."""
    if _loaded:
        return
    documents = None
    if getattr(getattr(shell, "kernel", None), "control_stream", None) is not None:
        # Only such a kernel has pages, unlike terminal IPython or an in-process kernel. A process makes the charts
        # during the imports below.
        from ..stream.chart_documents import Documents

        documents = Documents()
        documents.warm()
    from .extension import Extension

    _loaded.append(Extension(shell, documents))
    _loaded[0].load()


def unload_ipython_extension(shell: InteractiveShell) -> None:  # noqa: ARG001 - IPython passes the shell
    """Remove everything: sampler, threads, request handler, magics, events."""
    while _loaded:
        _loaded.pop().unload()
