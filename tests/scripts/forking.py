"""Runs scripts in forks of this process, which has imported what takes seconds: ``python forking.py MODULE …``.

Each line of stdin names a folder with a script.py. It runs there as `__main__`, in a session of its own; stdout and
stderr go into files of the folder, then its process number into `pid`, and its exit code into `code` once it has ended.
Neither DALI nor the package is imported here: both start threads, which a fork does not have.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from multiprocessing import process
from pathlib import Path


def serve() -> Path | None:
    """Fork for every line; returns in each fork, with its folder, and at the end of stdin."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    for line in iter(sys.stdin.readline, ""):
        folder = Path(line.strip())
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if child == 0:
                return folder
            _write(folder / "pid", child)
            _write(folder / "code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            os._exit(0)
    return None


def _write(file: Path, number: int) -> None:
    whole = file.with_suffix(".new")
    whole.write_text(str(number))
    whole.rename(file)


def become(folder: Path) -> None:
    """Be a process that somebody has started in a folder."""
    os.setsid()
    os.chdir(folder)
    for number, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    process.ORIGINAL_DIR = str(folder)  # type: ignore[attr-defined]
    sys.argv = ["script.py"]
    sys.path.insert(0, str(folder))


if __name__ == "__main__":
    del sys.path[0]  # this folder, which no script has
    for name in sys.argv[1:]:
        importlib.import_module(name)
    found = serve()
    if found is not None:
        become(found)
        runpy.run_path(str(found / "script.py"), run_name="__main__")
