"""An account without a home, as any user number has in a container: it is measured, and told where."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..accounts import ACCOUNT, IS_ROOT, owned, python, shared

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
for _ in range(2):
    batches = [batch for (batch,) in DataLoader(TensorDataset(torch.arange(400.0)), batch_size=40)]
print("sum", int(torch.cat(batches).sum()))
"""
# Both forms: in the process itself, and by `kernel-monitor run`.
STARTS = """
import contextlib, io, json, os, sys
from kernel_monitor import monitor
from kernel_monitor.cache import user_cache
from kernel_monitor.cli import main
words = io.StringIO()
monitor.start()
exec(open(sys.argv[1]).read())
monitor.export("report.html")
found = {"recording": monitor.recording, "cache": str(user_cache("documents")), "status": monitor.status()}
monitor.stop()
for record in ("~/x", "x"):  # an argument that has no place is an error with a sentence
    if record == "x":
        os.mkdir("gone"), os.chdir("gone"), os.rmdir("../gone")
    try:
        monitor.configure(record=record)
        found[record] = ""
    except Exception as error:
        found[record] = f"{type(error).__name__}: {error}"
os.chdir(sys.argv[2])
print(json.dumps(found), flush=True)
sys.exit(main(["run", sys.argv[1]]))  # the script takes this process's place
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # the account must get there
        Path(name).chmod(0o755)
        yield Path(name)


def test_its_sessions_are_in_temporary_space(place: Path) -> None:
    temporary, work = shared(place / "tmp"), owned(shared(place / "work"), ACCOUNT)
    (place / "train.py").write_text(SCRIPT)
    environment = {"TMPDIR": str(temporary)}
    if not IS_ROOT:  # the tests' own account has a home: it cannot be written
        environment |= {"HOME": "/proc/nowhere"}
    written = python(STARTS, str(place / "train.py"), str(work), environment=environment, cwd=work)
    found = json.loads(next(line for line in written.splitlines() if line.startswith("{")))
    spare = temporary / f"kernel_monitor-{ACCOUNT}"
    assert found["recording"]["state"] == "moved"
    assert (work / "report.html").stat().st_size > 10_000
    assert Path(found["recording"]["path"]).parent == spare / "sessions"
    assert f"the session is recorded in {spare / 'sessions'}" in found["status"]
    assert not IS_ROOT or Path(found["cache"]) == spare / "documents"
    assert written.count("sum 79800") == 2
    assert f"recorded: {spare / 'sessions'}" in written
    assert "which may be emptied at a restart" in written.partition("recorded: ")[2]
    assert "Traceback" not in written
    assert "nothing was measured" not in written
    assert found["x"].startswith(
        "SessionError: There is no folder for the recordings: 'x' cannot be found, as the working"
    )
    if IS_ROOT:
        assert "'~/x' cannot be found, as this account has no such home" in found["~/x"]
    assert {folder.stat().st_mode & 0o077 for folder in (spare, spare / "sessions")} == {0}


PLACES = """
from kernel_monitor.cache import user_cache
from kernel_monitor.record.sessions import choose_folder, sessions
print(choose_folder(), user_cache("x"), sessions())
"""


@pytest.mark.parametrize("home", ["", "relative", "/proc/nowhere"])
def test_a_home_that_is_empty_or_no_folder_raises_nothing(place: Path, home: str) -> None:
    temporary = shared(place / "tmp")
    written = python(PLACES, environment={"TMPDIR": str(temporary), "HOME": home}, cwd=place)
    if IS_ROOT or home == "/proc/nowhere":
        assert f"the session is recorded in {temporary}" in written
    assert written.endswith("[]\n")
