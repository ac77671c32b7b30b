"""Another account plants every kind of entry where this one's processes look: they start, and deliver, as ever."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_monitor.ranks import session_files
from kernel_monitor.stream.chart_documents import Documents

from ..accounts import ACCOUNT, KINDS, STRANGER, Targets, owned, plant, python, shared

START_S = 3 * 2.0  # of `monitor.start()`: three times what is promised
MORE_BYTES = 20 << 20  # than without planted entries

# Starts, opens the sidebar, trains, lists what can be switched, exports; prints what was found as JSON.
SESSION = """
import hashlib, json, os, sys, time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch.utils.data import DataLoader, TensorDataset
import kernel_monitor.ranks.rank_server, zmq  # the time to import them is not measured
from kernel_monitor import monitor
from kernel_monitor.cli import main

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10

def digest(loader):
    torch.manual_seed(7)
    return [hashlib.sha256(batch.numpy().tobytes()).hexdigest() for _ in range(2) for (batch,) in loader]

loader = DataLoader(TensorDataset(torch.arange(4000.0)), batch_size=40, shuffle=True)
plain = digest(loader)
before = peak()
began = time.monotonic()
monitor.start()
start, grown = time.monotonic() - began, peak() - before
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "kernel_monitor")
said = StringIO()
with redirect_stdout(said):
    shell.run_line_magic("monitor", "sidebar")
    exact = digest(loader) == plain
    while not monitor.store.last_seq:
        time.sleep(0.05)
    switched = main(["switch", "--list"])
    monitor.export(sys.argv[1])
    listed = main(["sessions"])
print(json.dumps({
    "start": start, "bytes": grown, "exact": exact, "codes": [switched, listed], "said": said.getvalue(),
    "status": monitor.status(), "recording": monitor.recording, "pid": os.getpid(),
}))
"""
RANK = """
import hashlib, os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(7)
digest = hashlib.sha256()
for (batch,) in DataLoader(TensorDataset(torch.arange(4000.0)), batch_size=40, shuffle=True):
    digest.update(batch.numpy().tobytes())
open(sys.argv[1] + os.environ["RANK"], "w").write(digest.hexdigest() + " " + str("KERNEL_MONITOR_JOIN" in os.environ))
"""
JOB = """
import sys
from kernel_monitor.cli import main
words = "RANK=0 WORLD_SIZE=2 {0} {1} {2} & RANK=1 WORLD_SIZE=2 {0} {1} {2}; wait"
sys.exit(main(["run", "sh", "-c", words.format(sys.executable, *sys.argv[1:])]))
"""


class Machine:
    """A temporary, a runtime, a recordings' and a cache folder that both accounts share, and the account's home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.home = owned(shared(folder / "home"), ACCOUNT)
        self.places = {name: shared(folder / name) for name in ("tmp", "run", "recordings", "cache")}
        self.environment = {
            "HOME": str(self.home), "TMPDIR": str(self.places["tmp"]), "XDG_RUNTIME_DIR": str(self.places["run"]),
            "KERNEL_MONITOR_SESSIONS": str(self.places["recordings"]),
            "KERNEL_MONITOR_CACHE": str(self.places["cache"]),
        }  # fmt: skip

    def plant(self) -> list[Path]:
        """Plant for each name that is read in a shared place; return what was planted."""
        targets = Targets(self.folder / "targets")
        prefix = session_files.PREFIX
        planted: list[Path] = []
        for place in (self.places["tmp"], self.places["run"]):
            planted += plant(place, f"{prefix}{{}}", targets, STRANGER)
            for kind in KINDS:
                for user in {STRANGER, ACCOUNT}:  # a folder of the account's that was left open counts as well
                    folder = shared(place / f"{prefix}{user}-with-{kind}")
                    planted += [*plant(folder, session_files.FILE, targets, STRANGER, [kind]), owned(folder, user)]
        spare = shared(self.places["tmp"] / f"kernel_monitor-{ACCOUNT}")
        for folder in (self.places["recordings"], shared(spare / "sessions")):
            planted += plant(folder, "{}.kmsession", targets, STRANGER)
            planted += plant(folder, "x-profile-{}.json.gz", targets, STRANGER)
        documents = shared(self.places["cache"] / "documents")
        hello = Documents(documents)._stored_hello.name
        (documents / hello).symlink_to(targets.pipe)
        planted += [spare, spare / "sessions", documents, documents / hello]
        planted += plant(documents, "{}.json", targets, STRANGER)
        for path in (spare, spare / "sessions", documents, documents / hello):
            owned(path, STRANGER)
        return planted


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # both accounts must get there
        Path(name).chmod(0o755)
        yield Path(name)


def session(machine: Machine) -> dict[str, Any]:
    written = python(SESSION, str(machine.home / "report.html"), environment=machine.environment, cwd=machine.home)
    found: dict[str, Any] = json.loads(written.splitlines()[-1])
    assert (machine.home / "report.html").stat().st_size > 10_000
    assert found["exact"]
    assert found["codes"] == [0, 0]
    return found


def test_start_sidebar_switch_and_export_are_as_ever(place: Path) -> None:
    clean = session(Machine(place / "clean"))
    machine = Machine(place / "planted")
    planted = machine.plant()
    facts = {path: path.lstat() for path in planted}
    found = session(machine)
    more = found["bytes"] - clean["bytes"]
    print(f"start {clean['start']:.3f} s, beside planted entries {found['start']:.3f} s; {more:,} bytes more")
    assert found["start"] < START_S
    assert more < MORE_BYTES
    assert "passed over in folders of several users: " in found["status"]
    assert found["recording"]["state"] == "recording"
    assert f"{found['pid']}" in found["said"]  # `switch --list` found this session, and no other
    assert found["said"].count("process") == clean["said"].count("process")
    for path, before in facts.items():  # nothing was followed, written or deleted
        after = path.lstat()
        assert (after.st_ino, after.st_size, after.st_mode) == (before.st_ino, before.st_size, before.st_mode), path


def test_run_with_two_ranks_is_as_ever(place: Path) -> None:
    machine = Machine(place / "planted")
    machine.plant()
    script = machine.home / "rank.py"
    script.write_text(RANK)
    written = python(JOB, str(script), str(machine.home / "digest-"), environment=machine.environment, cwd=machine.home)
    digests = [(machine.home / f"digest-{rank}").read_text() for rank in (0, 1)]
    python(RANK, str(machine.home / "digest-"), environment=machine.environment | {"RANK": "plain"}, cwd=machine.home)
    alone = (machine.home / "digest-plain").read_text().split()[0]
    assert digests == [f"{alone} True"] * 2
    assert f"recorded: {machine.places['recordings']}" in written
    assert "Traceback" not in written
