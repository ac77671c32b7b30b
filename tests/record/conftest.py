from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the test's session; nothing is there yet."""
    return tmp_path / "a.kmsession"
