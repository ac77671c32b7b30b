"""Some of the scripts as notebooks: cell by cell, in a real kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kernel.kernels import kernel

from .cases import Case, in_cells
from .comparison import differences, report
from .conftest import Scripts
from .seed import SEED, told
from .text import script

CASES = in_cells(SEED)


@pytest.mark.parametrize("case", CASES, ids=map(str, CASES))
def test_cells_deliver_what_plain_torch_delivers(case: Case, scripts: Scripts, files: Path, tmp_path: Path) -> None:
    text = script(case, files)
    (tmp_path / "script.py").write_text(text)
    with kernel() as page:
        page.run("%load_ext kernel_monitor")
        for cell in text.split("# %%\n"):
            page.run(cell, timeout=120)
        ours = json.loads(page.value("json.dumps(report)"))
    expected, wrong_plain = report(scripts.plain(case.setting).result())
    assert not wrong_plain, f"the plain script itself: {wrong_plain}"
    wrong = differences(case, ours, expected)
    assert not wrong, told(wrong, tmp_path / "script.py")
