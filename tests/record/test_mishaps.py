"""Whatever befalls the file of a session ends its recording and nothing else, and is told with its cause."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from kernel_monitor.record.reader import open_session
from kernel_monitor.record.writer import stop_message

from ..waiting import until
from .recorded import feed, hello, recorder, recording, session, small_disk, sql, waves


def test_a_folder_that_is_removed_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    with recording(folder / "a.kmsession") as (one, told):
        shutil.rmtree(folder)
        found = told.wait_for("stopped")
        feed(one, *waves(5, start=2))  # and sampling goes on
    assert f"The folder {folder} is gone: recording stopped at" in found["message"]
    assert "%monitor record on" in found["message"]
    assert found["level"] == "error"


def test_a_file_that_is_removed_is_told(path: Path) -> None:
    with recording(path) as (_, told):
        path.unlink()
        assert "was removed" in told.wait_for("stopped")["message"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with recorder(tmp_path / "file" / "a.kmsession") as (_, told):
        assert "recording stopped" in told.wait_for("stopped")["message"]


def test_a_lock_that_stays_is_told_and_a_short_one_is_waited_for(path: Path) -> None:
    with recording(path) as (one, told):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            feed(one, *waves(5, start=1))
            time.sleep(1)
            other.execute("ROLLBACK")
        until(lambda: len(open_session(path).rows()) == 10)
        assert told.states == ["recording"]
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            feed(one, *waves(5, start=3))
            found = told.wait_for("stopped")
            other.execute("ROLLBACK")
    assert "keeps" in found["message"]
    assert "locked" in found["message"]
    assert len(open_session(path).rows()) == 10


@pytest.mark.parametrize("content", [b"no database " * 1000, b"other", b"another session"])
def test_beside_what_is_not_the_session_a_new_file_is_made(tmp_path: Path, path: Path, content: bytes) -> None:
    if content == b"another session":
        session(path, session="another")
    elif content == b"other":
        sql(path, "CREATE TABLE theirs (x)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with recorder(path, rows=5) as (_, told):
        moved = told.wait_for("moved")
    assert moved["path"] == str(tmp_path / "a-2.kmsession")
    assert path.read_bytes() == before
    assert len(open_session(moved["path"]).rows()) == 5


def test_a_full_disk_is_told_and_recording_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """On a small tmpfs where this user may mount one, else in a process whose files may not grow."""
    folder = tmp_path / "small"
    with small_disk(folder) as mounted:
        if not mounted:
            assert "limits refuse" in _recorded_under_a_limit(folder / "a.kmsession")
            return
        path, ballast = folder / "a.kmsession", folder / "ballast"
        ballast.write_bytes(bytes(600_000))
        random = np.random.default_rng(0)
        series = [(f"gpu/{n}/power", "%") for n in range(100)]
        with recorder(path) as (one, told):
            one.hello(0.0, hello(series))
            for number in range(3000):
                one.frame(0.05 + number / 10, 0, random.normal(size=100).astype("<f4").tobytes())
                time.sleep(0.002)
                if "stopped" in told.states:
                    break
            found = told.wait_for("stopped")
        assert f"The disk is full ({folder}): recording stopped at" in found["message"]
        assert "the session up to then is readable. Free space and run %monitor record on." in found["message"]
        before = open_session(path)
        assert before.check() == []
        rows = len(before.rows())
        assert rows > 0
        ballast.unlink()
        with recorder(path) as (one, told):
            one.hello(0.0, hello(series))
            for number in range(20):
                one.frame(500 + number / 10, 0, random.normal(size=100).astype("<f4").tobytes())
            told.wait_for("recording")
        after = open_session(path)
        assert len(after.rows()) == rows + 20
        assert after.check() == []


LIMITED = """
import resource, sys, time
from array import array
from pathlib import Path
from kernel_monitor.record.writer import Recorder
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
told = []
one = Recorder(Path(sys.argv[1]), session="s", origin=1.0, on_state=told.append)
one.start()
one.hello(0.0, {"interval": 0.1, "series": [{"name": f"gpu/{n}/power", "unit": "%"} for n in range(100)], "cpus": [],
           "gpus": [], "gpu_reason": None, "host": {}})
for number in range(20_000):
    one.frame(number / 10, 0, array("f", [number * n % 7919 for n in range(100)]).tobytes())
    time.sleep(0.001)
    if told and told[-1]["state"] == "stopped":
        break
one.close("the end", goodbye=True)
one.join()
print(told[-1]["message"])
"""


def _recorded_under_a_limit(path: Path) -> str:
    command = [sys.executable, "-c", LIMITED, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_files_that_may_not_grow_end_the_recording(path: Path) -> None:
    message = _recorded_under_a_limit(path)
    assert "limits refuse" in message
    assert "recording stopped at" in message
    found = open_session(path)
    assert len(found.rows()) > 0
    assert found.check() == []


def test_each_failure_has_its_words(path: Path) -> None:
    for number, said in ((errno.ENOSPC, "disk is full"), (errno.EROFS, "cannot be written"), (errno.EACCES, "cannot")):
        assert said in stop_message(OSError(number, os.strerror(number)), path, 0.0)
    assert "The recorder failed (RuntimeError: x)" in stop_message(RuntimeError("x"), path, 0.0)


def test_old_sessions_go_when_a_new_one_begins(tmp_path: Path) -> None:
    for days in (29, 31):
        session(tmp_path / f"{days}.kmsession", session=str(days), origin=time.time() - days * 86400)
    with recorder(tmp_path / "new.kmsession", session="new", rows=5):
        until(lambda: not (tmp_path / "31.kmsession").exists())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["29.kmsession", "new.kmsession"]
