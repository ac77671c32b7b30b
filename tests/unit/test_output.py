"""A file that a person has named: written whole or not at all, and nothing lost that must not be replaced."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from kernel_monitor import output
from kernel_monitor.errors import MonitorError
from kernel_monitor.output import check, is_recording, write
from kernel_monitor.record import format as record_format
from kernel_monitor.record.session_file import SessionFile


def session(path: Path) -> SessionFile:
    """A recording that is being written; nothing of it is in the file itself yet but SQLite's first page."""
    return SessionFile(path, session="1a2b3c4d", origin=1.79e9, max_bytes=1 << 20)


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    assert write(target, "größer\n→") == target
    assert target.read_bytes() == "größer\n→".encode()
    assert names(tmp_path) == ["run.html"]
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask
    assert write(tmp_path / "trace", b"\0\r\n", mode=0o600).read_bytes() == b"\0\r\n"
    assert (tmp_path / "trace").stat().st_mode & 0o777 == 0o600
    longest = tmp_path / ("é" * 127)
    assert write(longest, "x") == longest


def test_a_file_that_is_there_keeps_its_permissions_and_readers_of_it_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    target.write_text("old")
    target.chmod(0o640)
    with target.open() as reader:
        write(target, "new")
        assert reader.read() == "old"
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_links_are_followed_and_stay(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "b" / "real.html").write_text("old")
    (tmp_path / "b" / "second").symlink_to("real.html")
    link, dangling = tmp_path / "a" / "link", tmp_path / "a" / "dangling"
    link.symlink_to("../b/second")
    dangling.symlink_to("../b/new.html")
    assert write(link, "new") == link
    write(dangling, "made")
    assert link.is_symlink()
    assert (tmp_path / "b" / "real.html").read_text() == "new"
    assert (tmp_path / "b" / "new.html").read_text() == "made"
    assert names(tmp_path / "a") == ["dangling", "link"]
    assert names(tmp_path / "b") == ["new.html", "real.html", "second"]


def test_a_device_stays_one(tmp_path: Path) -> None:
    # A terminal: devpts, other than /dev, lets nobody put a file in a device's place, should this ever fail as root.
    master, terminal = os.openpty()
    try:
        device, link = Path(os.ttyname(terminal)), tmp_path / "screen"
        link.symlink_to(device)
        before = device.stat()
        for target in (device, link):
            write(target, "report")
            assert os.read(master, 100) == b"report"
            after = device.stat()
            assert stat.S_ISCHR(after.st_mode)
            assert (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)
        assert link.is_symlink()
    finally:
        os.close(master)
        os.close(terminal)


def test_a_named_pipe_is_written_through(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(MonitorError, match="it is a named pipe without a reader: start the reader first"):
        write(pipe, "x")
    content = b"0123456789" * 50_000  # more than the pipe takes at once
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    while reader.is_alive():
        # Until the thread has opened it, nobody reads.
        with contextlib.suppress(MonitorError):
            write(pipe, content)
            break
    reader.join(20)
    assert read == [content]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert names(tmp_path) == ["pipe"]


def test_a_reader_that_stops_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(output, "PATIENCE_S", 0.2)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(MonitorError, match=r"has read nothing for 0.2 s \([\d,]+ of 1,000,000 bytes were written\)"):
        write(pipe, b"x" * 1_000_000)
    threading.Timer(2.0, os.close, [reader]).start()
    monkeypatch.setattr(output, "PATIENCE_S", 20)
    with pytest.raises(MonitorError, match="its reader has closed it"):
        write(pipe, b"x" * 1_000_000)


def test_open_descriptors_are_written_to(tmp_path: Path) -> None:
    code = (
        "import sys; from kernel_monitor.output import write; sys.stdout.write('before '); "
        "write(sys.argv[1], 'x' * 200_000); sys.stdout.write(' after')"
    )
    (tmp_path / "link").symlink_to("/dev/stdout")
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", str(tmp_path / "link")):
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"before {'x' * 200_000} after")
        with (tmp_path / "log").open("w+") as log:
            log.write("first ")
            log.flush()
            subprocess.run([sys.executable, "-c", code, name], stdout=log, check=True, timeout=60)
            log.seek(0)
            assert log.read() == f"first before {'x' * 200_000} after"
    with pytest.raises(MonitorError, match="it is not open for writing"):
        write("/dev/fd/987654", "x")


