"""Where sessions are kept.

SQLite's log works on local file systems only: its readers and its writer share memory through a mapped file.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from kernel_monitor.errors import SessionError

OVERRIDE = "KERNEL_MONITOR_SESSIONS"
# File systems whose files are on another machine; each may stand behind "fuse." too.
_REMOTE = (
    "9p acfs afs beegfs ceph cifs coda davfs davfs2 gcsfuse glusterfs gpfs juicefs lustre ncpfs nfs nfs4 orangefs "
    "panfs prl_fs pvfs2 rclone s3fs smb2 smb3 smbfs sshfs vboxsf virtiofs vmhgfs vmhgfs-fuse webdav"
)


class Place(NamedTuple):
    """A folder that can be recorded into.

    Attributes:
        path: the folder, which exists.
        message: a sentence for people: why it is not the wanted one; None if it is.
    """

    path: Path
    message: str | None


def directory(wanted: Path | None = None) -> Place:
    """The folder for sessions: `wanted`, else `KERNEL_MONITOR_SESSIONS`, else the user's state directory.

    Where that cannot be written or is on a network, local temporary space. What is missing is made, for the owner only.

    Raises:
        SessionError: there is no folder at all that can be recorded into.
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
    return Place(
        spare,
        f"{chosen} {problem}: the session is recorded in {spare}, which may be emptied at a restart. "
        f"{OVERRIDE} can name another local folder.",
    )


def usual() -> Path:
    """The folder in which sessions are wanted if nobody says otherwise."""
    anchor()
    if named := os.environ.get(OVERRIDE):
        return Path(named)
    from platformdirs import user_state_path

    return user_state_path("kernel_monitor", appauthor=False) / "sessions"


def anchor() -> None:
    """Make the folder that the environment names absolute, once, there too: whatever working directory a notebook
    changes to later, it and the processes that it starts find the same one."""
    if named := os.environ.get(OVERRIDE):
        with contextlib.suppress(FileNotFoundError):  # the working directory is gone: it stays as it is
            os.environ[OVERRIDE] = str(Path(named).expanduser().absolute())


def temporary() -> Path:
    """The folder in local temporary space that stands in for it."""
    owner = os.getuid() if sys.platform != "win32" else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir(), f"kernel_monitor-{owner}", "sessions")


def known() -> list[Path]:
    """The folders in which sessions may be found, as far as they exist."""
    return [folder for folder in (usual(), temporary()) if folder.is_dir()]


def new_file(place: Place | Path, session: str, origin: float) -> Path:
    """The file of a session that began at `origin` (Unix s): `2026-11-21-193000-1a2b3c4d.kmsession`, local time.

    The same session has the same name, always; nothing is made.
    """
    folder = place.path if isinstance(place, Place) else place
    return folder / f"{time.strftime('%Y-%m-%d-%H%M%S', time.localtime(origin))}-{session[:8]}.kmsession"


def remote(path: Path, mounts: str) -> str | None:
    """The kind of network file system that `path` (absolute, without links) is on; None if it is local.

    Args:
        mounts: the text of `/proc/self/mountinfo`.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:
            continue
        # Blanks and the like in names are octal escapes.
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        if len(point.parts) >= best and path.is_relative_to(point):  # of two on one point, the later covers
            best, kind = len(point.parts), tail.split(" ")[0]
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
    if folder.is_dir():
        return
    if not folder.parent.is_dir():
        _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def _claim(folder: Path) -> None:
    """See that a folder in shared space is ours and nobody else's.

    Raises:
        PermissionError: somebody else made it.
    """
    if sys.platform == "win32":
        return  # temporary space is the user's own there
    facts = folder.lstat()
    if facts.st_uid != os.getuid():
        raise PermissionError(13, "it belongs to somebody else")
    if facts.st_mode & 0o077:
        folder.chmod(0o700)


def _mounts() -> str:
    """The mounted file systems in mountinfo's form."""
    if not sys.platform.startswith("linux"):
        import psutil

        return "\n".join(
            f"0 0 0:0 / {part.mountpoint.replace(' ', chr(92) + '040')} - {part.fstype.lower()} x x"
            for part in psutil.disk_partitions(all=True)
        )
    return Path("/proc/self/mountinfo").read_text("utf-8", errors="surrogateescape")
