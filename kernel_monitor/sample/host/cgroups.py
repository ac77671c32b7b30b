"""Which control groups a process is in, and where their files are.

Version 1 has a hierarchy for each controller, version 2 one for all, hybrid systems both. A process's place in each is
in `/proc/<pid>/cgroup`, relative to the reader's cgroup namespace; where each hierarchy is mounted, and which part of
it, is in `/proc/<pid>/mountinfo` (man 7 cgroups, man 5 proc). In a container outer groups may be invisible.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from .. import procfs

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Group(NamedTuple):
    """A process's group in one hierarchy."""

    version: int  # 1 or 2
    path: str  # as `/proc/<pid>/cgroup` names it
    folders: tuple[str, ...]  # its own and those of the groups around it, from the inside out, as far as can be seen


class Groups:
    """The groups of the process `pid`; `root` holds `/proc` and the mount points."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._root = root
        self._process = root / "proc" / str(pid)
        self._text = b""
        self._groups: dict[str, Group] = {}

    def find(self) -> dict[str, Group]:
        """The group for each of `CONTROLLERS` that has one here; the mounts are read again when the process was moved.

        Empty where the system has no control groups or does not show them.
        """
        try:
            text = procfs.read(f"{self._process}/cgroup")
            if text != self._text:
                mounts = _mounts(procfs.read(f"{self._process}/mountinfo").decode(errors="surrogateescape"))
                self._groups = self._locate(text.decode(errors="surrogateescape"), mounts)
                self._text = text
        except procfs.NOT_THERE:
            return {}
        return self._groups

    def _locate(self, text: str, mounts: dict[str, tuple[str, str]]) -> dict[str, Group]:
        places = {}
        for line in text.splitlines():
            _number, controllers, path = line.split(":", 2)
            places.update(dict.fromkeys(controllers.split(","), path))  # version 2 names no controller: ""
        groups = {}
        for controller in CONTROLLERS:
            # A controller is in one hierarchy at a time: in version 2's only where no other has it.
            key = controller if controller in places else ""
            if key in places and key in mounts:
                groups[controller] = Group(1 if key else 2, places[key], self._folders(*mounts[key], places[key]))
        return groups

    def _folders(self, outermost: str, mounted_at: str, path: str) -> tuple[str, ...]:
        point = self._root / mounted_at.lstrip("/")
        inside = Path(path)
        # A path outside what is mounted (a container that shows its own groups under their outer names, a process of
        # another namespace) leaves what is mounted, which is meant to be ours.
        if ".." in inside.parts or not inside.is_relative_to(outermost):
            return (str(point),)
        parts = inside.relative_to(outermost).parts
        folders = [point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
        return tuple(str(folder) for folder in folders if folder.is_dir())


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Of each hierarchy the group that is mounted first, and where; by controller, version 2 has the key ""."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        # 31 23 0:28 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
        place, _, kind = line.partition(" - ")
        system, _, rest = kind.partition(" ")
        if system not in ("cgroup", "cgroup2"):
            continue
        fields, options = place.split(" "), rest.rpartition(" ")[2]
        mount = (_plain(fields[3]), _plain(fields[4]))
        for controller in options.split(",") if system == "cgroup" else ("",):
            mounts.setdefault(controller, mount)
    return mounts


def _plain(path: str) -> str:
    """A path of mountinfo, in which white space and backslashes are octal."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)