def test_a_recording_is_never_replaced_whatever_its_name(tmp_path: Path) -> None:
    live = session(tmp_path / "live")
    whole = session(tmp_path / "whole.html")
    whole.close()
    shutil.copy(tmp_path / "whole.html", tmp_path / "no-id.db")
    with (tmp_path / "no-id.db").open("r+b") as file:
        file.seek(68)
        file.write(bytes(4))
    (tmp_path / "damaged.kmsession").write_bytes(b"no more a database")
    (tmp_path / "link").symlink_to("whole.html")
    os.link(tmp_path / "whole.html", tmp_path / "hard")
    log = [f"live{end}" for end in ("-wal", "-shm", "-journal")]
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    for name in ("live", "whole.html", "no-id.db", "damaged.kmsession", "link", "hard", *log, "whole.html-wal"):
        for attempt in (lambda path: write(path, "x"), check):
            with pytest.raises(MonitorError, match="is a recorded session, or belongs to one, and would be lost"):
                attempt(tmp_path / name)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before
    live.close()
    assert (output.APPLICATION_ID, output.SUFFIX) == (record_format.APPLICATION_ID, record_format.SUFFIX)


def test_other_files_are_not_taken_for_recordings(tmp_path: Path) -> None:
    import sqlite3

    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE meta (key)")
    other.commit()
    other.close()
    (tmp_path / "empty").touch()
    (tmp_path / "text-wal").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    for name in ("other.db", "empty", "text-wal", "pipe", "pipe-wal", "missing", "."):
        assert not is_recording(tmp_path / name)
    assert write(tmp_path / "other.db", "x").read_text() == "x"


def test_where_nothing_can_be_written_the_error_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("gone/x.html")
    kernel = socket.socket(socket.AF_UNIX)
    kernel.bind(str(tmp_path / "s"))
    kernel.close()
    with pytest.raises(ValueError, match="embedded null") as null:
        (tmp_path / "zero\0byte").stat()  # in the words of this Python
    before = names(tmp_path)
    for name, said in {
        ".": "it is a folder. Name a file in it, such as run.html.",
        "missing/run.html": "the folder {}/missing does not exist: name a file in another folder.",
        "file/run.html": "{}/file is not a folder: name a file in another folder.",
        "nowhere": "the folder {}/gone does not exist: name a file in another folder.",
        "circle": "its links lead in a circle: name another file.",
        "s": "it is a socket. Name a file.",
        "x" * 300: "its name is too long: give it a shorter one.",
        "zero\0byte": f"{null.value}. Name another file.",
    }.items():
        for attempt in (lambda path: write(path, "x"), check):
            with pytest.raises(MonitorError, match=r"^Cannot write ") as refused:
                attempt(tmp_path / name)
            assert str(refused.value).endswith(said.format(tmp_path)), refused.value
            assert "Errno" not in str(refused.value)
    with pytest.raises(MonitorError, match="A file without a name cannot be written"):
        write("", "x")
    for name in ("/proc/run.html", "/proc/self/comm"):  # a new file, and one that cannot be replaced
        with pytest.raises(MonitorError, match=r"^Cannot write /proc/.*: no file can be created in /proc"):
            write(name, "x")
    assert names(tmp_path) == before


AS_NOBODY = """
import os, sys
from kernel_monitor.errors import MonitorError
from kernel_monitor.output import write
if os.getuid() == 0:
    os.setuid(65534)  # root may do everything
for name in sys.argv[1:]:
    try:
        write(name, "new")
    except MonitorError as error:
        print(error)
"""


def test_a_write_protected_file_stays() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "kept").write_text("old")
        (folder / "kept").chmod(0o444)
        (folder / "closed").mkdir(0o555)
        attempts = [str(folder / "kept"), str(folder / "closed" / "new"), str(folder / "new")]
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, *attempts], capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        protected, closed = done.stdout.splitlines()
        assert protected.endswith("kept: it is write-protected. Name another file, or change its permissions.")
        assert f"you may not write in {folder}/closed (Permission denied): name a file in another" in closed
        assert (folder / "kept").read_text() == "old"
        assert names(folder) == ["closed", "kept", "new"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """On a small tmpfs where this user may mount one, else only what the system lets a file grow to."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    target = folder / "run.html"
    target.write_text("old")
    try:
        if mounted:
            with pytest.raises(MonitorError, match=r"Cannot write .*run\.html: the disk is full: free space"):
                write(target, "x" * 500_000)
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
            with pytest.raises(MonitorError, match=r"run\.html: .*small is on a read-only file system"):
                write(target, "x")
            subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
        handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(MonitorError, match="larger than is allowed here"):
                write(target, "x" * 200_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert target.read_text() == "old"
        assert names(folder) == ["run.html"]
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "run.html", "new")
    assert names(tmp_path) == []
