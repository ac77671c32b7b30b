"""A damaged file in the folder of sessions is one line of the list; everything else goes on."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kernel_monitor.cli import main
from kernel_monitor.errors import SessionError
from kernel_monitor.record import sessions as folders
from kernel_monitor.record.reader import open_session
from kernel_monitor.record.session_file import Maintenance, prune
from kernel_monitor.record.sessions import read_entry, sessions
from kernel_monitor.recorded import Opened
from kernel_monitor.runtime.recorder import left_behind

from .recorded import ORIGIN, interrupted, session, sql


def flipped(path: Path) -> None:
    """The schema's page with three bytes turned."""
    session(path, session="flipped")
    data = bytearray(path.read_bytes())
    for place in (101, 106, 4000):
        data[place] ^= 0xFF
    path.write_bytes(data)


def changed(statement: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        session(path, session="changed")
        sql(path, statement)

    return make


HARMS: dict[str, Callable[[Path], object]] = {
    "three flipped bytes": flipped,
    "no session key": changed("DELETE FROM meta WHERE key = 'session'"),
    "no origin": changed("DELETE FROM meta WHERE key = 'origin'"),
    "an origin in words": changed("UPDATE meta SET value = '\"yesterday\"' WHERE key = 'origin'"),
    "no JSON": changed("UPDATE meta SET value = '{' WHERE key = 'session'"),
    "an end that is a number": changed("UPDATE meta SET value = '7' WHERE key = 'ended'"),
    "a host that is a list": changed("UPDATE hellos SET hello = '[]'"),
    "a writer without a number": changed("UPDATE meta SET value = '{\"start\": 1}' WHERE key = 'writer'"),
    "an empty file": Path.touch,
    "a text": lambda path: path.write_text("no database"),
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}
READ_AROUND = ("an end that is a number", "a host that is a list", "a writer without a number")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "sessions"
    found.mkdir()
    monkeypatch.setenv(folders.OVERRIDE, str(found))
    monkeypatch.setattr(folders, "temporary_folder", lambda: tmp_path / "elsewhere")
    return found


def harm_all(folder: Path) -> None:
    for harm, make in HARMS.items():
        make(folder / f"{harm}.kmsession")


@pytest.mark.parametrize("harm", HARMS)
def test_it_is_one_line_and_everything_else_goes_on(
    folder: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = folder / "bad.kmsession"
    HARMS[harm](bad)
    session(folder / "good.kmsession", session="good")
    found = {one.path.name: one for one in sessions()}
    assert found.keys() == {"bad.kmsession", "good.kmsession"}
    assert found["good.kmsession"].problem is None
    damaged = harm not in READ_AROUND
    assert found["bad.kmsession"].damaged == damaged
    assert main(["sessions"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.endswith(str(bad)))
    assert ("damaged: " in line) == damaged
    assert main(["sessions", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(Opened().listing()) == 2
    for name in ("good", "goo", None, folder / "good.kmsession"):
        assert open_session(name).id == "good" or (name is None and not damaged)
    assert main(["sessions", "--copy", "good", str(folder.parent / "copy.kmsession")]) == 0
    if damaged:
        with pytest.raises(SessionError, match=r"bad\.kmsession"):
            open_session(bad)
    assert prune(folder) == []


def test_the_next_start_tells_of_a_killed_session_all_the_same(folder: Path) -> None:
    harm_all(folder)
    interrupted(folder / "killed.kmsession")
    told = left_behind()
    assert told is not None
    assert told["path"] == str(folder / "killed.kmsession")
    assert left_behind() is None


def test_damaged_files_age_out_by_their_own_time(folder: Path) -> None:
    harm_all(folder)
    session(folder / "good.kmsession", session="good", origin=ORIGIN)
    before = {path.name for path in folder.iterdir()}
    assert prune(folder) == []
    old = time.time() - 40 * 86400
    for path in folder.iterdir():
        os.utime(path, (old, old), follow_symlinks=False)
    gone = {path.name for path in prune(folder)}
    files = {name for name in before if read_entry(folder / name).damaged and (folder / name).is_file()}
    assert gone >= {"three flipped bytes.kmsession", "no session key.kmsession", "a text.kmsession"}
    assert files == set()
    assert (folder / "good.kmsession").exists()
    assert (folder / "a folder.kmsession").is_dir()
    assert (folder / "a pipe.kmsession").exists()


def test_upkeep_keeps_the_log_short_beside_damaged_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harm_all(folder)
    old = session(folder / "old.kmsession", session="old", origin=time.time() - 40 * 86400)
    monkeypatch.setattr("kernel_monitor.record.session_file.PERIOD_S", 0.05)
    monkeypatch.setattr("kernel_monitor.record.session_file.ENOUGH", 1 << 16)
    path = folder / "now.kmsession"
    session(path, session="now", origin=time.time())
    complaints: list[str] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        upkeep = Maintenance(path, complaints.append)
        try:
            for _ in range(40):
                connection.execute("INSERT INTO events (time, event) VALUES (0, ?)", ("x" * 30_000,))
                time.sleep(0.02)
            assert not old.path.exists()
            assert path.with_name(path.name + "-wal").stat().st_size < 40 * 30_000
        finally:
            upkeep.stop(5.0)
    assert complaints == []
