"""Recording that is turned on answers what became of it, not what was hoped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .recorded import small_disk

TURN_ON = """
import json, resource, sys, time
from kernel_monitor.runtime import Monitor
folder, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
monitor = Monitor()
fill = sys.argv[3:]
monitor.start(record=folder if fill else False, interval=0.05)
while monitor.store.last_seq == 0:
    time.sleep(0.02)
if fill:  # the disk fills up while it records
    with open(fill[0], "wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass
    until = time.monotonic() + 30
    while monitor.recording["state"] != "stopped":
        assert time.monotonic() < until
        time.sleep(0.02)
monitor.configure(record=True if fill else folder)
first = monitor.recording
time.sleep(1.5)
print(json.dumps({"first": first, "later": monitor.recording}))
monitor.stop()
"""


def turned_on(folder: Path, limit: int = 0, *fill: Path) -> dict[str, dict[str, str]]:
    """What a monitor that runs says when it is told to record to `folder`, and what it says 1.5 s later.

    Args:
        limit: bytes that a file may have; 0 for no limit.
        fill: a file that fills the disk while it records; then it is told to go on.
    """
    command = [sys.executable, "-c", TURN_ON, str(folder), str(limit), *map(str, fill)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, str]] = json.loads(done.stdout)
    return told


def test_where_there_is_room_it_says_that_it_records(tmp_path: Path) -> None:
    told = turned_on(tmp_path)
    assert told["first"] == told["later"]
    assert (told["first"]["state"], told["first"]["message"]) == ("recording", "")


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    told = turned_on(tmp_path, 8192)
    assert told["first"]["state"] == "stopped", told
    assert told["first"] == told["later"]
    assert "refuse to take more" in told["first"]["message"]


def test_a_full_disk(tmp_path: Path) -> None:
    """A small tmpfs that fills up, where this user may mount one; else files that may not grow once more."""
    folder = tmp_path / "small"
    with small_disk(folder) as mounted:
        told = turned_on(folder, 0, folder / "ballast") if mounted else turned_on(folder, 40_960)
    assert not mounted or "The disk is full" in told["first"]["message"]
    assert told["first"]["state"] == "stopped", told
    assert told["first"] == told["later"]
