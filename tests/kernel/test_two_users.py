"""Two accounts on one machine: neither reads, controls or learns anything of the other's session."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
OWNER, STRANGER = 0, 65534
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.getuid() != 0,
    reason="takes root on Linux, to run a process of another account",
)
# A script with all that a session opens: sampler, recording, ranks' socket and TCP, a worker with its shared memory.
SESSION = """
import json, os, sys
os.umask(0)  # nothing is closed by chance
import torch
from torch.utils.data import DataLoader, TensorDataset
from kernel_monitor import monitor
from kernel_monitor.ranks import session_files

monitor.configure(ranks="tcp://127.0.0.1:0")
monitor.start()
batches = iter(DataLoader(TensorDataset(torch.zeros(4096)), batch_size=2, num_workers=1))
for _ in range(20):
    next(batches)
while not monitor.store.last_seq:
    pass
((folder, join),) = [found for found in session_files.sessions() if found[1].pid == os.getpid()]
keys = [*join.keys.split(","), session_files.read(folder).secret]
print(json.dumps({"folder": folder, "recording": monitor.recording["path"], "keys": keys, "id": monitor.session}))
sys.stdout.flush()
sys.stdin.read()
"""
ATTEMPTS = """
import json, os, socket, sys
from pathlib import Path
from kernel_monitor.ranks import session_files
from kernel_monitor.record.sessions import sessions

user, places, shared, pids, control = json.loads(sys.argv[1])
sessions(), session_files.sessions()  # now, as the interpreter's files may be closed to that account
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
found = {"read": [], "changed": [], "said": [], "signalled": [], "connected": False}

def attempt(kind, what, call):
    try:
        call()
    except OSError:
        return
    found[kind].append(str(what))

def files():
    yield from map(Path, shared)
    for place in places:
        for folder, folders, names in os.walk(place):
            folders[:] = [name for name in folders if not name.startswith("torchinductor_")]  # torch's own
            yield from (Path(folder, name) for name in [*names, *folders])

for path in files():
    if path.is_file():
        attempt("read", path, lambda: path.open("rb").close())
        attempt("changed", path, lambda: path.open("r+b").close())
    elif path.is_dir():
        attempt("read", path, lambda: os.listdir(path))
        attempt("changed", path, lambda: (path / "planted").touch())
for pid in pids:
    for part in ("environ", "mem", "maps", "io"):
        attempt("read", f"/proc/{pid}/{part}", lambda: Path(f"/proc/{pid}/{part}").open("rb").close())
    attempt("read", f"/proc/{pid}/fd", lambda: os.listdir(f"/proc/{pid}/fd"))
    found["said"] += Path(f"/proc/{pid}/cmdline").read_text().split("\\0") + [Path(f"/proc/{pid}/comm").read_text()]
    attempt("signalled", pid, lambda: os.kill(pid, 0))
with socket.socket(socket.AF_UNIX) as client:
    try:
        client.connect(control)
        found["connected"] = True
    except OSError:
        pass
found["sessions"] = [entry.id for entry in sessions()]
found["joined"] = [folder for folder, _ in session_files.sessions()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Path]:
    """Two homes that everybody may look into, and temporary space for all."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o1777)
        for user in (OWNER, STRANGER):
            (folder / str(user)).mkdir(mode=0o755)
            os.chown(folder / str(user), user, user)
        yield folder


@contextmanager
def python(home: Path, code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python with that home, and the temporary space beside it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNEL_MONITOR", "XDG_"))}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=home, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**kept, "HOME": str(home), "TMPDIR": str(home.parent / "tmp"), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        yield process
        process.communicate(timeout=30)
    finally:
        process.kill()


def _shared(processes: list[psutil.Process]) -> list[str]:
    """The files of shared memory that these processes have mapped."""
    maps = "\n".join(Path(f"/proc/{process.pid}/maps").read_text() for process in processes)
    return [path for path in sorted({*re.findall(r"/dev/shm/\S+", maps)}) if Path(path).exists()]  # noqa: S108 - as torch has it


def attempts(machine: Path, user: int, *told: object) -> dict[str, Any]:
    with python(machine / str(user), ATTEMPTS, json.dumps([user, *told])) as process:
        found: dict[str, Any] = json.loads(process.communicate(timeout=60)[0])
    return found


def test_a_stranger_gets_at_nothing_that_the_owner_of_a_session_does(machine: Path) -> None:
    with ExitStack() as stack:
        owner = stack.enter_context(python(machine / str(OWNER), SESSION))
        assert owner.stdout is not None
        session = json.loads(owner.stdout.readline())
        processes = [psutil.Process(owner.pid), *psutil.Process(owner.pid).children(recursive=True)]
        commands = [" ".join(process.cmdline()) for process in processes]
        for part in ("kernel_monitor.sample", "kernel_monitor.ranks.tcp_gateway"):
            assert any(part in command for command in commands), commands
        assert len(processes) > 3, "the worker is missing"
        abstract = [
            connection.laddr
            for process in processes
            for connection in process.net_connections("unix")
            if str(connection.laddr).startswith(("@", "\0"))
        ]
        assert abstract == [], "a socket without permissions"
        recording, folder = Path(session["recording"]), Path(session["folder"])
        assert recording.is_relative_to(machine / str(OWNER))
        assert folder.is_relative_to(machine / "tmp")
        places = [str(machine / str(OWNER)), str(machine / "tmp")]
        told = (places, _shared(processes), [process.pid for process in processes], str(folder / "ranks"))

        own = attempts(machine, OWNER, *told)
        assert {str(recording), str(folder / "join.json"), f"/proc/{owner.pid}/environ"} <= {*own["read"]}
        assert (own["sessions"], own["connected"]) == ([session["id"]], True)
        assert str(folder) in own["joined"]
        assert own["changed"]
        assert own["signalled"]

        strange = attempts(machine, STRANGER, *told)
        # The folders on the way to ours are as the owner's umask makes them; ours are closed.
        way = {str(parent) for parent in recording.parents} - {str(recording.parent)}
        assert {*strange["read"]} <= way
        assert (strange["changed"], strange["signalled"], strange["connected"]) == ([], [], False)
        assert (strange["sessions"], strange["joined"]) == ([], [])
        said = "\n".join(strange["said"])
        for secret in (*session["keys"], str(recording), recording.name, str(folder)):
            assert secret not in said
