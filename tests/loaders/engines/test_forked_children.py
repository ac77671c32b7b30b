"""Children that the user's code forks after clicks end as with plain torch, and their parent's epoch is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import make_folder
from .forking_children import ENGINES

SCRIPT = Path(__file__).with_name("forking_children.py")


@pytest.mark.parametrize("kind", ["wrapped", "attached"])
def test_a_forked_child_ends_as_with_plain_torch(kind: str, tmp_path: Path) -> None:
    make_folder(tmp_path / "images", 24)
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path / "images"), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["engine"] for line in found] == ENGINES
    assert [line for line in found if line["wrong"] or line["samples"] != 24] == []
