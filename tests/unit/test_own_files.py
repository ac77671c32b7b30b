"""Files in places where others may write: which are read, and that nothing else in the package opens them."""

from __future__ import annotations

import ast
import json
import logging
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

import kernel_monitor
from kernel_monitor import own_files
from kernel_monitor.cache import read_checked, user_cache, write_checked
from kernel_monitor.own_files import NoPlace, NotOwn
from kernel_monitor.ranks import session_files
from kernel_monitor.ranks.session_files import FILE, PREFIX, Join, JoinError, SessionFiles
from kernel_monitor.runtime import Monitor
from kernel_monitor.sample.sampler_client import SamplerClient

from ..accounts import KINDS, STRANGER, Targets, owned, plant

PACKAGE = Path(kernel_monitor.__file__).parent
JOIN = Join(("ipc:///x",), "s" * 40, "p" * 40, "k" * 40, "here", 1, 1.0)


@pytest.fixture
def targets(tmp_path: Path) -> Targets:
    return Targets(tmp_path / "targets")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_not_a_small_file_of_this_user_alone_is_passed_over_at_once(
    tmp_path: Path, targets: Targets, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "_passed_over", {})
    (tmp_path / "private").mkdir(mode=0o700)
    for path in plant(tmp_path / "private", "join.json", targets, STRANGER, [kind]):
        began = time.monotonic()
        if own_files._wrong(path.lstat(), own_files.SMALL) is None and os.access(path, os.R_OK):
            assert own_files.read(path) == path.read_bytes()  # without root the stranger is this user
        else:
            with pytest.raises(NotOwn):
                own_files.read(path)
            assert own_files.passed_over() is not None
        with pytest.raises(JoinError):
            session_files.read(str(path.parent))
        assert time.monotonic() - began < 3.0


def test_a_folder_that_others_may_write_or_a_link_to_one_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    own_files.write(folder / "name", b"content")
    assert own_files.read(folder / "name") == b"content"
    assert stat.S_IMODE((folder / "name").stat().st_mode) == 0o600
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NotOwn, match="cannot be opened"):
        own_files.read(tmp_path / "link" / "name")
    with pytest.raises(NotOwn, match="is too large"):
        own_files.read(folder / "name", limit=6)
    folder.chmod(0o777)
    for call in (lambda: own_files.read(folder / "name"), lambda: own_files.write(folder / "name", b"")):
        with pytest.raises(NotOwn, match="may be written by others"):
            call()
    assert own_files.files_in(folder, "me") == [folder / "name"]
    (folder / "name").chmod(0o666)
    assert own_files.files_in(folder, "me") == []
    folder.chmod(0o755)
    assert own_files.files_in(folder, "me") == [folder / "name"]  # nobody else can have put it there
    with pytest.raises(FileNotFoundError):
        own_files.read(folder / "other")


def test_only_this_users_folders_are_searched_and_only_a_dead_session_of_his_is_removed(
    tmp_path: Path, targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_files, "_places", lambda: [tmp_path])
    monkeypatch.setattr(session_files, "_here", lambda: "here")
    folders = {name: tmp_path / f"{PREFIX}{name}" for name in ("dead", "open", "strange", "deep")}
    for folder in folders.values():
        folder.mkdir(mode=0o700)
        own_files.write(folder / FILE, json.dumps({**JOIN.__dict__, "pid": 2**22 + 1}).encode())
    own_files.write(folders["deep"] / FILE, b"[" * 60_000)
    folders["open"].chmod(0o777)
    owned(folders["strange"], STRANGER)
    (tmp_path / f"{PREFIX}link").symlink_to(folders["dead"])
    session_files.remove_left()
    assert not folders["dead"].exists()
    left = {"open", "deep"} | ({"strange"} if os.getuid() != STRANGER else set())
    assert {name for name, folder in folders.items() if folder.exists()} == left


def test_a_cache_that_another_user_can_write_is_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_MONITOR_CACHE", str(tmp_path))
    file = user_cache("documents") / "a.json"
    write_checked(file, b"content")
    assert read_checked(file) == b"content"
    file.parent.chmod(0o777)
    assert read_checked(file) is None
    with pytest.raises(PermissionError):
        write_checked(file, b"other")


def test_places_that_are_missing_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNEL_MONITOR_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert own_files.working_folder() == ""
    assert own_files.expanded("/absolute") == Path("/absolute")
    with pytest.raises(NoPlace, match="the working directory was deleted: give an absolute path"):
        own_files.expanded("relative")
    os.chdir(tmp_path)
    with pytest.raises(NoPlace, match="this account has no such home"):
        own_files.expanded("~nobody-of-this-name/x")


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError("deep"), RuntimeError("no thread"), OSError(28, "full")]
)
def test_whatever_fails_at_the_start_leaves_no_exception_in_the_script(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(SamplerClient, "start", fail)
    monitor = Monitor()
    with caplog.at_level(logging.WARNING):
        monitor.start(record=False)
    assert not monitor.running
    assert f"Nothing is measured: {type(error).__name__}" in monitor.status()
    assert [record.exc_info for record in caplog.records] == [None]  # one line, without a traceback
    monkeypatch.undo()
    monkeypatch.setattr(session_files.SessionFiles, "__init__", fail)  # only ranks cannot join
    monitor.start(record=False)
    assert monitor.live_session.client is not None
    monitor.stop()


def test_no_other_module_opens_or_asks_for_shared_places() -> None:
    """ruff's banned-api knows functions; these are methods, which only their names give away."""
    asking = {"expanduser", "home", "cwd"}
    opening = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "stat", "touch"}
    shared = {"cache.py", "ranks/session_files.py", "record/sessions.py"}
    found = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or name == "own_files.py":
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in asking or (called == "absolute" and not node.args) or (name in shared and called in opening):
                found.append(f"{name}:{node.lineno} {called}")
    # The first is a question of privacy, the other one of psutil's about another process.
    assert [entry.split(":")[0] for entry in found] == ["privacy.py"]


def test_a_sessions_folder_has_what_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session_files, "_places", lambda: [tmp_path])
    files = SessionFiles()
    files.write(JOIN)
    assert session_files.read(str(files.folder)) == JOIN
    files.remove()
    assert not files.folder.exists()
