"""What lies outside this package and is got over: one line with cause and remedy on stderr, and an exact loop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The third argument is waited for in the monitor's status.
TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from kernel_monitor import monitor

loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=4)
plain = [batch.tolist() for (batch,) in loader]
monitor.start()
found = [batch.tolist() for _ in range(2) for (batch,) in loader]
try:
    monitor.switch(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
found += [batch.tolist() for (batch,) in loader]
while sys.argv[2] not in monitor.status():
    time.sleep(0.05)
print(found == 3 * plain)
"""


def run(*command: str, arguments: tuple[str, str] = ("torchvision", ""), **environment: str) -> tuple[list[str], str]:
    """The lines on stderr of a training, but what torch writes where there is no /proc, and its stdout."""
    paths = os.pathsep.join(filter(None, (environment.pop("FIRST", ""), str(ROOT))))
    # Of its own: sessions that are moved there would be in every other test's list of sessions.
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        done = subprocess.run(
            [*command, "-c", TRAINING, *arguments],
            env={**os.environ, "TMPDIR": temporary, **environment, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True", done.stdout
    return [line for line in done.stderr.splitlines() if "cpuinfo" not in line], done.stdout


def permitted(*command: str) -> bool:
    return bool(shutil.which(command[0])) and subprocess.run([*command, "true"], capture_output=True).returncode == 0


WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
OWN_MOUNTS = ("unshare", "--mount")


@pytest.mark.skipif(os.name == "nt" or (os.getuid() == 0 and not permitted(*WITHOUT_RIGHTS)), reason="root sees all")
def test_the_folder_of_recordings_is_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    prefix: tuple[str, ...] = ()
    if os.getuid() == 0:  # root without the rights by which it reads what is somebody else's
        os.chown(closed, 65534, 65534)
        prefix = WITHOUT_RIGHTS
    (said,), _ = run(*prefix, sys.executable, KERNEL_MONITOR_SESSIONS=str(closed / "sessions"))
    assert said.startswith("Earlier recordings cannot be listed; KERNEL_MONITOR_SESSIONS=FOLDER names another folder (")
    assert "Permission denied" in said


@pytest.mark.skipif(not permitted(*OWN_MOUNTS), reason="mount namespaces are not permitted here")
def test_proc_is_hidden(tmp_path: Path) -> None:
    hidden = 'mount -t tmpfs none /proc && exec "$0" "$@"'
    (said,), _ = run(
        *OWN_MOUNTS, "sh", "-c", hidden, sys.executable, arguments=("torchvision", "the sampler ended"),
        KERNEL_MONITOR_SESSIONS=str(tmp_path),
    )  # fmt: skip
    assert said.startswith("The sampler could not be started or read, and is tried again; this is logged once (")
    assert "/proc does not show this process: mount it where this program runs" in said


def test_python_leaves_docstrings_out(tmp_path: Path) -> None:
    said, out = run(sys.executable, "-OO", arguments=("dali-cpu", "is running"), KERNEL_MONITOR_SESSIONS=str(tmp_path))
    assert said == []
    assert (
        "BackendUnavailable dali-cpu cannot be used: DALI cannot be imported where Python leaves docstrings out" in out
    )
    assert "start it without -OO" in out


@pytest.mark.parametrize("package", ["torchvision", "PIL"])
def test_a_package_that_the_engines_import_is_broken(tmp_path: Path, package: str) -> None:
    (tmp_path / "first" / package).mkdir(parents=True)
    broken = f"raise OSError('lib{package}.so: undefined symbol')"
    (tmp_path / "first" / package / "__init__.py").write_text(broken, encoding="utf-8")
    said, _ = run(sys.executable, FIRST=str(tmp_path / "first"), KERNEL_MONITOR_SESSIONS=str(tmp_path))
    assert [line for line in said if "Traceback" in line] == []
    (line,) = [line for line in said if "cannot be switched" in line]
    assert f"until this package is repaired (OSError: lib{package}.so: undefined symbol)" in line
