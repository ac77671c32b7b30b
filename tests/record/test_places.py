"""Sessions go to a local folder that can be written, and people are told where and why."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from kernel_monitor.errors import SessionError
from kernel_monitor.record import sessions
from kernel_monitor.record.sessions import SessionFolder, choose_folder, network_file_system, new_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home and temporary space of their own."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv(sessions.OVERRIDE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


MOUNTS = [
    ("/", "ext4"),
    ("/proc", "proc"),
    ("/home", "nfs4"),
    ("/home/local", "xfs"),
    ("/mnt/with blank", "fuse.sshfs"),
    ("/data", "overlay"),
    ("/over", "nfs"),
    ("/over", "tmpfs"),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/.local/state", "nfs4"),
        ("/home/local/ann", None),
        ("/homestead/x", None),
        ("/mnt/with blank/deep/er", "fuse.sshfs"),
        ("/data/x", None),
        ("/over/x", None),
        ("/var/spool", None),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(path: str, kind: str | None) -> None:
    assert network_file_system(Path(path), MOUNTS) == kind


def test_the_usual_place_is_the_users_state_directory(home: Path) -> None:
    place = choose_folder()
    assert place.message is None
    assert place.path.is_relative_to(home / "home")
    assert place.path.parts[-2:] == ("kernel_monitor", "sessions")
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.path.parent.stat().st_mode) == 0o700


def test_a_wanted_folder_and_the_environment_come_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.OVERRIDE, str(home / "named"))
    assert choose_folder() == SessionFolder(home / "named", None)
    assert choose_folder(home / "wanted") == SessionFolder(home / "wanted", None)
    assert (home / "wanted").is_dir()


def test_a_home_on_a_network_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_mounts", lambda: [("/", "ext4"), (str(home / "home"), "nfs4")])
    place = choose_folder()
    assert place.path == home / "tmp" / f"kernel_monitor-{os.getuid()}" / "sessions"
    assert stat.S_IMODE(place.path.parent.stat().st_mode) == 0o700
    assert place.message is not None
    assert "is on a network file system (nfs4), where SQLite's log does not work" in place.message
    assert str(place.path) in place.message


def test_a_home_that_is_missing_or_a_file_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    place = choose_folder(home / "file" / "sessions")
    assert place.message is not None
    assert "cannot be written" in place.message or "is not a folder" in place.message
    assert place.path.is_relative_to(home / "tmp")
    monkeypatch.setenv("HOME", str(home / "nobody"))
    assert choose_folder().message is None  # it is made


READ_ONLY = """
import os, sys, tempfile
from pathlib import Path
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)  # root may write everywhere
from kernel_monitor.record.sessions import choose_folder
tempfile.tempdir = sys.argv[2]
place = choose_folder(Path(sys.argv[1]))
print(place.path, place.message, sep="\\n")
"""


def test_a_folder_that_may_not_be_written_is_told() -> None:
    """As a user who may not, for real: the interpreter must be one that this user may start."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        for name, mode in (("home", 0o755), ("tmp", 0o777)):
            (root / name).mkdir()
            (root / name).chmod(mode)
        root.chmod(0o755)
        if os.getuid() != 0:
            (root / "home").chmod(0o555)
        # The modules are loaded before the rights are given up.
        command = [sys.executable, "-c", "import kernel_monitor.record.sessions, platformdirs\n" + READ_ONLY]
        done = subprocess.run(
            [*command, str(root / "home" / "sessions"), str(root / "tmp")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        path, message = done.stdout.strip().split("\n")
        assert Path(path).is_relative_to(root / "tmp")
        assert "cannot be written (Permission denied)" in message


def test_a_stand_in_that_somebody_else_made_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spare = sessions.temporary_folder()
    spare.mkdir(parents=True)
    spare.parent.chmod(0o777)
    (home / "file").write_text("")
    assert choose_folder(home / "file").path == spare
    assert stat.S_IMODE(spare.parent.stat().st_mode) == 0o700  # ours, and closed to others
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(sessions, "temporary_folder", lambda: spare)
    with pytest.raises(SessionError, match=r"Permission denied|belongs to another user"):
        choose_folder(home / "file")


def test_sessions_that_another_user_put_into_temporary_space_are_not_ours(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = sessions.temporary_folder()
    spare.mkdir(parents=True)
    assert spare in sessions.session_folders()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    monkeypatch.setattr(sessions, "temporary_folder", lambda: spare)
    assert spare not in sessions.session_folders()


def test_a_session_has_one_name(home: Path) -> None:
    place = choose_folder(home / "x")
    name = new_file(place, "1a2b3c4d5e6f", 1.79e9).name
    assert name == time.strftime("%Y-%m-%d-%H%M%S", time.localtime(1.79e9)) + "-1a2b3c4d.kmsession"
    assert new_file(place.path, "1a2b3c4d5e6f", 1.79e9) == place.path / name
