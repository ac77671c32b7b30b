"""Write a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import MonitorError


def write(path: str | os.PathLike[str], html: str) -> Path:
    """Write `html` to `path`, replacing a file that is there; other readers see the old file or the whole new one.

    Returns:
        The absolute path of the file.

    Raises:
        MonitorError: it cannot be written; the message says why, and neither a half file nor a temporary one is left.
    """
    target = Path(path).expanduser().absolute()
    if target.is_dir():
        raise MonitorError(f"Cannot write {target}: it is a folder. Name a file in it, such as run.html.")
    temporary: Path | None = None
    try:
        # In the same folder: a rename is atomic only within one file system.
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(html)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp gives 0600; a report is a file like any other that the person writes.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise MonitorError(f"Cannot write {target}: {_why(error, target)}.") from error
        raise
    return target


def _why(error: OSError, target: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"the folder {target.parent} does not exist"
    return error.strerror or str(error)
