"""Processes of other accounts, and what one account can plant in a folder of several."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
IS_ROOT = hasattr(os, "getuid") and os.getuid() == 0
ACCOUNT = 12345 if IS_ROOT else os.getuid()
"""Whose processes run: as root one without a home and without an entry in the list of users, else the tests' own."""
STRANGER = 65534 if IS_ROOT else os.getuid()
"""Who plants. Without root the tests have one account, and plant in folders that others may write."""
SPARSE = 64 << 20  # bytes of a large file, without blocks on the disk


def python(code: str, *words: str, environment: Mapping[str, str], cwd: Path, seconds: float = 300) -> str:
    """Run Python code as `ACCOUNT`, and return its output; the environment has what is named, PATH and PYTHONPATH."""
    needed = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [*_as_account(), sys.executable, "-c", code, *words],
        cwd=cwd, env={**needed, **environment}, text=True, capture_output=True, timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _as_account() -> list[str]:
    if not IS_ROOT:
        return []
    command = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"]
    paths = [Path(sys.executable).resolve(), ROOT]
    if all(folder.stat().st_mode & stat.S_IXOTH for path in paths for folder in path.parents):
        return command
    # The interpreter lies in root's home: the account may read everything, and own nothing.
    return [*command, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]


def owned(path: Path, user: int) -> Path:
    if IS_ROOT:
        os.chown(path, user, user, follow_symlinks=False)
    return path


class Targets:
    """What links lead to: files of the account that reads, and a pipe of its own that nobody writes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.pipe, self.sparse, self.file = folder / "pipe", folder / "sparse", folder / "file"
        os.mkfifo(self.pipe)
        self.sparse.touch()
        os.truncate(self.sparse, SPARSE)
        self.file.write_text(json.dumps({"addresses": ["ipc:///nowhere"]}))
        for path in (folder, self.pipe, self.sparse, self.file):
            owned(path, ACCOUNT)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a path may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _large(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE)


def _mode(mode: int) -> Callable[[Path, Targets], object]:
    def make(path: Path, _: Targets) -> None:
        path.write_text("{}")
        path.chmod(mode)

    return make


KINDS: dict[str, Callable[[Path, Targets], object]] = {
    "file": lambda path, _: path.write_text("{}"),
    "deep": lambda path, _: path.write_text("[" * 60_000),
    "sparse": lambda path, _: _large(path),
    "hard-link": lambda path, to: os.link(to.file, path),
    "hard-link-to-pipe": lambda path, to: os.link(to.pipe, path),
    "link-to-file": lambda path, to: path.symlink_to(to.file),
    "link-to-sparse": lambda path, to: path.symlink_to(to.sparse),
    "link-to-pipe": lambda path, to: path.symlink_to(to.pipe),
    "link-to-folder": lambda path, to: path.symlink_to(to.pipe.parent),
    "link-to-nothing": lambda path, _: path.symlink_to("nowhere"),
    "link-to-itself": lambda path, _: path.symlink_to(path.name),
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: _socket(path),
    "folder": lambda path, _: path.mkdir(),
    "open-folder": lambda path, _: shared(path, 0o777),
    "closed": _mode(0),
    "writable": _mode(0o666),
}
"""Every kind of entry that a folder can have, by name; `make(path, targets)`."""
if IS_ROOT:
    KINDS["character-device"] = lambda path, _: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # /dev/null
    KINDS["block-device"] = lambda path, _: os.mknod(path, 0o666 | stat.S_IFBLK, os.makedev(60, 0))  # of no driver


def plant(folder: Path, name: str, targets: Targets, user: int, kinds: Iterable[str] = KINDS) -> list[Path]:
    """Put an entry of each kind into a folder, as `user`; return their paths. `{}` in the name is the kind's."""
    made = []
    for kind in kinds:
        path = folder / name.format(kind)
        try:
            KINDS[kind](path, targets)
        except OSError as error:
            if error.errno != errno.EXDEV:  # a hard link into another file system
                raise
            continue
        if not kind.startswith("hard-link"):  # which has the owner of its target
            owned(path, user)
        made.append(path)
    return made


def shared(folder: Path, mode: int = 0o1777) -> Path:
    """A folder that everybody may write, as the temporary one."""
    folder.mkdir()
    folder.chmod(mode)
    return folder


assert not IS_ROOT or shutil.which("setpriv"), "the tests of two accounts need setpriv (util-linux)"
