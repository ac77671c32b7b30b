"""A second machine for ranks: a network, process numbers and a host name of its own, joined to this one by a cable.

Made of Linux's namespaces. Where they are not permitted, processes stand for it that listen and connect on another
address of the loopback; the keys that they have say that the kernel is elsewhere, so that they use TCP.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..waiting import until
from .peers import outside

HERE, THERE = "10.213.77.1", "10.213.77.2"
NAME = "node-b"
COPY = "copied"


class Host:
    """The second machine. `here`: the address at which it reaches this one; `name`: None where it is not its own."""

    here, there = "127.0.0.1", "127.0.0.2"
    name: str | None = None
    interfaces: tuple[str, str] = ("lo", "lo")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def copied(self, join: str) -> str:
        """The folder of a session as it is copied to this machine: its path there."""
        folder = self._folder / COPY
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        file = Path(join) / "join.json"
        content = json.loads(file.read_text())
        if self.name is None:
            content["host"] = "another machine"
        (folder / "join.json").write_text(json.dumps(content))
        return str(folder)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """A Python process there."""
        process = subprocess.Popen([*self._prefix(), sys.executable, *words], env=outside(**environment))
        self._processes.append(process)
        return process

    def _prefix(self) -> list[str]:
        return []

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Namespaces(Host):
    here, there, name = HERE, THERE, NAME

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        number = os.getpid()
        self._space = f"km-{number}"
        self.interfaces = (f"kma{number}"[:15], f"kmb{number}"[:15])
        near, far = self.interfaces
        inside = ["netns", "exec", self._space, "ip"]
        _ip("netns", "add", self._space)
        try:
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self._space)
            _ip("address", "add", f"{HERE}/30", "dev", near)
            _ip("link", "set", near, "up")
            _ip(*inside, "address", "add", f"{THERE}/30", "dev", far)
            _ip(*inside, "link", "set", far, "up")
            _ip(*inside, "link", "set", "lo", "up")
            # The cable carries packets a moment after both of its ends are up.
            until(lambda: "state UP" in _ip(*inside, "-o", "link", "show", far))
        except BaseException:
            self.stop()
            raise

    def cut(self, *, off: bool = True) -> None:
        """Unplug the cable, or plug it in again."""
        _ip("link", "set", self.interfaces[0], "down" if off else "up")

    def _prefix(self) -> list[str]:
        own = f'hostname {NAME} && exec "$0" "$@"'
        return [
            *("ip", "netns", "exec", self._space),
            *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "sh", "-c", own),
        ]

    def stop(self) -> None:
        super().stop()
        # At once: the machine ends a namespace, and the cable with it, some time after it was deleted, and the next
        # host may have the same names. There is no cable where making one failed.
        subprocess.run(["ip", "link", "delete", self.interfaces[0]], capture_output=True, timeout=20)
        _ip("netns", "delete", self._space)


def permitted() -> bool:
    """Whether such namespaces may be made here."""
    if not all(map(shutil.which, ("ip", "unshare"))):
        return False
    try:
        made = Namespaces(Path(os.devnull))
    except (OSError, subprocess.CalledProcessError):
        return False
    try:
        return made.start("-c", "").wait(20) == 0
    finally:
        made.stop()


@contextmanager
def second_host(folder: Path) -> Iterator[Host]:
    host = Namespaces(folder) if permitted() else Host(folder)
    try:
        yield host
    finally:
        host.stop()


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, stdout=subprocess.PIPE, text=True, timeout=20).stdout
