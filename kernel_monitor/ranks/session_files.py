"""The folder by which ranks find and trust the session of a kernel: its address, its public key, their key pair."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from .. import own_files
from ..errors import MonitorError
from ..os_process import is_alive, start_of

VARIABLE = "KERNEL_MONITOR_JOIN"
"""The environment variable that names the folder, which children of the kernel inherit; or a TCP address."""
KEYS = "KERNEL_MONITOR_KEYS"
"""The environment variable with the keys (`Join.keys`) where the other one has an address."""
PREFIX = "kernel-monitor-"
FILE = "join.json"
_SOCKET = "ranks"
_KEY_LETTERS = 40  # of a CURVE key in Z85
LONGEST = 100  # bytes of the socket's path: Linux allows 108, macOS 104, both with a zero at the end


class JoinError(MonitorError):
    """There is no session to join: the message has cause and remedy."""


@dataclass(frozen=True)
class Join:
    """The content of the folder: what a rank needs to join."""

    addresses: tuple[str, ...]  # of the server: the Unix socket, and TCP where it was asked for
    server: str  # its public CURVE key (Z85)
    public: str  # public, secret: the ranks' own key pair (Z85)
    secret: str
    host: str  # `identity.host_key` of the kernel's machine
    pid: int  # pid, start: the kernel's, by `os_process.start_of`
    start: float

    @property
    def keys(self) -> str:
        """The keys that a rank needs beside the address, as one word. Z85 has no comma."""
        return f"{self.server},{self.public},{self.secret}"


class Keys(NamedTuple):
    """The CURVE key pairs (Z85) of a folder's server and of those who join it."""

    server: bytes
    server_secret: bytes
    client: bytes
    client_secret: bytes


class SessionFiles:
    """The folder by which a kernel's session is joined; readable by its user only, removed when the process ends.

    Attributes:
        keys: of the first server that used it; the next ones have the same, so that ranks come back to them.
        bound: the TCP addresses that its servers had, by what was asked for.
    """

    def __init__(self) -> None:
        self.folder = _new_folder()
        self.socket = f"ipc://{self.folder / _SOCKET}"
        self.keys: Keys | None = None
        self.bound: dict[str, str] = {}
        self._process = os.getpid()
        atexit.register(self.remove)

    def write(self, join: Join) -> None:
        own_files.write(self.folder / FILE, json.dumps(asdict(join)).encode())

    def remove(self) -> None:
        atexit.unregister(self.remove)
        if os.getpid() == self._process:  # else it is the parent's
            shutil.rmtree(self.folder, ignore_errors=True)


def read(place: str, keys: str | None = None) -> Join:
    """Return what a rank needs to join.

    Args:
        place: a folder, or a server's address, `tcp://HOST:PORT`.
        keys: for an address, as `Join.keys`.

    Raises:
        JoinError: it is none, the folder or its file is not this user's alone, or the keys are none.
    """
    if place.startswith("tcp://"):
        found = (keys or "").split(",")
        if len(found) != 3 or {len(key) for key in found} != {_KEY_LETTERS}:
            raise JoinError(f"{place} is joined with the keys in {KEYS}, as %monitor join prints them.")
        server, public, secret = found
        return Join((place,), server, public, secret, host="", pid=0, start=0.0)
    file = Path(place) / FILE
    try:
        data: dict[str, Any] = json.loads(own_files.read(file))
        join = Join(**{**data, "addresses": tuple(map(str, data["addresses"]))})
        return replace(join, pid=int(join.pid), start=float(join.start))
    except OSError as error:
        why = error.strerror or error
        raise JoinError(f"{place} has no session to join ({why}). %monitor join names the folder of one.") from None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise JoinError(f"{file} is not what a session writes ({error}); start the session again.") from None


def remove_left() -> None:
    """Remove the folders of this user's kernels that were killed."""
    for folder, join in _own_folders():
        if not is_alive(join.pid, join.start):
            shutil.rmtree(folder, ignore_errors=True)


def sessions() -> list[tuple[str, Join]]:
    """Return the folders of this user's sessions on this machine, and what each has, oldest process first."""
    found = [(folder, join) for folder, join in _own_folders() if is_alive(join.pid, join.start)]
    return sorted(found, key=lambda entry: (entry[1].start, entry[1].pid))


def _own_folders() -> Iterator[tuple[str, Join]]:
    """Return this user's folders that processes of this machine have made."""
    for place in {*_places()}:
        for folder in own_files.folders(place, PREFIX):
            with suppress(JoinError):
                join = read(str(folder))
                if join.host == _here():
                    yield str(folder), join


def _here() -> str:
    from .identity import host_key

    return host_key()


def own_process() -> tuple[int, float]:
    """This process's number and start."""
    return os.getpid(), start_of(os.getpid()) or 0.0


def _places() -> list[Path]:
    """Return where the folder may be made, the best first."""
    named = [os.environ.get("XDG_RUNTIME_DIR"), "/tmp"]  # noqa: S108 - mkdtemp makes a private one
    with suppress(FileNotFoundError):
        named.insert(1, str(own_files.temporary()))
    return [path for name in named if name and os.access(path := Path(name), os.W_OK | os.X_OK) and path.is_dir()]


def _new_folder() -> Path:
    for place in _places():
        if len(os.fsencode(place)) + len(PREFIX) + 8 + 1 + len(_SOCKET) <= LONGEST:
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))  # with permissions 0700
    raise JoinError("Ranks cannot join: there is no folder for a Unix socket; set TMPDIR to one with a short path.")
