"""Which sessions there are, which one is meant, which ended without goodbye, and which are deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.record import format as format_module
from kernel_monitor.record import sessions as folders
from kernel_monitor.record.reader import open_session
from kernel_monitor.record.session_file import prune
from kernel_monitor.record.sessions import left_without_goodbye, mark_told, read_entry, sessions

from ..waiting import until
from .recorded import ORIGIN, feed, hello, interrupted, recorder, recording, session, waves


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(folders.OVERRIDE, str(tmp_path))
    monkeypatch.setattr(folders, "temporary_folder", lambda: tmp_path / "elsewhere")


def test_the_newest_comes_first_with_its_facts(tmp_path: Path) -> None:
    session(tmp_path / "one.kmsession", 20, session="1" * 32, origin=ORIGIN - 100)
    gpus = [{"index": n, "name": "NVIDIA H200", "memory_total": 1, "reasons": {}} for n in range(2)]
    with recorder(tmp_path / "two.kmsession", session="2" * 32) as (one, _):
        one.hello(0.0, hello(gpus=gpus))
        feed(one, *waves(31))
    (tmp_path / "broken.kmsession").write_bytes(b"x" * 5000)
    found = [one for one in sessions() if one.problem is None]
    assert [one.id[0] for one in found] == ["2", "1"]
    assert found[0].host == "2 cores, 2 × NVIDIA H200"
    assert found[0].seconds == pytest.approx(3.0)
    assert found[0].started == ORIGIN
    assert found[0].bytes == (tmp_path / "two.kmsession").stat().st_size
    assert found[0].goodbye
    assert not found[0].live
    broken = next(one for one in sessions() if one.problem is not None)
    assert broken.problem == "not a recorded session."
    assert broken.damaged


def test_a_session_is_opened_by_file_folder_id_or_name(tmp_path: Path) -> None:
    for number in "12":
        session(tmp_path / f"{number}-a.kmsession", session=number * 32, origin=ORIGIN + int(number))
    assert open_session().id[0] == "2"
    assert open_session(tmp_path).id[0] == "2"
    assert open_session(tmp_path / "1-a.kmsession").id[0] == "1"
    assert open_session("1111").id[0] == "1"
    assert open_session("1-a").id[0] == "1"
    session(tmp_path / "3.kmsession", session="11" + "3" * 30)
    with pytest.raises(SessionError, match="Several sessions begin with '11'"):
        open_session("11")
    with pytest.raises(SessionError, match="no session 'zz'"):
        open_session("zz")


def test_one_without_goodbye_is_told_of_once(tmp_path: Path, path: Path) -> None:
    assert left_without_goodbye() is None
    interrupted(path)
    session(tmp_path / "b.kmsession", session="good", origin=ORIGIN + 50)
    found = left_without_goodbye()
    assert found is not None
    assert found.path.name == "a.kmsession"
    mark_told(found)
    assert left_without_goodbye() is None
    assert read_entry(found.path).told
    assert len(open_session(found.path).rows()) == 20


def test_a_living_session_is_not_without_goodbye(path: Path) -> None:
    with recording(path):
        until(lambda: read_entry(path).seconds > 0)
        assert read_entry(path).live
        assert open_session(path).live
        assert open_session(path).ended is None
        assert left_without_goodbye() is None
    assert not read_entry(path).live


def test_a_number_that_another_process_has_is_not_the_writers(path: Path) -> None:
    here = format_module.writer_here()
    path.touch()
    assert format_module.is_live(here, path)
    assert not format_module.is_live({**here, "start": here["start"] - 5}, path)
    assert not format_module.is_live({**here, "boot": "another"}, path)
    assert not format_module.is_live(None, path)


def test_of_another_container_the_files_age_tells(path: Path) -> None:
    path.touch()
    there = {**format_module.writer_here(), "namespace": "pid:[1]", "pid": 1 << 22}
    assert format_module.is_live(there, path)
    os.utime(path, (time.time() - 60, time.time() - 60))
    assert not format_module.is_live(there, path)


def test_a_file_that_cannot_be_marked_is_told_of_again(path: Path) -> None:
    interrupted(path)
    found = left_without_goodbye()
    assert found is not None
    found.path.unlink()
    found.path.mkdir()
    with pytest.raises(SessionError, match="cannot be written"):
        mark_told(found)


def test_pruning_takes_the_old_and_the_most_but_never_the_living(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    now = time.time()
    for number, days in enumerate((1, 2, 3, 40)):
        session(folder / f"{number}.kmsession", session=str(number), origin=now - days * 86400)
    (folder / "notes.txt").write_text("mine")
    (folder / "broken.kmsession").write_bytes(b"whatever it is")
    made = [*(f"{number}.kmsession" for number in range(4)), "broken.kmsession", "notes.txt"]
    assert sorted(path.name for path in folder.iterdir()) == made
    one_size = (folder / "0.kmsession").stat().st_size
    assert [path.name for path in prune(folder)] == ["3.kmsession"]
    with recording(tmp_path / "other" / "live.kmsession", session="live", origin=now - 99 * 86400):
        assert prune(tmp_path / "other") == []
        assert prune(tmp_path / "other", max_bytes=0) == []
    assert [path.name for path in prune(folder, max_bytes=int(2.5 * one_size))] == ["2.kmsession"]
    assert [path.name for path in prune(folder, max_bytes=0)] == ["0.kmsession", "1.kmsession"]
    assert sorted(path.name for path in folder.iterdir()) == ["broken.kmsession", "notes.txt"]
