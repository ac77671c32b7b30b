"""``%load_ext kernel_monitor`` and ``%unload_ext kernel_monitor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from .extension import Extension

_loaded: list[Extension] = []  # one at most


def load(shell: InteractiveShell) -> None:
    """Register the magics and, in a kernel, the control channel. Loading twice is harmless."""
    if _loaded:
        return
    documents = None
    if getattr(getattr(shell, "kernel", None), "control_stream", None) is not None:
        # A kernel with pages; terminal IPython has none, nor has a kernel inside another process. The charts are made
        # while we import the rest.
        from ..stream.documents import Documents

        documents = Documents()
        documents.warm()
    from .extension import Extension

    extension = Extension(shell, documents)
    _loaded.append(extension)
    extension.load()


def unload(shell: InteractiveShell) -> None:  # noqa: ARG001 - IPython passes the shell
    """Take everything back: sampler, threads, handler, magics, events."""
    while _loaded:
        _loaded.pop().unload()
