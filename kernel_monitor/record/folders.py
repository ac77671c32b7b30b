"""The folders in which sessions are recorded.

SQLite's log works on local file systems only: its readers and its writer share memory through a mapped file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

from kernel_monitor.errors import SessionError

OVERRIDE = "KERNEL_MONITOR_SESSIONS"
# File systems whose files are on another machine; each may stand behind "fuse." too.
_REMOTE = (
    "9p acfs afs beegfs ceph cifs coda davfs davfs2 gcsfuse glusterfs gpfs juicefs lustre ncpfs nfs nfs4 orangefs "
    "panfs prl_fs pvfs2 rclone s3fs smb2 smb3 smbfs sshfs vboxsf virtiofs vmhgfs vmhgfs-fuse webdav"
)


class Place(NamedTuple):
    """A folder that can be recorded into, and if it is not the wanted one a `message` that explains why."""

    path: Path
    message: str | None


def directory(wanted: Path | None = None) -> Place:
    """The folder for sessions: `wanted`, else `KERNEL_MONITOR_SESSIONS`, else the user's state directory.

    Where that cannot be written or is on a network, local temporary space; a SessionError where that cannot be, either.
    What is missing is made, for the owner only.
    """
    chosen = Path(wanted).expanduser().absolute() if wanted is not None else usual()
    problem = _problem(chosen)
    if problem is None:
        return Place(chosen, None)
    spare = temporary()
    other = _problem(spare, private=True)
    if other is not None:
        raise SessionError(
            f"Sessions cannot be recorded: {chosen} {problem}, and {spare} {other}. "
            f"Name a local folder that you may write: {OVERRIDE}=FOLDER."
        )
    message = (
        f"{chosen} {problem}: the session is recorded in {spare}, which may be emptied at a restart. "
        f"{OVERRIDE} can name another local folder."
    )
    return Place(spare, message)


def usual() -> Path:
    anchor()
    if named := os.environ.get(OVERRIDE):
        return Path(named)
    from platformdirs import user_state_path

    return user_state_path("kernel_monitor", appauthor=False) / "sessions"


def anchor() -> None:
    """Make the folder in the environment variable absolute, so that a later `chdir` in a notebook does not move it."""
    if named := os.environ.get(OVERRIDE):
        with contextlib.suppress(FileNotFoundError):  # the working directory is gone: it stays as it is
            os.environ[OVERRIDE] = str(Path(named).expanduser().absolute())


def temporary() -> Path:
    """The folder in local temporary space that replaces it."""
    owner = os.getuid() if sys.platform != "win32" else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir(), f"kernel_monitor-{owner}", "sessions")


def known() -> list[Path]:
    """The existing folders in which sessions may be found."""
    return [folder for folder in (usual(), temporary()) if folder.is_dir()]


def new_file(place: Place | Path, session: str, origin: float) -> Path:
    """The file of a session that began at `origin` (Unix s): `2026-11-21-193000-1a2b3c4d.kmsession`, local time."""
    folder = place.path if isinstance(place, Place) else place
    return folder / f"{time.strftime('%Y-%m-%d-%H%M%S', time.localtime(origin))}-{session[:8]}.kmsession"


def remote(path: Path, mounts: Iterable[tuple[str, str]]) -> str | None:
    """The kind of network file system that `path` (absolute, without links) is on; None if it is local.

    `mounts` has the mount point and the kind of every file system, in the order of mounting.
    """
    depth, kind = -1, ""
    for point, name in mounts:
        parts = Path(point).parts
        if len(parts) >= depth and path.is_relative_to(point):  # of two on the same point, the later covers
            depth, kind = len(parts), name.lower()
    return kind if kind.removeprefix("fuse.") in _REMOTE.split() else None


def _problem(folder: Path, *, private: bool = False) -> str | None:
    """Why sessions cannot be recorded in `folder`, in words that follow its name; None if they can. Makes it."""
    try:
        _make(folder)
        if private:
            _claim(folder.parent)
        kind = remote(folder.resolve(), _mounts())
        if kind is not None:
            return f"is on a network file system ({kind}), where SQLite's log does not work"
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        return "is not a folder"
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    return None


def _make(folder: Path) -> None:
    """Make a folder and those above it, each for its owner only."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _claim(folder: Path) -> None:
    """Make a folder in shared space private to this user; a PermissionError if another user made it."""
    if sys.platform == "win32":
        return  # temporary space is the user's own there
    facts = folder.lstat()
    if facts.st_uid != os.getuid():
        raise PermissionError(13, "it belongs to another user")
    if facts.st_mode & 0o077:
        folder.chmod(0o700)


def _mounts() -> list[tuple[str, str]]:
    return [(mount.mountpoint, mount.fstype) for mount in psutil.disk_partitions(all=True)]
