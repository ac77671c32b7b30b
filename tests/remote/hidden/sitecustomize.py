"""Imported by Python at its start: the folder in HIDDEN_FOLDER is not there for this process.

For nodes of a test's cluster on a machine on which no file system may be mounted over the folder.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from typing import Any

HIDDEN = os.environ.get("HIDDEN_FOLDER", "")


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does not find what is in the folder."""

    def hidden(path: Any, *args: Any, **named: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(HIDDEN):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return function(path, *args, **named)

    return hidden


if HIDDEN:
    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "scandir")):
        setattr(module, name, hiding(getattr(module, name)))
